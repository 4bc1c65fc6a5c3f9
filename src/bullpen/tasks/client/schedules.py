"""`queue.schedules`: list, pause, resume, run and remove the schedules of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from bullpen.errors import InvalidOption, InvalidOptionType, ScheduleNotFound, closest
from bullpen.tasks.client.backend import QueueBackend
from bullpen.tasks.client.job import Job
from bullpen.tasks.model import schedule_changes
from bullpen.tasks.model.ids import SCHEDULES, schedule_id
from bullpen.tasks.model.info import ScheduleInfo, in_zone, schedule_info_of
from bullpen.tasks.model.options import whole
from bullpen.tasks.model.store_move import through_mark
from bullpen.tasks.model.task import Task, writable
from bullpen.tasks.storage.port import Move
from bullpen.tasks.storage.schedules import all_schedules

List = list  # in the class, `list` is a method
MOST_TIMES = 1000


class Schedules:
    """The schedules of a queue, each by its key: `schedule_key`, or the name of the function that it is declared on.

        queue.schedules.pause("app.cleanup")

    The key of a schedule that was enqueued without one is the id of its task. All methods but `list` raise
    ScheduleNotFound.
    """

    def __init__(self, backend: QueueBackend) -> None:
        self._backend = backend

    def list(self) -> List[ScheduleInfo]:
        """All schedules, sorted by key."""
        return self._backend.run("list", self.alist())

    async def alist(self) -> List[ScheduleInfo]:
        storage = await self._backend.clients.get()
        now = await storage.now()
        return sorted((schedule_info_of(task, now) for task in await all_schedules(storage)), key=lambda one: one.key)

    def get(self, key: str) -> ScheduleInfo:
        """One schedule: its times, its last run, and whether it is paused."""
        return self._backend.run("get", self.aget(key))

    async def aget(self, key: str) -> ScheduleInfo:
        task = await self._task(key)
        return schedule_info_of(task, await (await self._backend.clients.get()).now())

    def next_times(self, key: str, count: int = 5) -> Sequence[datetime]:
        """Its next times, in its own time zone. Empty while it is paused; at most one if it runs by an interval."""
        return self._backend.run("next_times", self.anext_times(key, count))

    async def anext_times(self, key: str, count: int = 5) -> Sequence[datetime]:
        whole("count", count, 1, MOST_TIMES, f"a whole number from 1 to {MOST_TIMES}")
        task = await self._task(key)
        now = await (await self._backend.clients.get()).now()
        return [in_zone(task, at) for at in schedule_changes.next_times(task, now, count)]

    def pause(self, key: str) -> bool:
        """Start no further run; a running one continues. False if it was paused already. A pause outlives restarts."""
        return self._backend.run("pause", self.apause(key))

    async def apause(self, key: str) -> bool:
        return await self._change(key, schedule_changes.paused)

    def resume(self, key: str) -> bool:
        """Continue with its next time. Times that passed during the pause are skipped. False if it was not paused."""
        return self._backend.run("resume", self.aresume(key))

    async def aresume(self, key: str) -> bool:
        return await self._change(key, schedule_changes.resumed)

    def run(self, key: str) -> Job[Any]:
        """Run it once now, also if it is paused; its times do not change. If it is running already, no run is added.
        `result` of the returned job waits for the end of that run.
        """
        return self._backend.run("run", self.arun(key))

    async def arun(self, key: str) -> Job[Any]:
        task = await self._task(key)
        storage = await self._backend.clients.get()
        changed = await storage.change([task.id], through_mark(schedule_changes.run_now))
        return Job(
            self._backend,
            task.id,
            is_new=bool(changed),
            completed_runs=(changed[0] if changed else task).completed_runs,
        )

    def remove(self, key: str) -> None:
        """End it for good. A running run is cancelled.

        Raises InvalidOption for a schedule that the code declares: the next worker would create it again.
        """
        self._backend.run("remove", self.aremove(key))

    async def aremove(self, key: str) -> None:
        task = await self._task(key)
        if any(definition.schedule_key == key for definition in self._backend.registry):
            allowed = (
                f"one that the code does not declare; take cron= or interval= out of {task.func_path}, or pause it"
            )
            raise InvalidOption("key", key, allowed)
        await (await self._backend.clients.get()).cancel([task.id])

    async def _change(self, key: str, move: Move) -> bool:
        task = await self._task(key)
        return bool(await (await self._backend.clients.get()).change([task.id], through_mark(move)))

    async def _task(self, key: str) -> Task:
        if not isinstance(key, str) or not key:
            raise InvalidOptionType("key", key, "the key of a schedule, a string")
        key = writable(key)
        storage = await self._backend.clients.get()
        for task in await storage.get([schedule_id(key), key if key.startswith(SCHEDULES) else ""]):
            if task is not None and task.repeats and not task.is_final:
                return task
        known = sorted(one.key for one in await self.alist())
        raise ScheduleNotFound(key=key, known=tuple(known), suggestion=closest(key, known))

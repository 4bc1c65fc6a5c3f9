"""`crash_everywhere`: tasks run again and again, and the worker dies at another point each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import msgspec

from bullpen.errors import InvalidOption, QueueError
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.task import (
    NEVER,
    PENDING,
    AttemptError,
    Settlement,
    Step,
    Task,
    TaskStatus,
    crash,
)
from bullpen.tasks.storage.port import AttemptKey, Storage, TaskFilter
from bullpen.testing.clock import ManualClock
from bullpen.testing.isolation import at_address, in_memory, in_sqlite
from bullpen.testing.running import NAME, _here_or_on_loop, _InlineLane

MOST_ATTEMPTS = 10_000  # of all tasks in one run
MOST_TASKS = 1000

_Isolated = Callable[[TaskQueue, ManualClock], AbstractContextManager[TaskQueue]]

_STORES: dict[str, _Isolated] = {
    "memory": in_memory,
    "sqlite": in_sqlite,
}

Outcome = tuple[TaskStatus, Any, object]  # of the task, its result or error, and the effects


class WorkerDied(BaseException):
    """Ends the functions of a worker that has died. A real death raises nothing; from here on nothing is written."""


def crash_everywhere(
    queue: TaskQueue,
    start: Callable[[], Job[Any]],
    *,
    effects: Callable[[], object] = lambda: None,
    events: Mapping[str, Any] | None = None,
    store: Literal["memory", "sqlite"] | Callable[[], AbstractContextManager[str]] = "memory",
) -> list[str]:
    """Run a task to its end; then once more for each point at which its worker could die, and let the worker die there.

        def start():
            charged.clear()
            return checkout.enqueue(42)

        crash_everywhere(queue, start, effects=lambda: set(charged))

    `start` enqueues the task, and resets what its functions change. The points are: after each claim, before and after
    each step is kept, and before and after each attempt is settled. After the death another worker goes on. Sleeps take
    no time. `events`: payloads by name; each event comes when a task waits for it and nothing else is due. A wait for
    any other event ends when its time is over. Each run has a store of its own: in memory, or a SQLite file.
    For another store, `store` is a function that returns a context manager, which gives the address of an empty one.

    Raises AssertionError if a run ends otherwise than the first one (status, result, `effects`), or if a kept step runs
    again. Returns the points.
    """
    isolated = _at(store) if callable(store) else _STORES.get(store)
    if isolated is None:
        raise InvalidOption("store", store, "'memory', 'sqlite', or a function that gives an address")
    expected, points = _CrashRun(queue, start, effects, events or {}, isolated).run(None)
    for number, point in enumerate(points):
        found, _ = _CrashRun(queue, start, effects, events or {}, isolated).run(number)
        if found != expected:
            raise AssertionError(f"a worker that dies {point} changes the end: {found!r} in place of {expected!r}")
    return points


def _at(store: Callable[[], AbstractContextManager[str]]) -> _Isolated:
    @contextmanager
    def isolated(queue: TaskQueue, clock: ManualClock) -> Iterator[TaskQueue]:
        with store() as address, at_address(queue, address):
            yield queue

    return isolated


class _CrashRun:
    """One run. `kept`: the names of steps that the store has, by task and run."""

    def __init__(
        self,
        queue: TaskQueue,
        start: Callable[[], Job[Any]],
        effects: Callable[[], object],
        events: Mapping[str, Any],
        isolated: _Isolated,
    ) -> None:
        self._queue = queue
        self._start = start
        self._effects = effects
        self._events = dict(events)  # that have not come yet
        self._isolated = isolated
        self._dies_at: int | None = None
        self._clock = ManualClock()
        self._follows_clock = isolated in _STORES.values()
        self.ahead = 0.0  # seconds by which time has passed here that has not in the store
        self.is_dead = False
        self.points: list[str] = []
        self.kept: set[tuple[str, int, str]] = set()
        self.repeated: list[str] = []

    def run(self, dies_at: int | None) -> tuple[Outcome, list[str]]:
        self._dies_at = dies_at
        with self._isolated(self._queue, self._clock):
            job = self._start()
            while wait := _here_or_on_loop(self._queue, self._run_due()):
                if self._follows_clock:
                    self._clock.advance(wait)
                else:
                    self.ahead += wait
            outcome = self._outcome(job)
        if self.repeated:
            where = "" if dies_at is None else f" after a worker has died {self.points[dies_at]}"
            raise AssertionError(f"the kept step {self.repeated[0]!r} has run again{where}")
        return outcome, self.points

    async def _run_due(self) -> float:
        """Run what is due, with another worker after a death. Returns the seconds until the next task is due, or 0."""
        storage = await self._queue.astorage()
        if self.ahead:
            await self._make_due(storage)
        try:
            await _MortalLane(self._queue, storage, self).run_all(MOST_ATTEMPTS, raises=False)
        except WorkerDied:
            self.is_dead = False
            await storage.rescue_expired(_crashed, limit=MOST_TASKS, dead_workers=[NAME])
            await _MortalLane(self._queue, storage, self).run_all(MOST_ATTEMPTS, raises=False)
        pending = await storage.list(TaskFilter(statuses=(PENDING,)), limit=MOST_TASKS)
        now = await storage.now() + self.ahead
        for name in sorted({task.awaits for task in pending if task.awaits is not None} & self._events.keys()):
            await self._queue.aemit(name, self._events.pop(name))
            return 0.001
        return min((task.eta - now + 0.001 for task in pending if task.eta < NEVER), default=0.0)

    async def _make_due(self, storage: Storage) -> None:
        """The store's clock goes on as it likes, so the tasks whose time has come are told to start now."""
        pending = await storage.list(TaskFilter(statuses=(PENDING,)), limit=MOST_TASKS)

        def due(task: Task, now: float) -> Task | None:
            return msgspec.structs.replace(task, eta=now) if now < task.eta <= now + self.ahead else None

        await storage.change([task.id for task in pending], due)

    def _outcome(self, job: Job[Any]) -> Outcome:
        info = job.info()
        try:
            value = job.result(timeout=0)
        except QueueError:
            value = None if info.error is None else (info.error.type, info.error.message)
        return info.status, value, self._effects()

    def point(self, words: str) -> None:
        """Here a worker may die."""
        if self.is_dead:
            raise WorkerDied
        self.points.append(words)
        if len(self.points) - 1 == self._dies_at:
            self.is_dead = True
            raise WorkerDied


class _MortalLane(_InlineLane):
    """Runs tasks as `run_until_empty` does, until its worker dies."""

    def __init__(self, queue: TaskQueue, storage: Storage, run: _CrashRun) -> None:
        super().__init__(queue, storage)
        self._crash_run = run

    async def _claim(self) -> Task | None:
        task = await super()._claim()
        if task is not None:
            started = (task.started_at or 0.0) + self._crash_run.ahead
            task = msgspec.structs.replace(task, started_at=started)
            self._crash_run.point(f"after the claim of attempt {task.attempt} of {task.func_path}")
        return task

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        self._crash_run.point(f"before step {step.name!r} of attempt {hold.attempt} is kept")
        (task,) = await self._storage.get([hold.id])
        kept = await super().save_step(hold, step)
        has_ended = step.result is not None or step.error is not None
        if kept and has_ended and task is not None:
            key = (hold.id, task.completed_runs, step.name)
            if key in self._crash_run.kept and any(one.name == step.name for one in task.steps):
                self._crash_run.repeated.append(step.name)
            self._crash_run.kept.add(key)
        self._crash_run.point(f"after step {step.name!r} of attempt {hold.attempt} is kept")
        return kept

    async def _settle(self, settlement: Settlement) -> None:
        self._crash_run.point(f"before attempt {settlement.attempt} is settled as {settlement.status}")
        await super()._settle(settlement)
        self._crash_run.point(f"after attempt {settlement.attempt} is settled as {settlement.status}")


def _crashed(task: Task, now: float) -> Settlement:
    error = AttemptError(kind="crash", attempt=task.attempt, at=now, message="its worker died", worker=NAME)
    return crash(task, error)

"""Schedules in a store. Each is one task: it keeps its id, which is made of its key, and runs again and again.

So there is nobody who has to be awake to make tasks of schedules, and nothing that could make two of one: a time of a
schedule is the `eta` of its task, and whoever claims it runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bullpen.errors import ScheduleBusy
from bullpen.storage.port import Storage, TaskFilter
from bullpen.tasks.ids import SCHEDULES
from bullpen.tasks.moving import through_mark
from bullpen.tasks.planning import paused, rescheduled
from bullpen.tasks.task import PENDING, Task, cancelled_by_operator

PAGE = 500


async def all_schedules(storage: Storage) -> list[Task]:
    """Every task that runs again and again, in the order of their ids."""
    found: list[Task] = []
    after = SCHEDULES
    while page := await storage.list(TaskFilter(), limit=PAGE, after=after):
        found += [task for task in page if task.repeats and not task.is_final]
        after = page[-1].id
        if not after.startswith(SCHEDULES):
            break
    return found


async def put(storage: Storage, task: Task) -> bool:
    """Have the schedule that `task` is, whether or not there was one of its id. True if there was none.

    Raises ScheduleBusy if it is to go to another queue, and runs.
    """
    (there,) = await storage.get([task.id])
    is_new = there is None or there.is_final
    kept = there
    while kept is None or kept.queue != task.queue:  # again, if somebody else is faster
        if kept is not None:
            await _leave_queue(storage, kept)
        (kept,) = await storage.add([task])
    await storage.change([task.id], through_mark(lambda kept, now: rescheduled(kept, task, now)))
    if there is not None and there.hold == "paused":
        await storage.change([task.id], through_mark(paused))
    return is_new


async def _leave_queue(storage: Storage, there: Task) -> None:
    """A task stays in its queue, so another one takes its place: not while it runs, or there would be two."""
    if not there.is_final and not await storage.change([there.id], _cancelled_if_it_waits):
        assert there.schedule is not None
        raise ScheduleBusy(key=there.schedule.key, queue=there.queue)
    await storage.delete([there.id])


def _cancelled_if_it_waits(task: Task, now: float) -> Task | None:
    return cancelled_by_operator(task, now) if task.status is PENDING else None


async def declare(storage: Storage, wanted: Sequence[Task], known: Collection[str]) -> list[str]:
    """Have the schedules that the code declares, and no more those that it declared once: of functions that are
    `known` here. Returns the keys of those that have to wait for the end of a run.
    """
    busy, keys = [], {task.id for task in wanted}
    for task in wanted:
        try:
            await put(storage, task)
        except ScheduleBusy as error:
            busy.append(error.key)
    for there in await all_schedules(storage):
        schedule = there.schedule
        if schedule is None or not schedule.declared or there.id in keys or there.func_path not in known:
            continue
        if not await storage.change([there.id], _cancelled_if_it_waits):
            busy.append(schedule.key)
    return busy

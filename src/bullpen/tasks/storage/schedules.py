"""Schedules in a store. A schedule is one task, with an id made of its key, that runs again and again.

So no scheduler process is needed, and no time can produce two runs: the next time of a schedule is the `eta` of its
task, and the worker that claims the task runs it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bullpen.errors import ScheduleBusy
from bullpen.tasks.model.ids import SCHEDULES
from bullpen.tasks.model.schedule_changes import paused, redeclared
from bullpen.tasks.model.store_move import through_mark
from bullpen.tasks.model.task import PENDING, Task, cancelled_by_operator
from bullpen.tasks.storage.port import Storage, TaskFilter

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
    """Create the schedule, or change the existing one of the same id. True if it was created.

    Raises ScheduleBusy if it moves to another queue while it runs.
    """
    (existing,) = await storage.get([task.id])
    if existing is not None and existing.unreadable and existing.is_final:  # a worker has set it aside
        await storage.delete([existing.id])
        existing = None
    is_new = existing is None or existing.is_final
    kept = existing
    while kept is None or kept.queue != task.queue:  # repeat if another client was faster
        if kept is not None:
            await _leave_queue(storage, kept)
        (kept,) = await storage.add([task])
    await storage.change([task.id], through_mark(lambda kept, now: redeclared(kept, task, now)))
    if existing is not None and existing.hold == "paused":
        await storage.change([task.id], through_mark(paused))
    return is_new


async def _leave_queue(storage: Storage, existing: Task) -> None:
    """Delete the schedule, because a task cannot change its queue. Not while it runs, or two runs would overlap."""
    if not existing.is_final and not await storage.change([existing.id], _cancelled_if_pending):
        key = existing.id if existing.schedule is None else existing.schedule.key
        raise ScheduleBusy(key=key, queue=existing.queue)
    await storage.delete([existing.id])


def _cancelled_if_pending(task: Task, now: float) -> Task | None:
    return cancelled_by_operator(task, now) if task.status is PENDING else None


async def declare(storage: Storage, wanted: Sequence[Task], known: Collection[str]) -> list[str]:
    """Create or change the schedules that the code declares, and cancel those that it declared before; only those of
    functions that are `known` here. Returns the keys of the schedules that are running and stay as they are.
    """
    busy, keys = [], {task.id for task in wanted}
    for task in wanted:
        try:
            await put(storage, task)
        except ScheduleBusy as error:
            busy.append(error.key)
    for existing in await all_schedules(storage):
        schedule = existing.schedule
        if schedule is None or not schedule.declared or existing.id in keys or existing.func_path not in known:
            continue
        if not await storage.change([existing.id], _cancelled_if_pending):
            busy.append(schedule.key)
    return busy

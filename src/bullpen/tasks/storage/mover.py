"""Moves tasks from one store to another while workers and producers keep using both.

Each batch takes three steps. Each step is atomic in its store and safe to repeat:

1. *Mark*: the mover marks pending tasks at the source. From then on no worker starts them there.
2. *Import*: the destination keeps them as they were before the mark, with their ids and their history.
3. *Remove*: the source deletes them.

Finished tasks need no mark. The mover waits for running tasks until they end or are released. Tasks of a chain or a
group move together while none of them runs, because the store that ends a task looks for its successor in the same
store. The successor is imported first; finished tasks with results that it needs are imported before that.

A killed mover leaves at most one marked batch. The next mover finds it and continues with step 2; the destination
knows tasks that have arrived by their ids. So no task is lost, and no task stays in both stores after the next move.

One case stays open after a kill between 2 and 3: a task may arrive, end and be pruned at the destination before the
next mover looks for it. The mover then imports it again, as every task runs at least once. A task with
`at_most_once` is imported as failed ("lost").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from bullpen import primitives
from bullpen.errors import QueueError
from bullpen.tasks.model.store_move import mark_of, marked, may_have_been_there, unmarked
from bullpen.tasks.model.task import CANCELLED, FAILED, FINAL, NEVER, PENDING, RUNNING, AttemptError, Task
from bullpen.tasks.storage.port import Storage, TaskFilter

BATCH = 500
SHORTEST_TTL = 3600.0  # seconds for which the destination keeps an event at least: the source has it for a task
MOVABLE = TaskFilter(statuses=(PENDING, *sorted(FINAL, key=str)))


class Mover:
    """`to`: the address of the destination, which each mark holds. `stopped`: whether to end after this batch."""

    def __init__(
        self, source: Storage, destination: Storage, to: str, *, batch: int = BATCH, stopped: Callable[[], bool] = bool
    ) -> None:
        self._source = source
        self._destination = destination
        self._to = to
        self._batch = batch
        self._stopped = stopped
        self.moved = 0
        self.left: dict[str, str] = {}  # ids of tasks that cannot move, and why

    async def take_queues_along(self) -> None:
        """Copy pauses and limits before any task can start there. The destination keeps its own limits."""
        for queue in sorted(await self._source.paused()):
            await self._destination.pause(queue)
        known = {limit.queue for limit in await self._destination.limits()}
        for limit in await self._source.limits():
            if limit.queue not in known:
                await self._destination.set_limit(limit)

    async def _take_events_along(self) -> None:
        """Copy the events. The destination keeps its own, and wakes the tasks that wait for one."""
        after = None
        now = await self._source.now()
        while page := await self._source.events(limit=self._batch, after=after):
            after = page[-1].name
            for event in page:
                ttl = None if event.expires_at >= NEVER else max(event.expires_at - now, SHORTEST_TTL)
                await self._destination.emit(event.name, event.payload, ttl)

    async def sweep(self, progress: Callable[[int], object] = bool) -> int:
        """Go once through all tasks that do not run, and through the events. Returns how many tasks have moved."""
        before, after = self.moved, None
        await self._take_events_along()
        together: set[str] = set()  # ids of tasks that were handled with their neighbours
        while not self._stopped():
            page = await self._source.list(MOVABLE, limit=self._batch, after=after)
            if not page:
                break
            after = page[-1].id
            self.left |= {task.id: f"it cannot be read ({task.unreadable})" for task in page if task.unreadable}
            gone = await self._move([task for task in page if task.id not in self.left and not _neighbours(task)])
            for task in page:
                if _neighbours(task) and task.id not in together and not self._stopped():
                    tasks = await self._all_around(task)
                    together.update(task.id for task in tasks)
                    gone += await self._move_together(tasks)
            self.moved += gone
            progress(gone)
        return self.moved - before

    async def running(self) -> int:
        return sum(by_status.get(RUNNING, 0) for by_status in (await self._source.counts()).values())

    async def give_up(self) -> int:
        """Remove the marks at the source, so that workers start these tasks there. Returns how many."""
        released, after = 0, None
        waiting = TaskFilter(statuses=(PENDING,))
        while page := await self._source.list(waiting, limit=self._batch, after=after):
            after = page[-1].id
            ids = [task.id for task in page if mark_of(task) is not None]
            released += len(await self._release(ids)) if ids else 0
        return released

    async def _move(self, tasks: Sequence[Task]) -> int:
        self._reject_other_moves(tasks)
        primitives.failpoint("move.before_mark")
        resumed = [task for task in tasks if mark_of(task) is not None]
        fresh = await self._mark([task for task in tasks if task.status is PENDING and mark_of(task) is None])
        over = [task for task in tasks if task.status in FINAL and mark_of(task) is None]
        primitives.failpoint("move.after_mark")
        arrived = await self._put_again(resumed) + await self._put(fresh) + await self._put(over)
        primitives.failpoint("move.after_put")
        removed = await self._source.export_tasks(arrived)
        primitives.failpoint("move.after_remove")
        return len(removed)

    async def _all_around(self, task: Task) -> list[Task]:
        """A task with its predecessors and successors at the source, theirs, and so on."""
        found: dict[str, Task] = {}
        more = [task]
        while more:
            found |= {task.id: task for task in more}
            ids = {task_id: None for task in more for task_id in _neighbours(task) if task_id not in found}
            more = [task for task in await self._source.get(list(ids)) if task is not None] if ids else []
        return list(found.values())

    async def _move_together(self, tasks: Sequence[Task]) -> int:
        """Move tasks that depend on each other: all of them, or none while one of them runs."""
        self._reject_other_moves(tasks)
        if any(task.status is RUNNING or task.id in self.left or task.unreadable for task in tasks):
            return 0
        primitives.failpoint("move.before_mark")
        wanted = [task for task in tasks if task.status is PENDING and mark_of(task) is None]
        fresh = {task.id: task for task in await self._mark(wanted)}
        if len(fresh) < len(wanted):  # a worker has just started one
            await self._release(list(fresh))
            return 0
        primitives.failpoint("move.after_mark")
        arrived: list[Task] = []
        for level in _levels([fresh.get(task.id, task) for task in tasks]):
            arrived += await self._put_again([task for task in level if mark_of(task) and task.id not in fresh])
            arrived += await self._put([task for task in level if not mark_of(task) or task.id in fresh], release=False)
        primitives.failpoint("move.after_put")
        removed = await self._source.export_tasks(arrived)
        primitives.failpoint("move.after_remove")
        return len(removed)

    def _reject_other_moves(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            mark = mark_of(task)
            if mark is not None and mark.to != self._to:
                raise QueueError(
                    f"task {task.id} is already moving to {mark.to}; finish that move first, or undo it with --give-up"
                )

    async def _mark(self, tasks: Sequence[Task]) -> list[Task]:
        """Mark the tasks that are still pending, and return them."""
        if not tasks:
            return []
        now = await self._source.now()
        return list(await self._source.change([task.id for task in tasks], lambda task, _: marked(task, self._to, now)))

    async def _release(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._source.change(
            ids, lambda task, _: unmarked(task) if task.status is PENDING and mark_of(task) is not None else None
        )

    async def _put(self, tasks: Sequence[Task], *, release: bool = True) -> list[Task]:
        """Import tasks; return those that the destination has now. The others stay, unmarked if `release`."""
        arrived, rejected = await self._try(tasks)
        existing = dict(zip(rejected, await self._destination.get(list(rejected)), strict=True)) if rejected else {}
        stale: list[Task] = []  # they have changed since they were copied, and the copies have not started
        for task in (task for task in tasks if task.id in rejected):
            copy = existing[task.id]
            if copy is not None and copy.created_at == task.created_at:
                if task.status is PENDING and copy.attempt == task.attempt and copy.status is not RUNNING:
                    stale.append(task)
                elif copy.payload == task.payload:
                    arrived.append(task)
                else:
                    self.left[task.id] = "its copy has started at the destination, and it was replaced here since"
            else:
                taken = "unique key" if copy is None else "id"
                self.left[task.id] = f"another task at the destination has its {taken}"
        if stale:
            await self._destination.export_tasks([copy for task in stale if (copy := existing[task.id]) is not None])
            arrived += (await self._try(stale))[0]
        if self.left and release:
            await self._release([task.id for task in tasks if task.id in self.left])
        return arrived

    async def _put_again(self, tasks: Sequence[Task]) -> list[Task]:
        """Import tasks that a killed mover has left. They may have arrived, and even have run, at the destination."""
        if not tasks:
            return []
        now = await self._destination.now()
        existing = await self._destination.get([task.id for task in tasks])
        missing = [_or_lost(task, now) for task, copy in zip(tasks, existing, strict=True) if copy is None]
        changed = [task for task, copy in zip(tasks, existing, strict=True) if copy is not None and _is_changed(task)]
        present = [
            task for task, copy in zip(tasks, existing, strict=True) if copy is not None and not _is_changed(task)
        ]
        cancelled = [task.id for task in present if task.status is CANCELLED]
        if cancelled:
            await self._destination.cancel(cancelled)
        arrived = {task.id for task in await self._put([*missing, *changed])}
        return [*present, *(task for task in tasks if task.id in arrived)]

    async def _try(self, tasks: Sequence[Task]) -> tuple[list[Task], dict[str, None]]:
        kept = await self._destination.import_tasks(list(map(unmarked, tasks))) if tasks else frozenset()
        return [task for task in tasks if task.id in kept], {task.id: None for task in tasks if task.id not in kept}


def _is_changed(task: Task) -> bool:
    """Whether a marked task has changed since it was copied."""
    mark = mark_of(task)
    return mark is not None and mark.changed and task.status is PENDING


def _neighbours(task: Task) -> list[str]:
    """The ids of its predecessors and of its successor."""
    before = task.depends_on.ids if task.depends_on is not None else ()
    return [*before, *([] if task.next_task_id is None else [task.next_task_id])]


def _levels(tasks: Sequence[Task]) -> list[list[Task]]:
    """Finished tasks first; then tasks without a pending successor, then their predecessors, and so on."""
    waiting = {task.id: task for task in tasks if task.status is PENDING}
    levels = [[task for task in tasks if task.status is not PENDING]]
    while waiting:
        behind = [task for task in waiting.values() if task.next_task_id not in waiting]
        levels.append(behind or list(waiting.values()))
        for task in levels[-1]:
            del waiting[task.id]
    return levels


def _or_lost(task: Task, now: float) -> Task:
    """The task to import again; failed as "lost" if it must not run twice and may have run."""
    if not task.at_most_once or not may_have_been_there(task, now):
        return task
    message = "the move to this store was interrupted; whether the task has run here is unknown"
    error = AttemptError(kind="lost", attempt=task.attempt, at=now, message=message)
    return replace(task, status=FAILED, errors=(*task.errors, error), finished_at=now)


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a move."""

    moved: int
    left: dict[str, str]
    running: int

"""Moves tasks from one store to another, while workers and producers may go on, at either.

Each batch goes in three steps. Each is atomic in its store and safe to repeat:

1. *Mark*: what waits is marked at the source. From here on nobody starts it there.
2. *Put*: it is kept at the destination, as it was before the mark, with its id and all that it has been through.
3. *Remove*: it leaves the source.

Tasks that wait for others go together with them, when none of them runs: whoever ends a task looks for the one behind
it in the same store. The one behind is put first, and what it gets the results of before that.

What is over needs no mark. What runs is waited for: it ends, or comes back. A mover that is killed leaves at most one
batch marked; the next one finds it and goes on with step 2, where what has arrived already is known by its id. So
nothing is lost, and nothing is in two places for longer than it takes to come again. Chains and groups stay until they
are over.

One case is open after a kill between 2 and 3: a task that has arrived, ended and been forgotten there before anybody
came again, looks as if it had never arrived. It is put once more, as everything runs at least once; but one with
`at_most_once` is put as failed ("lost").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from bullpen import primitives
from bullpen.cli.command import CommandError
from bullpen.storage.port import Storage, TaskFilter
from bullpen.tasks.moving import mark_of, marked, may_have_been_there, unmarked
from bullpen.tasks.task import CANCELLED, FAILED, FINAL, PENDING, RUNNING, Task, TaskError

BATCH = 500
MOVABLE = TaskFilter(statuses=(PENDING, *sorted(FINAL, key=str)))


class Mover:
    """`to`: the address of the destination, which marks are to have. `stopped`: whether to end after this batch."""

    def __init__(
        self, source: Storage, destination: Storage, to: str, *, batch: int = BATCH, stopped: Callable[[], bool] = bool
    ) -> None:
        self._source = source
        self._destination = destination
        self._to = to
        self._batch = batch
        self._stopped = stopped
        self.moved = 0
        self.left: dict[str, str] = {}  # what cannot be moved, and why

    async def take_queues_along(self) -> None:
        """Pauses and limits, before anything could start there; what the destination has of its own stays."""
        for queue in sorted(await self._source.paused()):
            await self._destination.pause(queue)
        known = {limit.queue for limit in await self._destination.limits()}
        for limit in await self._source.limits():
            if limit.queue not in known:
                await self._destination.set_limit(limit)

    async def sweep(self, progress: Callable[[int], object] = bool) -> int:
        """Once through all that does not run; how many have moved."""
        before, after = self.moved, None
        together: set[str] = set()  # those that were looked at with others
        while not self._stopped():
            page = await self._source.list(MOVABLE, limit=self._batch, after=after)
            if not page:
                break
            after = page[-1].id
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
        """Let what is still marked start again at the source; how many."""
        released, after = 0, None
        waiting = TaskFilter(statuses=(PENDING,))
        while page := await self._source.list(waiting, limit=self._batch, after=after):
            after = page[-1].id
            ids = [task.id for task in page if mark_of(task) is not None]
            released += len(await self._release(ids)) if ids else 0
        return released

    async def _move(self, tasks: Sequence[Task]) -> int:
        self._refuse_other_moves(tasks)
        primitives.failpoint("move.before_mark")
        resumed = [task for task in tasks if mark_of(task) is not None]
        fresh = await self._mark([task for task in tasks if task.status is PENDING and mark_of(task) is None])
        over = [task for task in tasks if task.status in FINAL and mark_of(task) is None]
        primitives.failpoint("move.after_mark")
        arrived = await self._put_again(resumed) + await self._put(fresh) + await self._put(over)
        primitives.failpoint("move.after_put")
        removed = await self._source.remove(arrived)
        primitives.failpoint("move.after_remove")
        return len(removed)

    async def _all_around(self, task: Task) -> list[Task]:
        """A task, and all that are at the source of those that it waits for, that wait for it, and so on."""
        found: dict[str, Task] = {}
        more = [task]
        while more:
            found |= {task.id: task for task in more}
            ids = {task_id: None for task in more for task_id in _neighbours(task) if task_id not in found}
            more = [task for task in await self._source.get(list(ids)) if task is not None] if ids else []
        return list(found.values())

    async def _move_together(self, tasks: Sequence[Task]) -> int:
        """Tasks that wait for each other: all of them, or none as long as one of them runs."""
        self._refuse_other_moves(tasks)
        if any(task.status is RUNNING or task.id in self.left for task in tasks):
            return 0
        primitives.failpoint("move.before_mark")
        wanted = [task for task in tasks if task.status is PENDING and mark_of(task) is None]
        fresh = {task.id: task for task in await self._mark(wanted)}
        if len(fresh) < len(wanted):  # one has started just now
            await self._release(list(fresh))
            return 0
        primitives.failpoint("move.after_mark")
        arrived: list[Task] = []
        for level in _levels([fresh.get(task.id, task) for task in tasks]):
            arrived += await self._put_again([task for task in level if mark_of(task) and task.id not in fresh])
            arrived += await self._put([task for task in level if not mark_of(task) or task.id in fresh], release=False)
        primitives.failpoint("move.after_put")
        removed = await self._source.remove(arrived)
        primitives.failpoint("move.after_remove")
        return len(removed)

    def _refuse_other_moves(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            mark = mark_of(task)
            if mark is not None and mark.to != self._to:
                raise CommandError(
                    f"task {task.id} is on its way to {mark.to}: finish that move first, or give it up with --give-up"
                )

    async def _mark(self, tasks: Sequence[Task]) -> list[Task]:
        """Those that still waited, marked."""
        if not tasks:
            return []
        now = await self._source.now()
        return list(await self._source.change([task.id for task in tasks], lambda task, _: marked(task, self._to, now)))

    async def _release(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._source.change(
            ids, lambda task, _: unmarked(task) if task.status is PENDING and mark_of(task) is not None else None
        )

    async def _put(self, tasks: Sequence[Task], *, release: bool = True) -> list[Task]:
        """Those that are at the destination now. What cannot go there stays, and may start again if `release`."""
        arrived, refused = await self._try(tasks)
        there = dict(zip(refused, await self._destination.get(list(refused)), strict=True)) if refused else {}
        stale: list[Task] = []  # those that are others now than their copies, which have not begun
        for task in (task for task in tasks if task.id in refused):
            copy = there[task.id]
            if copy is not None and copy.created_at == task.created_at:
                if task.status is PENDING and copy.attempt == task.attempt and copy.status is not RUNNING:
                    stale.append(task)
                elif copy.payload == task.payload:
                    arrived.append(task)
                else:
                    self.left[task.id] = "it has begun there, and was replaced here since"
            else:
                why = "another task has its unique key there" if copy is None else "another task has its id there"
                self.left[task.id] = why
        if stale:
            await self._destination.remove([copy for task in stale if (copy := there[task.id]) is not None])
            arrived += (await self._try(stale))[0]
        if self.left and release:
            await self._release([task.id for task in tasks if task.id in self.left])
        return arrived

    async def _put_again(self, tasks: Sequence[Task]) -> list[Task]:
        """The same for what a mover that was killed has left: it may have arrived, and have gone on there."""
        if not tasks:
            return []
        now = await self._destination.now()
        there = await self._destination.get([task.id for task in tasks])
        missing = [_or_lost(task, now) for task, copy in zip(tasks, there, strict=True) if copy is None]
        changed = [task for task, copy in zip(tasks, there, strict=True) if copy is not None and _is_changed(task)]
        present = [task for task, copy in zip(tasks, there, strict=True) if copy is not None and not _is_changed(task)]
        cancelled = [task.id for task in present if task.status is CANCELLED]
        if cancelled:
            await self._destination.cancel(cancelled)
        arrived = {task.id for task in await self._put([*missing, *changed])}
        return [*present, *(task for task in tasks if task.id in arrived)]

    async def _try(self, tasks: Sequence[Task]) -> tuple[list[Task], dict[str, None]]:
        kept = await self._destination.put(list(map(unmarked, tasks))) if tasks else frozenset()
        return [task for task in tasks if task.id in kept], {task.id: None for task in tasks if task.id not in kept}


def _is_changed(task: Task) -> bool:
    """Whether one that is on its way is another than when it was put."""
    mark = mark_of(task)
    return mark is not None and mark.changed and task.status is PENDING


def _neighbours(task: Task) -> list[str]:
    """Those that it waits for, and the one that waits for it."""
    before = task.follows.ids if task.follows is not None else ()
    return [*before, *([] if task.then is None else [task.then])]


def _levels(tasks: Sequence[Task]) -> list[list[Task]]:
    """What is over; then those that nobody waits for, those that they wait for, and so on."""
    waiting = {task.id: task for task in tasks if task.status is PENDING}
    levels = [[task for task in tasks if task.status is not PENDING]]
    while waiting:
        behind = [task for task in waiting.values() if task.then not in waiting]
        levels.append(behind or list(waiting.values()))
        for task in levels[-1]:
            del waiting[task.id]
    return levels


def _or_lost(task: Task, now: float) -> Task:
    """A marked task as it is to be put again."""
    if not task.at_most_once or not may_have_been_there(task, now):
        return task
    message = "the move to this store was interrupted, and nobody knows whether it has run here"
    error = TaskError(kind="lost", attempt=task.attempt, at=now, message=message)
    return replace(task, status=FAILED, errors=(*task.errors, error), finished_at=now)


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a move."""

    moved: int
    left: dict[str, str]
    running: int

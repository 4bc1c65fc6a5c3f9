"""Changing tasks on request: cancel, retry, change, delete."""

from __future__ import annotations

from collections.abc import Sequence

from bullpen.tasks.model.task import Task
from bullpen.tasks.model.unreadable import moved
from bullpen.tasks.storage.port import Move
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.reading import TaskReading
from bullpen.tasks.storage.redis.rows import body_of, change_of, pack


class TaskChanging(TaskReading):
    """Verbs of the dashboard, of `bullpen tasks` and of the application."""

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change_each(scripts.CANCEL, ids)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        unreadable = {task.id for task in await self.get(ids) if task is not None and task.unreadable}
        return await self._change_each(scripts.RETRY, [one for one in ids if one not in unreadable])

    async def _change_each(self, script: str, ids: Sequence[str]) -> list[Task]:
        wanted = list(dict.fromkeys(ids))
        places = await self._find_queues(wanted)
        name_of = {self._tag(name): name for name in places.values()}
        changed: dict[str, Task] = {}
        with translated_errors(self.name):
            connection = await self._connected()
            for tags in self._within_reach(list(name_of)) if name_of else ():
                names = [name_of[tag] for tag in tags]
                these = [(names.index(places[one]) + 1, one) for one in wanted if places.get(one) in names]
                answer = await connection.run(script, tags, [pack((self._channel, these))])
                changed |= {task.id: task for task in self._changed(names, answer)}
        return [changed[one] for one in wanted if one in changed]

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        now = await self.now()
        changed: dict[str, Task] = {}
        left = list(dict.fromkeys(ids))
        while left:
            moves: dict[str, list[tuple[Task, Task]]] = {}
            for before in await self.get(left):
                after = None if before is None else moved(before, move, now)
                if before is not None and after is not None:
                    moves.setdefault(before.queue, []).append((before, after))
            left = []
            calls = [(queue, [self._channel, queue, *_changes(some)]) for queue, some in moves.items()]
            for some, answers in zip(moves.values(), await self._run_each(scripts.CHANGE, calls), strict=True):
                for (_, after), answer in zip(some, answers, strict=True):
                    if answer == 1:
                        changed[after.id] = after
                    elif answer == 0:  # the task has changed in the meantime: read it again
                        left.append(after.id)
        return [changed[task_id] for task_id in dict.fromkeys(ids) if task_id in changed]

    async def delete(self, ids: Sequence[str]) -> int:
        return sum(await self._run_each(scripts.DELETE, list((await self._by_queue(ids)).items())))


def _changes(moves: Sequence[tuple[Task, Task]]) -> list[bytes]:
    """The arguments of `change.lua` after the queue: the changes, and the bodies that differ."""
    changes, bodies = [], list[bytes]()
    for before, after in moves:
        body = body_of(after)
        is_new = body != body_of(before)
        bodies += [body] if is_new else []
        changes.append(change_of(before, after, 3 + len(bodies) if is_new else None))
    return [pack(changes), *bodies]

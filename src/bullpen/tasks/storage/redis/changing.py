"""Changing tasks on request: cancel, retry, change, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from bullpen.tasks.model.task import Task, TaskStatus
from bullpen.tasks.model.unreadable import moved
from bullpen.tasks.storage.port import Batch, BatchVerb, ChangedTask, Move, TaskFilter
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.reading import TaskReading
from bullpen.tasks.storage.redis.rows import body_of, change_of, pack

COUNTED = 1000  # tasks that one script counts
_AT_ANY_TIME = 1e300

_decode_cursor = msgspec.json.Decoder(tuple[str, str]).decode


def _encode_cursor(place: tuple[str, str]) -> str:
    return msgspec.json.encode(place).decode()


class TaskChanging(TaskReading):
    """Verbs of the dashboard, of `bullpen tasks` and of the application."""

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change_each(scripts.CANCEL, ids)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        unreadable = {task.id for task in await self.get(ids) if task is not None and task.unreadable}
        return await self._change_each(scripts.RETRY, [one for one in ids if one not in unreadable])

    async def _change_each(self, script: scripts.Script, ids: Sequence[str]) -> list[Task]:
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

    async def count(self, which: TaskFilter) -> int:
        if which.ids is not None:
            return len(await self.list(which, limit=len(which.ids)))
        count, cursor = 0, None
        while True:
            matching, _, cursor = await self._page_of_batch("count", which, COUNTED, cursor)
            count += matching
            if cursor is None:
                return count

    async def change_batch(self, verb: BatchVerb, which: TaskFilter, *, limit: int, cursor: str | None = None) -> Batch:
        """`limit`: how many tasks one script reads, because Redis runs nothing else meanwhile."""
        if which.ids is not None:
            tasks = await self.list(which, limit=limit, after=cursor)
            changed: list[ChangedTask] = []
            for queue in dict.fromkeys(task.queue for task in tasks):
                _, some, _ = await self._run_batch(verb, queue, which, [task for task in tasks if task.queue == queue])
                changed += some
            return Batch(len(tasks), tuple(changed), tasks[-1].id if len(tasks) == limit else None)
        matching, changed, cursor = await self._page_of_batch(verb, which, limit, cursor)
        return Batch(matching, tuple(changed), cursor)

    async def _page_of_batch(
        self, verb: Literal[BatchVerb, "count"], which: TaskFilter, limit: int, cursor: str | None
    ) -> tuple[int, list[ChangedTask], str | None]:
        """One page of one queue. The cursor is the queue, and the id behind which its next page starts."""
        first, after = _decode_cursor(cursor) if cursor is not None else ("", "")
        queues = [one for one in await self._queues() if one >= first and (which.queues is None or one in which.queues)]
        if not queues:
            return 0, [], None
        queue = queues[0]
        if verb == "retry":  # only the client can tell whether a row is readable
            page, last = await self._page(queue, limit, after if queue == first else "")
            matching, changed, _ = await self._run_batch(verb, queue, which, page)
        else:
            matching, changed, last = await self._run_batch(
                verb, queue, which, limit=limit, after=after if queue == first else ""
            )
        if last:
            return matching, changed, _encode_cursor((queue, last))
        return matching, changed, _encode_cursor((queues[1], "")) if len(queues) > 1 else None

    async def _run_batch(
        self,
        verb: Literal[BatchVerb, "count"],
        queue: str,
        which: TaskFilter,
        tasks: Sequence[Task] | None = None,
        *,
        limit: int = 0,
        after: str = "",
    ) -> tuple[int, list[ChangedTask], str]:
        ids = False if tasks is None else [task.id for task in tasks if verb != "retry" or not task.unreadable]
        words = pack((verb, self._channel, limit, after, ids, _filter_in_lua(which)))
        last, matching, rows = await self._run(scripts.CHANGE_BATCH, queue, [words])
        if await self._gave_names(queue, [*rows[::3], *filter(None, [last])]):
            return await self._run_batch(verb, queue, which, tasks, limit=limit, after=after)
        changed = [
            ChangedTask(rows[at].decode(), queue, int(rows[at + 1]), TaskStatus(rows[at + 2].decode()))
            for at in range(0, len(rows), 3)
        ]
        return matching, changed, last.decode()


def _filter_in_lua(which: TaskFilter) -> tuple[object, ...]:
    """The filter of `change_batch.lua`. Lua has no None in an array."""
    return (
        False if which.statuses is None else {status.value: True for status in which.statuses},
        which.func_path or "",
        which.worker or "",
        "" if which.error is None else msgspec.json.encode(which.error).decode()[1:-1],
        -1.0 if which.since is None else which.since,
        _AT_ANY_TIME if which.until is None else which.until,
        "" if which.fingerprint is None else msgspec.json.encode(which.fingerprint).decode()[1:-1],
        which.key or "",
        which.header or False,
        False if which.awaits is None else which.awaits,
    )


def _changes(moves: Sequence[tuple[Task, Task]]) -> list[bytes]:
    """The arguments of `change.lua` after the queue: the changes, and the bodies that differ."""
    changes, bodies = [], list[bytes]()
    for before, after in moves:
        body = body_of(after)
        is_new = body != body_of(before)
        bodies += [body] if is_new else []
        changes.append(change_of(before, after, 3 + len(bodies) if is_new else None))
    return [pack(changes), *bodies]

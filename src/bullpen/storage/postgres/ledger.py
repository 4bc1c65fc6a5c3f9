"""The moves of tasks, as statements inside a transaction that somebody else begins and commits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bullpen.storage.ear import RESULT, WORK
from bullpen.storage.port import Move
from bullpen.storage.postgres import schema as schemas
from bullpen.storage.postgres.rows import (
    CHANGING,
    COLUMNS,
    NEW,
    SETTLED,
    TERMS,
    array_places,
    arrays,
    changed_row,
    new_row,
    settled_row,
    task_of,
    terms_row,
    to_text,
)
from bullpen.tasks.links import called_back, followed, has_ended, redriven_behind
from bullpen.tasks.task import PENDING, RUNNING, SUCCESS, Settlement, Task, new_as_kept, redriven
from bullpen.tasks.unique import Duplicates, has_key, meet

# How rows are locked, so that nobody waits for each other: those that wait for others after those, as when one of them
# ends and tells who waits for it.
IN_ORDER = "ORDER BY follows IS NOT NULL AND status <> 'running', id"


ADDED_PER_SECOND = 1000  # at the least; in fact it is some ten times as many
LOCK_SHARE = 0.8  # of the time that an answer may take, for locks: so that they are what is named


class Ledger:
    """What can be done on one connection. `notify`: whether others are told; `timeout`: seconds that an answer may
    take, and more where it is about many tasks.
    """

    def __init__(self, connection: Any, schema: str, *, notify: bool, timeout: float) -> None:
        self.connection = connection
        self.schema = schema
        self.notify = notify
        self.timeout = timeout

    async def now(self) -> float:
        return float(await self.connection.fetchval(f"SELECT {self.schema}.now()"))

    async def add(self, tasks: Sequence[Task]) -> list[Task]:
        """One statement, and another one if ids were there already."""
        adding = f"SELECT added_id, added_at FROM {self.schema}.add({array_places(NEW)}, ${len(NEW) + 1})"
        values = arrays(NEW, map(new_row, tasks))
        added = dict(await self.connection.fetch(adding, *values, self.notify, timeout=self._time_for(tasks)))
        kept: dict[str, Task] = {}
        for task in tasks:
            if task.id in added:
                kept.setdefault(task.id, new_as_kept(task, added[task.id]))
        others = [task.id for task in tasks if task.id not in kept]
        if others:
            kept |= {task.id: task for task in await self.get(others)}
        return [kept[task.id] for task in tasks]

    async def copy(self, tasks: Sequence[Task]) -> list[Task]:
        """`add` of many, in a third of the time; the driver's UniqueViolationError if an id is there already."""
        now = await self.now()
        kept = [new_as_kept(task, now) for task in tasks]
        rows = [(*new_row(task), now) for task in kept]
        await self.connection.copy_records_to_table(
            "task",
            schema_name=self.schema,
            columns=[*NEW, "created_at"],
            records=rows,
            timeout=self._time_for(tasks),
        )
        for queue in {task.queue for task in kept if task.eta < now}:
            await self.stir(queue)
        for queue in {task.queue for task in kept}:
            await self.tell(WORK + to_text(queue))
        return kept

    def _time_for(self, tasks: Sequence[Task]) -> float:
        return self.timeout + len(tasks) / ADDED_PER_SECOND

    async def add_keyed(self, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        now = await self.now()
        there = {task.id: task for task in await self.get([task.id for task in tasks])}
        kept = []
        for task in tasks:
            if task.id not in there:
                holder = await self.holder(task, now)
                if holder is None:
                    (there[task.id],) = await self.add([task])
                else:
                    after = await self.meet(task, holder, duplicates, now)
                    there[task.id] = there[after.id] = after
            kept.append(there[task.id].id)
        return [there[task_id] for task_id in kept]  # as they are at the end: one may be replaced twice

    async def lock_keys(self, keyed: Sequence[Task]) -> None:
        queues, keys = [to_text(task.queue) for task in keyed], [to_text(task.unique_key) for task in keyed]
        lock = f"SELECT set_config('lock_timeout', $3, true), {self.schema}.lock_keys($1, $2)"
        await self.connection.execute(lock, queues, keys, f"{self.timeout * LOCK_SHARE * 1000:.0f}ms")

    async def holder(self, task: Task, now: float) -> Task | None:
        """Which task has the unique key of this one."""
        if task.unique_key is None:
            return None
        of_key = f"SELECT {COLUMNS} FROM {self.schema}.holder($1, $2, $3)"
        rows = await self.connection.fetch(of_key, to_text(task.queue), to_text(task.unique_key), now)
        return task_of(rows[0]) if rows else None

    async def meet(self, task: Task, holder: Task, duplicates: Duplicates, now: float) -> Task:
        after = meet(task, holder, duplicates, now)
        if after is not holder:
            places = ", ".join(f"${number}" for number in range(1, len(NEW) + 1))
            await self.connection.execute(
                f"UPDATE {self.schema}.task SET ({', '.join(NEW)}, failures, crashes) = ROW ({places}, 0, 0) "
                "WHERE id = $1",
                *new_row(after),
            )
            if after.eta < now:
                await self.stir(after.queue)
            await self.tell(WORK + to_text(after.queue))
        return after

    async def settle(self, settlements: Sequence[Settlement]) -> list[Any]:
        """What was refused."""
        return await self.connection.fetch(  # type: ignore[no-any-return]
            f"SELECT id, attempt FROM {self.schema}.exchange({array_places(SETTLED)}, "
            "'', '{}', 0, 0, '', '{}', '{}', 0)",
            *arrays(SETTLED, map(settled_row, settlements)),
        )

    async def puttable(self, tasks: Sequence[Task]) -> list[Task]:
        """Those of which neither the id nor the unique key is there, nor comes before them."""
        now = await self.now()
        ids = {task.id for task in await self.get([task.id for task in tasks])}
        keys: set[tuple[str, str | None]] = set()
        puttable = []
        for task in tasks:
            place, keeps_key = (task.queue, task.unique_key), has_key(task, now)
            is_taken = keeps_key and (place in keys or await self.holder(task, now) is not None)
            if task.status is not RUNNING and task.id not in ids and not is_taken:
                puttable.append(task)
                ids.add(task.id)
                if keeps_key:
                    keys.add(place)
        return puttable

    async def get(self, ids: Sequence[str]) -> list[Task]:
        rows = await self.connection.fetch(f"SELECT {COLUMNS} FROM {self.schema}.task WHERE id = ANY ($1)", ids)
        by_id = {row["id"]: row for row in rows}
        return [task_of(by_id[task_id]) for task_id in ids if task_id in by_id]

    async def change(self, ids: Sequence[str], move: Move) -> list[Task]:
        if move is redriven:  # keys before rows, as everywhere
            tasks = await self.get(ids)
            await self.lock_keys([task for task in tasks if task.unique_key is not None])
            await self.lock_linked(tasks)
        now = await self.now()
        rows = await self.connection.fetch(
            f"SELECT {COLUMNS} FROM {self.schema}.task WHERE id = ANY ($1) {IN_ORDER} FOR UPDATE",
            list(dict.fromkeys(ids)),
        )
        there = {row["id"]: task_of(row) for row in rows}
        awaited = {row["id"] for row in rows if row["awaited"]}
        changed = []
        for task_id in dict.fromkeys(ids):
            before = there.get(task_id)
            if before is not None and before.follows is not None and move is redriven:
                after = redriven_behind(before, await self.members(before), now)
            else:
                after = None if before is None else move(before, now)
            if before is not None and after is not None and await self.keep(after, now):
                if terms_row(after) != terms_row(before):
                    await self.keep_terms(after)
                changed.append(after)
                if task_id in awaited:
                    await self.tell(RESULT + task_id)
                there |= await self.keep_behind(before, after, now)
        for queue in {task.queue for task in changed if task.status is PENDING and task.eta < now}:
            await self.stir(queue)
        for queue in {task.queue for task in changed if task.status is PENDING or task.concurrency_key is not None}:
            await self.tell(WORK + to_text(queue))
        return changed

    async def keep_behind(self, before: Task, after: Task, now: float) -> dict[str, Task]:
        """What becomes of those behind a task that is another now; all that changed."""
        changed: dict[str, Task] = {}
        while after.then is not None and before.is_final != after.is_final:
            found = f"SELECT {COLUMNS} FROM {self.schema}.task WHERE id = $1 FOR UPDATE"
            row = await self.connection.fetchrow(found, after.then)
            if row is None:
                break
            follower = task_of(row)
            if has_ended(before, after):
                behind = followed(follower, after, now)
            else:
                behind = called_back(follower, before, await self.members(follower), now)
            if behind is None or not await self.keep(behind, now):
                break
            changed[behind.id] = behind
            if row["awaited"] and behind.is_final:
                await self.tell(RESULT + behind.id)
            elif behind.waits_for == 0 and not behind.is_final:
                await self.tell(WORK + to_text(behind.queue))
            before, after = follower, behind
        return changed

    async def lock_linked(self, tasks: Sequence[Task]) -> None:
        """All that tasks wait for with them, in the order in which their ends are written."""
        behind = await self.get([task.then for task in tasks if task.then is not None])
        ids = {one for task in [*tasks, *behind] if task.follows is not None for one in (task.id, *task.follows.ids)}
        if ids:
            lock = f"SELECT 1 FROM {self.schema}.task WHERE id = ANY ($1) {IN_ORDER} FOR UPDATE"
            await self.connection.fetch(lock, list(ids))

    async def members(self, follower: Task) -> list[Task]:
        """Those that a task waits for, and that are still there; none of them ends meanwhile. If one of them is in the
        way, only that one.
        """
        if follower.follows is None or not follower.is_final:
            return []
        members: list[Task] = []
        ids, size = follower.follows.ids, 1
        while ids:  # from the end, in larger and larger steps: the first ones are the first to run again
            rows = await self.connection.fetch(
                f"SELECT {COLUMNS} FROM {self.schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE",
                list(ids[-size:]),
            )
            ids, size = ids[:-size], 2 * size
            some = list(map(task_of, rows))
            if not follower.follows.anyway:
                failed = [task for task in some if task.is_final and task.status is not SUCCESS]
                if failed:
                    return failed[:1]
            members += some
        return members

    async def keep(self, task: Task, now: float) -> bool:
        """False if another task has its unique key."""
        if task.unique_key is not None and has_key(task, math.inf):
            holder = await self.holder(task, now)
            if holder is not None and holder.id != task.id:
                return False
        places = ", ".join(f"${number}" for number in range(1, len(CHANGING) + 1))
        await self.connection.execute(
            f"UPDATE {self.schema}.task SET ({', '.join(CHANGING)}) = ROW ({places}) WHERE id = ${len(CHANGING) + 1}",
            *changed_row(task),
        )
        return True

    async def keep_terms(self, task: Task) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(TERMS) + 1))
        await self.connection.execute(
            f"UPDATE {self.schema}.task SET ({', '.join(TERMS)}) = ROW ({places}) WHERE id = ${len(TERMS) + 1}",
            *terms_row(task),
            task.id,
        )

    async def stir(self, queue: str) -> None:
        """Something was put before what may have been claimed already."""
        await self.connection.execute(
            f"INSERT INTO {self.schema}.queue AS k (name, stirred_at) VALUES ($1, {self.schema}.now()) "
            "ON CONFLICT (name) DO UPDATE SET stirred_at = excluded.stirred_at",
            to_text(queue),
        )

    async def tell(self, notification: str) -> None:
        if self.notify:
            await self.connection.execute("SELECT pg_notify($1, $2)", schemas.channel(self.schema), notification)

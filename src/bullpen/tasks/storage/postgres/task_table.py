"""Changes of tasks, as statements inside a transaction that the caller begins and commits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bullpen.tasks.model.links import Changes, after_members, called_back, redriven_behind
from bullpen.tasks.model.task import PENDING, RUNNING, SUCCESS, Settlement, Task, new_as_kept, redriven
from bullpen.tasks.model.unique import Duplicates, has_key, meet
from bullpen.tasks.model.unreadable import moved
from bullpen.tasks.storage.notifications import RESULT, WORK
from bullpen.tasks.storage.port import BatchVerb, ChangedTask, Move
from bullpen.tasks.storage.postgres import schema as schemas
from bullpen.tasks.storage.postgres import statements
from bullpen.tasks.storage.postgres.rows import (
    NEW,
    SETTLED,
    arrays,
    changed_row,
    changes_of_unreadable,
    from_text,
    new_row,
    settled_row,
    status_of,
    task_of,
    terms_row,
    to_text,
)
from bullpen.tasks.storage.postgres.statements import in_schema

ADDED_PER_SECOND = 1000  # a low estimate, for timeouts
LOCK_SHARE = 0.8  # of the timeout is for waiting for locks, so that the error names the lock


class PostgresTaskTable:
    """The task table, through one connection. `notify`: send notifications. `timeout`: seconds for a statement; adding
    many tasks gets more.
    """

    def __init__(self, connection: Any, schema: str, *, notify: bool, timeout: float) -> None:
        self.connection = connection
        self.schema = schema
        self.notify = notify
        self.timeout = timeout

    async def fetch(self, statement: str, *values: Any, timeout: float | None = None) -> list[Any]:
        rows: list[Any] = await self.connection.fetch(in_schema(statement, self.schema), *values, timeout=timeout)
        return rows

    async def execute(self, statement: str, *values: Any) -> None:
        await self.connection.execute(in_schema(statement, self.schema), *values)

    async def now(self) -> float:
        return float(await self.connection.fetchval(f"SELECT {self.schema}.now()"))

    async def add(self, tasks: Sequence[Task]) -> list[Task]:
        """Insert tasks without unique keys, in one statement; a second one reads those that exist already."""
        values = arrays(NEW, map(new_row, tasks))
        added = dict(await self.fetch(statements.ADD, *values, self.notify, timeout=self._time_for(tasks)))
        kept: dict[str, Task] = {}
        for task in tasks:
            if task.id in added:
                kept.setdefault(task.id, new_as_kept(task, added[task.id]))
        others = [task.id for task in tasks if task.id not in kept]
        if others:
            kept |= {task.id: task for task in await self.get(others)}
        return [kept[task.id] for task in tasks]

    async def copy(self, tasks: Sequence[Task]) -> list[Task]:
        """`add` with COPY, in a third of the time. Raises the driver's UniqueViolationError if an id exists."""
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
        for queue in sorted({task.queue for task in kept if task.eta < now}):
            await self.rewind(queue)
        for queue in {task.queue for task in kept}:
            await self.send_notification(WORK + to_text(queue))
        return kept

    def _time_for(self, tasks: Sequence[Task]) -> float:
        return self.timeout + len(tasks) / ADDED_PER_SECOND

    async def add_keyed(self, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        """Add tasks whose unique keys are locked: first those with a free key together, then the duplicates."""
        now = await self.now()
        existing = {task.id: task for task in await self.get([task.id for task in tasks])}
        held = await self.held_keys([task for task in tasks if task.id not in existing], duplicates, now)
        free: dict[str, Task] = {}
        for task in tasks:
            place = (to_text(task.queue), to_text(task.unique_key))
            if task.id not in existing and task.id not in free and place not in held:
                free[task.id] = task
                held |= set() if task.unique_key is None else {place}
        existing |= {task.id: task for task in await self.add(list(free.values()))} if free else {}
        kept = []
        for task in tasks:
            if task.id not in existing:
                holder = await self.holder(task, now)
                if holder is None:
                    (existing[task.id],) = await self.add([task])
                else:
                    after = await self.meet(task, holder, duplicates, now)
                    existing[task.id] = existing[after.id] = after
            kept.append(existing[task.id].id)
        return [existing[task_id] for task_id in kept]  # as they are at the end: one may be replaced twice

    async def held_keys(self, tasks: Sequence[Task], duplicates: Duplicates, now: float) -> set[tuple[str, str]]:
        """The queues and unique keys that have a holder, as they are stored. The holders are locked if they may be
        replaced.
        """
        places = {(to_text(task.queue), to_text(task.unique_key)) for task in tasks if task.unique_key is not None}
        if not places:
            return set()
        queues, keys = [queue for queue, _ in places], [key for _, key in places]
        rows = await self.fetch(statements.HELD_KEYS, queues, keys, now)
        if duplicates.policy == "replace":
            await self.fetch(statements.LOCK_IDS, [row["id"] for row in rows])
        return {(row["queue"], row["key"]) for row in rows}

    async def lock_keys(self, keyed: Sequence[Task]) -> None:
        queues, keys = [to_text(task.queue) for task in keyed], [to_text(task.unique_key) for task in keyed]
        await self.execute(statements.LOCK_KEYS, queues, keys, self._lock_timeout)

    @property
    def _lock_timeout(self) -> str:
        return f"{self.timeout * LOCK_SHARE * 1000:.0f}ms"

    async def holder(self, task: Task, now: float) -> Task | None:
        """The task that holds the unique key of this one."""
        if task.unique_key is None:
            return None
        rows = await self.fetch(statements.KEY_HOLDER, to_text(task.queue), to_text(task.unique_key), now)
        return task_of(rows[0]) if rows else None

    async def meet(self, task: Task, holder: Task, duplicates: Duplicates, now: float) -> Task:
        after = meet(task, holder, duplicates, now)
        if after is not holder:
            await self.execute(statements.REPLACE, *new_row(after))
            if after.eta < now:
                await self.rewind(after.queue)
            await self.send_notification(WORK + to_text(after.queue))
        return after

    async def settle(self, settlements: Sequence[Settlement]) -> list[Any]:
        """Apply settlements. Returns the id and attempt of each that was rejected."""
        return await self.fetch(statements.SETTLE, *arrays(SETTLED, map(settled_row, settlements)))

    async def importable(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks with a free id and unique key, in the table and among the tasks before them."""
        now = await self.now()
        ids = {task.id for task in await self.get([task.id for task in tasks])}
        keys: set[tuple[str, str | None]] = set()
        importable = []
        for task in tasks:
            place, keeps_key = (task.queue, task.unique_key), has_key(task, now)
            is_taken = keeps_key and (place in keys or await self.holder(task, now) is not None)
            if task.status is not RUNNING and task.id not in ids and not is_taken:
                importable.append(task)
                ids.add(task.id)
                if keeps_key:
                    keys.add(place)
        return importable

    async def get(self, ids: Sequence[str]) -> list[Task]:
        rows = await self.fetch(statements.GET, ids)
        by_id = {row["id"]: row for row in rows}
        return [task_of(by_id[task_id]) for task_id in ids if task_id in by_id]

    async def change(self, ids: Sequence[str], move: Move) -> list[Task]:
        if move is redriven:  # every transaction locks keys before rows
            tasks = await self.get(ids)
            await self.lock_keys([task for task in tasks if task.unique_key is not None])
            await self.lock_linked(ids)  # and the tasks themselves
        else:
            await self.execute(statements.LIMIT_LOCK_WAITS, self._lock_timeout)
        now = await self.now()
        rows = await self.fetch(statements.LOCK, list(dict.fromkeys(ids)))
        existing = {row["id"]: task_of(row) for row in rows}
        awaited = {row["id"] for row in rows if row["awaited"]}
        changed: list[Task] = []
        members: dict[str, Changes] = {}  # that have changed, by the task that depends on them
        unwritten: list[Task] = []
        for task_id in dict.fromkeys(ids):
            before = existing.get(task_id)
            if before is not None and before.depends_on is not None and members:
                await self.update_all(unwritten)
                existing |= await self.update_followers(members, now)
                before = existing[task_id]
            if before is not None and before.depends_on is not None and move is redriven and not before.unreadable:
                after = redriven_behind(before, await self.members(before), now)
            else:
                after = None if before is None else moved(before, move, now)
            if before is None or after is None:
                continue
            if after.unreadable or (after.unique_key is not None and has_key(after, math.inf)):
                await self.update_all(unwritten)
                if not await self.update(after, now):
                    continue
            else:
                unwritten.append(after)
            if terms_row(after) != terms_row(before):
                await self.update_terms(after)
            changed.append(after)
            if after.next_task_id is not None:
                members.setdefault(after.next_task_id, []).append((before, after))
        await self.update_all(unwritten)
        await self.update_followers(members, now)
        await self.send_notifications([RESULT + task.id for task in changed if task.id in awaited])
        for queue in sorted({task.queue for task in changed if task.status is PENDING and task.eta < now}):
            await self.rewind(queue)
        for queue in {task.queue for task in changed if task.status is PENDING or task.concurrency_key is not None}:
            await self.send_notification(WORK + to_text(queue))
        return changed

    async def change_together(self, verb: BatchVerb, ids: Sequence[str]) -> list[ChangedTask]:
        """Delete tasks, or change those that no other task is concerned with, in one statement."""
        if verb == "delete":
            rows = await self.fetch(statements.DELETE, ids)
        else:
            statement = statements.CANCEL_TOGETHER if verb == "cancel" else statements.RETRY_TOGETHER
            rows = await self.fetch(statement, ids, await self.now())
            queues = {row["queue"] for row in rows if verb == "retry" or row["has_key"]}
            for queue in sorted(queues) if verb == "retry" else ():
                await self.execute(statements.REWIND, queue)
            ended = [RESULT + row["id"] for row in rows if row["awaited"]]
            await self.send_notifications([*ended, *(WORK + queue for queue in queues)])
        return [
            ChangedTask(row["id"], from_text(row["queue"]), row["attempt"], status_of(row["status"])) for row in rows
        ]

    async def update_followers(self, members: dict[str, Changes], now: float) -> dict[str, Task]:
        """Update the tasks that depend on changed ones: each is read and written once, however many members it has.
        Returns those that changed, by id. `members` is empty afterwards.
        """
        changed: dict[str, Task] = {}
        notifications: list[str] = []
        while members:
            level = list(members.items())
            members.clear()
            rows = {row["id"]: row for row in await self.fetch(statements.LOCK_MEMBERS, [one for one, _ in level])}
            for next_task_id, changes in level:
                row = rows.get(next_task_id)
                if row is None:
                    continue
                follower = task_of(row)
                behind, waiting = after_members(follower, changes, now)
                if waiting is not None:
                    behind = called_back(behind, waiting, await self.members(behind), now) or behind
                if behind is follower or not await self.update(behind, now):
                    continue
                changed[behind.id] = behind
                if row["awaited"] and behind.is_final:
                    notifications.append(RESULT + behind.id)
                elif behind.waits_for == 0 and not behind.is_final:
                    notifications.append(WORK + to_text(behind.queue))
                if behind.next_task_id is not None:
                    members.setdefault(behind.next_task_id, []).append((follower, behind))
        await self.send_notifications(notifications)
        return changed

    async def lock_linked(self, ids: Sequence[str]) -> None:
        """Lock the tasks, those that depend on them, and what these depend on, in one statement."""
        linked = {row["id"] for row in await self.fetch(statements.CHAINS, ids)}
        for task in await self.get(list(linked)):
            linked.update(task.depends_on.ids if task.depends_on is not None else ())
        await self.fetch(statements.LOCK_IDS, list(linked))

    async def members(self, follower: Task) -> list[Task]:
        """The tasks that a final task depends on, locked; those that were pruned are left out. If one of them has not
        succeeded and keeps the follower from running, only that one.
        """
        if follower.depends_on is None or not follower.is_final:
            return []
        members: list[Task] = []
        ids, size = follower.depends_on.ids, 1
        while ids:  # in growing batches from the end: the first members are retried first
            rows = await self.fetch(statements.LOCK_MEMBERS, list(ids[-size:]))
            ids, size = ids[:-size], 2 * size
            some = list(map(task_of, rows))
            if not follower.depends_on.run_always:
                failed = [task for task in some if task.is_final and task.status is not SUCCESS]
                if failed:
                    return failed[:1]
            members += some
        return members

    async def update(self, task: Task, now: float) -> bool:
        """Write the changed columns of a task. False if another task holds its unique key."""
        if task.unique_key is not None and has_key(task, math.inf):
            holder = await self.holder(task, now)
            if holder is not None and holder.id != task.id:
                return False
        if task.unreadable:
            await self.update_unreadable(task)
        else:
            await self.execute(statements.UPDATE, *changed_row(task))
        return True

    async def update_all(self, tasks: list[Task]) -> None:
        """Write the changed columns of tasks that take no unique key, in one step. `tasks` is empty afterwards."""
        if tasks:
            update = in_schema(statements.UPDATE, self.schema)
            await self.connection.executemany(update, [changed_row(task) for task in tasks])
            tasks.clear()

    async def update_unreadable(self, task: Task) -> None:
        for row in await self.fetch(statements.GET, [task.id]):
            changes = changes_of_unreadable(row, task)
            columns = ", ".join(f"{name} = ${place}" for place, name in enumerate(changes, start=2))
            if columns:
                await self.execute(f"UPDATE {{schema}}.task SET {columns} WHERE id = $1", task.id, *changes.values())

    async def update_terms(self, task: Task) -> None:
        await self.execute(statements.UPDATE_TERMS, *terms_row(task), task.id)

    async def rewind(self, queue: str) -> None:
        """Make the next claim of every client start at the front of the queue: a task was put before their cursors."""
        await self.execute(statements.REWIND, to_text(queue))

    async def send_notification(self, notification: str) -> None:
        await self.send_notifications([notification])

    async def send_notifications(self, notifications: Sequence[str]) -> None:
        if self.notify and notifications:
            await self.fetch(statements.NOTIFY_EACH, schemas.channel(self.schema), notifications)

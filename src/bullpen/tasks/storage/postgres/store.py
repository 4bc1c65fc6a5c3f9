"""The storage port on a PostgreSQL server. Adding, claiming and settling take one round trip each.

`tasks/model/task.py` decides what a task becomes. The function `exchange` repeats its rules in SQL, for many tasks at
once. The clock is the server's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec

from bullpen.errors import InvalidOption, LeaseLost, TaskExists
from bullpen.tasks.model.events import Event
from bullpen.tasks.model.failure_groups import FailureExample, FailureRow
from bullpen.tasks.model.history import HistoryRow
from bullpen.tasks.model.task import (
    NEVER,
    PENDING,
    RUNNING,
    Instant,
    Progress,
    Settlement,
    Step,
    Task,
    TaskStatus,
    cancelled_by_operator,
    expired,
    redriven,
)
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage.notifications import EVENT, RESULT, WORK
from bullpen.tasks.storage.port import (
    AttemptKey,
    Batch,
    BatchVerb,
    ChangedTask,
    Counts,
    Decide,
    Exchange,
    Limit,
    Move,
    Renewal,
    TaskFilter,
    WorkerRecord,
    read_limit,
    readable,
    readable_workers,
)
from bullpen.tasks.storage.postgres import statements
from bullpen.tasks.storage.postgres.claim_cursor import ClaimCursor, Floors
from bullpen.tasks.storage.postgres.client import PostgresClient
from bullpen.tasks.storage.postgres.rows import (
    COLUMNS,
    SETTLED,
    arrays,
    claimed_tasks,
    from_text,
    headers_of,
    json_of,
    new_json,
    settled_row,
    settlement_json,
    status_of,
    step_json,
    task_of,
    to_text,
    where_of,
    whole_row,
)
from bullpen.tasks.storage.postgres.task_table import PostgresTaskTable
from bullpen.tasks.storage.postgres.user_transaction import (
    aask,
    acheck_in_transaction,
    ask,
    check_in_transaction,
    is_async,
)

T = TypeVar("T")

COPIED = 200  # from so many tasks on, COPY is faster than INSERT, although it takes more round trips
RESCUE_BATCH = 500
MOST_CURSORS = 32

# A connection of the user may encode a parameter of type json once more; it sends a text as it is.
_AS_JSON = "CAST(CAST({} AS text) AS json)"

_decode_worker = msgspec.json.Decoder(WorkerRecord).decode
_decode_cursor = msgspec.json.Decoder(tuple[Floors, float, bool]).decode
_decode_example = msgspec.json.Decoder(FailureExample).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode


class PostgresStorage(PostgresClient):
    """A store in one schema of a PostgreSQL database."""

    @cached_property
    def claim_cursors(self) -> dict[tuple[str, ...], ClaimCursor]:
        """By the queues that a worker claims from together."""
        return {}

    def _cursor(self, queues: Sequence[str]) -> ClaimCursor:
        if len(self.claim_cursors) > MOST_CURSORS:  # the queues of a pattern change; a lost cursor costs one sweep
            self.claim_cursors.clear()
        return self.claim_cursors.setdefault(tuple(queues), ClaimCursor(queues))

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        if not tasks:
            return []
        if any(task.unique_key is not None for task in tasks):
            return await self._add_with_keys(tasks, duplicates)
        return await super().add(tasks)

    async def _add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        import asyncpg

        async def add(connection: Any) -> Sequence[Task]:
            if len(tasks) >= COPIED:
                try:
                    async with self._transaction_on(connection) as table:
                        return await table.copy(tasks)
                except asyncpg.UniqueViolationError:
                    pass  # an id exists: `add` leaves that task as it is, and returns it
            return await self._table(connection).add(tasks)

        return await self._ask(add, again=True)

    async def _add_with_keys(self, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        """In a transaction that locks the unique keys."""
        keyed = [task for task in tasks if task.unique_key is not None]

        async def add(table: PostgresTaskTable) -> Sequence[Task]:
            await table.lock_keys(keyed)
            return await table.add_keyed(tasks, duplicates)

        return await self._transact(add, again=True)

    def now_in(self, connection: Any) -> float | Awaitable[float]:
        return self._in(connection, f"SELECT CAST({self.schema}.now() AS text) || {{}}", "", float)

    def add_in(
        self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        def check(kept: str) -> Sequence[str]:
            ids = _decode_ids(kept)
            for task, existing in zip(tasks, ids, strict=True):
                if rejects and existing != task.id:
                    raise TaskExists(key=task.unique_key or "", task=existing)
            return ids

        if duplicates.policy == "replace":
            raise InvalidOption("on_duplicate", "replace", "'return' or 'reject', with a connection of PostgreSQL")
        rejects = duplicates.policy == "reject"
        statement = f"SELECT {self.schema}.add_all({_AS_JSON}, {self.notify}, {rejects})"
        return self._in(connection, statement, new_json(tasks), check)

    def _in(self, connection: Any, statement: str, parameter: str, then: Callable[[str], T]) -> T | Awaitable[T]:
        """Execute a statement in the user's transaction, and return what `then` makes of its value."""
        if is_async(connection):
            return self._ain(connection, statement, parameter, then)
        return then(ask(connection, statement, parameter, self.schema))

    async def _ain(self, connection: Any, statement: str, parameter: str, then: Callable[[str], T]) -> T:
        return then(await aask(connection, statement, parameter, self.schema))

    # Workers.

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        queues: Sequence[str],
        limit: int,
        lease: float,
        claim_id: str,
    ) -> Exchange:
        if any(one.children for one in settlements):
            lost = await self._settle_with_children(settlements)
            rest = await self.exchange([], worker=worker, queues=queues, limit=limit, lease=lease, claim_id=claim_id)
            return Exchange(rest.claimed, lost)
        loop = asyncio.get_running_loop()
        names = [to_text(name) for name in dict.fromkeys(queues)] if limit > 0 else []
        cursor = self._cursor(names)
        began = loop.time()
        rows = await self._fetch(
            statements.EXCHANGE,
            *arrays(SETTLED, map(settled_row, settlements)),
            to_text(worker),
            names,
            limit,
            lease,
            to_text(claim_id),
            *cursor.floors(),
            cursor.swept_by(began),
        )
        rejected = set()
        claimed = []
        set_by_claim: dict[str, Any] = {}
        for row in rows:
            if row["claim_cursor"] is not None:
                floors, now, from_front = _decode_cursor(row["claim_cursor"])
                cursor.advance(floors)
                if from_front:
                    cursor.record_sweep(now, began, loop.time())
                set_by_claim = {
                    "status": RUNNING,
                    "worker": worker,
                    "claim_id": claim_id,
                    "started_at": now,
                    "lease_until": now + lease,
                }
            elif row["func_path"] is None:
                rejected.add(AttemptKey(row["id"], row["attempt"]))
            else:
                claimed.append(row)
        return Exchange(tuple(claimed_tasks(claimed, **set_by_claim)), frozenset(rejected))

    async def _settle_with_children(self, settlements: Sequence[Settlement]) -> frozenset[AttemptKey]:
        """Apply settlements and add their children, in one transaction. Returns the rejected ones; their children
        are not added.
        """
        keyed = [child for one in settlements for child in one.children if child.unique_key is not None]

        async def settle(table: PostgresTaskTable) -> frozenset[AttemptKey]:
            await table.lock_keys(keyed)
            rows = await table.settle(settlements)
            rejected = frozenset(AttemptKey(row["id"], row["attempt"]) for row in rows)
            children = [
                child
                for one in settlements
                if AttemptKey(one.id, one.attempt) not in rejected
                for child in one.children
            ]
            plain = [child for child in children if child.unique_key is None]
            if plain:
                await table.add(plain)
            await table.add_keyed([child for child in children if child.unique_key is not None], RETURN)
            return rejected

        return await self._transact(settle)

    def settle_in(self, connection: Any, settlement: Settlement) -> Awaitable[None] | None:
        statement = f"SELECT {self.schema}.settle({_AS_JSON})"
        if is_async(connection):
            return self._asettle_in(connection, statement, settlement)
        check_in_transaction(connection)
        _check_settled(settlement, ask(connection, statement, settlement_json(settlement), self.schema))
        if settlement.children:
            self.add_in(connection, settlement.children)
        return None

    async def _asettle_in(self, connection: Any, statement: str, settlement: Settlement) -> None:
        await acheck_in_transaction(connection)
        _check_settled(settlement, await aask(connection, statement, settlement_json(settlement), self.schema))
        if settlement.children:
            adding = self.add_in(connection, settlement.children)
            assert isinstance(adding, Awaitable)
            await adding

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        return [task_of(row) for row in await self._fetch(statements.FIND_CLAIM, to_text(claim_id))]

    async def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        rows = await self._fetch(
            statements.RENEW,
            [hold.id for hold in holds],
            [hold.attempt for hold in holds],
            lease,
        )
        kept = {AttemptKey(row["id"], row["attempt"]): row["cancel_requested"] for row in rows}
        return Renewal(
            frozenset(hold for hold in holds if hold not in kept),
            frozenset(hold for hold, wanted in kept.items() if wanted),
        )

    async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        return bool(await self._fetch(statements.SAVE_PROGRESS, hold.id, hold.attempt, json_of(progress)))

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        """In one batch with concurrent callers. A task that a transaction of its own function has locked is left out of
        it, so that the others do not wait: this step waits alone.
        """
        (is_kept,) = await self._send_together(self._save_steps, [(hold, step)])
        if is_kept:
            return True
        return bool(await self._fetchval(statements.SAVE_STEP, step_json(hold.id, hold.attempt, step)) == "true")

    async def _save_steps(self, parts: Sequence[Sequence[tuple[AttemptKey, Step]]]) -> Sequence[Sequence[bool]]:
        given = [one for part in parts for one in part]
        rows = await self._fetch(
            statements.SAVE_STEPS,
            [hold.id for hold, _ in given],
            [hold.attempt for hold, _ in given],
            [to_text(step.name) for _, step in given],
            [json_of(step) for _, step in given],
        )
        kept = {row["place"] for row in rows}
        return [[place in kept] for place in range(1, len(parts) + 1)]

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> Awaitable[None] | None:
        statement = f"SELECT {self.schema}.save_step({_AS_JSON})"
        if is_async(connection):
            return self._asave_step_in(connection, statement, hold, step)
        check_in_transaction(connection)
        _check_saved(hold, ask(connection, statement, step_json(hold.id, hold.attempt, step), self.schema))
        return None

    async def _asave_step_in(self, connection: Any, statement: str, hold: AttemptKey, step: Step) -> None:
        await acheck_in_transaction(connection)
        _check_saved(hold, await aask(connection, statement, step_json(hold.id, hold.attempt, step), self.schema))

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        dead = [to_text(worker) for worker in dead_workers]

        async def rescue(table: PostgresTaskTable) -> Sequence[Task]:
            settlements: list[Settlement] = []
            after = ""
            now = await table.now()
            while len(settlements) < limit:
                rows = await table.fetch(statements.LOCK_LOST, after, dead, now, RESCUE_BATCH)
                for row in rows:
                    settlement = decide(task_of(row), now)
                    if settlement is not None and len(settlements) < limit:
                        settlements.append(settlement)
                if len(rows) < RESCUE_BATCH:
                    break
                after = rows[-1]["id"]
            if not settlements:
                return []
            await table.settle(settlements)
            return await table.get([one.id for one in settlements])

        return await self._transact(rescue)

    # Events.

    async def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        lasts = NEVER if ttl is None else ttl
        return bool(await self._fetchval(statements.EMIT, to_text(name), payload, lasts, again=True))

    async def wait_for_event(self, name: str, timeout: float) -> Event | None:
        found: list[Event] = []

        async def look() -> float | None:
            found[:] = _events(await self._fetch(statements.FIND_EVENT, to_text(name), again=True))
            return 0.0 if found else None

        if await look() is None and timeout > 0:
            await self._wait(self._listen, timeout, [EVENT + to_text(name)], look)
            if not found:
                await look()
        return found[0] if found else None

    async def events(self, *, limit: int, after: str | None = None) -> Sequence[Event]:
        return _events(await self._fetch(statements.LIST_EVENTS, to_text(after or ""), limit, again=True))

    # Waiting.

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        names = [to_text(queue) for queue in dict.fromkeys(queues)]
        next_work = "SELECT {schema}.next_work($1, $2, $3)"
        cursor = self._cursor(names)
        clock = asyncio.get_running_loop().time

        async def soonest() -> float | None:
            return cursor.seconds_until_claim(await self._fetchval(next_work, names, *cursor.search_floors()), clock())

        await self._wait(self._listen, timeout, [WORK + name for name in names], soonest)

    async def wait_for_result(self, task_id: str, completed_runs: int, timeout: float) -> None:
        async def is_there() -> float | None:
            return await self._fetchval("SELECT {schema}.await_end($1, $2)", task_id, completed_runs, again=True)  # type: ignore[no-any-return]

        await self._wait(self._listen, timeout, [RESULT + task_id], is_there)

    # Operators.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        rows = await self._fetch(statements.GET, list(ids), again=True)
        by_id = {row["id"]: row for row in rows}
        return [task_of(by_id[task_id]) if task_id in by_id else None for task_id in ids]

    async def list(
        self, which: TaskFilter, *, limit: int, after: str | None = None, newest: bool = False
    ) -> Sequence[Task]:
        return [task_of(row) for row in await self._page(COLUMNS, which, limit, after, newest)]

    async def _page(
        self, columns: str, which: TaskFilter, limit: int, after: str | None, newest: bool = False
    ) -> Sequence[Any]:
        where, values = where_of(which, after, newest)
        order = "ORDER BY id DESC" if newest else "ORDER BY id"
        statement = f"SELECT {columns} FROM {{schema}}.task {where} {order} LIMIT ${len(values) + 1}"
        return await self._fetch(statement, *values, limit, again=True)

    async def count(self, which: TaskFilter) -> int:
        where, values = where_of(which)
        return int(
            await self._fetchval(f"SELECT pg_catalog.count(*) FROM {{schema}}.task {where}", *values, again=True)
        )

    async def counts(self, limit: int | None = None) -> Counts:
        counts: dict[str, dict[TaskStatus, int]] = {}
        if limit is None:
            rows = await self._fetch(statements.COUNT, again=True)
        else:
            rows = await self._fetch(statements.COUNT_SOME, limit + 1, again=True)
        for queue, status, count in rows:
            of_queue = counts.setdefault(from_text(queue), {})
            of_queue[status_of(status)] = of_queue.get(status_of(status), 0) + count
        return counts

    async def first_pending(self, limit: int) -> Sequence[Task]:
        return [task_of(row) for row in await self._fetch(statements.FIRST_PENDING, limit, again=True)]

    async def list_pending(
        self, *, limit: int, queue: str | None = None, after: tuple[float, str] | None = None
    ) -> Sequence[Task]:
        values = (limit, *(after or (-math.inf, "")), None if queue is None else to_text(queue))
        return [task_of(row) for row in await self._fetch(statements.LIST_PENDING, *values, again=True)]

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self.change(ids, cancelled_by_operator)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self.change(ids, redriven)

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        return await self._transact(lambda table: table.change(ids, move))

    async def delete(self, ids: Sequence[str]) -> int:
        return len(await self._fetch(statements.DELETE, list(ids)))

    async def change_batch(self, verb: BatchVerb, which: TaskFilter, *, limit: int, cursor: str | None = None) -> Batch:
        """Tasks that depend on no other, and on which none depends, change in one statement; the others one by one, in
        a transaction of their own, because all transactions lock those after the first ones.
        """
        if verb == "retry":
            tasks = await self.list(which, limit=limit, after=cursor)
            found = [task.id for task in tasks]
            ids = [task.id for task in tasks if not task.unreadable]
        else:
            found = ids = [row["id"] for row in await self._page("id", which, limit, cursor)]
        changed = await self._transact(lambda table: table.change_together(verb, ids)) if ids else []
        others = list(set(ids).difference(task.id for task in changed)) if verb != "delete" else []
        if others:
            move = cancelled_by_operator if verb == "cancel" else redriven
            linked = await self.change(sorted(others), move)
            changed += [ChangedTask(task.id, task.queue, task.attempt, task.status) for task in linked]
        return Batch(len(ids), tuple(changed), found[-1] if len(found) == limit else None)

    # Moving tasks between stores.

    async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        async def import_all(table: PostgresTaskTable) -> frozenset[str]:
            await table.lock_keys([task for task in tasks if task.unique_key is not None])
            given = await table.importable(tasks)
            rows = await table.fetch(statements.IMPORT_TASKS, json_of(list(map(whole_row, given))))
            kept = frozenset(row["id"] for row in rows)
            steps = [
                (task.id, to_text(step.name), json_of(step)) for task in given if task.id in kept for step in task.steps
            ]
            if steps:
                await table.execute(statements.IMPORT_STEPS, *map(list, zip(*steps, strict=True)))
            for queue in sorted({task.queue for task in given if task.id in kept and task.status is PENDING}):
                await table.rewind(queue)
                await table.send_notification(WORK + to_text(queue))
            return kept

        return await self._transact(import_all)

    async def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        given = [task for task in tasks if task.status is not RUNNING]
        rows = await self._fetch(
            statements.EXPORT_TASKS,
            [task.id for task in given],
            [task.status.value for task in given],
            [task.attempt for task in given],
            [task.eta for task in given],
            [headers_of(task) for task in given],
        )
        return frozenset(row["id"] for row in rows)

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        async def expire(table: PostgresTaskTable) -> Sequence[Task]:
            late = await table.fetch(statements.LOCK_EXPIRED, limit)
            return await table.change([row["id"] for row in late], expired) if late else []

        return await self._transact(expire)

    async def prune(self, *, limit: int) -> int:
        return len(await self._fetch(statements.PRUNE, limit))

    # History.

    async def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow] = ()) -> None:
        given = [msgspec.structs.replace(row, queue=to_text(row.queue), function=to_text(row.function)) for row in rows]
        counts = json_of(list(map(msgspec.structs.asdict, given)))
        failed = json_of([_failure_fields(row) for row in failures])

        async def add(table: PostgresTaskTable) -> None:
            await table.execute(statements.ADD_HISTORY, counts)
            if failures:
                await table.execute(statements.ADD_FAILURES, failed)

        await self._transact(add)

    async def history(
        self, step: int, since: float, until: float, *, queue: str | None = None, function: str | None = None
    ) -> Sequence[HistoryRow]:
        names = (None if name is None else to_text(name) for name in (queue, function))
        first, end = math.ceil(since), math.ceil(until)
        rows = await self._fetch(statements.HISTORY, step, first, end, *names, again=True)
        return readable(HistoryRow, (partial(_history_fields, *row) for row in rows))

    async def failures(self, since: float) -> Sequence[FailureRow]:
        rows = await self._fetch(statements.FAILURES, math.ceil(since), again=True)
        return readable(FailureRow, (partial(_stored_failure, *row) for row in rows))

    async def delete_failures(self, fingerprint: str, function: str | None = None) -> None:
        await self._fetch(statements.DELETE_FAILURES, to_text(fingerprint), to_text(function))

    # Workers, queues, limits.

    async def save_worker(self, record: WorkerRecord) -> None:
        await self._fetch(statements.SAVE_WORKER, to_text(record.id), json_of(record))

    async def delete_worker(self, worker: str) -> None:
        await self._fetch(statements.DELETE_WORKER, to_text(worker))

    async def workers(self) -> Sequence[WorkerRecord]:
        rows = await self._fetch(statements.WORKERS, again=True)
        return readable_workers(rows, _worker_of)

    async def queues(self) -> frozenset[str]:
        return frozenset(from_text(row["name"]) for row in await self._fetch(statements.QUEUES, again=True))

    async def pause(self, queue: str) -> None:
        await self._fetch(statements.PAUSE, to_text(queue))

    async def resume(self, queue: str) -> None:
        async def resume(table: PostgresTaskTable) -> None:
            await table.execute(statements.RESUME, to_text(queue))
            await table.send_notification(WORK + to_text(queue))

        await self._transact(resume)

    async def paused(self) -> frozenset[str]:
        return frozenset(from_text(row["name"]) for row in await self._fetch(statements.PAUSED, again=True))

    async def set_limit(self, limit: Limit) -> None:
        async def set_limit(table: PostgresTaskTable) -> None:
            await table.execute(
                statements.SET_LIMIT,
                to_text(limit.queue),
                limit.is_limit,
                limit.max_running,
                limit.max_running_per_key,
                limit.rate,
                limit.in_order,
                limit.declared,
            )
            if limit.rate is None:
                await table.execute(statements.DELETE_STARTS, to_text(limit.queue))
            await table.send_notification(WORK + to_text(limit.queue))

        await self._transact(set_limit)

    async def limits(self) -> Sequence[Limit]:
        rows = [dict(row) for row in await self._fetch(statements.LIMITS, again=True)]
        return [read_limit(from_text(row.pop("name")), row.copy) for row in rows]


def _events(rows: Sequence[Any]) -> list[Event]:
    return readable(Event, (partial(_event_fields, *row) for row in rows))


def _event_fields(name: str, *rest: Any) -> Sequence[Any]:
    return from_text(name), *rest


def _failure_fields(row: FailureRow) -> dict[str, Any]:
    at, *names = row.key
    texts = zip(("queue", "function", "fingerprint"), map(to_text, names), strict=True)
    numbers = {"at": at, "count": row.count, "first": row.first, "last": row.last}
    return {**numbers, **dict(texts), "example": json_of(row.example)}


def _history_fields(step: int, at: int, queue: str, function: str, *vectors: Sequence[int]) -> Sequence[Any]:
    return step, at, from_text(queue), from_text(function), *vectors


def _stored_failure(at: int, queue: str, function: str, fingerprint: str, *rest: Any) -> Sequence[Any]:
    *counts, example = rest
    return at, from_text(queue), from_text(function), from_text(fingerprint), *counts, _decode_example(example)


def _worker_of(record: str, seen_at: float) -> WorkerRecord:
    return msgspec.structs.replace(_decode_worker(record), seen_at=msgspec.convert(seen_at, Instant))


def _check_saved(hold: AttemptKey, saved: str) -> None:
    if saved != "true":
        raise LeaseLost(task=hold.id, attempt=hold.attempt)


def _check_settled(settlement: Settlement, rejected: str) -> None:
    if _decode_ids(rejected):
        raise LeaseLost(task=settlement.id, attempt=settlement.attempt)

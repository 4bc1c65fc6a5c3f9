"""The verbs of the port, said to a PostgreSQL server. One round trip each, where it matters.

What a task becomes is decided in `tasks/task.py`, also where SQL spells it out for many at once (`exchange`). The clock
is the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from bullpen.errors import InvalidOption, LeaseLost, TaskExists
from bullpen.storage.ear import RESULT, WORK
from bullpen.storage.port import (
    Counts,
    Decide,
    Exchange,
    Hold,
    Limit,
    Move,
    Renewal,
    TaskFilter,
    WorkerRecord,
)
from bullpen.storage.postgres.ledger import Ledger
from bullpen.storage.postgres.line import Floors, Line
from bullpen.storage.postgres.link import Link
from bullpen.storage.postgres.rows import (
    CLAIMED,
    COLUMNS,
    SETTLED,
    array_places,
    arrays,
    claimed_task,
    from_text,
    headers_of,
    json_of,
    new_json,
    settled_row,
    settlement_json,
    task_of,
    to_text,
    whole_row,
)
from bullpen.storage.postgres.transaction import aask, acheck_in_transaction, ask, check_in_transaction, is_async
from bullpen.tasks.task import (
    PENDING,
    RUNNING,
    Progress,
    Settlement,
    Task,
    TaskStatus,
    cancelled_by_operator,
    expired,
    redriven,
)
from bullpen.tasks.unique import RETURN, Duplicates

T = TypeVar("T")

COPIED = 200  # so many tasks at once, and they are worth some more round trips
RESCUED_AT_ONCE = 500

_EXCHANGE = (
    f"SELECT {', '.join(CLAIMED)}, line FROM {{s}}.exchange({array_places(SETTLED)}, "
    + ", ".join(f"${len(SETTLED) + place}" for place in range(1, 9))
    + ")"
)

# Nobody who waits still needs its result.
_UNAWAITED = (
    "(t.then_id IS NULL OR NOT EXISTS (SELECT 1 FROM {s}.task f WHERE f.id = t.then_id "
    "AND f.status IN ('pending', 'running')))"
)

# A connection of the user's may turn what is sent as JSON into JSON by itself, but not a text.
_AS_JSON = "CAST(CAST({} AS text) AS json)"

_LIMIT = Limit.__struct_fields__[1:]  # its columns

_decode_worker = msgspec.json.Decoder(WorkerRecord).decode
_decode_line = msgspec.json.Decoder(tuple[Floors, float, bool]).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode


class PostgresStorage(Link):
    """A store in one schema of a PostgreSQL database."""

    @cached_property
    def lines(self) -> dict[tuple[str, ...], Line]:
        """Of the queues that are claimed from together."""
        return {}

    def _line(self, queues: Sequence[str]) -> Line:
        return self.lines.setdefault(tuple(queues), Line(queues))

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
                    async with self._transaction_on(connection) as ledger:
                        return await ledger.copy(tasks)
                except asyncpg.UniqueViolationError:
                    pass  # what is there already stays as it is, and `add` says how
            return await self._ledger(connection).add(tasks)

        return await self._ask(add, again=True)

    async def _add_with_keys(self, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        """Nobody else gives or takes their unique keys meanwhile."""
        keyed = [task for task in tasks if task.unique_key is not None]

        async def add(ledger: Ledger) -> Sequence[Task]:
            await ledger.lock_keys(keyed)
            return await ledger.add_keyed(tasks, duplicates)

        return await self._transact(add, again=True)

    def now_in(self, connection: Any) -> float | Awaitable[float]:
        return self._in(connection, f"SELECT CAST({self.schema}.now() AS text) || {{}}", "", float)

    def add_in(
        self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        def check(kept: str) -> Sequence[str]:
            ids = _decode_ids(kept)
            for task, there in zip(tasks, ids, strict=True):
                if rejects and there != task.id:
                    raise TaskExists(key=task.unique_key or "", task=there)
            return ids

        if duplicates.policy == "replace":
            raise InvalidOption("on_duplicate", "replace", "'return' or 'reject', with a connection of PostgreSQL")
        rejects = duplicates.policy == "reject"
        statement = f"SELECT {self.schema}.add_all({_AS_JSON}, {self.notify}, {rejects})"
        return self._in(connection, statement, new_json(tasks), check)

    def _in(self, connection: Any, statement: str, word: str, then: Callable[[str], T]) -> T | Awaitable[T]:
        """In the user's transaction."""
        if is_async(connection):
            return self._ain(connection, statement, word, then)
        return then(ask(connection, statement, word, self.schema))

    async def _ain(self, connection: Any, statement: str, word: str, then: Callable[[str], T]) -> T:
        return then(await aask(connection, statement, word, self.schema))

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
        line = self._line(names)
        began = loop.time()
        rows = await self._fetch(
            _EXCHANGE,
            *arrays(SETTLED, map(settled_row, settlements)),
            to_text(worker),
            names,
            limit,
            lease,
            to_text(claim_id),
            *line.floors(),
            line.swept_by(began),
        )
        refused = set()
        claimed = []
        of_claim: dict[str, Any] = {}
        for row in rows:
            if row["line"] is not None:
                floors, moment, whole = _decode_line(row["line"])
                line.go_on(floors)
                if whole:
                    line.sweep(moment, began, loop.time())
                of_claim = {
                    "status": RUNNING,
                    "worker": worker,
                    "claim_id": claim_id,
                    "started_at": moment,
                    "lease_until": moment + lease,
                }
            elif row["func_path"] is None:
                refused.add(Hold(row["id"], row["attempt"]))
            else:
                claimed.append(claimed_task(row, **of_claim))
        return Exchange(tuple(claimed), frozenset(refused))

    async def _settle_with_children(self, settlements: Sequence[Settlement]) -> frozenset[Hold]:
        """What was refused. To claim is another step: nothing is lost if it is never taken."""
        keyed = [child for one in settlements for child in one.children if child.unique_key is not None]

        async def settle(ledger: Ledger) -> frozenset[Hold]:
            await ledger.lock_keys(keyed)
            rows = await ledger.settle(settlements)
            refused = frozenset(Hold(row["id"], row["attempt"]) for row in rows)
            children = [
                child for one in settlements if Hold(one.id, one.attempt) not in refused for child in one.children
            ]
            plain = [child for child in children if child.unique_key is None]
            if plain:
                await ledger.add(plain)
            await ledger.add_keyed([child for child in children if child.unique_key is not None], RETURN)
            return refused

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
        found = f"SELECT {COLUMNS} FROM {{s}}.task WHERE status = 'running' AND claim_id = $1 "
        rows = await self._fetch(f"{found} ORDER BY priority DESC, eta, id", to_text(claim_id))
        return [task_of(row) for row in rows]

    async def renew(self, holds: Sequence[Hold], lease: float) -> Renewal:
        # What is locked is being settled by its own function, maybe for long: it is held, and nobody else takes it.
        rows = await self._fetch(
            "WITH held AS ("
            "  SELECT t.id, t.attempt, t.cancel_requested FROM {s}.task t"
            "  JOIN unnest($1::text[], $2::integer[]) AS h (id, attempt) ON t.id = h.id AND t.attempt = h.attempt"
            "  WHERE t.status || '' = 'running'"
            "), free AS (SELECT t.id FROM {s}.task t WHERE t.id = ANY ($1) FOR UPDATE SKIP LOCKED"
            "), renewed AS ("
            "  UPDATE {s}.task t SET lease_until = {s}.now() + $3 FROM held JOIN free ON free.id = held.id"
            "  WHERE t.id = held.id AND t.attempt = held.attempt AND t.status || '' = 'running' RETURNING t.id)"
            "SELECT held.id, held.attempt, held.cancel_requested FROM held LEFT JOIN free ON free.id = held.id"
            "  LEFT JOIN renewed ON renewed.id = held.id WHERE free.id IS NULL OR renewed.id IS NOT NULL",
            [hold.id for hold in holds],
            [hold.attempt for hold in holds],
            lease,
        )
        kept = {Hold(row["id"], row["attempt"]): row["cancel_requested"] for row in rows}
        return Renewal(
            frozenset(hold for hold in holds if hold not in kept),
            frozenset(hold for hold, wanted in kept.items() if wanted),
        )

    async def note_progress(self, hold: Hold, progress: Progress) -> bool:
        note = (
            "UPDATE {s}.task SET progress = $3 WHERE id = $1 AND attempt = $2 AND status || '' = 'running' RETURNING 1"
        )
        return bool(await self._fetch(note, hold.id, hold.attempt, json_of(progress)))

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        dead = [to_text(worker) for worker in dead_workers]

        async def rescue(ledger: Ledger) -> Sequence[Task]:
            settlements: list[Settlement] = []
            after = ""
            now = await ledger.now()
            while len(settlements) < limit:
                rows = await ledger.connection.fetch(
                    f"SELECT {COLUMNS} FROM {self.schema}.task WHERE status = 'running' AND id > $1 "
                    "AND (worker = ANY ($2) OR lease_until <= $3) ORDER BY id LIMIT $4 FOR UPDATE SKIP LOCKED",
                    after,
                    dead,
                    now,
                    RESCUED_AT_ONCE,
                )
                for row in rows:
                    settlement = decide(task_of(row), now)
                    if settlement is not None and len(settlements) < limit:
                        settlements.append(settlement)
                if len(rows) < RESCUED_AT_ONCE:
                    break
                after = rows[-1]["id"]
            if not settlements:
                return []
            await ledger.settle(settlements)
            return await ledger.get([one.id for one in settlements])

        return await self._transact(rescue)

    # Waiting.

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        names = [to_text(queue) for queue in dict.fromkeys(queues)]
        next_work = "SELECT {s}.next_work($1, $2, $3)"
        line = self._line(names)
        clock = asyncio.get_running_loop().time

        async def soonest() -> float | None:
            return line.looks_in(await self._fetchval(next_work, names, *line.waits_behind()), clock())

        await self._wait(self._listen, timeout, [WORK + name for name in names], soonest)

    async def wait_for_result(self, task_id: str, runs: int, timeout: float) -> None:
        async def is_there() -> float | None:
            return await self._fetchval("SELECT {s}.await_end($1, $2)", task_id, runs, again=True)  # type: ignore[no-any-return]

        await self._wait(self._listen, timeout, [RESULT + task_id], is_there)

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        rows = await self._fetch(f"SELECT {COLUMNS} FROM {{s}}.task WHERE id = ANY ($1)", list(ids), again=True)
        by_id = {row["id"]: row for row in rows}
        return [task_of(by_id[task_id]) if task_id in by_id else None for task_id in ids]

    async def list(self, which: TaskFilter, *, limit: int, after: str | None = None) -> Sequence[Task]:
        conditions: list[str] = []
        values: list[Any] = []

        def add(condition: str, value: Any) -> None:
            values.append(value)
            conditions.append(condition.format(f"${len(values)}"))

        if which.ids is not None:
            add("id = ANY ({})", list(which.ids))
        if which.queues is not None:
            add("queue = ANY ({})", [to_text(queue) for queue in which.queues])
        if which.statuses is not None:
            add("status = ANY ({})", [status.value for status in which.statuses])
        if which.func_path is not None:
            add("func_path = {}", to_text(which.func_path))
        if which.worker is not None:
            add("worker = {}", to_text(which.worker))
        if after is not None:
            add("id > {}", after)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        values.append(limit)
        rows = await self._fetch(
            f"SELECT {COLUMNS} FROM {{s}}.task {where} ORDER BY id LIMIT ${len(values)}", *values, again=True
        )
        return [task_of(row) for row in rows]

    async def counts(self) -> Counts:
        counts: dict[str, dict[TaskStatus, int]] = {}
        for queue, status, count in await self._fetch(
            "SELECT queue, status, count(*) FROM {s}.task GROUP BY 1, 2", again=True
        ):
            counts.setdefault(from_text(queue), {})[TaskStatus(status)] = count
        return counts

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self.change(ids, cancelled_by_operator)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self.change(ids, redriven)

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        return await self._transact(lambda ledger: ledger.change(ids, move))

    async def delete(self, ids: Sequence[str]) -> int:
        rows = await self._fetch(
            "DELETE FROM {s}.task t WHERE id = ANY ($1) AND status IN ('success', 'failed', 'cancelled') "
            f"AND {_UNAWAITED} RETURNING 1",
            list(ids),
        )
        return len(rows)

    # Moving tasks between stores.

    async def put(self, tasks: Sequence[Task]) -> frozenset[str]:
        async def put(ledger: Ledger) -> frozenset[str]:
            await ledger.lock_keys([task for task in tasks if task.unique_key is not None])
            given = await ledger.puttable(tasks)
            rows = await ledger.connection.fetch(
                f"INSERT INTO {self.schema}.task ({COLUMNS}) SELECT {COLUMNS} FROM "
                f"json_populate_recordset(NULL::{self.schema}.task, $1) ON CONFLICT DO NOTHING RETURNING id",
                json_of(list(map(whole_row, given))),
            )
            kept = frozenset(row["id"] for row in rows)
            for queue in {task.queue for task in given if task.id in kept and task.status is PENDING}:
                await ledger.stir(queue)
                await ledger.tell(WORK + to_text(queue))
            return kept

        return await self._transact(put)

    async def remove(self, tasks: Sequence[Task]) -> frozenset[str]:
        given = [task for task in tasks if task.status is not RUNNING]
        rows = await self._fetch(
            "DELETE FROM {s}.task t USING unnest($1::text[], $2::text[], $3::integer[], $4::float8[], $5::text[]) "
            "AS g (id, status, attempt, eta, headers) WHERE t.id = g.id AND t.status || '' = g.status "
            "AND t.attempt = g.attempt AND t.eta = g.eta AND t.headers IS NOT DISTINCT FROM g.headers RETURNING t.id",
            [task.id for task in given],
            [task.status.value for task in given],
            [task.attempt for task in given],
            [task.eta for task in given],
            [headers_of(task) for task in given],
        )
        return frozenset(row["id"] for row in rows)

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        async def expire(ledger: Ledger) -> Sequence[Task]:
            late = await ledger.connection.fetch(
                f"SELECT id FROM {self.schema}.task WHERE status = 'pending' AND expires <= {self.schema}.now() "
                "ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED",
                limit,
            )
            return await ledger.change([row["id"] for row in late], expired) if late else []

        return await self._transact(expire)

    async def prune(self, *, limit: int) -> int:
        rows = await self._fetch(
            "DELETE FROM {s}.task WHERE id IN (SELECT id FROM {s}.task t WHERE prune_at <= {s}.now() "
            f"AND {_UNAWAITED} ORDER BY prune_at LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING 1",
            limit,
        )
        return len(rows)

    # Workers, queues, limits.

    async def note_worker(self, record: WorkerRecord) -> None:
        await self._fetch(
            "INSERT INTO {s}.worker VALUES ($1, {s}.now(), $2) "
            "ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, record = excluded.record",
            to_text(record.id),
            json_of(record),
        )

    async def drop_worker(self, worker: str) -> None:
        await self._fetch("DELETE FROM {s}.worker WHERE id = $1", to_text(worker))

    async def workers(self) -> Sequence[WorkerRecord]:
        rows = await self._fetch("SELECT record, seen_at FROM {s}.worker ORDER BY id", again=True)
        return [msgspec.structs.replace(_decode_worker(record), seen_at=seen_at) for record, seen_at in rows]

    async def pause(self, queue: str) -> None:
        await self._fetch(
            "INSERT INTO {s}.queue (name, paused) VALUES ($1, true) ON CONFLICT (name) DO UPDATE SET paused = true",
            to_text(queue),
        )

    async def resume(self, queue: str) -> None:
        async def resume(ledger: Ledger) -> None:
            await ledger.connection.execute(
                f"UPDATE {self.schema}.queue SET paused = false WHERE name = $1", to_text(queue)
            )
            await ledger.tell(WORK + to_text(queue))

        await self._transact(resume)

    async def paused(self) -> frozenset[str]:
        return frozenset(
            from_text(row["name"]) for row in await self._fetch("SELECT name FROM {s}.queue WHERE paused", again=True)
        )

    async def set_limit(self, limit: Limit) -> None:
        _, *terms = msgspec.structs.astuple(limit)
        places = ", ".join(f"${number}" for number in range(3, len(_LIMIT) + 3))

        async def set_limit(ledger: Ledger) -> None:
            await ledger.connection.execute(
                f"INSERT INTO {self.schema}.queue (name, limited, {', '.join(_LIMIT)}, stirred_at) "
                f"VALUES ($1, $2, {places}, {self.schema}.now()) ON CONFLICT (name) DO UPDATE SET "
                + ", ".join(f"{name} = excluded.{name}" for name in ("limited", *_LIMIT, "stirred_at")),
                to_text(limit.queue),
                limit.is_limit,
                *terms,
            )
            await ledger.tell(WORK + to_text(limit.queue))

        await self._transact(set_limit)

    async def limits(self) -> Sequence[Limit]:
        asked = f"SELECT name, {', '.join(_LIMIT)} FROM {{s}}.queue WHERE limited ORDER BY name"
        return [
            Limit(queue=from_text(name), **dict(zip(_LIMIT, terms, strict=True)))
            for name, *terms in await self._fetch(asked, again=True)
        ]


def _check_settled(settlement: Settlement, refused: str) -> None:
    if _decode_ids(refused):
        raise LeaseLost(task=settlement.id, attempt=settlement.attempt)

"""The verbs of the port, said to a PostgreSQL server. One round trip each, where it matters.

What a task becomes is decided in `tasks/task.py`, also where SQL spells it out for many at once (`exchange`). The clock
is the server's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from bullpen.errors import InvalidOption, LeaseLost, StorageError, TaskExists
from bullpen.storage.ear import RESULT, WORK
from bullpen.storage.port import (
    Concern,
    Counts,
    Decide,
    Exchange,
    Hold,
    Limit,
    Move,
    Renewal,
    Schema,
    TaskFilter,
    WorkerRecord,
)
from bullpen.storage.postgres import schema as schemas
from bullpen.storage.postgres.checkup import concerns_of
from bullpen.storage.postgres.failures import told
from bullpen.storage.postgres.rows import (
    CHANGING,
    NEW,
    SETTLED,
    TERMS,
    array_places,
    arrays,
    changed_row,
    from_text,
    json_of,
    new_json,
    new_row,
    settled_row,
    settlement_json,
    task_of,
    terms_row,
    to_text,
    whole_row,
)
from bullpen.storage.postgres.transaction import aask, ask, check_in_transaction, is_async
from bullpen.storage.server import ServerStorage
from bullpen.tasks.links import called_back, followed, has_ended, redriven_behind
from bullpen.tasks.task import (
    FINAL,
    PENDING,
    RUNNING,
    SUCCESS,
    Progress,
    Settlement,
    Task,
    TaskStatus,
    cancelled_by_operator,
    expired,
    new_as_kept,
    redriven,
)
from bullpen.tasks.unique import RETURN, Duplicates, has_key, meet

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")
Tasks = list[Task]  # `list` is a verb of stores

PRIORITIES = 10
OVERLAP = 0.05  # seconds before the last task that was claimed; others may have been written a moment later
SWEEP_EVERY = 0.05  # seconds …
SWEEP_SHARE = 10  # … or so many times what the last one took
RESCUED_AT_ONCE = 500
LOCKED_PAUSE = 0.1  # seconds, before another look at a task that is locked

_EXCHANGE = (
    f"SELECT * FROM {{s}}.exchange({array_places(SETTLED)}, "
    + ", ".join(f"${len(SETTLED) + place}" for place in range(1, 8))
    + ")"
)

# Nobody who waits still needs its result.
_UNAWAITED = (
    "(t.then_id IS NULL OR NOT EXISTS (SELECT 1 FROM {s}.task f WHERE f.id = t.then_id "
    "AND f.status IN ('pending', 'running')))"
)

_LIMIT = Limit.__struct_fields__[1:]  # its columns

_decode_worker = msgspec.json.Decoder(WorkerRecord).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode


class PostgresStorage(ServerStorage["asyncpg.Pool[Any]"]):
    """A store in one schema of a PostgreSQL database.

    `schema`: where its tables are; it is made by `open`, unless `migrate` is false. `notify`: whether to use LISTEN and
    NOTIFY; `listen_url`: another address for that, where `url` leads through a pooler of transactions. `prepared`:
    whether statements may be prepared, which such poolers may not allow. `connections`: how many at most.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "bullpen",
        notify: bool = True,
        listen_url: str | None = None,
        prepared: bool = True,
        migrate: bool = True,
        connections: int = 10,
    ) -> None:
        super().__init__(f"PostgreSQL schema {schema!r}")
        self.url = url
        self.schema = schemas.checked_name(schema)
        self.notify = notify
        self.listen_url = listen_url
        self.prepared = prepared
        self.migrate = migrate
        self.connections = connections
        self._floors: dict[tuple[str, int], float] = {}
        self._swept_at = 0.0
        self.sweeps_at = 0.0

    # Its life.

    def another(self) -> PostgresStorage:
        return PostgresStorage(
            self.url,
            schema=self.schema,
            notify=self.notify,
            listen_url=self.listen_url,
            prepared=self.prepared,
            migrate=self.migrate,
            connections=self.connections,
        )

    async def _connect(self) -> asyncpg.Pool[Any]:
        import asyncpg

        async with told(self.name):
            pool = await asyncpg.create_pool(
                self.url, min_size=1, max_size=self.connections, reset=_tidy, **self._manners()
            )
            try:
                await self._bring_up_to_date(pool)
            except BaseException:
                pool.terminate()
                raise
            return pool

    async def _disconnect(self, client: asyncpg.Pool[Any]) -> None:
        await client.close()

    def _manners(self) -> dict[str, Any]:
        manners: dict[str, Any] = {"server_settings": {"application_name": f"bullpen:{self.schema}"}}
        if not self.prepared:
            manners["statement_cache_size"] = 0
        return manners

    async def _bring_up_to_date(self, pool: asyncpg.Pool[Any]) -> None:
        async with pool.acquire() as connection:
            found = await self._version(connection)
            schemas.check_version(found, self.name)
            if found == schemas.VERSION:
                return
            if not self.migrate:
                message = f"its schema has version {found}, and version {schemas.VERSION} is needed"
                raise StorageError(f"{message}; run `bullpen migrate` as a role that may", storage=self.name)
            await self._upgrade(connection)

    async def _upgrade(self, connection: Any) -> None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", self.schema)
            found = await self._version(connection)
            schemas.check_version(found, self.name)
            for step in schemas.steps(found, self.schema):
                await connection.execute(step)

    async def look_at_schema(self) -> Schema:
        async with self._alone() as connection:
            found = await self._version(connection)
        return Schema(found=found, known=schemas.VERSION, steps=schemas.steps(found, self.schema))

    async def upgrade_schema(self) -> None:
        async with self._alone() as connection:
            await self._upgrade(connection)

    async def concerns(self) -> Sequence[Concern]:
        async with self._alone() as connection:
            return await concerns_of(connection, self.url)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Any]:
        """A connection of its own, for what may not need the tables."""
        import asyncpg

        async with told(self.name):
            connection = await asyncpg.connect(self.url, **self._manners())
            try:
                yield connection
            finally:
                await connection.close()

    async def _version(self, connection: Any) -> int:
        """0 if there is nothing yet."""
        # A table, not `to_regclass`: that would answer from a cache of what was so before a lock was waited for.
        is_there = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'version'"
        if await connection.fetchval(is_there, self.schema) is None:
            return 0
        return int(await connection.fetchval(f"SELECT version FROM {self.schema}.version"))

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        async with told(self.name):
            pool = await self._connected()
            async with pool.acquire() as connection, connection.transaction():
                yield connection

    async def _fetch(self, statement: str, *values: Any) -> list[Any]:
        async with told(self.name):
            pool = await self._connected()
            return await pool.fetch(  # type: ignore[no-any-return]
                statement.replace("{s}", self.schema), *values
            )

    async def _fetchval(self, statement: str, *values: Any) -> Any:
        async with told(self.name):
            pool = await self._connected()
            return await pool.fetchval(statement.replace("{s}", self.schema), *values)

    async def now(self) -> float:
        return float(await self._fetchval("SELECT {s}.now()"))

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        if any(task.unique_key is not None for task in tasks):
            return await self._add_with_keys(tasks, duplicates)
        return await super().add(tasks)

    async def _add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        async with told(self.name):
            return await self._add_in(await self._connected(), tasks)

    async def _add_in(self, connection: Any, tasks: Sequence[Task]) -> list[Task]:
        """On a connection, or on any of the pool: one statement, and another one if ids were there already."""
        adding = f"SELECT added_id, added_at FROM {self.schema}.add({array_places(NEW)}, ${len(NEW) + 1})"
        added = dict(await connection.fetch(adding, *arrays(NEW, map(new_row, tasks)), self.notify))
        kept: dict[str, Task] = {}
        for task in tasks:
            if task.id in added:
                kept.setdefault(task.id, new_as_kept(task, added[task.id]))
        others = [task.id for task in tasks if task.id not in kept]
        if others:
            kept |= {task.id: task for task in await self._get_in(connection, others)}
        return [kept[task.id] for task in tasks]

    async def _add_with_keys(self, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        """Nobody else gives or takes their unique keys meanwhile."""
        keyed = [task for task in tasks if task.unique_key is not None]
        async with self._transaction() as connection:
            await self._lock_keys(connection, keyed)
            return await self._add_keyed_in(connection, tasks, duplicates)

    async def _add_keyed_in(self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        now = await connection.fetchval(f"SELECT {self.schema}.now()")
        there = {task.id: task for task in await self._get_in(connection, [task.id for task in tasks])}
        kept = []
        for task in tasks:
            if task.id not in there:
                holder = await self._holder(connection, task, now)
                if holder is None:
                    (there[task.id],) = await self._add_in(connection, [task])
                else:
                    after = await self._meet(connection, task, holder, duplicates, now)
                    there[task.id] = there[after.id] = after
            kept.append(there[task.id].id)
        return [there[task_id] for task_id in kept]  # as they are at the end: one may be replaced twice

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
        statement = f"SELECT {self.schema}.add_all(CAST({{}} AS json), {self.notify}, {rejects})"
        return self._in(connection, statement, new_json(tasks), check)

    def _in(self, connection: Any, statement: str, word: str, then: Callable[[str], T]) -> T | Awaitable[T]:
        """In the user's transaction."""
        if is_async(connection):
            return self._ain(connection, statement, word, then)
        return then(ask(connection, statement, word, self.schema))

    async def _ain(self, connection: Any, statement: str, word: str, then: Callable[[str], T]) -> T:
        return then(await aask(connection, statement, word, self.schema))

    async def _lock_keys(self, connection: Any, keyed: Sequence[Task]) -> None:
        queues, keys = [to_text(task.queue) for task in keyed], [to_text(task.unique_key) for task in keyed]
        await connection.execute(f"SELECT {self.schema}.lock_keys($1, $2)", queues, keys)

    async def _holder(self, connection: Any, task: Task, now: float) -> Task | None:
        """Which task has the unique key of this one."""
        if task.unique_key is None:
            return None
        of_key = f"SELECT * FROM {self.schema}.holder($1, $2, $3)"
        rows = await connection.fetch(of_key, to_text(task.queue), to_text(task.unique_key), now)
        return task_of(rows[0]) if rows else None

    async def _meet(self, connection: Any, task: Task, holder: Task, duplicates: Duplicates, now: float) -> Task:
        after = meet(task, holder, duplicates, now)
        if after is not holder:
            places = ", ".join(f"${number}" for number in range(1, len(NEW) + 1))
            await connection.execute(
                f"UPDATE {self.schema}.task SET ({', '.join(NEW)}, failures, crashes) = ROW ({places}, 0, 0) "
                "WHERE id = $1",
                *new_row(after),
            )
            if after.eta < now:
                await self._stir(connection, after.queue)
            await self._tell(connection, WORK + to_text(after.queue))
        return after

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
        names = list(dict.fromkeys(queues)) if limit > 0 else []
        began = loop.time()
        floors = self._floors
        rows = await self._fetch(
            _EXCHANGE,
            *arrays(SETTLED, map(settled_row, settlements)),
            to_text(worker),
            [to_text(name) for name in names],
            limit,
            lease,
            to_text(claim_id),
            [floors.get((name, priority), 0.0) for name in names for priority in range(PRIORITIES)],
            0.0 if began >= self.sweeps_at else self._swept_at,
        )
        refused = set()
        claimed = []
        swept = False
        for row in rows:
            status = row["status"]
            if status == "refused":
                refused.add(Hold(row["id"], row["attempt"]))
            elif status == "swept":
                swept = True
                self._swept_at = row["eta"]
                self.sweeps_at = loop.time() + max(SWEEP_EVERY, SWEEP_SHARE * (loop.time() - began))
            else:
                task = task_of(row)
                claimed.append(task)
                place = (task.queue, task.priority)
                floor = (
                    task.eta - OVERLAP
                )  # after a sweep also an earlier one: not all that it found may have been claimed
                floors[place] = floor if swept else max(floors.get(place, 0.0), floor)
        return Exchange(tuple(claimed), frozenset(refused))

    async def _settle_with_children(self, settlements: Sequence[Settlement]) -> frozenset[Hold]:
        """What was refused. To claim is another step: nothing is lost if it is never taken."""
        keyed = [child for one in settlements for child in one.children if child.unique_key is not None]
        async with self._transaction() as connection:
            await self._lock_keys(connection, keyed)
            rows = await self._settle_in(connection, settlements)
            refused = frozenset(Hold(row["id"], row["attempt"]) for row in rows)
            children = [
                child for one in settlements if Hold(one.id, one.attempt) not in refused for child in one.children
            ]
            plain = [child for child in children if child.unique_key is None]
            if plain:
                await self._add_in(connection, plain)
            await self._add_keyed_in(connection, [child for child in children if child.unique_key is not None], RETURN)
        return refused

    def settle_in(self, connection: Any, settlement: Settlement) -> Awaitable[None] | None:
        def check(refused: str) -> None:
            if _decode_ids(refused):
                raise LeaseLost(task=settlement.id, attempt=settlement.attempt)

        check_in_transaction(connection)
        statement = f"SELECT {self.schema}.settle(CAST({{}} AS json))"
        settled = self._in(connection, statement, settlement_json(settlement), check)
        if not settlement.children:
            return settled
        if settled is not None:
            return self._then_add(settled, connection, settlement.children)
        self.add_in(connection, settlement.children)
        return None

    async def _then_add(self, settled: Awaitable[None], connection: Any, children: Sequence[Task]) -> None:
        await settled
        adding = self.add_in(connection, children)
        assert isinstance(adding, Awaitable)
        await adding

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        found = "SELECT * FROM {s}.task WHERE status = 'running' AND claim_id = $1 ORDER BY priority DESC, eta, id"
        return [task_of(row) for row in await self._fetch(found, to_text(claim_id))]

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
        settlements: list[Settlement] = []
        after = ""
        dead = [to_text(worker) for worker in dead_workers]
        async with self._transaction() as connection:
            now = await connection.fetchval(f"SELECT {self.schema}.now()")
            while len(settlements) < limit:
                rows = await connection.fetch(
                    f"SELECT * FROM {self.schema}.task WHERE status = 'running' AND id > $1 "
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
            await self._settle_in(connection, settlements)
            return await self._get_in(connection, [one.id for one in settlements])

    async def _settle_in(self, connection: Any, settlements: Sequence[Settlement]) -> list[Any]:
        """In the caller's transaction; what was refused."""
        return await connection.fetch(  # type: ignore[no-any-return]
            f"SELECT id, attempt FROM {self.schema}.exchange({array_places(SETTLED)}, '', '{{}}', 0, 0, '', '{{}}', 0)",
            *arrays(SETTLED, map(settled_row, settlements)),
        )

    async def _get_in(self, connection: Any, ids: Sequence[str]) -> list[Task]:
        rows = await connection.fetch(f"SELECT * FROM {self.schema}.task WHERE id = ANY ($1)", ids)
        by_id = {row["id"]: row for row in rows}
        return [task_of(by_id[task_id]) for task_id in ids if task_id in by_id]

    # Waiting.

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        names = [to_text(queue) for queue in dict.fromkeys(queues)]
        next_work = "SELECT {s}.next_work($1)"

        async def soonest() -> float | None:
            seconds = await self._fetchval(next_work, names)
            return None if seconds is None else max(float(seconds), 0.0)

        await self._wait(timeout, [WORK + name for name in names], soonest)

    async def wait_for_result(self, task_id: str, runs: int, timeout: float) -> None:
        async def is_there() -> float | None:
            rows = await self._fetch("SELECT status, runs, awaited FROM {s}.task WHERE id = $1", task_id)
            if rows and not _is_over(rows[0], runs) and not rows[0]["awaited"]:
                # Not if it is locked: its own function settles it, and may take its time until it commits.
                rows = await self._fetch(
                    "UPDATE {s}.task SET awaited = true WHERE id = (SELECT id FROM {s}.task WHERE id = $1 "
                    "FOR UPDATE SKIP LOCKED) RETURNING status, runs",
                    task_id,
                )
                if not rows:
                    return LOCKED_PAUSE
            return 0.0 if not rows or _is_over(rows[0], runs) else None

        await self._wait(timeout, [RESULT + task_id], is_there)

    async def _listen(self, begin: Callable[[], None], hear: Callable[[str], None]) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.listen_url or self.url, **self._manners())
        try:
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(schemas.channel(self.schema), lambda *news: hear(news[3]))
            begin()
            await lost.wait()
        finally:
            connection.terminate()

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        rows = await self._fetch("SELECT * FROM {s}.task WHERE id = ANY ($1)", list(ids))
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
        rows = await self._fetch(f"SELECT * FROM {{s}}.task {where} ORDER BY id LIMIT ${len(values)}", *values)
        return [task_of(row) for row in rows]

    async def counts(self) -> Counts:
        counts: dict[str, dict[TaskStatus, int]] = {}
        for queue, status, count in await self._fetch("SELECT queue, status, count(*) FROM {s}.task GROUP BY 1, 2"):
            counts.setdefault(from_text(queue), {})[TaskStatus(status)] = count
        return counts

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change(ids, cancelled_by_operator)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change(ids, redriven)

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        return await self._change(ids, move)

    async def delete(self, ids: Sequence[str]) -> int:
        rows = await self._fetch(
            "DELETE FROM {s}.task t WHERE id = ANY ($1) AND status IN ('success', 'failed', 'cancelled') "
            f"AND {_UNAWAITED} RETURNING 1",
            list(ids),
        )
        return len(rows)

    async def _change(self, ids: Sequence[str], move: Move) -> Tasks:
        async with self._transaction() as connection:
            return await self._change_in(connection, ids, move)

    async def _change_in(self, connection: Any, ids: Sequence[str], move: Move) -> Tasks:
        if move is redriven:  # keys before rows, as everywhere
            tasks = await self._get_in(connection, ids)
            await self._lock_keys(connection, [task for task in tasks if task.unique_key is not None])
            await self._lock_linked(connection, tasks)
        now = await connection.fetchval(f"SELECT {self.schema}.now()")
        rows = await connection.fetch(
            f"SELECT * FROM {self.schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE", list(dict.fromkeys(ids))
        )
        there = {row["id"]: task_of(row) for row in rows}
        awaited = {row["id"] for row in rows if row["awaited"]}
        changed = []
        for task_id in dict.fromkeys(ids):
            before = there.get(task_id)
            if before is not None and before.follows is not None and move is redriven:
                after = redriven_behind(before, await self._members(connection, before), now)
            else:
                after = None if before is None else move(before, now)
            if before is not None and after is not None and await self._keep_in(connection, after, now):
                if terms_row(after) != terms_row(before):
                    await self._keep_terms_in(connection, after)
                changed.append(after)
                if task_id in awaited:
                    await self._tell(connection, RESULT + task_id)
                there |= await self._keep_behind(connection, before, after, now)
        for queue in {task.queue for task in changed if task.status is PENDING and task.eta < now}:
            await self._stir(connection, queue)
        for queue in {task.queue for task in changed if task.status is PENDING or task.concurrency_key is not None}:
            await self._tell(connection, WORK + to_text(queue))
        return changed

    async def _keep_behind(self, connection: Any, before: Task, after: Task, now: float) -> dict[str, Task]:
        """What becomes of those behind a task that is another now; all that changed."""
        changed: dict[str, Task] = {}
        while after.then is not None and before.is_final != after.is_final:
            found = f"SELECT * FROM {self.schema}.task WHERE id = $1 FOR UPDATE"
            row = await connection.fetchrow(found, after.then)
            if row is None:
                break
            follower = task_of(row)
            if has_ended(before, after):
                behind = followed(follower, after, now)
            else:
                behind = called_back(follower, before, await self._members(connection, follower), now)
            if behind is None or not await self._keep_in(connection, behind, now):
                break
            changed[behind.id] = behind
            if row["awaited"] and behind.is_final:
                await self._tell(connection, RESULT + behind.id)
            elif behind.waits_for == 0 and not behind.is_final:
                await self._tell(connection, WORK + to_text(behind.queue))
            before, after = follower, behind
        return changed

    async def _lock_linked(self, connection: Any, tasks: Sequence[Task]) -> None:
        """All that tasks wait for with them, in the order in which their ends are written."""
        behind = await self._get_in(connection, [task.then for task in tasks if task.then is not None])
        ids = {one for task in [*tasks, *behind] if task.follows is not None for one in (task.id, *task.follows.ids)}
        if ids:
            lock = f"SELECT 1 FROM {self.schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE"
            await connection.fetch(lock, sorted(ids))

    async def _members(self, connection: Any, follower: Task) -> Tasks:
        """Those that a task waits for, and that are still there; none of them ends meanwhile. If one of them is in the
        way, only that one.
        """
        if follower.follows is None or not follower.is_final:
            return []
        members: Tasks = []
        ids, size = follower.follows.ids, 1
        while ids:  # from the end, in larger and larger steps: the first ones are the first to run again
            rows = await connection.fetch(
                f"SELECT * FROM {self.schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE", list(ids[-size:])
            )
            ids, size = ids[:-size], 2 * size
            some = list(map(task_of, rows))
            if not follower.follows.anyway:
                failed = [task for task in some if task.is_final and task.status is not SUCCESS]
                if failed:
                    return failed[:1]
            members += some
        return members

    async def _keep_in(self, connection: Any, task: Task, now: float) -> bool:
        """False if another task has its unique key."""
        if task.unique_key is not None and has_key(task, math.inf):
            holder = await self._holder(connection, task, now)
            if holder is not None and holder.id != task.id:
                return False
        places = ", ".join(f"${number}" for number in range(1, len(CHANGING) + 1))
        await connection.execute(
            f"UPDATE {self.schema}.task SET ({', '.join(CHANGING)}) = ROW ({places}) WHERE id = ${len(CHANGING) + 1}",
            *changed_row(task),
        )
        return True

    async def _keep_terms_in(self, connection: Any, task: Task) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(TERMS) + 1))
        await connection.execute(
            f"UPDATE {self.schema}.task SET ({', '.join(TERMS)}) = ROW ({places}) WHERE id = ${len(TERMS) + 1}",
            *terms_row(task),
            task.id,
        )

    async def _tell(self, connection: Any, notification: str) -> None:
        if self.notify:
            await connection.execute("SELECT pg_notify($1, $2)", schemas.channel(self.schema), notification)

    # Moving tasks between stores.

    async def put(self, tasks: Sequence[Task]) -> frozenset[str]:
        async with self._transaction() as connection:
            await self._lock_keys(connection, [task for task in tasks if task.unique_key is not None])
            now = await connection.fetchval(f"SELECT {self.schema}.now()")
            given = [
                task
                for task in tasks
                if task.status is not RUNNING
                and not (has_key(task, now) and await self._holder(connection, task, now) is not None)
            ]
            rows = await connection.fetch(
                f"INSERT INTO {self.schema}.task SELECT * FROM "
                f"json_populate_recordset(NULL::{self.schema}.task, $1) ON CONFLICT DO NOTHING RETURNING id",
                json_of(list(map(whole_row, given))),
            )
            kept = frozenset(row["id"] for row in rows)
            for queue in {task.queue for task in given if task.id in kept and task.status is PENDING}:
                await self._stir(connection, queue)
                await self._tell(connection, WORK + to_text(queue))
        return kept

    async def _stir(self, connection: Any, queue: str) -> None:
        """Something was put before what may have been claimed already."""
        await connection.execute(
            f"INSERT INTO {self.schema}.queue AS k (name, stirred_at) VALUES ($1, {self.schema}.now()) "
            "ON CONFLICT (name) DO UPDATE SET stirred_at = excluded.stirred_at",
            to_text(queue),
        )

    async def remove(self, tasks: Sequence[Task]) -> frozenset[str]:
        given = [task for task in tasks if task.status is not RUNNING]
        rows = await self._fetch(
            "DELETE FROM {s}.task t USING unnest($1::text[], $2::text[], $3::integer[], $4::float8[]) "
            "AS g (id, status, attempt, eta) WHERE t.id = g.id AND t.status || '' = g.status AND t.attempt = g.attempt "
            "AND t.eta = g.eta RETURNING t.id",
            [task.id for task in given],
            [task.status.value for task in given],
            [task.attempt for task in given],
            [task.eta for task in given],
        )
        return frozenset(row["id"] for row in rows)

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        async with self._transaction() as connection:
            late = await connection.fetch(
                f"SELECT id FROM {self.schema}.task WHERE status = 'pending' AND expires <= {self.schema}.now() "
                "ORDER BY expires LIMIT $1 FOR UPDATE SKIP LOCKED",
                limit,
            )
            return await self._change_in(connection, [row["id"] for row in late], expired) if late else []

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
        rows = await self._fetch("SELECT record, seen_at FROM {s}.worker ORDER BY id")
        return [msgspec.structs.replace(_decode_worker(record), seen_at=seen_at) for record, seen_at in rows]

    async def pause(self, queue: str) -> None:
        await self._fetch(
            "INSERT INTO {s}.queue (name, paused) VALUES ($1, true) ON CONFLICT (name) DO UPDATE SET paused = true",
            to_text(queue),
        )

    async def resume(self, queue: str) -> None:
        async with self._transaction() as connection:
            await connection.execute(f"UPDATE {self.schema}.queue SET paused = false WHERE name = $1", to_text(queue))
            await self._tell(connection, WORK + to_text(queue))

    async def paused(self) -> frozenset[str]:
        return frozenset(from_text(row["name"]) for row in await self._fetch("SELECT name FROM {s}.queue WHERE paused"))

    async def set_limit(self, limit: Limit) -> None:
        _, *terms = msgspec.structs.astuple(limit)
        places = ", ".join(f"${number}" for number in range(3, len(_LIMIT) + 3))
        async with self._transaction() as connection:
            await connection.execute(
                f"INSERT INTO {self.schema}.queue (name, limited, {', '.join(_LIMIT)}, stirred_at) "
                f"VALUES ($1, $2, {places}, {self.schema}.now()) ON CONFLICT (name) DO UPDATE SET "
                + ", ".join(f"{name} = excluded.{name}" for name in ("limited", *_LIMIT, "stirred_at")),
                to_text(limit.queue),
                limit.is_limit,
                *terms,
            )
            await self._tell(connection, WORK + to_text(limit.queue))

    async def limits(self) -> Sequence[Limit]:
        asked = f"SELECT name, {', '.join(_LIMIT)} FROM {{s}}.queue WHERE limited ORDER BY name"
        return [
            Limit(queue=from_text(name), **dict(zip(_LIMIT, terms, strict=True)))
            for name, *terms in await self._fetch(asked)
        ]


async def _tidy(connection: Any) -> None:
    """After each use: nothing here leaves anything behind but a transaction that was interrupted. By default there
    would be another round trip.
    """
    if connection.is_in_transaction():
        await connection.reset()


def _is_over(row: Any, runs: int) -> bool:
    return TaskStatus(row["status"]) in FINAL or row["runs"] > runs

"""A PostgreSQL server that is away, refuses, hangs up, or remembers what everybody else has forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from bullpen import AsyncWorkerPool, SchemaTooNew, StorageError, StorageUnavailable, TaskNotFound, TaskQueue
from bullpen.storage.port import Limit, TaskFilter
from bullpen.storage.postgres import schema as schemas
from bullpen.storage.postgres.failures import told
from bullpen.storage.postgres.store import PostgresStorage
from bullpen.tasks.task import Task, TaskStatus, release, succeed
from tests.postgres import new_schema, run

PATIENCE = 30.0
pytestmark = pytest.mark.anyio


@pytest.fixture
def schema(postgres_url: str) -> Iterator[str]:
    with new_schema(postgres_url) as name:
        yield name


def new_tasks(first: int, count: int, **fields: Any) -> list[Task]:
    return [Task(id=f"{number:06d}", func_path="f", payload=b"[]", **fields) for number in range(first, first + count)]


async def claim(store: PostgresStorage, limit: int, *settlements: Any) -> list[Task]:
    exchange = await store.exchange(
        settlements, worker="w", queues=("default",), limit=limit, lease=60.0, claim_id=f"c{time.monotonic_ns()}"
    )
    assert not exchange.refused
    return list(exchange.claimed)


# Opening.


async def test_a_schema_is_made_once_by_all_who_come_at_once(postgres_url: str, schema: str) -> None:
    stores = [PostgresStorage(postgres_url, schema=schema, connections=1) for _ in range(6)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        await stores[0].add(new_tasks(0, 1))
        assert [task.id for task in await claim(stores[5], 5)] == ["000000"]
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_newer_schema_is_refused_and_left_alone(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    await store.close()
    newer = f"UPDATE {schema}.version SET version = {schemas.VERSION + 1}"
    await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(newer))
    with pytest.raises(SchemaTooNew):
        await PostgresStorage(postgres_url, schema=schema).open()


async def test_nothing_is_made_where_that_is_not_wanted(postgres_url: str, schema: str) -> None:
    with pytest.raises(StorageError, match="bullpen migrate"):
        await PostgresStorage(postgres_url, schema=schema, migrate=False).open()
    there = f"SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'"
    assert await asyncio.to_thread(run, postgres_url, lambda connection: connection.fetchval(there)) == 0


async def test_a_role_with_the_rights_that_the_page_gives_can_do_all_a_worker_does(
    postgres_url: str, schema: str
) -> None:
    role = schema  # a name that nobody else has
    page = Path("docs/how-to/several-machines.md").read_text()
    rights = page.partition("```sql\n")[2].partition("```")[0]
    rights = rights.replace("bullpen_worker", role).replace("SCHEMA bullpen ", f"SCHEMA {schema} ")
    owner = PostgresStorage(postgres_url, schema=schema)
    await owner.open()
    await owner.close()
    await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(rights))
    try:
        parts = urlsplit(postgres_url)
        address = parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}").geturl()
        store = PostgresStorage(address, schema=schema, migrate=False)
        await store.open()
        try:
            await store.set_limit(Limit(queue="default", max_running=5, rate=100.0))
            await store.add(new_tasks(0, 3))
            first, second, _ = await claim(store, 3)
            await claim(store, 0, succeed(first, b"1"), release(second))
            assert len(await store.list(TaskFilter(), limit=10)) == 3
            assert len(await store.cancel([second.id])) == 1
            assert await store.delete([first.id]) == 1
            assert len(await store.rescue_expired(lambda task, now: release(task), limit=9, dead_workers=["w"])) == 1
        finally:
            await store.close()
    finally:
        dropped = f"DROP OWNED BY {role}; DROP ROLE {role}"
        await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(dropped))


@pytest.mark.parametrize("address", ["postgresql://me:s3cret@127.0.0.1:1/test", "{url}_that_is_not_there"])
async def test_a_server_that_cannot_be_used_is_one_clear_line(postgres_url: str, address: str) -> None:
    with pytest.raises(StorageUnavailable) as refused:
        await PostgresStorage(address.format(url=postgres_url)).open()
    assert "\n" not in str(refused.value).strip()
    assert "s3cret" not in str(refused.value)


# Connections that break.


async def test_a_worker_goes_on_when_all_its_connections_were_cut(postgres_url: str, schema: str) -> None:
    queue = TaskQueue(f"{postgres_url}?schema={schema}")
    ran: list[int] = []
    enough = asyncio.Event()
    wanted = 40

    @queue.task(name="note")
    async def note(number: int) -> int:
        ran.append(number)
        if len(ran) >= wanted:
            enough.set()
        await asyncio.sleep(0.002)
        return number

    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE application_name = 'bullpen:{schema}' AND pid <> pg_backend_pid()"
    )
    async with queue:
        jobs = await note.aenqueue_many([(number,) for number in range(200)])
        async with AsyncWorkerPool(queue, concurrency=5):
            for wanted in (40, 80, 120):  # noqa: B007 — `note` reads it
                enough.clear()
                await enough.wait()
                await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(cut))
            results = [await _patiently(job.aresult) for job in jobs]
        assert results == list(range(200))
        assert set(ran) == set(range(200))
        counts = await queue.acounts()
    assert counts["default"] == {TaskStatus.SUCCESS: 200}


async def _patiently(ask: Any) -> Any:
    """Whoever waits for a result may be cut off as well, and asks again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask(timeout=PATIENCE)
        except StorageUnavailable:
            assert time.monotonic() < deadline


# Without notifications.


async def test_who_cannot_listen_looks(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(postgres_url, schema=schema, notify=False, prepared=False)
    await store.open()
    try:
        waiting = asyncio.ensure_future(store.wait_for_work(["default"], PATIENCE))
        await asyncio.sleep(0.02)
        began = time.monotonic()
        await store.add(new_tasks(0, 1))
        await waiting
        assert time.monotonic() - began < PATIENCE / 2
        (task,) = await claim(store, 1)
        waiting = asyncio.ensure_future(store.wait_for_result(task.id, 0, PATIENCE))
        await asyncio.sleep(0.02)
        await claim(store, 0, succeed(task, b"1"))
        await waiting
    finally:
        await store.close()


async def test_a_task_that_is_locked_for_a_moment_is_not_forgotten(postgres_url: str, schema: str) -> None:
    """Whoever claims passes over what somebody else has locked, and nobody tells when it is free."""
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    other = await asyncpg.connect(postgres_url)
    try:
        await store.add(new_tasks(0, 1))
        async with other.transaction():
            await other.execute(f"SELECT 1 FROM {schema}.task FOR UPDATE")
            assert await claim(store, 1) == []
            async with asyncio.timeout(PATIENCE / 2):
                await store.wait_for_work(["default"], PATIENCE)
        assert len(await claim(store, 1)) == 1
    finally:
        await other.close()
        await store.close()


# Other languages.


async def test_a_task_can_be_enqueued_in_sql_and_counts_when_its_transaction_commits(
    postgres_url: str, schema: str
) -> None:
    queue = TaskQueue(f"{postgres_url}?schema={schema}")

    @queue.task(name="greet")
    async def greet(name: str, *, loud: bool = False) -> str:
        return name.upper() if loud else name

    async with queue:
        await queue.acounts()
        connection = await asyncpg.connect(postgres_url)
        try:
            enqueue = f"SELECT {schema}.enqueue('greet', $1, $2, unique_key => $3)"
            async with AsyncWorkerPool(queue, concurrency=2):
                transaction = connection.transaction()
                await transaction.start()
                never = await connection.fetchval(enqueue, '["nobody"]', "{}", None)
                await transaction.rollback()
                transaction = connection.transaction()
                await transaction.start()
                first = await connection.fetchval(enqueue, '["Anna"]', '{"loud": true}', "k")
                assert await connection.fetchval(enqueue, '["Anna"]', "{}", "k") == first
                later = await queue.aenqueue("greet", ("Ben",))
                assert await later.aresult(timeout=PATIENCE) == "Ben"  # newer, and claimed before the older is there
                await transaction.commit()
                assert await queue.job(first).aresult(timeout=PATIENCE) == "ANNA"
            with pytest.raises(TaskNotFound):
                await queue.aget(never)
            with pytest.raises(asyncpg.PostgresError, match="priority must be 0 to 9"):
                await connection.execute(f"SELECT {schema}.enqueue('greet', priority => 10)")
        finally:
            await connection.close()


# A transaction that somebody forgot.


async def test_claims_do_not_get_slower_while_a_transaction_is_left_open(postgres_url: str, schema: str) -> None:
    """It makes the server keep every version of every task. Counted in pages of the index that a claim reads."""
    store = PostgresStorage(postgres_url, schema=schema, connections=1)
    await store.open()
    store.sweeps_at = float("inf")  # none but the first, which would be one in many
    forgotten = await asyncpg.connect(postgres_url)
    try:
        transaction = forgotten.transaction(isolation="repeatable_read")
        await transaction.start()
        await forgotten.execute(f"SELECT count(*) FROM {schema}.task")
        await claim(store, 0)
        pages = []
        held: list[Task] = []
        for first in range(0, 6000, 500):
            await store.add(new_tasks(first, 500))
            before = await _pages_read(store)
            for _ in range(10):
                held = await claim(store, 50, *[succeed(task, None) for task in held[1:]], *map(release, held[:1]))
                assert len(held) == 50
            pages.append(await _pages_read(store) - before)
    finally:
        await transaction.rollback()
        await forgotten.close()
        await store.close()
    assert pages[-1] < 1.5 * pages[0], pages  # 1.2; from the front, it would be 2.5, and so on


async def _pages_read(store: PostgresStorage) -> int:
    read = "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE schemaname = $1 AND indexrelname = $2"
    await store._fetchval("SELECT pg_stat_force_next_flush()")
    await store._fetchval("SELECT pg_stat_clear_snapshot()")
    return int(await store._fetchval(read, store.schema, "task_ready"))


@pytest.mark.parametrize("error", [asyncpg.InternalClientError("x"), asyncpg.InterfaceError("x"), OSError("x")])
async def test_whatever_the_driver_says_of_a_broken_connection_is_one_error(error: Exception) -> None:
    with pytest.raises(StorageUnavailable):
        async with told("here"):
            raise error

"""A PostgreSQL server is away, rejects a client, breaks connections, or keeps old versions of rows."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import category
from urllib.parse import quote, urlsplit

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from bullpen import (
    AsyncWorkerPool,
    SchemaTooNew,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageUnavailable,
    TaskNotFound,
    TaskQueue,
)
from bullpen.errors import InvalidOption
from bullpen.tasks.model.registry import task_name
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    PENDING,
    SUCCESS,
    DependsOn,
    Step,
    Task,
    TaskStatus,
    fail,
    fail_permanently,
    release,
    succeed,
)
from bullpen.tasks.model.unique import Duplicates
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import AttemptKey, BatchVerb, Limit, TaskFilter
from bullpen.tasks.storage.postgres import client as postgres_client
from bullpen.tasks.storage.postgres import schema as schemas
from bullpen.tasks.storage.postgres.failures import translated_errors
from bullpen.tasks.storage.postgres.store import COPIED, PostgresStorage
from bullpen.testing.storage_contract.base import error_of
from tests.postgres import new_schema, run
from tests.servers import OwnPostgres

PATIENCE = 60.0
FAR = 3600.0
pytestmark = pytest.mark.anyio


@pytest.fixture
def schema(postgres_url: str) -> Iterator[str]:
    with new_schema(postgres_url) as name:
        yield name


def new_tasks(first: int, count: int, **fields: Any) -> list[Task]:
    fields = {"func_path": "f", "payload": b"[]", **fields}
    return [Task(id=f"{number:06d}", **fields) for number in range(first, first + count)]


async def claim(store: PostgresStorage, limit: int, *settlements: Any) -> list[Task]:
    exchange = await store.exchange(
        settlements, worker="w", queues=("default",), limit=limit, lease=60.0, claim_id=f"c{time.monotonic_ns()}"
    )
    assert not exchange.rejected
    return list(exchange.claimed)


# Opening.


async def test_a_caller_that_waits_for_a_result_marks_the_task_without_waiting_long_for_its_lock(
    postgres_url: str, schema: str
) -> None:
    store, other = PostgresStorage(postgres_url, schema=schema), await asyncpg.connect(postgres_url)
    await store.open()
    ask = f"SELECT {schema}.await_end($1, 0)"
    try:
        await store.add(new_tasks(1, 1))
        async with other.transaction():
            await other.execute(f"SELECT 1 FROM {schema}.task FOR UPDATE")
            assert await store._fetchval(ask, "000001") == schemas.AWAIT_RETRY_DELAY
        assert await store._fetchval(ask, "000001") is None
        assert await other.fetchval(f"SELECT awaited FROM {schema}.task")
        (task,) = await claim(store, 1)
        await claim(store, 0, succeed(task, b"1"))
        assert await store._fetchval(ask, "000001") == 0
        assert await store._fetchval(ask, "unknown") == 0
    finally:
        await other.close()
        await store.close()


async def test_a_task_that_its_own_transaction_has_locked_holds_up_no_step_of_another_task(
    postgres_url: str, schema: str
) -> None:
    """`step(connection=…)` locks its task for as long as the step runs."""
    store, other = PostgresStorage(postgres_url, schema=schema), await asyncpg.connect(postgres_url)
    await store.open()

    def save(task: Task) -> asyncio.Task[bool]:
        step = Step(name="charge", number=1, attempt=task.attempt, digest="d", result=b"1")
        return asyncio.ensure_future(store.save_step(AttemptKey(task.id, task.attempt), step))

    try:
        await store.add(new_tasks(0, 4))
        tasks = await claim(store, 4)
        async with other.transaction():
            await other.execute(f"SELECT 1 FROM {schema}.task WHERE id = $1 FOR UPDATE", tasks[1].id)
            saves = [save(task) for task in tasks]
            done, waiting = await asyncio.wait(saves, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            while len(done) < 3:
                more, waiting = await asyncio.wait(waiting, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                assert more, "a step waits for the lock of another task"
                done |= more
            assert waiting == {saves[1]}
        assert await asyncio.gather(*saves) == [True] * 4
    finally:
        await other.close()
        await store.close()


async def test_concurrent_clients_create_a_schema_once(postgres_url: str, schema: str) -> None:
    stores = [PostgresStorage(postgres_url, schema=schema, connections=1) for _ in range(6)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        await stores[0].add(new_tasks(0, 1))
        assert [task.id for task in await claim(stores[5], 5)] == ["000000"]
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_worker_of_the_version_before_continues_while_and_after_the_schema_is_migrated(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no second version yet, so the test defines one."""
    second = schemas.Migration(
        "ALTER TABLE {schema}.task ADD COLUMN shoes text NOT NULL DEFAULT 'none';\n"
        "CREATE INDEX task_shoes ON {schema}.task (shoes);",
        oldest=1,
    )
    address = f"{postgres_url}?schema={schema}"
    queue = TaskQueue(address)
    ran: list[int] = []
    migrated = asyncio.Event()

    @queue.task(name="note", max_retries=1)
    async def note(number: int) -> int:
        ran.append(number)
        if number == 20:
            await migrated.wait()
        return number

    async with queue, AsyncWorkerPool(queue, concurrency=3):
        jobs = await note.aenqueue_many([(number,) for number in range(40)])
        assert await jobs[0].aresult(timeout=PATIENCE) == 0
        with monkeypatch.context() as newer:
            newer.setattr(schemas, "MIGRATIONS", (*schemas.MIGRATIONS, second))
            newer.setattr(schemas, "VERSION", schemas.VERSION + 1)
            store = PostgresStorage(postgres_url, schema=schema)
            assert len((await store.look_at_schema()).migrations) == 1
            await store.upgrade_schema()
            await store.open()
            await store.close()
        migrated.set()
        assert [await job.aresult(timeout=PATIENCE) for job in jobs] == list(range(40))
        assert sorted(ran) == list(range(40))
        assert await (await note.aenqueue(40)).aresult(timeout=PATIENCE) == 40
        waits = await note.using(delay=60.0, unique_key="k").aenqueue(41)
        assert await waits.acancel()
        assert await queue.acounts() == {"default": {TaskStatus.SUCCESS: 41, TaskStatus.CANCELLED: 1}}
    store = PostgresStorage(postgres_url, schema=schema)  # one that starts after the migration
    await store.open()
    await store.add(new_tasks(0, COPIED))
    put = [replace(task, id=f"p{task.id}") for task in await claim(store, 1)]
    assert await store.import_tasks([replace(task, status=TaskStatus.PENDING) for task in put])
    assert not (await store.look_at_schema()).is_too_new
    await store.close()


async def test_a_schema_that_is_newer_than_a_client_can_use_is_rejected_and_left_alone(
    postgres_url: str, schema: str
) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    await store.close()
    newer = f"UPDATE {schema}.version SET version = {schemas.VERSION + 1}, oldest = {schemas.VERSION + 1}"
    await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(newer))
    with pytest.raises(SchemaTooNew):
        await PostgresStorage(postgres_url, schema=schema).open()
    with pytest.raises(SchemaTooNew):
        await store.upgrade_schema()
    assert (await store.look_at_schema()).is_too_new


async def test_a_migration_that_has_to_wait_for_a_table_gives_up_before_all_workers_stand_behind_it(
    postgres_url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    other = await asyncpg.connect(postgres_url)
    try:
        second = schemas.Migration("ALTER TABLE {schema}.task ADD COLUMN shoes text;", oldest=1)
        monkeypatch.setattr(schemas, "MIGRATIONS", (*schemas.MIGRATIONS, second))
        monkeypatch.setattr(schemas, "VERSION", schemas.VERSION + 1)
        monkeypatch.setattr(postgres_client, "LOCK_TIMEOUT", "50ms")
        async with other.transaction():
            await other.execute(f"SELECT 1 FROM {schema}.task")
            with pytest.raises(StorageBusy):
                await store.upgrade_schema()
        await store.upgrade_schema()
    finally:
        await other.close()
        await store.close()


@pytest.mark.parametrize("word", ["order", "left", "values", "time"])
async def test_a_reserved_word_as_the_name_of_a_schema_is_rejected(postgres_url: str, word: str) -> None:
    with pytest.raises(InvalidOption, match=f"schema must be another name.*{word}"):
        await PostgresStorage(postgres_url, schema=word).open()


async def test_with_migrate_false_no_table_is_created(postgres_url: str, schema: str) -> None:
    with pytest.raises(StorageError, match="bullpen migrate"):
        await PostgresStorage(postgres_url, schema=schema, migrate=False).open()
    there = f"SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'"
    assert await asyncio.to_thread(run, postgres_url, lambda connection: connection.fetchval(there)) == 0


async def test_a_role_with_the_documented_rights_can_run_a_worker(postgres_url: str, schema: str) -> None:
    role = schema  # unique
    page = Path("docs/how-to/postgresql.md").read_text()
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
async def test_the_error_of_a_server_that_cannot_be_used_is_one_line(postgres_url: str, address: str) -> None:
    with pytest.raises(StorageUnavailable) as caught:
        await PostgresStorage(address.format(url=postgres_url)).open()
    assert "\n" not in str(caught.value).strip()
    assert "s3cret" not in str(caught.value)


async def test_a_server_with_tls_is_reached_if_its_certificate_is_trusted(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    options = ("-c", "ssl=on", "-c", f"ssl_cert_file={certificate}", "-c", f"ssl_key_file={key}")
    server = await asyncio.to_thread(OwnPostgres, tmp_path, *options)
    try:
        trusted = f"{server.url}?sslmode=verify-full&sslrootcert={certificate}"
        with pytest.raises(StorageUnavailable, match=r"(?i)certificate") as caught:
            await open_storage(f"{server.url}?sslmode=verify-full&sslrootcert={_another_of(made, tmp_path)}").open()
        assert "\n" not in str(caught.value).strip()
        store = open_storage(trusted)
        await store.open()
        try:
            await store.add(new_tasks(0, 1))
            assert await store.counts()
            assert isinstance(store, PostgresStorage)
            assert await store._fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        finally:
            await store.close()
    finally:
        await asyncio.to_thread(server.kill, signal.SIGQUIT)


def _another_of(made: list[str], folder: Path) -> Path:
    certificate = folder / "another.pem"
    subprocess.run([*made[:-1], str(certificate)], check=True, capture_output=True)
    return certificate


# Settings of a server, a database or a role.


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_producer_that_has_waited_for_a_unique_key_sees_its_present_holder(
    postgres_url: str, schema: str, isolation: str
) -> None:
    store = PostgresStorage(f"{postgres_url}?default_transaction_isolation={quote(isolation)}", schema=schema)
    await store.open()
    other = await asyncpg.connect(postgres_url)
    try:
        async with asyncio.timeout(PATIENCE):
            async with other.transaction():
                first = await other.fetchval(f"SELECT {schema}.enqueue('f', unique_key => 'k')")
                second = asyncio.ensure_future(store.add(new_tasks(1, 1, unique_key="k")))
                await _locked_out(other, schema, 1)
            assert [task.id for task in await second] == [first]
    finally:
        await other.close()
        await store.close()


async def test_a_setting_that_only_a_role_can_have_behind_a_pooler_is_named(postgres_url: str, schema: str) -> None:
    address = f"{postgres_url}?default_transaction_isolation=serializable"
    with pytest.raises(StorageError, match=r"ALTER ROLE … SET default_transaction_isolation = 'read committed'"):
        await PostgresStorage(address, schema=schema, prepared=False).open()


async def test_a_task_is_settled_where_arrays_have_no_nulls(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(f"{postgres_url}?array_nulls=off", schema=schema)
    await store.open()
    try:
        await store.add(new_tasks(0, 1))
        await claim(store, 0, *[succeed(task, b"1") for task in await claim(store, 1)])
    finally:
        await store.close()


async def test_functions_are_created_and_run_where_the_server_is_strict(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(f"{postgres_url}?options=-c%20plpgsql.extra_errors%3Dall", schema=schema)
    await store.open()
    try:
        await store.set_limit(Limit(queue="default", max_running_per_key=1, rate=1000.0))
        await store.add(new_tasks(0, 2, concurrency_key="k"))
        await claim(store, 0, *[succeed(task, b"1") for task in await claim(store, 2)])
        await store.wait_for_work(["default"], PATIENCE)
        await store.wait_for_result("000000", 0, PATIENCE)
        assert len(await claim(store, 2)) == 1
    finally:
        await store.close()


@pytest.mark.parametrize("fault", ["DROP TABLE {}.task CASCADE", "DROP FUNCTION {}.exchange"])
async def test_a_worker_ends_when_its_tables_are_dropped(postgres_url: str, schema: str, fault: str) -> None:
    """It repeated its calls without an end."""
    async with TaskQueue(f"{postgres_url}?schema={schema}") as queue:
        worker = AsyncWorkerPool(queue, poll_interval=0.1)
        await worker.start()
        await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(fault.format(schema)))
        await asyncio.wait_for(worker.wait_stopped(), PATIENCE)
        storage = await queue.astorage()
        with pytest.raises(StorageCorrupt, match="another program has dropped or changed it"):
            await storage.exchange([], worker="w", queues=["default"], limit=1, lease=1.0, claim_id="c")


async def test_a_schema_whose_version_is_gone_is_left_alone(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    await store._fetch("DELETE FROM {schema}.version")
    await store.close()
    with pytest.raises(StorageError, match=f"the table {schema}.version is empty"):
        await store.open()


# Many at once.


async def test_many_tasks_at_once_are_stored_like_single_ones(postgres_url: str, schema: str) -> None:
    """They are added by COPY, which knows no ON CONFLICT."""
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    try:
        terms: dict[str, Any] = {"headers": {"a": "b"}, "func_path": "\0", "payload": b"\0\\x", "expires": 9e9}
        terms |= {"schedule": Schedule(key="k"), "backoff": Backoff(7.0), "concurrency_key": "\0k"}
        given = new_tasks(0, COPIED, **terms)
        kept = await store.add(given)
        assert await store.get([task.id for task in given]) == kept
        (alone,) = await store.add(new_tasks(COPIED, 1, **terms))
        moment = kept[0].created_at
        assert kept == [replace(alone, id=task.id, created_at=moment, eta=moment) for task in given]
        first = await claim(store, 1)
        assert await store.add([replace(task, func_path="other") for task in given]) == [*first, *kept[1:]]
    finally:
        await store.close()


async def test_many_tasks_that_were_due_before_are_found_by_a_claim_that_begins_behind_them(
    postgres_url: str, schema: str
) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    try:
        await store.add(new_tasks(0, 1))
        assert len(await claim(store, 1)) == 1
        store.claim_cursors["default",].sweeps_at = float("inf")
        await store.add(new_tasks(1, COPIED, eta=1.0))
        assert len(await claim(store, COPIED)) == COPIED
    finally:
        await store.close()


# Connections that break.


async def test_a_worker_continues_after_all_its_connections_broke(postgres_url: str, schema: str) -> None:
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


async def test_a_repeatable_request_is_repeated_if_its_connection_broke(postgres_url: str, schema: str) -> None:
    """The client has not noticed the break yet, because its loop was busy."""
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    try:
        for number, ask in enumerate(
            (
                lambda: store.add(new_tasks(0, 1)),
                lambda: store.add(new_tasks(10, COPIED)),
                lambda: store.add(new_tasks(500, 1, unique_key="k")),
                lambda: store.get(["000000"]),
                lambda: store.counts(),
                store.now,
            )
        ):
            with psycopg.connect(postgres_url, autocommit=True) as other:
                others = "FROM pg_stat_activity WHERE application_name = %s"
                other.execute(f"SELECT pg_terminate_backend(pid) {others}", [f"bullpen:{schema}"])
                while other.execute(f"SELECT 1 {others}", [f"bullpen:{schema}"]).fetchone():
                    other.execute("SELECT pg_stat_clear_snapshot()")
            assert await ask(), number
        assert await store.counts() == {"default": {TaskStatus.PENDING: 2 + COPIED}}
    finally:
        await store.close()


async def test_a_server_that_allows_few_connections_serves_many_callers_at_once(postgres_url: str, schema: str) -> None:
    await (owner := PostgresStorage(postgres_url, schema=schema)).open()
    await owner.close()
    rights = f"CREATE ROLE {schema} LOGIN CONNECTION LIMIT 2; GRANT USAGE ON SCHEMA {schema} TO {schema};"
    rights += f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}"
    await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(rights))
    try:
        parts = urlsplit(postgres_url)
        address = parts._replace(netloc=f"{schema}@{parts.netloc.rpartition('@')[2]}").geturl()
        store = PostgresStorage(address, schema=schema, migrate=False)
        for _ in range(3):  # existing tasks are found again
            await asyncio.gather(*(store.counts() for _ in range(20)))
        await store.close()
    finally:
        dropped = f"DROP OWNED BY {schema}; DROP ROLE {schema}"
        await asyncio.to_thread(run, postgres_url, lambda connection: connection.execute(dropped))


async def test_the_victim_of_a_deadlock_tries_again(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(
        f"{postgres_url}?deadlock_timeout=2s", schema=schema
    )  # after this time the server looks for deadlocks, once
    await store.open()
    other = await asyncpg.connect(postgres_url)
    try:
        first, second = await store.add(new_tasks(0, 2))
        await other.execute("SET deadlock_timeout = '1min'")
        lock = f"SELECT 1 FROM {schema}.task WHERE id = $1 FOR UPDATE"
        async with asyncio.timeout(PATIENCE), other.transaction():
            await other.execute(lock, second.id)
            cancelling = asyncio.ensure_future(store.cancel([first.id, second.id]))
            await _locked_out(other, schema, 1)
            await other.execute(lock, first.id)
        assert len(await cancelling) == 2
    finally:
        await other.close()
        await store.close()


async def _patiently(ask: Any) -> Any:
    """A caller that waits for a result may lose its connection, too, and asks again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask(timeout=PATIENCE)
        except StorageUnavailable:
            assert time.monotonic() < deadline


# Without notifications.


async def test_a_client_without_notifications_polls(postgres_url: str, schema: str) -> None:
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
        named = "SELECT count(*) FROM pg_prepared_statements"  # the next transaction may be on another connection
        assert await store._fetchval(named) == 0
    finally:
        await store.close()


async def test_a_task_that_is_locked_for_a_moment_is_not_forgotten(postgres_url: str, schema: str) -> None:
    """A claim skips tasks that another transaction has locked, and gets no notification when they are free."""
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


@pytest.mark.parametrize("ends", ["expires", "succeeds"])
async def test_a_settlement_and_a_cancellation_of_a_task_with_followers_do_not_deadlock(
    postgres_url: str, schema: str, ends: str
) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    other = await asyncpg.connect(postgres_url)
    first, then = "b", "a"  # a transaction that locks in the order of ids locks the second one first
    try:
        expires = 1.0 if ends == "expires" else None
        common: dict[str, Any] = {"func_path": "f", "payload": b"[]"}
        await store.add(
            [
                Task(id=first, next_task_id=then, expires=expires, **common),
                Task(id=then, depends_on=DependsOn(ids=(first,)), waits_for=1, **common),
            ]
        )
        held = [] if expires else await claim(store, 1)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as together, other.transaction():
            await other.execute(f"SELECT 1 FROM {schema}.task WHERE id = $1 FOR UPDATE", then)
            together.create_task(store.cancel([first, then]))
            await _locked_out(other, schema, 1)
            ending = claim(store, 0, *[succeed(task, None) for task in held]) if held else store.expire(limit=9)
            ended = together.create_task(ending)
            await _locked_out(other, schema, 2 if held else 1)
            if not held:
                await ended  # skips locked tasks
        states = {task.id: task.status for task in await store.get([first, then]) if task}
        assert states[then] is TaskStatus.CANCELLED
        assert states[first] is (TaskStatus.SUCCESS if held else TaskStatus.CANCELLED)
    finally:
        await other.close()
        await store.close()


async def _locked_out(connection: Any, schema: str, count: int) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'"
    while await connection.fetchval(waiting, f"bullpen:{schema}") < count:
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        await asyncio.sleep(0.005)


_LOCKING = ("settle", "cancel ids", "retry ids", "replace", "export")


@pytest.mark.parametrize("verb", _LOCKING)
async def test_every_verb_locks_the_rows_of_tasks_in_the_order_of_their_ids(
    postgres_url: str, schema: str, verb: str
) -> None:
    """Two transactions that lock the same rows in two orders would wait for each other."""
    store = PostgresStorage(postgres_url, schema=schema)
    tasks = new_tasks(0, 5)
    if verb == "replace":
        tasks = [replace(task, unique_key=task.id) for task in tasks]
    for task in reversed(tasks):  # so that the table has them in another order
        await store.add([task])
    ids = [task.id for task in tasks]
    claimed = sorted(await claim(store, 5), key=lambda task: task.id) if verb == "settle" else []
    if verb == "retry ids":
        await store.cancel(ids)
    stored = [task for task in await store.get(ids) if task is not None]
    again = [replace(task, id=f"again-{task.id}") for task in reversed(tasks)]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "settle": lambda: claim(store, 0, *(succeed(task, b"1") for task in reversed(claimed))),
        "cancel ids": lambda: store.cancel(ids[::-1]),
        "retry ids": lambda: store.retry(ids[::-1]),
        "replace": lambda: store.add(again, Duplicates(policy="replace")),
        "export": lambda: store.export_tasks(stored[::-1]),
    }
    mine, other = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        async with mine.transaction():
            await mine.execute(f"SELECT 1 FROM {schema}.task WHERE id = $1 FOR UPDATE", ids[2])
            waiting = asyncio.ensure_future(calls[verb]())
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND $1 = ANY (pg_blocking_pids(pid))"
            while not await other.fetchval(blocked, mine.get_server_pid()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            free = await other.fetch(f"SELECT id FROM {schema}.task ORDER BY id FOR UPDATE SKIP LOCKED")
            assert [row["id"] for row in free] == ids[3:]
        await waiting
    finally:
        await mine.close()
        await other.close()
        await store.close()


def _meeting(expires: float | None = None) -> list[Task]:
    """Tasks 4, 3 and 2 meet in task 1, on which task 0 depends."""
    common: dict[str, Any] = {"func_path": "f", "payload": b"[]", "expires": expires}
    members = [Task(id=str(number), next_task_id="1", **common) for number in (4, 3, 2)]
    meeting = Task(id="1", next_task_id="0", depends_on=DependsOn(ids=("4", "3", "2")), waits_for=3, **common)
    return [*members, meeting, Task(id="0", depends_on=DependsOn(ids=("1",)), waits_for=1, **common)]


@pytest.mark.parametrize("verb", ["succeed", "fail", "cancel", "retry"])
async def test_chains_that_meet_are_locked_in_the_order_of_their_ids(postgres_url: str, schema: str, verb: str) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.add(_meeting())
    claimed = {task.id: task for task in await claim(store, 2)} if verb in ("succeed", "fail") else {}
    if verb == "retry":
        await store.cancel(["4"])
    ids = [*claimed] or ["4", "3"] if verb != "retry" else ["4"]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "succeed": lambda: claim(store, 0, *(succeed(task, b"1") for task in claimed.values())),
        "fail": lambda: claim(store, 0, *(fail_permanently(task, error_of(task)) for task in claimed.values())),
        "cancel": lambda: store.cancel(ids),
        "retry": lambda: store.retry(ids),
    }
    mine, other = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        async with mine.transaction():
            await mine.execute(f"SELECT 1 FROM {schema}.task WHERE id = '1' FOR UPDATE")
            waiting = asyncio.ensure_future(calls[verb]())
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND $1 = ANY (pg_blocking_pids(pid))"
            while not await other.fetchval(blocked, mine.get_server_pid()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            free = await other.fetch(f"SELECT id FROM {schema}.task ORDER BY id FOR UPDATE SKIP LOCKED")
            assert [row["id"] for row in free if row["id"] != "0"] == ["2", "3", "4"]
        await waiting
    finally:
        await mine.close()
        await other.close()
        await store.close()


@pytest.mark.parametrize("verb", ["expire", "rescue"])
async def test_upkeep_waits_for_no_task_behind_a_late_one(postgres_url: str, schema: str, verb: str) -> None:
    """It locks the late tasks in another order than that of their ids, and so must wait for none."""
    store = PostgresStorage(postgres_url, schema=schema)
    await store.add(_meeting(expires=1.0 if verb == "expire" else None))
    if verb == "rescue":
        await store.exchange((), worker="dead", queues=["default"], limit=3, lease=FAR, claim_id="c")
    mine = await asyncpg.connect(postgres_url)

    async def upkeep() -> Sequence[Task]:
        if verb == "expire":
            return await store.expire(limit=9)
        return await store.rescue_expired(lambda task, _: release(task), limit=9, dead_workers=["dead"])

    try:
        async with mine.transaction():
            await mine.execute(f"SELECT 1 FROM {schema}.task WHERE id = '0' FOR UPDATE")
            assert await upkeep() == []
        assert {"2", "3", "4"} <= {task.id for task in await upkeep()}
    finally:
        await mine.close()
        await store.close()


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
async def test_a_batch_locks_no_row_while_it_waits_for_another(postgres_url: str, schema: str, verb: BatchVerb) -> None:
    """A transaction of a user may lock a row for long. Meanwhile workers settle the other tasks."""
    store = PostgresStorage(postgres_url, schema=schema)
    tasks = new_tasks(0, 5)
    await store.add(tasks)
    ids = [task.id for task in tasks]
    if verb != "cancel":
        await store.cancel(ids)
    impatient = PostgresStorage(postgres_url, schema=schema, timeout=1.0)
    mine = await asyncpg.connect(postgres_url)
    try:
        async with mine.transaction():
            await mine.execute(f"SELECT 1 FROM {schema}.task WHERE id = $1 FOR UPDATE", ids[2])
            batch = impatient.change_batch(verb, TaskFilter(), limit=10)
            if verb == "delete":
                assert len((await batch).changed) == 4
            else:
                with pytest.raises(StorageBusy):
                    await batch
        found = [None if task is None else task.status for task in await store.get(ids)]
        done = {"cancel": CANCELLED, "retry": PENDING, "delete": None}[verb]
        assert found == [done, done, PENDING if verb == "cancel" else CANCELLED, done, done]
    finally:
        await mine.close()
        await impatient.close()
        await store.close()


async def test_a_producer_that_waits_long_for_a_unique_key_gets_an_error_that_it_is_taken(
    postgres_url: str, schema: str
) -> None:
    store = PostgresStorage(postgres_url, schema=schema, timeout=0.5)
    await store.open()
    other = await asyncpg.connect(postgres_url)
    try:
        async with asyncio.timeout(PATIENCE), other.transaction():
            first = await other.fetchval(f"SELECT {schema}.enqueue('f', unique_key => 'k')")
            with pytest.raises(StorageBusy, match="lock timeout"):
                await store.add(new_tasks(1, 1, unique_key="k"))
        assert [task.id for task in await store.add(new_tasks(1, 1, unique_key="k"))] == [first]
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
                assert (
                    await later.aresult(timeout=PATIENCE) == "Ben"
                )  # newer, and claimed before the older one is committed
                await transaction.commit()
                assert await queue.job(first).aresult(timeout=PATIENCE) == "ANNA"
            with pytest.raises(TaskNotFound):
                await queue.aget(never)
        finally:
            await connection.close()


async def test_sql_rejects_every_task_that_python_rejects(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    wrong = {
        "priority must be 0 to 9": ["'f', priority => 10", "'f', priority => NULL"],
        "delay must be": ["'f', delay => 'NaN'", "'f', delay => 'Infinity'", "'f', delay => -1", "'f', delay => NULL"],
        "timeout must be": ["'f', timeout => 'NaN'", "'f', timeout => 'Infinity'", "'f', timeout => 0"],
        "max_retries must be": ["'f', max_retries => -1", "'f', max_retries => 2147483647"],
        "queue must be": ["'f', queue => ''", "'f', queue => 'a b'", "'f', queue => repeat('q', 101)"],
        "function must be": ["''", "NULL", "'a b'", "E'a\\n'"],
        "unique_key must have": ["'f', unique_key => ''", "'f', unique_key => repeat('k', 201)"],
        "id must have": [
            "'f', id => ''",
            "'f', id => E'a\\nb'",
            "'f', id => E'\\u202e'",
            "'f', id => repeat('i', 201)",
        ],
        "id must not begin": ["'f', id => 'ffffffff-0000'"],
        "and max_payload is 262144": ["'f', json_build_array(repeat('x', 262144))"],
        "and max_payload is 9": ["'f', max_payload => 9"],
        "args must be": ["'f', '{\"a\": 1}'", "'f', NULL", "'f', '[]', '[]'"],
    }
    try:
        for words, calls in wrong.items():
            for call in calls:
                with pytest.raises(StorageError, match=words):
                    await store._fetch(f"SELECT {{schema}}.enqueue({call})")
        right = "'f', queue => repeat('q', 100), unique_key => repeat('k', 200), timeout => 0.1, delay => 3e9"
        await store._fetch(f"SELECT {{schema}}.enqueue({right})")
        large = "'f', json_build_array(repeat('x', 300000)), max_payload => 400000, unique_key => E'\\x1a', id => 'a-1'"
        await store._fetch(f"SELECT {{schema}}.enqueue({large})")
        assert {task.unique_key for task in await store.list(TaskFilter(), limit=9)} == {"k" * 200, "\x1a"}
    finally:
        await store.close()


# Results that are not kept.


async def test_sql_and_python_accept_the_same_names_of_functions(postgres_url: str, schema: str) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    characters = [chr(code) for code in range(1, 0x10000) if category(chr(code))[0] in "CZ"]
    characters = [one for one in characters if category(one) not in ("Cs", "Cn", "Co")] + ["é", "ü", "中", ".", "'"]
    rejected = []
    try:
        for one in characters:
            try:
                await store._fetch("SELECT {schema}.enqueue($1)", f"a{one}b")
            except StorageError:
                rejected.append(one)
    finally:
        await store.close()
    assert rejected == [one for one in characters if not is_name(f"a{one}b")]


def is_name(text: str) -> bool:
    try:
        task_name("name", text)
    except InvalidOption:
        return False
    return True


async def test_a_success_that_is_kept_for_no_time_is_deleted_and_not_written(postgres_url: str, schema: str) -> None:
    """If a caller waits for the result, it is written, and the caller is notified."""
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    try:
        await store.add(new_tasks(0, 3, result_ttl=0.0))
        done, failed, awaited = await claim(store, 3)
        waiting = asyncio.ensure_future(store.wait_for_result(awaited.id, 0, PATIENCE))
        while not await store._fetchval("SELECT awaited FROM {schema}.task WHERE id = $1", awaited.id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        endings = (succeed(done, b"1"), fail(failed, error_of(failed), 0.0), succeed(awaited, b"1"))
        await claim(store, 0, *endings)
        await asyncio.wait_for(waiting, PATIENCE)
        statuses = [task and task.status for task in await store.get([done.id, failed.id, awaited.id])]
        assert statuses == [None, FAILED, SUCCESS]
        again = await store.exchange(endings, worker="w", queues=(), limit=0, lease=60.0, claim_id="c")
        assert again.rejected == {AttemptKey(task.id, task.attempt) for task in (done, failed, awaited)}
    finally:
        await store.close()


# A transaction that is left open.


async def test_claims_do_not_get_slower_while_a_transaction_is_left_open(postgres_url: str, schema: str) -> None:
    """It makes the server keep every version of every task. The test counts the index pages that the claims
    of several workers read. The tasks have several priorities and one `eta`, because one call added them.
    """
    stores = [PostgresStorage(postgres_url, schema=schema, connections=1) for _ in range(3)]
    for store in stores:
        await store.open()
    forgotten = await asyncpg.connect(postgres_url)
    try:
        transaction = forgotten.transaction(isolation="repeatable_read")
        await transaction.start()
        await forgotten.execute(f"SELECT count(*) FROM {schema}.task")
        added = [task for priority in (0, 5, 9) for task in new_tasks(2000 * priority, 2000, priority=priority)]
        await stores[0].add(added)
        pages = [await _pages_read(stores)]
        held: list[list[Task]] = [await claim(store, 1) for store in stores]
        for store in stores:
            store.claim_cursors["default",].sweeps_at = float("inf")  # by default one insert in many
        for number in range(len(added) // 50):
            which = number % len(stores)
            held[which] = await claim(stores[which], 50, *[succeed(task, None) for task in held[which]])
            if number % 20 == 19:
                pages.append(await _pages_read(stores))
        assert len(held[which]) < 50, "there are more than were added"
        await stores[0].wait_for_work(["default"], 0.01)  # the last claim finds nothing
        pages.append(await _pages_read(stores))
    finally:
        await transaction.rollback()
        await forgotten.close()
        for store in stores:
            await store.close()
    *claims, waited = [after - before for before, after in pairwise(pages)]
    # A claim of the lowest priority reads ten priorities: 21 pages. From the front it would read 50, then more.
    assert max(claims) < 20 * 30, claims
    assert waited < 40, waited


async def _pages_read(stores: Sequence[PostgresStorage]) -> int:
    read = "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE schemaname = $1 AND indexrelname = $2"
    for store in stores:
        await store._fetchval("SELECT pg_stat_force_next_flush()")
        await store._fetchval("SELECT pg_stat_clear_snapshot()")
    return int(await stores[0]._fetchval(read, stores[0].schema, "task_ready"))


@pytest.mark.parametrize("error", [asyncpg.InternalClientError("x"), asyncpg.InterfaceError("x"), OSError("x")])
async def test_each_error_of_the_driver_about_a_broken_connection_becomes_one_error(error: Exception) -> None:
    with pytest.raises(StorageUnavailable):
        async with translated_errors("here"):
            raise error


@pytest.mark.parametrize("error", [asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError])
async def test_the_error_of_a_pooler_without_prepared_statements_names_it_in_one_line(error: type[Exception]) -> None:
    with pytest.raises(StorageError, match=r"add \?prepared=false to the address$"):
        async with translated_errors("here"):
            raise error("prepared statement is there\n\nNOTE: many lines")


async def test_many_unique_keys_take_few_locks(postgres_url: str, schema: str) -> None:
    """The server has a limited number of locks, for all clients together."""
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    other = await asyncpg.connect(postgres_url)
    try:
        tasks = [replace(task, unique_key=task.id) for task in new_tasks(0, 3000)]
        async with other.transaction():
            queues, keys = ["default"] * len(tasks), [task.unique_key for task in tasks]
            await other.execute(f"SELECT {schema}.lock_keys($1, $2)", queues, keys)
            held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            assert await other.fetchval(held) == 1
            adding = asyncio.ensure_future(store.add(new_tasks(9000, 1, unique_key="000007")))
            await _locked_out(other, schema, 1)
        assert [task.id for task in await adding] == ["009000"]
        kept = await store.add(tasks)
        assert [task.id for task in kept] == [task.id if task.id != "000007" else "009000" for task in tasks]
        assert len(await store.list(TaskFilter(), limit=4000)) == 3000
        again = await store.add([replace(task, id=f"x{task.id}") for task in tasks[:200]])
        assert [task.id for task in again] == [task.id for task in kept[:200]]
    finally:
        await other.close()
        await store.close()


async def test_a_server_without_locks_is_busy_and_not_full() -> None:
    with pytest.raises(StorageBusy):
        async with translated_errors("it"):
            raise asyncpg.OutOfMemoryError("out of shared memory")


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1:1"])
async def test_a_host_that_cannot_be_reached_is_named_without_the_password(host: str) -> None:
    with pytest.raises(StorageUnavailable) as caught:
        await open_storage(f"postgresql://me:s3cret@{host}/db").open()
    assert f" at {host}: " in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.anyio
async def test_an_option_that_the_server_does_not_know_gets_the_name_that_was_probably_meant(postgres_url: str) -> None:
    between = "&" if "?" in postgres_url else "?"
    with pytest.raises(InvalidOption, match=r"^postgresql:// has no option 'conections'; did you mean connections\?$"):
        await open_storage(f"{postgres_url}{between}application_name=me&conections=3").open()

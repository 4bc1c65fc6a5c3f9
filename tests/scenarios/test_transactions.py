"""Tasks that are enqueued, or end, in a transaction of the user's own: they count if and when it is committed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from bullpen import AsyncWorkerPool, StorageError, TaskFailed, TaskNotFound, TaskQueue, current_task
from bullpen.errors import InvalidOption, InvalidOptionType, QueueError, TaskExists
from bullpen.tasks.model.task import SUCCESS
from bullpen.tasks.storage.postgres.store import PostgresStorage
from bullpen.testing import assert_enqueued, assert_not_enqueued, enqueued, in_memory
from tests.postgres import new_schema, run

PATIENCE = 60.0
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[str]:
    """One for all tests here: it takes long to make."""

    async def make() -> None:
        store = PostgresStorage(postgres_url, schema=name)
        await store.open()
        await store.close()

    with new_schema(postgres_url) as name:
        asyncio.run(make())
        run(postgres_url, lambda connection: connection.execute(f"CREATE TABLE {name}.effect (task text)"))
        yield name


@pytest.fixture
async def queue(postgres_url: str, schema: str) -> AsyncIterator[TaskQueue]:
    async with TaskQueue(f"{postgres_url}?schema={schema}", backoff=0) as queue:
        yield queue
        for info in await queue.alist():
            await queue.acancel(info.id)
        await queue.apurge(older_than=0)


# Connections of all kinds: each is open, in a transaction, and can commit, roll back and execute.


class Open:
    def __init__(self, connection: Any, commit: Any, rollback: Any, execute: Any) -> None:
        self.connection = connection
        self.commit = commit
        self.rollback = rollback
        self.execute = execute


@asynccontextmanager
async def asyncpg_connection(url: str) -> AsyncIterator[Open]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield Open(connection, transaction.commit, transaction.rollback, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(url: str) -> AsyncIterator[Open]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield Open(connection, transaction.commit, transaction.rollback, connection.execute)


@asynccontextmanager
async def asyncpg_with_codecs(url: str) -> AsyncIterator[Open]:
    """JSON goes in and comes out as objects, as many apps have it."""
    async with asyncpg_connection(url) as here:
        for kind in ("json", "jsonb"):
            await here.connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        yield here


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Open]:
    async with await psycopg.AsyncConnection.connect(url, row_factory=dict_row) as connection:
        yield Open(connection, connection.commit, connection.rollback, connection.execute)


@asynccontextmanager
async def sqlalchemy_async(url: str) -> AsyncIterator[Open]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    try:
        async with engine.connect() as connection:
            yield Open(connection, connection.commit, connection.rollback, lambda text: connection.execute(sql(text)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def session_async(url: str) -> AsyncIterator[Open]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        async with AsyncSession(engine) as session:
            yield Open(session, session.commit, session.rollback, lambda text: session.execute(sql(text)))
    finally:
        await engine.dispose()


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncIterator[Open]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield Open(connection, connection.commit, connection.rollback, connection.execute)


@asynccontextmanager
async def sqlalchemy_sync(url: str) -> AsyncIterator[Open]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.connect() as connection:
            yield Open(connection, connection.commit, connection.rollback, lambda text: connection.execute(sql(text)))
    finally:
        engine.dispose()


@asynccontextmanager
async def session_sync(url: str) -> AsyncIterator[Open]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with Session(engine) as session:
            yield Open(session, session.commit, session.rollback, lambda text: session.execute(sql(text)))
    finally:
        engine.dispose()


@asynccontextmanager
async def scoped_sync(url: str) -> AsyncIterator[Open]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    session = scoped_session(sessionmaker(engine))
    try:
        yield Open(session, session.commit, session.rollback, lambda text: session.execute(sql(text)))
    finally:
        session.remove()
        engine.dispose()


@asynccontextmanager
async def scoped_async(url: str) -> AsyncIterator[Open]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    try:
        yield Open(session, session.commit, session.rollback, lambda text: session.execute(sql(text)))
    finally:
        await session.remove()
        await engine.dispose()


Opened = Callable[[str], AbstractAsyncContextManager[Open]]
ASYNC: list[Opened] = [
    asyncpg_connection,
    asyncpg_pool,
    asyncpg_with_codecs,
    psycopg_async,
    sqlalchemy_async,
    session_async,
    scoped_async,
]
SYNC: list[Opened] = [psycopg_sync, sqlalchemy_sync, session_sync, scoped_sync]


async def done(answer: Any) -> Any:
    return await answer if hasattr(answer, "__await__") else answer


# Enqueueing.


@pytest.mark.parametrize("opened", [*ASYNC, *SYNC])
async def test_a_task_is_there_when_its_transaction_is_committed(
    postgres_url: str, queue: TaskQueue, opened: Opened
) -> None:
    @queue.task(name="greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def enqueue(open_now: Open, name: str, **options: Any) -> Any:
        function = greet.using(connection=open_now.connection, **options)
        return function.enqueue(name) if opened in SYNC else await function.aenqueue(name)

    async with AsyncWorkerPool(queue, 2, poll_interval=20):
        async with opened(postgres_url) as here:
            never = await enqueue(here, "nobody")
            await done(here.rollback())
            with pytest.raises(TaskNotFound):
                await queue.aget(never.id)
        async with opened(postgres_url) as here:
            job = await enqueue(here, "Anna", unique_key="anna", delay=0.01, headers={"\0": "\x1a"})
            again = await enqueue(here, "Anna", unique_key="anna")
            assert (job.is_new, again.is_new, again.id) == (True, False, job.id)
            with pytest.raises(TaskNotFound):
                await queue.aget(job.id)
            await done(here.commit())
            assert await job.aresult(timeout=PATIENCE) == "hello Anna"  # long before the worker looks by itself
        assert (await queue.aget(job.id)).headers == {"\0": "\x1a"}


async def test_a_unique_key_that_is_taken_is_respected(postgres_url: str, queue: TaskQueue) -> None:
    greet = queue.task(name="greet")(_greet)
    first = await greet.using(unique_key="k").aenqueue()
    with psycopg.connect(postgres_url) as connection:
        jobs = greet.using(connection=connection, unique_key="k").enqueue_many([(), ()])
        assert [(job.id, job.is_new) for job in jobs] == [(first.id, False)] * 2
        others = greet.using(connection=connection, unique_key="j").enqueue_many([(), ()])
        assert [job.is_new for job in others] == [True, False]
        with pytest.raises(TaskExists):
            greet.using(connection=connection, unique_key="k", on_duplicate="reject").enqueue()
        with pytest.raises(InvalidOption, match="'return' or 'reject'"):
            greet.using(connection=connection, unique_key="k", on_duplicate="replace").enqueue()
        connection.commit()
    assert {info.id for info in await queue.alist()} == {first.id, others[0].id}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_transaction_that_does_not_see_the_holder_of_a_key_cannot_give_it(
    postgres_url: str, queue: TaskQueue, level: str
) -> None:
    greet = queue.task(name="greet")(_greet)
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        connection.execute("SELECT 1")
        first = await greet.using(unique_key="k").aenqueue()
        other = greet.using(connection=connection).enqueue()
        words = f"unique keys need a transaction that is READ COMMITTED, not {level}"
        with pytest.raises(psycopg.Error, match=words), connection.transaction():
            greet.using(connection=connection, unique_key="k").enqueue()
        connection.commit()
    assert {info.id for info in await queue.alist()} == {first.id, other.id}


def _greet() -> None: ...


# In tests: the fixture `bullpen_queue` and `in_memory`.

HOOKED = [sqlalchemy_async, session_async, scoped_async, sqlalchemy_sync, session_sync, scoped_sync]


@pytest.mark.parametrize("opened", [*ASYNC, *SYNC])
async def test_a_store_in_memory_keeps_a_task_when_the_transaction_commits(postgres_url: str, opened: Opened) -> None:
    queue = TaskQueue("postgresql://nowhere.invalid/shop")
    greet = queue.task(name="greet")(_greet)

    async def enqueue(open_now: Open, **options: Any) -> Any:
        function = greet.using(connection=open_now.connection, **options)
        return function.enqueue() if opened in SYNC else await function.aenqueue()

    async def ids() -> list[str]:
        return [info.id for info in await queue.alist()]

    with in_memory(queue):
        async with opened(postgres_url) as here:
            never = await enqueue(here)
            await done(here.rollback())
            at_once = [] if opened in HOOKED else [never.id]  # the others report no commit
            assert await ids() == at_once
        async with opened(postgres_url) as here:
            job = await enqueue(here, unique_key="anna", delay=60)
            again = await enqueue(here, unique_key="anna")
            assert (job.is_new, again.is_new, again.id) == (True, False, job.id)
            with pytest.raises(TaskExists):
                await enqueue(here, unique_key="anna", on_duplicate="reject")
            with pytest.raises(InvalidOption, match="'return' or 'reject'"):
                await enqueue(here, unique_key="anna", on_duplicate="replace")
            if opened in HOOKED:
                assert await ids() == []
            await done(here.commit())
            assert await ids() == [*at_once, job.id]
        async with opened(postgres_url) as here:
            await enqueue(here)
            await done(here.commit())
            assert len(await ids()) == len(at_once) + 2
        async with opened(postgres_url) as here:
            await enqueue(here)  # closed without a commit
        assert len(await ids()) == 2 * len(at_once) + 2
        if opened in ASYNC:
            async with opened(postgres_url) as here:
                with pytest.raises(InvalidOptionType, match="await aenqueue"):
                    greet.using(connection=here.connection).enqueue()


@pytest.mark.parametrize("opened", [sqlalchemy_sync, session_sync])
async def test_a_store_in_memory_drops_the_tasks_of_a_savepoint_with_it(postgres_url: str, opened: Opened) -> None:
    queue = TaskQueue("postgresql://nowhere.invalid/shop")
    greet = queue.task(name="greet")(_greet)
    with in_memory(queue):
        async with opened(postgres_url) as here:
            kept = [greet.using(connection=here.connection).enqueue()]
            with here.connection.begin_nested():
                kept.append(greet.using(connection=here.connection).enqueue())
                assert_not_enqueued(greet)
            assert_not_enqueued(greet)
            with here.connection.begin_nested() as savepoint:
                greet.using(connection=here.connection).enqueue()
                with here.connection.begin_nested():
                    greet.using(connection=here.connection).enqueue()
                savepoint.rollback()
            here.commit()
            assert [call.info.id for call in enqueued(greet)] == [job.id for job in kept]


async def test_a_session_that_joined_the_transaction_of_a_test_commits_its_tasks(postgres_url: str) -> None:
    queue = TaskQueue("postgresql://nowhere.invalid/shop")
    greet = queue.task(name="greet")(_greet)
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"))
    with in_memory(queue), engine.connect() as connection, connection.begin() as around:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            greet.using(connection=session).enqueue()
            session.rollback()
            greet.using(connection=session).enqueue()
            assert_not_enqueued(greet)
            session.commit()
        assert len(enqueued(greet)) == 1
        around.rollback()
    engine.dispose()


async def test_a_store_in_memory_keeps_a_task_at_once_in_autocommit_mode(postgres_url: str) -> None:
    queue = TaskQueue("postgresql://nowhere.invalid/shop")
    greet = queue.task(name="greet")(_greet)
    engine = create_engine(postgres_url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with in_memory(queue), engine.connect() as connection:
        greet.using(connection=connection).enqueue()
        assert_enqueued(greet)
    engine.dispose()


def test_a_store_in_memory_takes_the_connections_that_the_own_store_takes(tmp_path: Path) -> None:
    engine = create_engine("sqlite://")
    on_sqlite, on_postgres = TaskQueue(f"sqlite:///{tmp_path}/jobs.db"), TaskQueue("postgresql://nowhere.invalid/shop")
    with sqlite3.connect(":memory:") as connection, Session(engine) as session:
        for queue, wrong in ((on_sqlite, AsyncSession()), (on_postgres, connection), (on_postgres, "text")):
            with in_memory(queue), pytest.raises(InvalidOptionType, match="connection must be"):
                queue.task(name="greet")(_greet).using(connection=wrong).enqueue()
        with in_memory(on_sqlite):
            on_sqlite.task(name="greet")(_greet).using(connection=connection).enqueue()
            on_sqlite.task(name="greet")(_greet).using(connection=session).enqueue()
            assert len(on_sqlite.list()) == 1
            session.commit()
            assert len(on_sqlite.list()) == 2
        with in_memory(TaskQueue("memory://")) as queue:
            queue.task(name="greet")(_greet).using(connection=connection).enqueue()
            queue.task(name="other")(_greet).using(connection=session).enqueue()
            assert [info.name for info in queue.list()] == ["greet"]
            session.commit()
            assert [info.name for info in queue.list()] == ["greet", "other"]
        with in_memory(TaskQueue("redis://nowhere.invalid")) as queue, pytest.raises(StorageError, match="transaction"):
            queue.task(name="greet")(_greet).using(connection=session).enqueue()
    connection.close()
    engine.dispose()


async def test_many_are_enqueued_in_their_order(postgres_url: str, queue: TaskQueue) -> None:
    @queue.task(name="number")
    async def number(value: bytes) -> bytes:
        return value

    with psycopg.connect(postgres_url) as connection:
        jobs = number.using(connection=connection, priority=7).enqueue_many([(bytes([x]),) for x in range(40)])
        by_name = queue.enqueue("number", [b"\xff"], connection=connection, delay=3600)
        connection.commit()
    assert {(await job.ainfo()).priority for job in jobs} == {7}
    async with AsyncWorkerPool(queue, 8):
        assert [await job.aresult(timeout=PATIENCE) for job in jobs] == [bytes([x]) for x in range(40)]
    assert (await by_name.ainfo()).eta is not None


def test_a_task_is_there_when_a_transaction_on_its_file_is_committed(tmp_path: Path) -> None:
    with TaskQueue(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:

        @queue.task(name="greet")
        def greet(name: str) -> str:
            return name

        assert queue.counts() == {}  # whatever is asked first makes the file
        connection = sqlite3.connect(tmp_path / "jobs.db")
        never = greet.using(connection=connection).enqueue("nobody")
        connection.rollback()
        job = greet.using(connection=connection, delay=0, unique_key="k").enqueue("Anna")
        assert not greet.using(connection=connection, unique_key="k").enqueue("Anna").is_new
        connection.commit()
        connection.close()
        assert job.info().name == "greet"
        with pytest.raises(TaskNotFound):
            never.info()


@pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
def test_a_task_is_there_when_sqlalchemy_commits_a_transaction_on_its_file(tmp_path: Path, kind: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'jobs.db'}")
    make: dict[str, Callable[[], Any]] = {
        "connection": engine.connect,
        "session": lambda: Session(engine),
        "scoped session": lambda: scoped_session(sessionmaker(engine)),
    }
    with TaskQueue(f"sqlite:///{tmp_path / 'jobs.db'}") as queue:
        greet = queue.task(name="greet")(_greet)
        assert queue.counts() == {}
        with closing(make[kind]()) as here:
            never = greet.using(connection=here).enqueue()
            here.rollback()
            here.execute(sql("CREATE TABLE customer_order (number INTEGER)"))
            first = greet.using(connection=here, unique_key="k").enqueue()
            here.execute(sql("INSERT INTO customer_order VALUES (42)"))
            with pytest.raises(TaskNotFound):
                first.info()
            here.commit()
            assert first.info().name == "greet"
            second = greet.using(connection=here, unique_key="k", on_duplicate="replace").enqueue()
            here.commit()
            assert second.info().name == "greet"
        with pytest.raises(TaskNotFound):
            never.info()
        with engine.connect() as here:
            assert here.execute(sql("SELECT number FROM customer_order")).scalars().all() == [42]
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as here:
            assert greet.using(connection=here).enqueue().info().name == "greet"
    engine.dispose()


def by_isolation_level(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def by_autocommit(path: Path) -> sqlite3.Connection:
    if sys.version_info < (3, 12):
        pytest.skip("Python 3.12 has it")
    return sqlite3.connect(path, autocommit=True)


@pytest.mark.parametrize("connect", [by_isolation_level, by_autocommit])
def test_a_connection_to_the_file_that_commits_by_itself_enqueues_at_once(
    tmp_path: Path, connect: Callable[[Path], sqlite3.Connection]
) -> None:
    with TaskQueue(f"sqlite:///{tmp_path / 'jobs.db'}?busy_timeout=0.1") as queue:

        @queue.task(name="greet")
        def greet(name: str) -> str:
            return name

        assert queue.counts() == {}
        connection = connect(tmp_path / "jobs.db")
        greet_here = greet.using(connection=connection, unique_key="k", on_duplicate="reject")
        job = greet_here.enqueue("Anna")
        assert not connection.in_transaction
        assert job.info().name == "greet"
        with pytest.raises(TaskExists):
            greet_here.enqueue("Anna")
        assert not connection.in_transaction
        jobs = greet.using(connection=connection).enqueue_many([("Ben",), ("Cleo",)])
        greet.enqueue("nobody holds the file")
        assert {info.id for info in queue.list()} >= {job.id, *(one.id for one in jobs)}

        connection.execute("BEGIN")  # a transaction of the user's own is theirs to end, as with any other connection
        later = greet.using(connection=connection)
        never = later.enqueue("nobody")
        assert connection.in_transaction
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")
        kept = later.enqueue("Dora")
        with pytest.raises(TaskNotFound):
            kept.info()
        connection.execute("COMMIT")
        assert kept.info().name == "greet"
        with pytest.raises(TaskNotFound):
            never.info()
        connection.close()


@pytest.mark.parametrize("opened", ASYNC)
async def test_a_sync_call_with_an_async_connection_is_rejected_before_anything_is_done(
    postgres_url: str, queue: TaskQueue, opened: Opened
) -> None:
    greet = queue.task(name="greet")(lambda: None)
    async with opened(postgres_url) as here:
        with pytest.raises(InvalidOptionType, match="await aenqueue"):
            greet.using(connection=here.connection).enqueue()
        job = await greet.using(connection=here.connection).aenqueue()  # and the connection is as it was
        await done(here.commit())
    assert (await job.ainfo()).name == "greet"


async def test_what_is_no_connection_is_rejected(queue: TaskQueue, tmp_path: Path, redis_url: str) -> None:
    greet = queue.task(name="greet")(lambda: None)
    with pytest.raises(InvalidOptionType, match="psycopg"):
        await greet.using(connection="postgresql://").aenqueue()
    for url in ("memory://", redis_url):
        with pytest.raises(StorageError, match="share no transaction"):
            await TaskQueue(url).aenqueue("greet", elsewhere=True, connection=object())
    with TaskQueue(f"sqlite:///{tmp_path / 'jobs.db'}") as other, pytest.raises(InvalidOptionType, match="sqlite3"):
        await other.aenqueue("greet", elsewhere=True, connection=object())


async def test_a_database_without_tasks_is_named(postgres_url: str) -> None:
    queue = TaskQueue(f"{postgres_url}?schema=bullpen_test_that_is_not_there")
    greet = queue.task(name="greet")(lambda: None)
    for opened in (asyncpg_connection, psycopg_sync, sqlalchemy_async):
        async with opened(postgres_url) as here:
            with pytest.raises(StorageError, match="bullpen_test_that_is_not_there"):
                await greet.using(connection=here.connection).aenqueue()
            await done(here.rollback())


async def test_async_middleware_cannot_be_awaited_by_a_sync_enqueue(postgres_url: str, queue: TaskQueue) -> None:
    @queue.enqueue_middleware
    async def note(_: object) -> None: ...

    greet = queue.task(name="greet")(lambda: None)
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(QueueError, match="async middleware"):
            greet.using(connection=connection).enqueue()
        assert (await greet.using(connection=connection).aenqueue()).is_new
        connection.rollback()


async def test_a_trigger_enqueues(postgres_url: str, schema: str, queue: TaskQueue) -> None:
    @queue.task(name="confirm")
    async def confirm(order: int, note: str = "") -> str:
        return f"{order}{note}"

    trigger = f"""
        CREATE TABLE {schema}.orders (number integer);
        CREATE FUNCTION {schema}.confirm_order() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM {schema}.enqueue('confirm', json_build_array(NEW.number), '{{"note": "!"}}', priority => 5);
            RETURN NEW;
        END $$;
        CREATE TRIGGER confirm AFTER INSERT ON {schema}.orders FOR EACH ROW EXECUTE FUNCTION {schema}.confirm_order();
    """
    async with asyncpg_connection(postgres_url) as here, AsyncWorkerPool(queue, 2):
        await here.execute(trigger)
        await here.execute(f"INSERT INTO {schema}.orders VALUES (7), (8)")
        assert await queue.alist(name="confirm") == []
        await here.commit()
        jobs = [queue.job(info.id) for info in await queue.alist(name="confirm")]
        assert {await job.aresult(timeout=PATIENCE) for job in jobs} == {"7!", "8!"}


# Ending.


@pytest.mark.parametrize("opened", [*ASYNC, *SYNC])
async def test_effects_and_the_end_of_a_task_are_committed_together(
    postgres_url: str, schema: str, queue: TaskQueue, opened: Opened
) -> None:
    @queue.task(name="work", max_retries=1)
    async def work() -> str:
        async with opened(postgres_url) as here:
            task = current_task()
            if opened in SYNC:
                task.complete(here.connection, "said")
            else:
                await task.acomplete(here.connection, "said")
            await done(here.execute(f"INSERT INTO {schema}.effect VALUES ('{task.id}')"))
            if task.attempt == 1:
                await done(here.rollback())
                raise ValueError("not yet")
            await done(here.commit())
        return "ignored"

    async with AsyncWorkerPool(queue, 2):
        job = await work.aenqueue()
        assert await job.aresult(timeout=PATIENCE) == "said"
    info = await job.ainfo()
    assert (info.status, info.attempt, [error.message for error in info.errors]) == (SUCCESS, 2, ["not yet"])
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval(f"SELECT count(*) FROM {schema}.effect WHERE task = $1", job.id) == 1
    await connection.close()


async def test_a_sync_task_completes_itself_on_its_thread(postgres_url: str, queue: TaskQueue) -> None:
    @queue.task(name="work")
    def work() -> int:
        with psycopg.connect(postgres_url) as connection:
            current_task().complete(connection, 42)
        return 0

    async with AsyncWorkerPool(queue, 2):
        assert await (await work.aenqueue()).aresult(timeout=PATIENCE) == 42


async def test_a_connection_that_commits_by_itself_cannot_complete(postgres_url: str, queue: TaskQueue) -> None:
    @queue.task(name="work")
    async def work() -> str:
        connection = await asyncpg.connect(postgres_url)
        try:
            with pytest.raises(InvalidOptionType, match="begin one first"):
                await current_task().acomplete(connection)
            async with connection.transaction():
                with pytest.raises(InvalidOptionType, match="await acomplete"):
                    current_task().complete(connection)
        finally:
            await connection.close()
        with psycopg.connect(postgres_url, autocommit=True) as other:
            with pytest.raises(InvalidOptionType, match="begin one first"):
                current_task().complete(other)
            with other.transaction():
                current_task().complete(other, "said")
        return "ignored"

    async with AsyncWorkerPool(queue, 2):
        assert await (await work.aenqueue()).aresult(timeout=PATIENCE) == "said"


async def test_a_connection_of_sqlalchemy_that_commits_by_itself_cannot_complete(
    postgres_url: str, queue: TaskQueue
) -> None:
    @queue.task(name="sync")
    def work() -> None:
        engine = create_engine(postgres_url.replace(":", "+psycopg:", 1), isolation_level="AUTOCOMMIT")
        session = scoped_session(sessionmaker(engine))
        with engine.connect() as connection, Session(connection) as bound:
            for one in (connection, bound, session):
                with pytest.raises(InvalidOptionType, match="begin one first"):
                    current_task().complete(one)
        session.remove()
        engine.dispose()
        raise ValueError("nothing was done")

    @queue.task(name="async")
    async def awork(driver: str) -> None:
        url = postgres_url.replace(":", f"+{driver}:", 1)
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
        scoped = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        async with engine.connect() as connection, AsyncSession(engine) as session:
            for one in (connection, session, scoped):
                with pytest.raises(InvalidOptionType, match="begin one first"):
                    await current_task().acomplete(one)
        await scoped.remove()
        await engine.dispose()
        raise ValueError("nothing was done")

    async with AsyncWorkerPool(queue, 3):
        for job in (await work.aenqueue(), await awork.aenqueue("asyncpg"), await awork.aenqueue("psycopg")):
            with pytest.raises(TaskFailed, match="nothing was done"):
                await job.aresult(timeout=PATIENCE)


async def test_no_caller_waits_for_a_long_transaction(postgres_url: str, queue: TaskQueue) -> None:
    """It holds its own task only: leases of others are renewed, and it keeps its own, which nobody can renew."""
    asked = asyncio.Event()

    @queue.task(name="slow")
    async def slow() -> str:
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                await current_task().acomplete(connection, "slow")
                asked.set()
                await asyncio.sleep(1.5)
        finally:
            await connection.close()
        return "ignored"

    @queue.task(name="other")
    async def other() -> str:
        await asyncio.sleep(1.2)
        return "other"

    async with AsyncWorkerPool(queue, 4, lease=0.6):
        first, second = await slow.aenqueue(), await other.aenqueue()
        await asked.wait()
        assert await second.aresult(timeout=PATIENCE) == "other"
        assert await first.aresult(timeout=PATIENCE) == "slow"
    for job in (first, second):
        info = await job.ainfo()
        assert (info.status, info.attempt) == (SUCCESS, 1)

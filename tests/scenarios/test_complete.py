"""`current_task().complete(connection)`: effects and the end of a task are committed together, or neither is."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from bullpen import AsyncWorkerPool, Job, LeaseLost, StorageError, TaskFailed, TaskQueue, current_task
from bullpen.errors import InvalidOptionType, NoCurrentTask
from bullpen.tasks.model.context import CurrentTask
from bullpen.tasks.model.task import SUCCESS, AttemptError, Task, crash
from bullpen.tasks.storage.port import AttemptKey
from bullpen.tasks.worker.attempt import UNCOMMITTED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.close()
    return tmp_path / "jobs.db"


@pytest.fixture
def queue(path: Path) -> Iterator[TaskQueue]:
    with TaskQueue(f"sqlite:///{path}?synchronous=normal", backoff=0) as queue:
        assert queue.counts() == {}  # the file is a queue's now, and may have tables of others too
        with connect(path) as connection:
            connection.execute("CREATE TABLE effect (task TEXT, attempt INTEGER)")
        connection.close()
        yield queue


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10)


def effects(path: Path) -> list[tuple[str, int]]:
    connection = connect(path)
    try:
        return connection.execute("SELECT task, attempt FROM effect").fetchall()
    finally:
        connection.close()


def note_effect(connection: sqlite3.Connection) -> None:
    task = current_task()
    connection.execute("INSERT INTO effect VALUES (?, ?)", (task.id, task.attempt))


def run(queue: TaskQueue, job: Job[Any], **options: Any) -> None:
    """Until the task is over."""

    async def main() -> None:
        async with AsyncWorkerPool(queue, 2, poll_interval=0.05, **options):
            try:
                await job.aresult(timeout=20)
            except TaskFailed:
                pass
        await queue.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_both_are_committed_with_the_given_result(queue: TaskQueue, path: Path, kind: str) -> None:
    def work() -> str:
        with connect(path) as connection:
            current_task().complete(connection, "forty-two")
            note_effect(connection)
        connection.close()
        return "ignored"

    async def on_loop() -> str:
        return work()

    task = queue.task(name="work")(work if kind == "sync" else on_loop)
    job = task.enqueue()
    run(queue, job)
    info = job.info()
    assert (info.status, info.attempt, info.errors) == (SUCCESS, 1, ())
    assert job.result(timeout=1) == "forty-two"
    assert effects(path) == [(job.id, 1)]


def test_a_transaction_that_is_rolled_back_is_a_failed_attempt(queue: TaskQueue, path: Path) -> None:
    @queue.task(name="work", max_retries=2)
    def work() -> None:
        connection = connect(path)
        try:
            with connection:
                current_task().complete(connection=connection)
                note_effect(connection)
                if current_task().attempt < 3:
                    raise ValueError("not yet")
        finally:
            connection.close()

    job = work.enqueue()
    run(queue, job)
    info = job.info()
    assert (info.status, info.attempt, info.failures) == (SUCCESS, 3, 0)
    assert [error.message for error in info.errors] == ["not yet", "not yet"]
    assert effects(path) == [(job.id, 3)]


def test_an_uncommitted_transaction_is_a_failed_attempt(
    queue: TaskQueue, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task(name="work")
    def work() -> None:
        connection = connect(path)
        current_task().complete(connection)
        note_effect(connection)
        connection.close()

    job = work.enqueue()
    run(queue, job)
    info = job.info()
    assert str(info.status) == "failed"
    assert info.error is not None
    assert info.error.message == "it called complete() in a transaction that was never committed"
    assert effects(path) == []
    assert "never committed" in caplog.text


@pytest.mark.parametrize("isolation_level", ["DEFERRED", None])
@pytest.mark.parametrize("ending", ["returns", "raises"])
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_an_uncommitted_transaction_does_not_lock_the_file(
    path: Path, kind: str, ending: str, isolation_level: Literal["DEFERRED"] | None
) -> None:
    kept: list[sqlite3.Connection] = []

    def work() -> None:
        connection = sqlite3.connect(path, isolation_level=isolation_level, check_same_thread=False)
        kept.append(connection)
        current_task().complete(connection)
        note_effect(connection)
        if ending == "raises":
            raise ValueError("not now")

    async def on_loop() -> None:
        work()

    with TaskQueue(f"sqlite:///{path}?synchronous=normal&busy_timeout=0.2") as queue:
        assert queue.counts() == {}
        with connect(path) as connection:
            connection.execute("CREATE TABLE effect (task TEXT, attempt INTEGER)")
        connection.close()
        job = queue.task(name="work")(work if kind == "sync" else on_loop).enqueue()
        run(queue, job)
        info = job.info()
        assert str(info.status) == "failed"
        assert info.error is not None
        assert info.error.message == ("not now" if ending == "raises" else UNCOMMITTED)
        assert not kept[0].in_transaction
        assert effects(path) == []
        kept[0].close()


def test_what_follows_the_commit_on_the_connection_is_left_alone(queue: TaskQueue, path: Path) -> None:
    kept: list[sqlite3.Connection] = []

    @queue.task(name="work")
    def work() -> None:
        connection = sqlite3.connect(path, check_same_thread=False)
        kept.append(connection)
        with connection:
            current_task().complete(connection)
            note_effect(connection)
        connection.execute("BEGIN")  # of somebody who uses the connection too

    job = work.enqueue()
    run(queue, job)
    (connection,) = kept
    assert (job.info().status, connection.in_transaction) == (SUCCESS, True)
    connection.close()
    assert effects(path) == [(job.id, 1)]


def test_code_after_the_commit_changes_nothing(queue: TaskQueue, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @queue.task(name="work", max_retries=5)
    def work() -> int:
        with connect(path) as connection:
            current_task().complete(connection, 7)
            note_effect(connection)
        connection.close()
        raise ValueError("too late")

    job = work.enqueue()
    caplog.set_level(logging.WARNING)
    run(queue, job)
    assert job.result(timeout=1) == 7
    assert job.info().attempt == 1
    assert effects(path) == [(job.id, 1)]
    assert "raised after complete(): the completion stands" in caplog.text


def test_a_function_goes_on_after_its_commit_though_it_has_no_lease(queue: TaskQueue, path: Path) -> None:
    """It is not interrupted for that, on the loop or on a thread."""
    ended = asyncio.Event()

    @queue.task(name="work")
    async def work() -> None:
        with connect(path) as connection:
            current_task().complete(connection)
            note_effect(connection)
        connection.close()
        await asyncio.sleep(1.0)  # three leases
        ended.set()

    job = work.enqueue()

    async def main() -> None:
        async with AsyncWorkerPool(queue, 2, poll_interval=0.05, lease=0.3):
            await job.aresult(timeout=20)
            await asyncio.wait_for(ended.wait(), 20)
        await queue.aclose()

    asyncio.run(main())
    assert job.info().attempt == 1


def test_an_interval_completes_its_runs_so(queue: TaskQueue, path: Path) -> None:
    @queue.task(name="work")
    def work() -> None:
        with connect(path) as connection:
            current_task().complete(connection)
            note_effect(connection)
        connection.close()

    job = work.using(interval=0.01).enqueue()

    async def main() -> None:
        async with AsyncWorkerPool(queue, 2, poll_interval=0.01):
            for _ in range(3):
                await job.aresult(timeout=20)
        await queue.aclose()

    asyncio.run(main())
    info = job.info()
    assert (str(info.status), info.errors, info.failures) == ("pending", (), 0)
    assert effects(path) == [(job.id, number) for number in range(1, info.completed_runs + 1)]


def test_a_task_that_was_lost_learns_it_before_it_does_anything(queue: TaskQueue, path: Path) -> None:
    lost: list[BaseException] = []

    @queue.task(name="work", max_retries=3)
    async def work() -> None:
        task = current_task()
        if task.attempt == 1:
            storage = await queue.astorage()
            (held,) = await storage.get([task.id])
            assert held is not None
            assert await storage.rescue_expired(take_back, limit=1, dead_workers=[held.worker or ""])
            assert (await storage.renew([AttemptKey(task.id, 1)], 1.0)).lost
        connection = connect(path)
        try:
            with connection:
                task.complete(connection)
                note_effect(connection)
        except LeaseLost as error:
            lost.append(error)
            raise
        finally:
            connection.close()

    def take_back(task: Task, now: float) -> Any:
        return crash(task, AttemptError(kind="crash", attempt=task.attempt, at=now))

    job = work.enqueue()
    run(queue, job)
    assert [(error.task, error.attempt) for error in lost if isinstance(error, LeaseLost)] == [(job.id, 1)]
    assert effects(path) == [(job.id, 2)]
    assert job.info().attempt == 2


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda path: sqlite3.connect(":memory:"), StorageError, "only in the file that has the tasks"),
        (lambda path: sqlite3.connect(path.with_name("o.db")), StorageError, "only in the file that has the tasks"),
        (lambda path: None, InvalidOptionType, "a sqlite3.Connection, or a sync connection or session of SQLAlchemy"),
    ],
)
def test_another_connection_is_rejected_by_name(
    queue: TaskQueue, path: Path, make: Callable[[Path], Any], kind: type[Exception], words: str
) -> None:
    @queue.task(name="work")
    def work() -> str:
        connection = make(path)
        try:
            current_task().complete(connection)
        except kind as error:
            return str(error)
        finally:
            if connection is not None:
                connection.close()
        return "taken"

    job = work.enqueue()
    run(queue, job)
    assert words in job.result(timeout=1)  # the task is as it was, and goes on


def test_a_session_of_sqlalchemy_that_is_left_open_does_not_lock_the_file(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    kept: list[Session] = []

    def work() -> None:
        kept.append(Session(engine))
        current_task().complete(kept[0])

    with TaskQueue(f"sqlite:///{path}?synchronous=normal&busy_timeout=0.2") as queue:
        assert queue.counts() == {}
        job = queue.task(name="work")(work).enqueue()
        run(queue, job)
        info = job.info()
        assert info.error is not None
        assert info.error.message == UNCOMMITTED
    kept[0].close()
    engine.dispose()


def test_effects_of_a_session_of_sqlalchemy_and_the_end_of_the_task_commit_together(
    queue: TaskQueue, path: Path
) -> None:
    engine = create_engine(f"sqlite:///{path}")

    @queue.task(name="work", max_retries=1, backoff=0)
    def work() -> None:
        with Session(engine) as session:
            current_task().complete(session)
            session.execute(text("CREATE TABLE IF NOT EXISTS made (attempt INTEGER)"))
            session.execute(text("INSERT INTO made VALUES (:attempt)"), {"attempt": current_task().attempt})
            if current_task().attempt == 1:
                raise ValueError("before the commit")
            session.commit()

    job = work.enqueue()
    run(queue, job)
    assert job.info().attempt == 2
    with Session(engine) as session:
        assert session.execute(text("SELECT attempt FROM made")).scalars().all() == [2]
    engine.dispose()


def test_tasks_in_memory_have_no_transaction() -> None:
    queue = TaskQueue("memory://")

    @queue.task(name="work")
    def work() -> None:
        connection = sqlite3.connect(":memory:")
        try:
            current_task().complete(connection)
        finally:
            connection.close()

    job = work.enqueue()
    run(queue, job)
    info = job.info()
    queue.close()
    assert info.error is not None
    assert "tasks in memory share no transaction" in info.error.message


def test_a_task_that_no_worker_runs_cannot_be_completed() -> None:
    with pytest.raises(NoCurrentTask):
        CurrentTask(Task(id="t", func_path="f", payload=b"")).complete(None)

"""Effects and acknowledgement commit together, or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.errors import LeaseLost, StorageError
from bullpen.tasks.model.task import PENDING, RUNNING, SUCCESS, AttemptError, Task, fail, release, succeed
from bullpen.tasks.storage.sqlite.transaction import settle_in
from tests.unit.tasks.storage.sqlite.support import claim, new_task, opened

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["implicit", "by hand", "begun"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "jobs.db")
    if request.param == "by hand":
        connection.isolation_level = None
    connection.execute("CREATE TABLE effect (task TEXT)")
    if request.param == "begun":
        connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.close()


async def claimed(path: Path) -> Task:
    async with opened(path) as storage:
        await storage.add([new_task(id="t", max_retries=3)])
        (task,) = (await claim(storage)).claimed
        return task


@pytest.fixture
def task(tmp_path: Path) -> Task:
    import asyncio

    return asyncio.run(claimed(tmp_path / "jobs.db"))


async def test_both_are_committed(task: Task, connection: sqlite3.Connection, tmp_path: Path) -> None:
    settle_in(connection, tmp_path / "jobs.db", succeed(task, b"42"))
    connection.execute("INSERT INTO effect VALUES ('t')")
    connection.commit()
    async with opened(tmp_path / "jobs.db") as storage:
        (after,) = await storage.get(["t"])
        assert after is not None
        assert (after.status, after.result) == (SUCCESS, b"42")
    assert connection.execute("SELECT * FROM effect").fetchall() == [("t",)]


async def test_neither_is(task: Task, connection: sqlite3.Connection, tmp_path: Path) -> None:
    settle_in(connection, tmp_path / "jobs.db", succeed(task, b"42"))
    connection.execute("INSERT INTO effect VALUES ('t')")
    connection.rollback()
    async with opened(tmp_path / "jobs.db") as storage:
        (after,) = await storage.get(["t"])
        assert after == task or (after is not None and after.status is RUNNING)
    assert connection.execute("SELECT * FROM effect").fetchall() == []


async def test_a_lost_lease_is_told_before_anything_is_done(
    task: Task, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    if connection.in_transaction:
        connection.rollback()
    async with opened(tmp_path / "jobs.db") as storage:
        await claim(storage, 0, (release(task),))
        (again,) = (await claim(storage)).claimed
    with pytest.raises(LeaseLost) as lost:
        settle_in(connection, tmp_path / "jobs.db", succeed(task, b"42"))
    assert (lost.value.task, lost.value.attempt) == ("t", 1)
    assert not connection.in_transaction  # nothing holds the file
    settle_in(connection, tmp_path / "jobs.db", fail(again, error_of(again), 0.0))
    connection.commit()
    async with opened(tmp_path / "jobs.db") as storage:
        (after,) = await storage.get(["t"])
        assert after is not None
        assert (after.status, after.failures) == (PENDING, 1)


def error_of(task: Task) -> AttemptError:
    return AttemptError(kind="exception", attempt=task.attempt, at=0.0)


@pytest.mark.parametrize("other", [":memory:", "other.db"])
async def test_another_database_is_rejected(task: Task, tmp_path: Path, other: str) -> None:
    connection = sqlite3.connect(other if other == ":memory:" else tmp_path / other)
    with pytest.raises(StorageError, match="only in the file that has the tasks"):
        settle_in(connection, tmp_path / "jobs.db", succeed(task, None))
    connection.close()


async def test_the_connection_leaves_checkpoints_to_bullpen(
    task: Task, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    settle_in(connection, tmp_path / "jobs.db", succeed(task, None))
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)

"""Damage that only SQLite allows: ids and limits that are none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bullpen import TaskQueue
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.port import Limit, TaskFilter
from bullpen.tasks.storage.sqlite import schema
from bullpen.tasks.storage.sqlite.claims import next_eta
from bullpen.tasks.storage.sqlite.file import connect
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable

NOW = 1000.0
FAR = datetime(2900, 1, 1, tzinfo=UTC)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = connect(tmp_path / "jobs.db", synchronous="off", busy_timeout=0)
    schema.migrate(db, "jobs.db", "boot")
    yield db
    db.close()


def table(db: sqlite3.Connection) -> SqliteTaskTable:
    return SqliteTaskTable(db, NOW, 0.0)


def claim(db: sqlite3.Connection, *queues: str) -> list[str]:
    exchange = table(db).exchange([], worker="w", queues=queues, limit=5, lease=15.0, claim_id="c")
    return [task.id for task in exchange.claimed]


GARBAGE = pytest.mark.parametrize("garbage", ["x'ff'", "CAST(x'ff' AS TEXT)"])


def nothing() -> None:
    pass


def add_with_a_bad_one(db: sqlite3.Connection, garbage: str, set_before: str = "") -> None:
    about = {"a": "k", "bad": "l", "z": None}
    table(db).add(
        [Task(id=name, func_path="f", payload=b"", concurrency_key=key, failure_ttl=5.0) for name, key in about.items()]
    )
    db.execute(f"UPDATE bullpen_task SET {set_before} id = {garbage} WHERE id = 'bad'")


@GARBAGE
@pytest.mark.parametrize("in_order", [False, True])
def test_a_row_whose_id_is_no_text_fails_and_gets_a_name(db: sqlite3.Connection, garbage: str, in_order: bool) -> None:
    table(db).set_limit(Limit(queue="default", in_order=in_order, max_running=9))
    add_with_a_bad_one(db, garbage)
    assert sorted(claim(db, "default")) == ["a", "z"]
    shown = {task.id: task for task in table(db).page(TaskFilter(), 10, None)}
    assert [*shown] == ["a", "unreadable-FF", "z"]
    (error,) = shown["unreadable-FF"].errors
    assert (error.kind, error.message) == ("poison", "its stored id was no text")
    assert SqliteTaskTable(db, NOW + 6.0, 6.0).prune(10) == 1


@GARBAGE
def test_a_running_row_whose_id_is_no_text_gives_its_place_back(db: sqlite3.Connection, garbage: str) -> None:
    table(db).set_limit(Limit(queue="default", max_running=1))
    add_with_a_bad_one(db, garbage, "status = 'running', lease_until = -1.0,")
    assert claim(db, "default") == []
    assert table(db).rescue_expired(lambda *_: None, 10, []) == []
    assert table(db).get("unreadable-FF") is not None
    assert len(claim(db, "default")) == 1


@GARBAGE
@pytest.mark.parametrize("status", ["pending", "running", "success", "failed"])
def test_lists_and_bulk_verbs_name_a_row_whose_id_is_no_text(tmp_path: Path, garbage: str, status: str) -> None:
    path = tmp_path / "jobs.db"
    with TaskQueue(f"sqlite:///{path}") as queue:
        task = queue.task(nothing)
        jobs = [task.using(eta=FAR).enqueue() for _ in range(3)]
        with closing(sqlite3.connect(path)) as db, db:
            done = f"UPDATE bullpen_task SET status = '{status}', finished_at = 1.0, prune_at = 9e999, id = {garbage}"
            db.execute(f"{done} WHERE id = ?", (jobs[1].id,))
        assert "unreadable-FF" in [info.id for info in queue.list()]
        queue.job("unreadable-FF").info()
        queue.cancel_all()
        assert queue.purge(all=True) == 3


def test_a_limit_that_cannot_be_read_holds_back_its_queue_alone(db: sqlite3.Connection) -> None:
    table(db).set_limit(Limit(queue="mail", max_running=3))
    table(db).add([Task(id="a", func_path="f", payload=b"", queue="mail"), Task(id="b", func_path="f", payload=b"")])
    db.execute("UPDATE bullpen_limit SET terms = x'c1'")
    assert claim(db, "mail", "default") == ["b"]
    table(db).set_limit(Limit(queue="mail", max_running=3))
    assert claim(db, "mail") == ["a"]


def test_a_priority_that_is_no_text_hides_no_later_task(db: sqlite3.Connection) -> None:
    tasks = [Task(id=name, func_path="f", payload=b"", eta=NOW + later) for name, later in (("bad", 5.0), ("a", 9.0))]
    table(db).add(tasks)
    db.execute("UPDATE bullpen_task SET priority = CAST(x'ff' AS TEXT) WHERE id = 'bad'")
    assert next_eta(db, ["default"], NOW) == NOW + 5.0
    assert next_eta(db, ["default"], NOW + 6.0) == NOW + 9.0

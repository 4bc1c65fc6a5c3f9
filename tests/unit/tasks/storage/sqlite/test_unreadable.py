"""Damage that only SQLite allows: ids and limits that are none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.port import Limit, TaskFilter
from bullpen.tasks.storage.sqlite import schema
from bullpen.tasks.storage.sqlite.file import connect
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable

NOW = 1000.0


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


@pytest.mark.parametrize("garbage", ["x'ff'", "CAST(x'ff' AS TEXT)"])
def test_a_row_whose_id_is_no_text_is_set_aside_at_once(db: sqlite3.Connection, garbage: str) -> None:
    tasks = [
        Task(id=name, func_path="f", payload=b"", concurrency_key=key, failure_ttl=5.0) for name, key in ABOUT.items()
    ]
    table(db).add(tasks)
    db.execute(f"UPDATE bullpen_task SET id = {garbage} WHERE id = 'bad'")
    assert claim(db, "default") == ["a", "z"]
    assert db.execute("SELECT count(*) FROM bullpen_task WHERE status = 'failed'").fetchone() == (1,)
    assert [task.id for task in table(db).page(TaskFilter(), 10, None)] == ["a", "z"]
    assert SqliteTaskTable(db, NOW + 6.0, 6.0).prune(10) == 1


ABOUT = {"a": None, "bad": "k", "z": None}


def test_a_limit_that_cannot_be_read_holds_back_its_queue_alone(db: sqlite3.Connection) -> None:
    table(db).set_limit(Limit(queue="mail", max_running=3))
    table(db).add([Task(id="a", func_path="f", payload=b"", queue="mail"), Task(id="b", func_path="f", payload=b"")])
    db.execute("UPDATE bullpen_limit SET terms = x'c1'")
    assert claim(db, "mail", "default") == ["b"]
    table(db).set_limit(Limit(queue="mail", max_running=3))
    assert claim(db, "mail") == ["a"]

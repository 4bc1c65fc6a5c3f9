"""A claim costs the same however many tasks wait. Cost is counted in steps of SQLite's virtual machine, not in time."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.port import Limit
from bullpen.tasks.storage.sqlite import claims, schema
from bullpen.tasks.storage.sqlite.file import connect
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable

NOW = 1000.0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = connect(tmp_path / "jobs.db", synchronous="off", busy_timeout=0)
    schema.migrate(db, "jobs.db", "boot")
    yield db
    db.close()


_numbers = itertools.count()


def fill(db: sqlite3.Connection, count: int, **fields: object) -> None:
    add(db, [new_task(**fields) for _ in range(count)])


def new_task(**fields: object) -> Task:
    return Task(id=f"{next(_numbers):08}", func_path="f", payload=b"[]", **fields)  # type: ignore[arg-type]


def add(db: sqlite3.Connection, tasks: list[Task]) -> None:
    db.execute("BEGIN")
    SqliteTaskTable(db, NOW, 0.0).add(tasks)
    db.execute("COMMIT")


def steps_of_a_claim(db: sqlite3.Connection, limit: int = 5, queues: tuple[str, ...] = ("default",)) -> int:
    """What one claim costs; it is undone."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    db.execute("BEGIN")
    db.set_progress_handler(count, 10)
    taken = (
        SqliteTaskTable(db, NOW, 0.0)
        .exchange([], worker="w", queues=queues, limit=limit, lease=15.0, claim_id="c")
        .claimed
    )
    db.set_progress_handler(None, 0)
    db.execute("ROLLBACK")
    assert len(taken) == limit
    return counted


def test_a_claim_costs_the_same_with_a_large_backlog(db: sqlite3.Connection) -> None:
    fill(db, 100)
    small = steps_of_a_claim(db)
    fill(db, 6_000)
    assert steps_of_a_claim(db) <= 1.3 * small


@pytest.mark.parametrize("priority", [0, 9])
def test_tasks_that_are_not_due_are_not_read(db: sqlite3.Connection, priority: int) -> None:
    fill(db, 100)
    fill(db, 1, eta=NOW + 9, priority=priority)
    small = steps_of_a_claim(db)
    fill(db, 6_000, eta=NOW + 9, priority=priority)
    assert steps_of_a_claim(db) <= 1.3 * small


def test_a_paused_queue_is_not_read(db: sqlite3.Connection) -> None:
    fill(db, 100)
    SqliteTaskTable(db, NOW, 0.0).pause("paused")
    small = steps_of_a_claim(db, queues=("paused", "default"))
    fill(db, 6_000, queue="paused", priority=9)
    assert steps_of_a_claim(db, queues=("paused", "default")) <= 1.3 * small


@pytest.mark.parametrize("terms", [{"max_running": 0}, {"max_running": 1}, {"rate": 1.0}])
def test_a_queue_at_its_limit_is_not_read_through(db: sqlite3.Connection, terms: dict[str, float]) -> None:
    fill(db, 100)
    fill(db, 10, queue="limited", priority=9)
    SqliteTaskTable(db, NOW, 0.0).set_limit(Limit(queue="limited", **terms))  # type: ignore[arg-type]
    small = steps_of_a_claim(db, queues=("limited", "default"))
    fill(db, 6_000, queue="limited", priority=9)
    assert steps_of_a_claim(db, queues=("limited", "default")) <= 1.3 * small


def test_tasks_whose_key_is_at_its_limit_are_not_read_through(db: sqlite3.Connection) -> None:
    SqliteTaskTable(db, NOW, 0.0).set_limit(Limit(queue="default", max_running_per_key=1))
    fill(db, claims.READ_IN_VAIN + 50, concurrency_key="busy")
    for key in ("a", "b", "c", "d"):
        fill(db, 10, concurrency_key=key)
    small = steps_of_a_claim(db)
    fill(db, 6_000, concurrency_key="busy", eta=1.0)
    assert steps_of_a_claim(db) <= 1.3 * small


def test_many_keys_are_not_looked_at_for_a_few_tasks_that_are_held_back(db: sqlite3.Connection) -> None:
    SqliteTaskTable(db, NOW, 0.0).set_limit(Limit(queue="default", max_running_per_key=1))
    fill(db, 300, concurrency_key="hot")
    steps_of_a_claim(db, limit=1)
    add(db, [new_task(concurrency_key=f"key {number}") for number in range(500)])
    few = steps_of_a_claim(db)
    add(db, [new_task(concurrency_key=f"key {number}") for number in range(500, 2500)])
    assert steps_of_a_claim(db) < 2 * few


def test_every_statement_on_tasks_has_its_index(db: sqlite3.Connection) -> None:
    """Statements that name an index fail without it; these choose by themselves."""
    for statement, index in {
        "SELECT 1 FROM bullpen_task WHERE unique_key = ? AND status IN ('pending', 'running')": "bullpen_unique",
        "SELECT 1 FROM bullpen_task WHERE id = ? AND attempt = 1 AND status = 'running'": "autoindex",
        "DELETE FROM bullpen_task WHERE rowid IN (SELECT value FROM json_each(?))": "INTEGER PRIMARY KEY",
    }.items():
        plan = " ".join(str(row[3]) for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", ("x",)))
        assert index in plan
        assert "SCAN bullpen_task" not in plan

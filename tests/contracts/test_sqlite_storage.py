"""The contract of stores, kept in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from bullpen.tasks.storage.port import Storage
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.testing import StorageContract


class TestSqliteStorage(StorageContract):
    path: Path

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "jobs.db"

    _GARBAGE: ClassVar = {
        "options": b"\xc1",
        "headers": b"\xc1",
        "depends_on": b"\xc1",
        "errors": b"\xc1",
        "func_path": b"\xff",
        "payload": "text",
        "result_ttl": "text",
        "failure_ttl": "text",
        "hold": "text",
        "priority": "text",
        "attempt": "text",
        "failures": -1,
        "completed_runs": "text",
        "created_at": 1e300,
        "next_task_id": b"",
        "cancel_requested": "text",
        "scheduled_at": b"",
        "worker": b"\xff",
        "unique_until": "text",
    }
    damages_claimed = (*_GARBAGE, "no text")
    damages_other = ("status", "eta", "progress")

    async def damage(self, task_id: str, kind: str) -> Callable[[], Awaitable[object]]:
        garbage = {**self._GARBAGE, "status": "text", "eta": "text", "progress": b"\xc1", "newer": 2}
        column = {"newer": "format", "no text": "func_path"}.get(kind, kind)
        value = "CAST(x'ff' AS TEXT)" if kind == "no text" else "?"
        with closing(sqlite3.connect(self.path)) as db, db:
            statement = f"UPDATE bullpen_task SET {column} = {value} WHERE id = ?"
            assert db.execute(statement, (*([garbage[kind]] if value == "?" else []), task_id)).rowcount == 1

        async def stored() -> object:
            with closing(sqlite3.connect(self.path)) as db:
                return db.execute(f"SELECT hex({column}) FROM bullpen_task WHERE id = ?", (task_id,)).fetchone()

        return stored

    async def damage_worker(self, worker: str) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("UPDATE bullpen_worker SET record = x'c1' WHERE id = ?", (worker,))

    def make_storage(self) -> SqliteStorage:
        return SqliteStorage(self.path, synchronous="normal")

    async def queue_names(self, store: Storage) -> set[str]:
        tables = ("task", "paused", "limit", "start")
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(" UNION ".join(f"SELECT queue FROM bullpen_{table}" for table in tables))
            return {name for (name,) in rows}

    def address(self) -> str:
        return f"sqlite:///{self.path}?synchronous=normal"

"""The contract of stores, kept in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from bullpen.tasks.storage.port import Storage
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.testing import StorageContract
from bullpen.testing.storage_contract.base import added, claim


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
    damages_claimed = (*_GARBAGE, "func_path.no text", "priority.no text")
    damages_other = ("status", "eta", "progress")

    async def damage(self, task_id: str, kind: str) -> Callable[[], Awaitable[object]]:
        garbage = {**self._GARBAGE, "status": "text", "eta": "text", "progress": b"\xc1", "newer": 2}
        column = "format" if kind == "newer" else kind.partition(".")[0]
        value = "CAST(x'ff' AS TEXT)" if kind.endswith("no text") else "?"
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

    _TERMS: ClassVar[dict[str, dict[str, object]]] = {
        "rate zero": {"rate": 0.0},
        "rate nan": {"rate": float("nan")},
        "rate infinite": {"rate": float("inf")},
        "rate text": {"rate": "5"},
        "most negative": {"max_running": -1},
        "per key zero": {"max_running_per_key": 0},
        "terms of another queue": {"queue": "default", "max_running": 0},
    }
    _SETTINGS: ClassVar = {
        "no msgpack": "UPDATE bullpen_limit SET terms = x'c1'",
        "terms no text": "UPDATE bullpen_limit SET terms = CAST(x'ff' AS TEXT)",
        "limit of a blob": "INSERT OR REPLACE INTO bullpen_limit VALUES (x'ff', x'80')",
        "limit of no text": "INSERT OR REPLACE INTO bullpen_limit VALUES (CAST(x'ff' AS TEXT), x'80')",
        "pause of a blob": "INSERT OR REPLACE INTO bullpen_paused VALUES (x'ff')",
        "pause of no text": "INSERT OR REPLACE INTO bullpen_paused VALUES (CAST(x'ff' AS TEXT))",
        "starts to come": "INSERT INTO bullpen_start SELECT 'other', 9e999 FROM generate_series(1, 5000)",
        "starts no time": "INSERT INTO bullpen_start SELECT 'other', 'text' FROM generate_series(1, 5000)",
        "starts no text": "INSERT INTO bullpen_start VALUES (CAST(x'ff' AS TEXT), x'ff')",
    }
    damages_limit = (*_TERMS, *list(_SETTINGS)[:2])
    damages_settings = tuple(_SETTINGS)[2:]

    async def damage_settings(self, kind: str) -> None:
        many = "(WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 5000) SELECT n FROM n)"
        with closing(sqlite3.connect(self.path)) as db, db:
            if kind in self._TERMS:
                terms = msgspec.msgpack.encode({"queue": "other", **self._TERMS[kind]})
                db.execute("UPDATE bullpen_limit SET terms = ? WHERE queue = 'other'", (terms,))
            else:
                db.execute(self._SETTINGS[kind].replace("generate_series(1, 5000)", many))

    damages_history = (
        "x'ff'",
        "CAST(x'ff' AS TEXT)",
        "'text'",
        "'[-1]'",
        "'[1e300]'",
        "'[null]'",
        "5",
        "'{}'",
        "9e999",
    )

    async def damage_history(self, value: str) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute(f"UPDATE bullpen_history SET counts = {value}")
            db.execute(f"UPDATE bullpen_failure SET count = {value}, first = {value}, example = {value}")

    async def test_a_damaged_name_of_the_boot_keeps_no_client_out(self, store: Storage) -> None:
        await added(store)
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("UPDATE bullpen_boot SET boot = CAST(x'ff' AS TEXT)")
        await store.close()
        await store.open()
        assert len(await claim(store)) == 1

    def make_storage(self) -> SqliteStorage:
        return SqliteStorage(self.path, synchronous="normal")

    async def queue_names(self, store: Storage) -> set[str]:
        tables = ("task", "paused", "limit", "start")
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(" UNION ".join(f"SELECT queue FROM bullpen_{table}" for table in tables))
            return {name for (name,) in rows}

    async def stored_steps(self, store: Storage) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            return int(connection.execute("SELECT count(*) FROM bullpen_step").fetchone()[0])

    async def lose_steps(self, store: Storage) -> bool:
        with closing(sqlite3.connect(self.path)) as db, db:
            return db.execute("DELETE FROM bullpen_step").rowcount > 0

    def address(self) -> str:
        return f"sqlite:///{self.path}?synchronous=normal"

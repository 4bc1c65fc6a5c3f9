"""The speed of SQLite itself: SQL written by hand.

One table of nine columns, one partial index; no leases, no options, no errors kept, no limits. WAL.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SETTINGS = "sqlite3, WAL, synchronous=FULL"
SETTINGS_NORMAL = "sqlite3, WAL, synchronous=NORMAL"
PAYLOAD = b'{"args":[12345],"kwargs":{}}'

_TABLE = """
CREATE TABLE IF NOT EXISTS task (id TEXT PRIMARY KEY, queue TEXT, func TEXT, payload BLOB, status TEXT,
                                 priority INTEGER, eta REAL, attempt INTEGER DEFAULT 0, result BLOB);
CREATE INDEX IF NOT EXISTS ready ON task (queue, priority, eta, id) WHERE status = 'pending';
"""
_ADD = "INSERT INTO task (id, queue, func, payload, status, priority, eta) VALUES (?, ?, ?, ?, ?, ?, ?)"
_CLAIM = (
    "SELECT id, payload FROM task WHERE status = 'pending' AND queue = 'default' ORDER BY priority, eta, id LIMIT ?"
)
_START = "UPDATE task SET status = 'running', attempt = attempt + 1 WHERE id = ?"
_SETTLE = "UPDATE task SET status = 'success', result = ? WHERE id = ? AND attempt = 1 AND status = 'running'"

Row = tuple[object, ...]
_numbers = itertools.count()


def new_row() -> Row:
    number = next(_numbers)
    return (
        f"019a0000-0000-7000-8000-{number:012x}",
        "default",
        "app.send",
        PAYLOAD,
        "pending",
        0,
        time.time(),
    )


class Plain:
    """A queue in plain SQL."""

    def __init__(self, folder: Path, *, any_thread: bool = False, synchronous: str = "FULL") -> None:
        self.db = sqlite3.connect(folder / "plain.db", isolation_level=None, check_same_thread=not any_thread)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute(f"PRAGMA synchronous = {synchronous}")
        self.db.executescript(_TABLE)
        self._held: list[tuple[str, bytes]] = []

    def add(self, row: Row) -> None:
        """One row, one commit."""
        self.db.execute(_ADD, row)

    def add_many(self, rows: Sequence[Row]) -> None:
        """One transaction."""
        with self._transaction():
            self.db.executemany(_ADD, rows)

    def exchange(self, limit: int) -> int:
        """Settle the claimed tasks with results, and claim the next, in one transaction. Return their number."""
        with self._transaction():
            self.db.executemany(_SETTLE, [(b"12345", task_id) for task_id, _ in self._held])
            self._held = self.db.execute(_CLAIM, (limit,)).fetchall()
            self.db.executemany(_START, [(task_id,) for task_id, _ in self._held])
        return len(self._held)

    def count(self, status: str) -> int:
        (found,) = self.db.execute("SELECT count(*) FROM task WHERE status = ?", (status,)).fetchone()
        return int(found)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN IMMEDIATE")
        yield
        self.db.execute("COMMIT")

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self.db.close()

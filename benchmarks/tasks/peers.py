"""Each library in its own idiom: how it is opened, and which of its settings decide how durable it is.

The measurement reads `PRAGMA synchronous` of each connection and compares it with the table, so that no row names a
setting that is not in force. Peers are imported when they are opened, so a missing one is a message and not a
crash.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.model import Peer

PLAIN = Peer("plain SQL", "sqlite3:connect", None, None, "sqlite3")
ASYNCIO = Peer("asyncio", "asyncio:create_task", None, None, "asyncio")
BULLPEN = Peer("bullpen", "bullpen:TaskQueue", "pybullpen", "pip install -e .", "TaskQueue")
HUEY = Peer("huey", "huey:SqliteHuey", "huey", "pip install huey", "SqliteHuey(filename)")
LITEQUEUE = Peer("litequeue", "litequeue:LiteQueue", "litequeue", "pip install litequeue", "LiteQueue(filename)")
PERSIST_QUEUE = Peer(
    "persist-queue",
    "persistqueue:SQLiteAckQueue",
    "persist-queue",
    "pip install persist-queue",
    "SQLiteAckQueue(path)",
)
TASKITO = Peer("taskito", "taskito:Queue", "taskito", "pip install taskito", "Queue(db_path)")

_LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
Seen = Callable[[int], object]


class SettingsDiffer(Exception):
    """A connection has another setting than its row of the table."""


def check_settings(db: sqlite3.Connection, synchronous: str) -> None:
    """That the connection runs in WAL mode, at this level."""
    (mode,), (level,) = db.execute("PRAGMA journal_mode").fetchone(), db.execute("PRAGMA synchronous").fetchone()
    if (mode, _LEVELS[level]) != ("wal", synchronous):
        raise SettingsDiffer(f"expected WAL and synchronous={synchronous}, got {mode} and {_LEVELS[level]}")


class Huey:
    """huey with one task. `fsync=None` is its default, which leaves SQLite's own default, FULL, in force."""

    def __init__(self, folder: Path, *, fsync: bool | None = None, seen: Seen = lambda x: None) -> None:
        self.huey = import_module("huey").SqliteHuey("bench", filename=str(folder / "huey.db"), fsync=fsync)
        check_settings(self.huey.storage.conn, "OFF" if fsync is False else "FULL")

        def noop(x: int) -> int:
            seen(x)
            return x

        self.noop = self.huey.task()(noop)

    @contextmanager
    def consuming(self, **options: Any) -> Iterator[None]:
        """As `huey_consumer` would, on threads of this process."""
        consumer = self.huey.create_consumer(**options)
        consumer._set_signal_handlers = lambda: None  # they belong to the main program
        consumer.start()
        try:
            yield
        finally:
            consumer.stop(graceful=True)


class LiteQueue:
    def __init__(self, folder: Path, *, full: bool = False) -> None:
        self.queue = import_module("litequeue").LiteQueue(folder / "lite.db")
        if full:
            self.queue.conn.execute("PRAGMA synchronous = FULL")
        check_settings(self.queue.conn, "FULL" if full else "NORMAL")


class PersistQueue:
    def __init__(self, folder: Path) -> None:
        self.queue = import_module("persistqueue").SQLiteAckQueue(str(folder), auto_commit=True)
        check_settings(self.queue._putter, "FULL")


class Taskito:
    """taskito with one task. Its core is not Python, so the settings of its connections cannot be read."""

    def __init__(self, folder: Path, *, seen: Seen = lambda x: None, **options: Any) -> None:
        import_module("taskito.log_config").configure("WARNING")  # by default it logs two lines for each task
        self.queue = import_module("taskito").Queue(db_path=str(folder / "taskito.db"), **options)

        def noop(x: int) -> int:
            seen(x)
            return x

        self.noop = self.queue.task()(noop)

    @contextmanager
    def consuming(self) -> Iterator[None]:
        """As `taskito worker` would, on a thread of this process."""
        worker = threading.Thread(target=self.queue.run_worker)
        worker.start()
        try:
            yield
        finally:
            self.queue.shutdown()
            worker.join()

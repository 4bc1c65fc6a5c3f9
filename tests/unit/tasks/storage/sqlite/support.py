"""What the tests of the SQLite store share."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bullpen.tasks.model.task import Settlement, Task
from bullpen.tasks.storage.port import Exchange
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.tasks.storage.sqlite.task_table import StoreClock

_numbers = itertools.count()


def new_task(**fields: Any) -> Task:
    fields.setdefault("id", f"task-{next(_numbers):06}")
    return Task(**{"func_path": "app.send", "payload": b"[]", **fields})


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage(path, **options)
    try:
        await storage.open()
        yield storage
    finally:
        await storage.close()


async def claim(
    storage: SqliteStorage, limit: int = 1, settlements: tuple[Settlement, ...] = (), **options: Any
) -> Exchange:
    terms = {"worker": "w", "queues": ("default",), "lease": 15.0, "claim_id": "c", **options}
    return await storage.exchange(settlements, limit=limit, **terms)


def raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=5, check_same_thread=False)


class ManualClock:
    """Both clocks of a store, moved by hand, and apart if need be."""

    def __init__(self, wall: float = 100_000.0, elapsed: float = 500.0, boot: str = "first boot") -> None:
        self.wall = wall
        self.since_boot = elapsed
        self.boot = boot
        self.clock = StoreClock(now=lambda: self.wall, elapsed=lambda: self.since_boot, boot=lambda: self.boot)

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.since_boot += seconds

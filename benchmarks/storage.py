"""The SQLite store beside plain SQL, in one run and turn by turn, so that a busy machine harms both alike.

    python -m benchmarks.storage [--backlog 1000000] [--folder PATH]

The plain SQL is what one would write by hand: one table of seven columns, one partial index, no leases, no options, no
errors kept. Both commit with synchronous=FULL; only the last line, which is about reading, does not wait for the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bullpen.storage.sqlite.store import SqliteStorage
from bullpen.tasks.task import Task, succeed

PAYLOAD = b'[["a@example.org"],{}]'
ROUNDS = 40
_numbers = itertools.count()

TABLE = """
CREATE TABLE task (id TEXT PRIMARY KEY, queue TEXT, func TEXT, payload BLOB, status TEXT, priority INTEGER, eta REAL,
                   attempt INTEGER DEFAULT 0, result BLOB);
CREATE INDEX ready ON task (queue, priority, eta, id) WHERE status = 'pending';
"""
ADD = "INSERT INTO task (id, queue, func, payload, status, priority, eta) VALUES (?, ?, ?, ?, ?, ?, ?)"
CLAIM = "SELECT id, payload FROM task WHERE status = 'pending' AND queue = 'default' ORDER BY priority, eta, id LIMIT ?"
START = "UPDATE task SET status = 'running', attempt = attempt + 1 WHERE id = ?"
SETTLE = "UPDATE task SET status = 'success', result = ? WHERE id = ? AND attempt = 1 AND status = 'running'"


def new_id() -> str:
    return f"019a0000-{next(_numbers):08}-7000-8000-000000000000"


def new_task(**fields: float) -> Task:
    return Task(id=new_id(), func_path="app.send", payload=PAYLOAD, **fields)  # type: ignore[arg-type]


def new_row() -> tuple[object, ...]:
    return (new_id(), "default", "app.send", PAYLOAD, "pending", 0, time.time())


class Plain:
    """Plain SQL."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.executescript(TABLE)
        self.held: list[tuple[str, bytes]] = []

    def add(self, rows: list[tuple[object, ...]]) -> None:
        with self.transaction():
            self.db.executemany(ADD, rows)

    def exchange(self, limit: int) -> None:
        with self.transaction():
            self.db.executemany(SETTLE, [(b"null", task_id) for task_id, _ in self.held])
            self.held = self.db.execute(CLAIM, (limit,)).fetchall()
            self.db.executemany(START, [(task_id,) for task_id, _ in self.held])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN IMMEDIATE")
        yield
        self.db.execute("COMMIT")


class Timer:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    @contextmanager
    def each(self, count: int) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds.append((time.perf_counter() - began) / count)

    @property
    def middle(self) -> float:
        return statistics.median(self.seconds)


async def add_one_by_one(storage: SqliteStorage, count: int) -> None:
    for _ in range(count):
        await storage.add([new_task()])


async def measure_single(plain: Plain, storage: SqliteStorage) -> None:
    by_hand, one, sixteen = Timer(), Timer(), Timer()
    for _ in range(ROUNDS):
        with by_hand.each(10):
            for _ in range(10):
                plain.add([new_row()])
        with one.each(10):
            await add_one_by_one(storage, 10)
        with sixteen.each(160):
            await asyncio.gather(*[add_one_by_one(storage, 10) for _ in range(16)])
    report("add one by one, 1 caller", by_hand.middle, one.middle, "≥ 0.7")
    report("add one by one, 16 callers", by_hand.middle, sixteen.middle, "≥ 5")


async def measure_bulk(plain: Plain, storage: SqliteStorage) -> None:
    by_hand, ours = Timer(), Timer()
    for _ in range(5):
        rows, tasks = [new_row() for _ in range(20_000)], [new_task() for _ in range(20_000)]
        with by_hand.each(20_000):
            plain.add(rows)
        with ours.each(20_000):
            await storage.add(tasks)
    report("add 20,000 at once", by_hand.middle, ours.middle, "≥ 0.4")


async def exchange(storage: SqliteStorage, held: tuple[Task, ...], limit: int) -> tuple[Task, ...]:
    answer = await storage.exchange(
        [succeed(task, b"null") for task in held],
        worker="host-1-abcdef",
        queues=["default"],
        limit=limit,
        lease=15.0,
        claim_id=new_id(),
    )
    assert len(answer.claimed) == limit
    assert not answer.refused
    return answer.claimed


async def measure_exchange(plain: Plain, storage: SqliteStorage) -> None:
    by_hand, ours = Timer(), Timer()
    held: tuple[Task, ...] = ()
    for _ in range(200):
        with by_hand.each(100):
            plain.exchange(100)
        with ours.each(100):
            held = await exchange(storage, held, 100)
    report("settle and claim 100", by_hand.middle, ours.middle, "")


async def measure_backlog(folder: Path, backlog: int) -> None:
    timers = {size: Timer() for size in (1000, backlog)}
    stores = {size: SqliteStorage(folder / f"{size}.db", synchronous="normal") for size in timers}  # without the disk
    for size, storage in stores.items():
        later = time.time() + 10**6
        await storage.add([new_task(eta=later, priority=9) for _ in range(1000)])  # not due, and first in order
        for _ in range(0, size, 10_000):
            await storage.add([new_task() for _ in range(min(size, 10_000))])
    os.sync()  # or the disk is still busy with the large one
    for _ in range(100):
        for size, storage in stores.items():
            with timers[size].each(1):
                await exchange(storage, (), 10)
    report(f"claim 10 of {backlog:,} instead of 1,000", timers[1000].middle, timers[backlog].middle, "≥ 0.77")
    for storage in stores.values():
        await storage.close()


def report(what: str, by_hand: float, ours: float, bar: str) -> None:
    print(f"{what:40} {by_hand * 1e6:10.1f} µs {ours * 1e6:10.1f} µs {by_hand / ours:7.2f} ×   {bar}", flush=True)


async def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--backlog", type=int, default=1_000_000)
    arguments.add_argument("--folder", type=Path, help="where the files are made; the disk matters")
    options = arguments.parse_args()
    print(f"SQLite {sqlite3.sqlite_version}, synchronous=FULL; per task, in the middle of many turns")
    print(f"{'':40} {'plain SQL':>13} {'Bullpen':>13} {'ratio':>9}   bar")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        plain, storage = Plain(Path(folder) / "plain.db"), SqliteStorage(Path(folder) / "jobs.db")
        await storage.open()
        await measure_single(plain, storage)
        await measure_bulk(plain, storage)
        await measure_exchange(plain, storage)
        await storage.close()
        plain.db.close()
        await measure_backlog(Path(folder), options.backlog)


if __name__ == "__main__":
    asyncio.run(main())

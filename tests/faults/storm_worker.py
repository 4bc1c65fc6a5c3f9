"""A worker of a kill storm: it records each of its operations, and can be killed at any moment.

python -m tests.faults.storm_worker NAME ADDRESS HISTORY LEASE [HOST]

Workers with different HOSTs take each other for workers on different machines.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from bullpen import AsyncWorkerPool, Retry, TaskQueue, current_task
from bullpen.errors import StorageError
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.postgres.store import PostgresStorage
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.tasks.worker import identity
from bullpen.testing import HistoryFile, HistoryObserver, Record, RecordingStorage

PERMITS = 4


class EffectTable:
    """A table beside those of the store, with one row per effect of a task. Stores without tables have none."""

    def __init__(self, address: str) -> None:
        storage = open_storage(address)
        self._file = storage.path if isinstance(storage, SqliteStorage) else None
        self._server = storage.url if isinstance(storage, PostgresStorage) else None
        self._table = f"{storage.schema}.effect" if isinstance(storage, PostgresStorage) else "effect"

    @property
    def exists(self) -> bool:
        return self._file is not None or self._server is not None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self._file is not None:
            with closing(sqlite3.connect(self._file, timeout=30)) as connection, connection:
                yield connection
        else:
            import psycopg

            assert self._server is not None
            with psycopg.connect(self._server) as session:
                yield session

    def create(self) -> None:
        with self.transaction() as connection:
            connection.execute(f"CREATE TABLE {self._table} (task TEXT, attempt INTEGER)")

    def note(self, connection: Any, task: str, attempt: int) -> None:
        connection.execute(f"INSERT INTO {self._table} VALUES ('{task}', {attempt:d})")

    def rows(self) -> list[tuple[str, int]]:
        with self.transaction() as connection:
            return list(connection.execute(f"SELECT task, attempt FROM {self._table}"))


def is_in_transaction(task: Task) -> bool:
    return task.func_path == "transfer"


def new_queue(address: str, history: HistoryFile, name: str) -> TaskQueue:
    storage = open_storage(address)
    queue = TaskQueue(RecordingStorage(storage, history, name, in_transaction=is_in_transaction))
    effects = EffectTable(address)

    @queue.task(name="nap")
    async def nap(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    @queue.task(name="grind")
    def grind(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @queue.task(name="stumble", max_retries=3, backoff=0.05)
    async def stumble(times: int) -> int:
        if current_task().failures < times:
            raise Retry("not yet")
        return times

    @queue.task(name="transfer")
    def transfer(seconds: float) -> None:
        """One transaction commits its effect and its end."""
        time.sleep(seconds)
        with effects.transaction() as connection:
            current_task().complete(connection)
            effects.note(connection, current_task().id, current_task().attempt)

    return queue


class Elsewhere(identity.LocalMachine):
    def __init__(self, host: str) -> None:
        self._host = host

    def boot_id(self) -> str:  # type: ignore[override]  # nothing to remember
        return self._host


def end_with_parent() -> None:
    """The parent holds a pipe to this process. The pipe closes when the parent ends."""
    os.read(0, 1)
    os._exit(1)


async def main(name: str, address: str, history: str, lease: str, host: str = "") -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    if host:
        identity.machine = Elsewhere(host)
    write = HistoryFile(history)
    queue = new_queue(address, write, name)
    write(Record(at=time.monotonic(), actor=name, op="worker", state="starting", permits=PERMITS))
    started: list[bool] = []
    while not started:
        worker = AsyncWorkerPool(queue, PERMITS, 0.2, lease=float(lease), observer=HistoryObserver(write))
        worker.id = name
        try:
            await worker.run(lambda: started.append(True))
        except (StorageError, TimeoutError):  # a supervisor would start another worker
            if started:
                raise
    write.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

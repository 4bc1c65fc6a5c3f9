"""A worker of a kill storm: it records everything it does, and anything may kill it.

python -m tests.faults.storm_worker NAME DATABASE HISTORY LEASE
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
import time
from pathlib import Path

from bullpen import AsyncWorkerPool, Retry, TaskQueue, current_task
from bullpen.storage.sqlite.store import SqliteStorage
from bullpen.tasks.task import Task
from bullpen.testing import HistoryFile, HistoryObserver, Record, RecordingStorage

PERMITS = 4
LEDGER = "CREATE TABLE IF NOT EXISTS effect (task TEXT, attempt INTEGER)"


def is_in_transaction(task: Task) -> bool:
    return task.func_path == "transfer"


def new_queue(path: Path, history: HistoryFile, name: str) -> TaskQueue:
    storage = SqliteStorage(path)
    queue = TaskQueue(RecordingStorage(storage, history, name, in_transaction=is_in_transaction))

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
        """Its effect and its end are committed together."""
        time.sleep(seconds)
        with sqlite3.connect(path, timeout=30) as connection:
            current_task().complete(connection)
            row = (current_task().id, current_task().attempt)
            connection.execute("INSERT INTO effect VALUES (?, ?)", row)
        connection.close()

    return queue


def end_with_parent() -> None:
    """Whoever started this has a pipe to it, and is gone when that ends."""
    os.read(0, 1)
    os._exit(1)


async def main(name: str, path: str, history: str, lease: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    write = HistoryFile(history)
    queue = new_queue(Path(path), write, name)
    worker = AsyncWorkerPool(queue, PERMITS, 0.2, lease=float(lease), observer=HistoryObserver(write))
    worker.id = name
    write(Record(at=time.monotonic(), actor=name, op="worker", state="starting", permits=PERMITS))
    await worker.run()
    write.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

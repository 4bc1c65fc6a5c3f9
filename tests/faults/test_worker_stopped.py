"""A worker process that is stopped (SIGSTOP): with a task, which another worker takes over, or idle."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen import TaskQueue
from bullpen.tasks.model.task import RUNNING, SUCCESS, Task
from bullpen.tasks.storage.port import TaskFilter
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from tests.faults.test_worker_killed import WITHIN, Worker, all_ended, new_calls

pytestmark = pytest.mark.anyio

LEASE = 0.5


async def running(storage: SqliteStorage, worker: str | None = None) -> Task:
    """The task. Waits until another worker than `worker` runs it."""
    async with asyncio.timeout(WITHIN):
        while True:
            for task in await storage.list(TaskFilter(statuses=(RUNNING,)), limit=1):
                if task.worker != worker:
                    return task
            await asyncio.sleep(0.01)


async def stand_still(worker: Worker, path: Path) -> None:
    """Stop the process, but not during a write: a process that is stopped there locks the file for all others."""
    async with asyncio.timeout(WITHIN):
        while True:
            worker.send(signal.SIGSTOP)
            with contextlib.closing(sqlite3.connect(path, timeout=0.05, isolation_level=None)) as connection:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("ROLLBACK")
                except sqlite3.OperationalError:  # the database is locked
                    worker.send(signal.SIGCONT)
                else:
                    return
            await asyncio.sleep(0.01)


async def test_a_stopped_worker_loses_its_task_and_its_later_writes_are_rejected(tmp_path: Path) -> None:
    path, effects = tmp_path / "jobs.db", tmp_path / "effects"
    storage = SqliteStorage(path)
    await storage.open()
    (task,) = await storage.add(new_calls(["on_loop"]))
    with Worker(path, effects, lease=LEASE, nap=4 * LEASE) as first:
        held = await running(storage)
        await stand_still(first, path)
        with Worker(path, effects, lease=LEASE, nap=3 * LEASE) as second:
            taken = await running(storage, held.worker)
            assert taken.attempt == 2
            assert [error.kind for error in taken.errors] == ["crash"]
            assert "has been silent for" in taken.errors[0].message
            first.send(signal.SIGCONT)
            first.stops()  # it has sent the outcome of attempt 1
            (after,) = await storage.get([task.id])
            assert after is not None
            assert after.attempt >= 2
            assert after.worker != held.worker
            await storage.close()
            (done,) = await all_ended(path, [task.id])
            second.stops()
    assert done.status is SUCCESS
    assert done.attempt >= 2
    assert done.worker != held.worker


IDLE_WORKER = """
import asyncio, os, sys
from bullpen import AsyncWorkerPool, TaskQueue

queue = TaskQueue(sys.argv[1])

@queue.task(name="pid")
async def pid() -> int:
    return os.getpid()

asyncio.run(AsyncWorkerPool(queue, lease=3600.0, poll_interval=60.0).run())
"""


@contextlib.contextmanager
def idle_worker(address: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", IDLE_WORKER, address])
    try:
        yield process
    finally:
        process.kill()
        process.wait(WITHIN)


@pytest.mark.parametrize("address", ["redis"], indirect=True)
async def test_a_stopped_idle_worker_gets_no_task(address: str) -> None:
    """Another worker runs the tasks that arrive meanwhile, long before a lease could expire."""
    async with TaskQueue(address) as queue:
        pid = queue.task(name="pid")(lambda: 0)
        with idle_worker(address) as first:
            job = await pid.aenqueue()
            assert await job.aresult(WITHIN) == first.pid
            first.send_signal(signal.SIGSTOP)
            with idle_worker(address) as second:
                for _ in range(3):
                    job = await pid.aenqueue()
                    assert await job.aresult(WITHIN) == second.pid

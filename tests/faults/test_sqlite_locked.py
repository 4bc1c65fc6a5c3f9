"""Another process locks the SQLite file: workers wait for it, and running tasks continue."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bullpen import AsyncWorkerPool, TaskQueue
from bullpen.errors import StorageBusy
from bullpen.tasks.model.task import RUNNING
from tests.scenarios.cli_support import Folder
from tests.scenarios.task_worker_support import until

LEASE = 0.3

APP = """
from bullpen import TaskQueue

queue = TaskQueue("sqlite:///jobs.db?busy_timeout=0.05")


@queue.task
def work() -> None:
    print("worked", flush=True)
"""


@contextmanager
def locked(path: Path, *statements: str) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for statement in statements:
            other.execute(statement)
        yield
        other.execute("COMMIT")


def test_a_worker_that_starts_while_the_file_is_locked_waits(tmp_path: Path) -> None:
    folder = Folder(tmp_path, APP)
    folder.python("work.enqueue()")
    with locked(tmp_path / "jobs.db"), folder.worker() as worker:
        worker.seen("StorageBusy")
        assert worker.process.poll() is None
        assert "serves" not in worker.told
        worker.send()
        assert worker.ends() == 0  # a signal ends the wait
    with folder.worker() as worker:
        with locked(tmp_path / "jobs.db"):
            worker.seen("StorageBusy")
        worker.seen("worked")
        assert worker.told.count("StorageBusy") == 1
        assert worker.stop() == 0


def test_a_worker_that_waits_for_the_file_can_be_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        queue = TaskQueue(f"sqlite:///{tmp_path}/jobs.db?busy_timeout=0.02")
        await queue.astorage()
        pool = AsyncWorkerPool(queue)
        with locked(tmp_path / "jobs.db"):
            starting = asyncio.ensure_future(pool.start())
            await until(lambda: str(pool.state) == "starting")
            await pool.stop()
            with pytest.raises(StorageBusy):
                await starting
        assert str(pool.state) == "stopped"
        await queue.aclose()

    asyncio.run(main())


@contextmanager
def one_task(tmp_path: Path, busy_timeout: float) -> Iterator[tuple[TaskQueue, asyncio.Event, asyncio.Event]]:
    queue = TaskQueue(f"sqlite:///{tmp_path}/jobs.db?busy_timeout={busy_timeout}")
    began, go_on = asyncio.Event(), asyncio.Event()

    @queue.task(name="work")
    async def work() -> str:
        began.set()
        await go_on.wait()
        return "done"

    yield queue, began, go_on


async def lease_is_over(pool: AsyncWorkerPool) -> None:
    """Wait until a worker that cannot renew the lease of its task would have interrupted it."""
    (attempt,) = pool._lanes[0].held.values()
    loop = asyncio.get_running_loop()
    await until(lambda: loop.time() > attempt.expires_at + LEASE)


@pytest.mark.parametrize("busy_timeout", [0.02, 5.0], ids=["rejected", "waiting"])
def test_a_running_task_continues_and_its_lease_is_renewed_afterwards(tmp_path: Path, busy_timeout: float) -> None:
    async def main() -> None:
        with one_task(tmp_path, busy_timeout) as (queue, began, go_on):
            async with AsyncWorkerPool(queue, 1, lease=LEASE, grace=0) as pool:
                job = await queue.aenqueue("work")
                await began.wait()
                async with AsyncWorkerPool(queue, 1, lease=LEASE):
                    with locked(tmp_path / "jobs.db"):
                        await lease_is_over(pool)
                    go_on.set()
                    assert await job.aresult(timeout=30) == "done"
                (task,) = await (await queue.astorage()).get([job.id])
                assert task is not None
                assert (task.attempt, task.crashes) == (1, 0)
            await queue.aclose()

    asyncio.run(main())


def test_a_task_that_another_worker_claimed_first_is_interrupted(tmp_path: Path) -> None:
    claim = "UPDATE bullpen_task SET attempt = attempt + 1, worker = 'other', lease_until = 1e12"

    async def main() -> None:
        with one_task(tmp_path, 5.0) as (queue, began, _):
            async with AsyncWorkerPool(queue, 1, lease=LEASE, grace=0) as pool:
                job = await queue.aenqueue("work")
                await began.wait()
                with locked(tmp_path / "jobs.db", claim):
                    await lease_is_over(pool)
                await until(lambda: not pool.running)
                (task,) = await (await queue.astorage()).get([job.id])
                assert task is not None
                assert (task.attempt, task.worker, task.status) == (2, "other", RUNNING)
            await queue.aclose()

    asyncio.run(main())

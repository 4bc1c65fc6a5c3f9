"""What workers tell others in their records: their functions, and the tasks that nothing can end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bullpen import TaskCancelled, TaskQueue, WorkerPool, current_task
from bullpen.cli.commands.doctor import examine
from bullpen.tasks.storage.port import HealthFinding
from tests.scenarios.support import eventually
from tests.stores import KINDS, new_store

PATIENCE = 60


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with new_store(request.param, tmp_path, request) as address:
        yield address


def findings(queue: TaskQueue) -> list[HealthFinding]:
    storage = queue.storage.another()
    assert storage is not None
    return [one for one in asyncio.run(examine(storage)) if one.kind == "shared_queue"]


def test_doctor_sees_two_apps_that_share_a_queue(address: str) -> None:
    with TaskQueue(address) as shop, TaskQueue(address) as blog:
        for number in range(300):
            shop.task(name=f"shop.function_{number}", queue="default" if number % 2 else "shop")(print)
        blog.task(name="blog.publish")(print)
        with WorkerPool(shop) as first, WorkerPool(shop, lanes="default:1 shop:2"):
            assert findings(shop) == []  # the same app twice
            with WorkerPool(blog, lanes="blog:1"):
                assert findings(shop) == []
            with WorkerPool(blog) as second:
                (found,) = findings(shop)
                assert found.message.startswith("workers with different functions serve the queue 'default': ")
                assert f"{second.id} (1 function)" in found.message
                assert "(150 functions)" in found.message
                assert "its own queues or its own store" in found.advice
                assert first.id != second.id
            shop.enqueue("shop.function_1", queue="shop-eu")
            with WorkerPool(shop, lanes="shop-*:1"), WorkerPool(blog, lanes="*:1"):
                assert any("'shop-eu'" in found.message for found in findings(shop))  # no function declares it
        records = shop.workers()
        assert all(len(msgspec.json.encode(record)) < 1000 for record in records)


def test_why_says_that_nothing_can_end_a_task_on_a_thread(address: str) -> None:
    with TaskQueue(address) as queue:
        started, end = threading.Event(), threading.Event()

        @queue.task(name="hang")
        def hang() -> None:
            current_task()  # and never looks whether it was cancelled
            started.set()
            end.wait(PATIENCE)

        @queue.task(name="listen")
        async def listen() -> None:
            await asyncio.sleep(PATIENCE)

        with WorkerPool(queue, lease=1) as pool:
            job, other = hang.enqueue(), listen.enqueue()
            try:
                assert started.wait(PATIENCE)
                assert "thread" not in str(job.why())
                assert eventually(lambda: str(other.status) == "running")
                assert job.cancel()
                assert other.cancel()
                assert eventually(lambda: "nothing can end" in str(job.why()), PATIENCE)
                cause = job.why().causes[-1]
                assert cause.kind == "cancel_requested"
                assert cause.data == {"on_thread": True, "worker": pool.id}
                assert f"restart worker {pool.id} (pid {os.getpid()} on " in cause.message
                assert 'runtime="process"' in cause.message
                with pytest.raises(TaskCancelled):
                    other.result(timeout=PATIENCE)
            finally:
                end.set()

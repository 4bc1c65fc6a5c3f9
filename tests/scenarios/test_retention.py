"""Tasks that are over are forgotten by themselves, after their time to live, and no others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bullpen import AsyncWorkerPool, Job, TaskNotFound, TaskQueue
from tests.scenarios.support import PATIENCE


@pytest.fixture(params=["memory", "sqlite"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskQueue]:
    address = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    with TaskQueue(address) as queue:
        yield queue


def test_a_worker_prunes_final_tasks_after_their_time_to_live(queue: TaskQueue) -> None:
    @queue.task(name="double", result_ttl=0.2)
    async def double(number: int) -> int:
        return 2 * number

    @queue.task(name="fail", failure_ttl=0.2)
    async def fail() -> None:
        raise ValueError

    async def main() -> None:
        kept: list[Job[Any]] = [
            await double.using(result_ttl=3600, failure_ttl=0).aenqueue(2),
            await double.using(result_ttl=None).aenqueue(3),
            await double.using(result_ttl=0, delay=3600).aenqueue(4),
            await double.using(result_ttl=0, queue="elsewhere").aenqueue(5),
            await double.using(result_ttl=0, interval=3600).aenqueue(6),
        ]
        kept.append(await fail.using(result_ttl=0, failure_ttl=3600).aenqueue())
        short: list[Job[Any]] = [await double.aenqueue(1), await fail.aenqueue()]
        async with AsyncWorkerPool(queue, 4, lanes="default:4"):
            assert await short[0].aresult(timeout=PATIENCE) == 2
            deadline = time.monotonic() + PATIENCE
            left = {job.id for job in short}
            while left:
                assert time.monotonic() < deadline, "it is never forgotten"
                await asyncio.sleep(0.02)
                left &= {info.id for info in await queue.alist()}
            with pytest.raises(TaskNotFound):
                await short[0].ainfo()
            assert {info.id for info in await queue.alist()} == {job.id for job in kept}
            assert await kept[0].aresult(timeout=PATIENCE) == 4
        await queue.aclose()

    asyncio.run(main())

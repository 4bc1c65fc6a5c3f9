"""Bullpen as its users write it: a function of ten steps."""

from __future__ import annotations

from typing import Any

from benchmarks.servers.library import Library, forever, pages
from benchmarks.servers.trace import Trace
from bullpen import AsyncWorkerPool, TaskQueue, current_task

from .settings import CONCURRENCY, STEPS

AT_ONCE = 20_000  # tasks in one call of aenqueue_many


async def _noop(x: int) -> int:
    return x


def _plain_noop(x: int) -> int:
    return x


class Ours(Library):
    """The trace has two entries for each task: at its start and at its end."""

    on_uvloop = True

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        self.queue = TaskQueue(address)
        self.task: Any = self.queue.task(name="ten_steps")(self.function())

    def function(self) -> Any:
        async def ten_steps(x: int) -> int:
            self.trace(x)
            task = current_task()
            for number in range(STEPS):
                await task.astep(_noop, number)
            self.trace(x)
            return x

        return ten_steps

    async def install(self) -> None:
        await self.queue.acounts()

    async def close(self) -> None:
        await self.queue.aclose()

    async def put_many(self, count: int) -> None:
        for page in pages(count, AT_ONCE):
            await self.task.aenqueue_many([(number,) for number in page])

    async def work(self) -> None:
        async with self.queue, AsyncWorkerPool(self.queue, concurrency=CONCURRENCY):
            await forever()


class OursPlain(Ours):
    """With plain functions, which run on threads."""

    def function(self) -> Any:
        def ten_steps(x: int) -> int:
            self.trace(x)
            task = current_task()
            for number in range(STEPS):
                task.step(_plain_noop, number)
            self.trace(x)
            return x

        return ten_steps

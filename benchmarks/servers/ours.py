"""Bullpen as its users write it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from bullpen import AsyncWorkerPool, TaskQueue
from bullpen.tasks.model.task import SUCCESS

from .library import TIMEOUT, Blocking, Library, forever, pages, returning, returning_async
from .settings import CONCURRENCY
from .trace import Trace

AT_ONCE = 20_000  # tasks in one call of aenqueue_many


class Ours(Library):
    on_uvloop = True
    result_ttl: ClassVar[float] = 86_400  # as by default

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        self.queue = TaskQueue(address)
        self.noop: Any = self.queue.task(name="noop", result_ttl=self.result_ttl)(self.function(trace))

    def function(self, trace: Trace) -> Callable[[int], Any]:
        return returning_async(trace)

    async def install(self) -> None:
        await self.queue.acounts()

    async def close(self) -> None:
        await self.queue.aclose()

    async def put(self, number: int) -> object:
        return await self.noop.aenqueue(number)

    async def put_many(self, count: int) -> None:
        for page in pages(count, AT_ONCE):
            await self.noop.aenqueue_many([(number,) for number in page])

    async def ask(self, number: int) -> object:
        return await (await self.noop.aenqueue(number)).aresult(TIMEOUT)

    async def work(self) -> None:
        async with self.queue, AsyncWorkerPool(self.queue, concurrency=CONCURRENCY):
            await forever()


class OursOnAsyncio(Ours):
    """Where uvloop is not installed."""

    on_uvloop = False


class OursPlain(Ours):
    """With a plain function, which runs on threads."""

    def function(self, trace: Trace) -> Callable[[int], Any]:
        return returning(trace)


class OursPlainBlocking(OursPlain, Blocking):
    """With a plain function, and as sync code uses it: `enqueue` and `result()`, on a thread without an event loop."""

    async def put(self, number: int) -> object:
        return await self.noop.aenqueue(number)  # before the measurement

    def put_now(self, number: int) -> object:
        return self.noop.enqueue(number)

    def ask_now(self, number: int) -> object:
        return self.noop.enqueue(number).result(TIMEOUT)

    async def close(self) -> None:
        await asyncio.to_thread(self.queue.close)
        await super().close()


class OursForgetting(Ours):
    """With a task whose result is not kept."""

    result_ttl = 0


class OursBlocking(Ours):
    """As sync code uses it: `enqueue`, on a thread without an event loop."""

    async def close(self) -> None:
        await asyncio.to_thread(self.queue.close)
        await super().close()

    async def put_by(self, callers: int, count: int) -> None:
        assert callers == 1
        await asyncio.to_thread(self._put_some_now, count)

    def _put_some_now(self, count: int) -> None:
        for number in range(count):
            self.noop.enqueue(number)


class OursLimited(Ours):
    """With limits over all workers that never hold a task back: the difference is the cost of the limits."""

    async def install(self) -> None:
        await self.queue.aset_limit("default", max_running=1_000_000, rate=1e9)


class OursWaiting(Ours):
    """Tasks that take a while, and workers as `bullpen worker --processes 2` runs them."""

    running = 20  # at once: ten in each process, by default

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)

        async def wait(x: int, seconds: float) -> int:
            trace(x)
            await asyncio.sleep(seconds)
            return x

        self._wait: Any = self.queue.task(name="wait")(wait)

    async def put_for(self, count: int, seconds: float) -> None:
        await self._wait.aenqueue_many([(number, seconds) for number in range(count)])

    async def all_ended(self, count: int, within: float) -> None:
        async with asyncio.timeout(within):
            while (await self.queue.acounts())["default"].get(SUCCESS, 0) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    def run(self) -> None:
        """This process becomes the supervisor."""
        os.environ["BULLPEN_BENCH_ADDRESS"], os.environ["BULLPEN_BENCH_TRACE"] = self.address, self.trace.path
        arguments = ["worker", f"{__package__}.deployed:queue", "--processes", "2", "--log-level", "error"]
        os.execv(sys.executable, [sys.executable, "-m", "bullpen", *arguments])

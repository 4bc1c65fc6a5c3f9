"""The interface of a contestant: enqueue tasks, run them in another process, and return results.

One class is both producer and worker. The producer opens it in the measuring process; `worker` opens it again in each
worker process, and calls `work`, which ends when the process is killed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from benchmarks.loops import uvloop

from .trace import Trace

TIMEOUT = 30.0


class Library:
    """A library with an async client. `put` enqueues a task, `ask` also waits for its result."""

    on_uvloop: ClassVar[bool] = False  # where its own command runs workers on it
    is_one_service: ClassVar[bool] = False  # it starts its processes itself
    keeps_tasks: ClassVar[bool] = True  # also without a worker

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        self.address = address
        self.trace = trace
        self.processes = processes

    async def install(self) -> None:
        """Create its tables or keys on the server."""

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        pass

    async def put(self, number: int) -> object:
        raise NotImplementedError

    async def put_many(self, count: int) -> None:
        """As its idiom has it; where it has none, sixteen at a time."""
        for first in range(0, count, 16):
            await asyncio.gather(*[self.put(number) for number in range(first, min(first + 16, count))])

    async def put_by(self, callers: int, count: int) -> None:
        """Run `callers` callers at once, each of which enqueues one task after the other."""
        await asyncio.gather(*[self._put_some(count) for _ in range(callers)])

    async def _put_some(self, count: int) -> None:
        for number in range(count):
            await self.put(number)

    async def ask(self, number: int) -> object:
        raise NotImplementedError

    async def work(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        """The whole life of a worker process."""
        with asyncio.Runner(loop_factory=uvloop if self.on_uvloop else None) as runner:
            runner.run(self.work())


class Blocking(Library):
    """A library with a client that blocks: its callers are threads."""

    def put_now(self, number: int) -> object:
        raise NotImplementedError

    def ask_now(self, number: int) -> object:
        raise NotImplementedError

    async def put(self, number: int) -> object:
        return self.put_now(number)

    async def put_many(self, count: int) -> None:
        for number in range(count):
            self.put_now(number)

    async def put_by(self, callers: int, count: int) -> None:
        if callers == 1:
            self._put_some_now(count)
            return
        threads = [threading.Thread(target=self._put_some_now, args=(count,)) for _ in range(callers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _put_some_now(self, count: int) -> None:
        for number in range(count):
            self.put_now(number)

    async def ask(self, number: int) -> object:
        return self.ask_now(number)


def pages(count: int, size: int) -> Sequence[range]:
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def returning(trace: Trace) -> Callable[[int], int]:
    """The task of all libraries, as a function …"""

    def noop(x: int) -> int:
        trace(x)
        return x

    return noop


def returning_async(trace: Trace) -> Callable[[int], Any]:
    """… and as an async one."""

    async def noop(x: int) -> int:
        trace(x)
        return x

    return noop


def forever() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()

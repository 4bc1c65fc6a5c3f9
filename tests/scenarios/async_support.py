"""What the scenarios of `AsyncPool` share: a loop to run on, calls and gates for them, counts that have to agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from bullpen import AsyncPool

T = TypeVar("T")

PATIENCE = 60.0
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def runner(loop: str) -> Run:
    """Runs a coroutine on a new loop; one that hangs fails."""

    def run(main: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(PATIENCE):
                return await main

        with asyncio.Runner(loop_factory=LOOPS[loop]) as opened:
            return opened.run(in_time())

    return run


class Door:
    """A coroutine function that does not return before it is opened; whoever calls it can be waited for."""

    def __init__(self) -> None:
        self.entered = 0
        self.inside = 0
        self.most = 0
        self.cancelled = 0
        self._opened = asyncio.Event()

    async def __call__(self, value: Any = None) -> Any:
        self.entered += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        return value

    def open(self) -> None:
        self._opened.set()

    async def wait_entered(self, times: int) -> None:
        await until(lambda: self.entered >= times)


async def double(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


def square(x: int) -> int:
    return x * x


class Oops(Exception):
    pass


async def fail(text: str = "no") -> None:
    await asyncio.sleep(0)
    raise Oops(text)


def fail_on_a_thread(text: str = "no") -> None:
    raise Oops(text)


async def until(happened: Callable[[], object]) -> None:
    """Wait until `happened()`."""
    while not happened():  # noqa: ASYNC110 — it may happen on another thread
        await asyncio.sleep(0.001)


async def steps(count: int) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


def assert_counts_agree(pool: AsyncPool) -> None:
    """At rest, what was submitted is what became of it."""
    for stats in (pool.stats().coroutines, pool.stats().threads):
        ended = stats.completed + stats.failed + stats.cancelled + stats.timed_out + stats.queue_timeouts + stats.lost
        assert stats.submitted == ended + stats.queued + stats.running, stats


async def at_rest(pool: AsyncPool) -> None:
    """Wait until nothing waits or runs, wanted or given up, and see that the counts agree."""
    await until(lambda: not (pool.stats().queued or pool.stats().running or any(w.load for w in pool.workers())))
    assert_counts_agree(pool)

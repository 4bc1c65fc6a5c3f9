"""Work from asyncio: functions on threads, and coroutines with a limit of concurrency.

A loop here is a coroutine function that gets the function and how often to call it. When the clock starts, the event
loop runs and the pool has done its warm-up.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from time import perf_counter
from typing import Any

from benchmarks.metrics import RATE
from benchmarks.model import Measure

from .settings import COROUTINES_AT_ONCE, WORKERS, Sizes, noop
from .timing import WorkNotDone

AsyncLoop = Callable[[Callable[..., Any], int], Awaitable[object]]
"""Calls a function that many times. Returns the objects that must stay alive until the clock has stopped."""
Opened = Callable[[], AbstractAsyncContextManager[AsyncLoop]]


async def await_once(x: object = None) -> object:
    """Cost nothing but one turn of the loop."""
    await asyncio.sleep(0)
    return x


def rate_of_functions(opened: Opened) -> Measure:
    """No-ops per second."""
    return _rate(opened, noop, _trace)


def rate_of_coroutines(opened: Opened) -> Measure:
    """Coroutines that await once, per second."""
    return _rate(opened, await_once, _trace_async)


def _rate(opened: Opened, function: Callable[..., Any], trace: Callable[[list[object]], Callable[..., Any]]) -> Measure:
    async def timed(sizes: Sizes) -> float:
        async with opened() as loop:
            calls: list[object] = []
            await loop(trace(calls), sizes.warm_up)
            if len(calls) != sizes.warm_up:
                raise WorkNotDone(sizes.warm_up, len(calls))
            gc.collect()
            started = perf_counter()
            alive = await loop(function, sizes.tasks)
            elapsed = perf_counter() - started
            del alive
            return elapsed

    def measure(sizes: Sizes) -> Mapping[str, float]:
        return {RATE: sizes.tasks / asyncio.run(timed(sizes))}

    return measure


def _trace(calls: list[object]) -> Callable[..., Any]:
    def trace(x: object = None) -> None:
        calls.append(x)

    return trace


def _trace_async(calls: list[object]) -> Callable[..., Any]:
    async def trace(x: object = None) -> None:
        await asyncio.sleep(0)
        calls.append(x)

    return trace


# The contestants, each as its users would write it.


@asynccontextmanager
async def run_in_executor() -> AsyncIterator[AsyncLoop]:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(WORKERS) as executor:

        async def gather(function: Callable[..., Any], count: int) -> object:
            return await asyncio.gather(*[loop.run_in_executor(executor, function) for _ in range(count)])

        yield gather


@asynccontextmanager
async def to_thread() -> AsyncIterator[AsyncLoop]:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WORKERS))

    async def gather(function: Callable[..., Any], count: int) -> object:
        return await asyncio.gather(*[asyncio.to_thread(function) for _ in range(count)])

    yield gather


@asynccontextmanager
async def semaphore_and_task_group() -> AsyncIterator[AsyncLoop]:
    async def grouped(function: Callable[..., Any], count: int) -> object:
        semaphore = asyncio.Semaphore(COROUTINES_AT_ONCE)

        async def bounded() -> object:
            async with semaphore:
                return await function()

        async with asyncio.TaskGroup() as group:
            return [group.create_task(bounded()) for _ in range(count)]

    yield grouped


@asynccontextmanager
async def queue_and_consumers() -> AsyncIterator[AsyncLoop]:
    """As the documentation of asyncio shows it; the queue is bounded, because the input of a map may be endless."""

    async def consumed(function: Callable[..., Any], count: int) -> object:
        queue: asyncio.Queue[int] = asyncio.Queue(COROUTINES_AT_ONCE)
        results: list[object] = [None] * count

        async def consume() -> None:
            while True:
                number = await queue.get()
                results[number] = await function()
                queue.task_done()

        consumers = [asyncio.create_task(consume()) for _ in range(COROUTINES_AT_ONCE)]
        for number in range(count):
            await queue.put(number)
        await queue.join()
        for consumer in consumers:
            consumer.cancel()
        return results

    yield consumed


def _pool() -> Any:
    return import_module("bullpen").AsyncPool(COROUTINES_AT_ONCE, threads=WORKERS)


@asynccontextmanager
async def pool_submit() -> AsyncIterator[AsyncLoop]:
    async with _pool() as pool:

        async def gather(function: Callable[..., Any], count: int) -> object:
            return await asyncio.gather(*[pool.submit(function) for _ in range(count)])

        yield gather


@asynccontextmanager
async def pool_do() -> AsyncIterator[AsyncLoop]:
    async with _pool() as pool:

        async def gather(function: Callable[..., Any], count: int) -> object:
            return await asyncio.gather(*[pool.do(function) for _ in range(count)])

        yield gather


@asynccontextmanager
async def pool_map() -> AsyncIterator[AsyncLoop]:
    async with _pool() as pool:

        async def drain(function: Callable[..., Any], count: int) -> object:
            async for _ in pool.map(function, range(count)):
                pass
            return None

        yield drain

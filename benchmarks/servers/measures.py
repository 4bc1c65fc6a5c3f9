"""Rates of enqueueing and running, and latencies. The workers are separate processes, as in a deployment.

Each contestant gets its own place on the server, which is cleared at the end.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic, perf_counter, sleep

from benchmarks.metrics import RATE, latency_of
from benchmarks.model import Measure

from .library import TIMEOUT, Blocking, Library
from .settings import Sizes
from .trace import LOOK_CLOSELY, Trace, new_trace
from .worker import WorkerProcess, ready_workers

WARM_UP = 20

Place = Callable[[], AbstractAsyncContextManager[str]]
"""Yields the address of an empty place on a server, and clears the place."""


class TasksNotDone(Exception):
    """Not every task has run just once; the time would mean nothing."""


class WrongResult(Exception):
    """A task returned another value than its argument."""


@asynccontextmanager
async def opened(library: type[Library], place: Place) -> AsyncIterator[tuple[Library, Trace]]:
    with new_trace() as trace:
        async with place() as address:
            producer = library(address, trace)
            await producer.install()
            await producer.open()
            try:
                yield producer, trace
            finally:
                await producer.close()


def drain(library: type[Library], place: Place, processes: int = 1, *, is_slow: bool = False) -> Measure:
    """A backlog waits, workers start: from the first task that runs to the last, so no start is measured."""

    async def timed(sizes: Sizes) -> float:
        count = sizes.slow if is_slow else sizes.drained
        async with opened(library, place) as (producer, trace):
            if producer.keeps_tasks:
                await producer.put_many(count)
            async with ready_workers(library, producer.address, trace, processes) as workers:
                for worker in workers:
                    worker.begin()
                warm_up = 0
                if not producer.keeps_tasks:
                    warm_up = await _until_it_listens(producer, trace, workers)
                    await producer.put_many(count)
                await trace.reaches(warm_up + count, check=_each(workers))
            return rate_of(trace.entries()[warm_up:], count)

    return lambda sizes: {RATE: asyncio.run(timed(sizes))}


def rate_of(entries: Sequence[tuple[int, float]], count: int) -> float:
    if len(entries) != count or len({number for number, _ in entries}) != count:
        raise TasksNotDone(f"expected {count} calls, got {len(entries)}")
    times = sorted(at for _, at in entries)
    return (count - 1) / (times[-1] - times[0])


async def _until_it_listens(producer: Library, trace: Trace, workers: Sequence[WorkerProcess]) -> int:
    """Send tasks until one runs, and wait for all of them. Return their number."""
    for sent in range(1, 100):
        await producer.put(-sent)
        try:
            await trace.reaches(1, within=0.5, check=_each(workers))
        except TimeoutError:
            continue
        await asyncio.sleep(0.5)
        return trace.count()
    raise TasksNotDone("no task has run")


def _each(workers: Sequence[WorkerProcess]) -> Callable[[], None]:
    def check() -> None:
        for worker in workers:
            worker.check()

    return check


def enqueue(library: type[Library], place: Place, callers: int = 1, *, is_slow: bool = False) -> Measure:
    async def timed(sizes: Sizes) -> float:
        count = min(sizes.singles, sizes.slow // callers) if is_slow else sizes.singles
        async with opened(library, place) as (producer, _):
            await producer.put_by(callers, WARM_UP)
            gc.collect()
            began = perf_counter()
            await producer.put_by(callers, count)
            return callers * count / (perf_counter() - began)

    return lambda sizes: {RATE: asyncio.run(timed(sizes))}


def enqueue_at_once(library: type[Library], place: Place, *, is_slow: bool = False) -> Measure:
    async def timed(sizes: Sizes) -> float:
        count = sizes.slow if is_slow else sizes.bulk
        async with opened(library, place) as (producer, _):
            await producer.put_many(WARM_UP)
            gc.collect()
            began = perf_counter()
            await producer.put_many(count)
            return count / (perf_counter() - began)

    return lambda sizes: {RATE: asyncio.run(timed(sizes))}


def until_the_result(library: type[Library], place: Place) -> Measure:
    """From the call to the result in hand, one at a time, with an idle worker."""

    async def call(producer: Library, trace: Trace, number: int) -> float:
        began = perf_counter()
        return _checked(await producer.ask(number), number, began)

    def call_now(producer: Blocking, trace: Trace, number: int) -> float:
        began = perf_counter()
        return _checked(producer.ask_now(number), number, began)

    return _one_at_a_time(library, place, call, call_now)


def _checked(result: object, number: int, began: float) -> float:
    elapsed = perf_counter() - began
    if result != number:
        raise WrongResult(f"expected {number}, got {result!r}")
    return elapsed


def until_it_runs(library: type[Library], place: Place) -> Measure:
    """From the call to the start of the function: also for libraries that keep no results."""

    async def call(producer: Library, trace: Trace, number: int) -> float:
        before, began = trace.count(), monotonic()
        await producer.put(number)
        await trace.reaches(before + 1, every=LOOK_CLOSELY)
        return trace.entries()[-1][1] - began

    def call_now(producer: Blocking, trace: Trace, number: int) -> float:
        before, began = trace.count(), monotonic()
        producer.put_now(number)
        while trace.count() <= before:
            if monotonic() > began + TIMEOUT:
                raise TimeoutError(f"task {number} has not run after {TIMEOUT:g} s")
            sleep(LOOK_CLOSELY)
        return trace.entries()[-1][1] - began

    return _one_at_a_time(library, place, call, call_now)


def _one_at_a_time(
    library: type[Library],
    place: Place,
    call: Callable[[Library, Trace, int], Awaitable[float]],
    call_now: Callable[[Blocking, Trace, int], float],
) -> Measure:
    """`call_now` is for a client that blocks: its calls are made on a thread without an event loop."""

    def spans_of(producer: Blocking, trace: Trace, count: int, pause: float) -> list[float]:
        spans = []
        for number in range(count):
            sleep(pause)
            spans.append(call_now(producer, trace, number))
        return spans

    async def timed(sizes: Sizes) -> list[float]:
        count = WARM_UP + sizes.calls
        async with (
            opened(library, place) as (producer, trace),
            ready_workers(library, producer.address, trace) as workers,
        ):
            for worker in workers:
                worker.begin()
            await _until_it_listens(producer, trace, workers)
            if isinstance(producer, Blocking):
                return (await asyncio.to_thread(spans_of, producer, trace, count, sizes.pause))[WARM_UP:]
            spans = []
            for number in range(count):
                await asyncio.sleep(sizes.pause)
                spans.append(await call(producer, trace, number))
        return spans[WARM_UP:]

    return lambda sizes: latency_of(span * 1e9 for span in asyncio.run(timed(sizes)))

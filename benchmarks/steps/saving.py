"""One step beside one `aenqueue`, one at a time: both write once to the store, and return when it is durable.

They take turns in one process, because a shared disk changes within a second. The ratio of a round is the median of the
ratios of its turns.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from benchmarks.loops import uvloop
from benchmarks.measure import PAIRED
from benchmarks.model import Measure
from benchmarks.servers.measures import Place
from bullpen import AsyncWorkerPool, TaskQueue, current_task

from .settings import Sizes

TIME = "time"
_STEP, _ENQUEUE = "step", "enqueue"


def one_step(place: Place) -> Measure:
    def measure(sizes: Sizes) -> Mapping[str, float]:
        spans = _times(place, sizes)
        ratios = [step / enqueue for step, enqueue in zip(spans[_STEP], spans[_ENQUEUE], strict=True)]
        return {TIME: statistics.median(spans[_STEP]) * 1e6, TIME + PAIRED: statistics.median(ratios)}

    return measure


def one_enqueue(place: Place) -> Measure:
    """The reference. The ratios come from the turns of `one_step`."""
    return lambda sizes: {TIME: statistics.median(_times(place, sizes)[_ENQUEUE]) * 1e6}


def _times(place: Place, sizes: Sizes) -> dict[str, list[float]]:
    """Seconds of one step and of one `aenqueue`, in each turn."""
    with asyncio.Runner(loop_factory=uvloop) as runner:
        return runner.run(_measure(place, sizes.turns, sizes.singles))


async def _noop(x: int) -> int:
    return x


async def _measure(place: Place, turns: int, count: int) -> dict[str, list[float]]:
    """A task does both. It enqueues into a queue that no worker serves."""
    spans: dict[str, list[float]] = {_STEP: [], _ENQUEUE: []}
    async with place() as address, TaskQueue(address) as queue:

        @queue.task(name="other", queue="other")
        async def other(x: int) -> int:
            return x

        @queue.task(name="alternate")
        async def alternate() -> None:
            task = current_task()
            for turn in range(turns + 1):
                gc.collect()
                for name, call, argument in ((_STEP, task.astep, (_noop,)), (_ENQUEUE, other.aenqueue, ())):
                    spans[name].append(await _timed(call, argument, count))
                if turn == 0:  # warm-up
                    spans[_STEP].clear()
                    spans[_ENQUEUE].clear()

        async with AsyncWorkerPool(queue):
            await (await alternate.aenqueue()).aresult(240)
    return spans


async def _timed(call: Any, first: tuple[Any, ...], count: int) -> float:
    began = perf_counter()
    for number in range(count):
        await call(*first, number)
    return (perf_counter() - began) / count

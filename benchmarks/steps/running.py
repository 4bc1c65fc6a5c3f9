"""Tasks of ten steps per second: they wait, and one worker process runs them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from benchmarks.metrics import RATE
from benchmarks.model import Measure
from benchmarks.servers.library import Library
from benchmarks.servers.measures import Place, TasksNotDone, opened
from benchmarks.servers.worker import ready_workers

from .settings import Sizes


def ten_steps(library: type[Library], place: Place, *, is_slow: bool = False) -> Measure:
    """From the first task that starts to the last that ends, so the start of the worker is not measured."""

    async def timed(sizes: Sizes) -> float:
        count = sizes.slow if is_slow else sizes.tasks
        async with opened(library, place) as (producer, trace):
            await producer.put_many(count)
            async with ready_workers(library, producer.address, trace) as workers:
                workers[0].begin()
                await trace.reaches(2 * count, check=workers[0].check)
            return rate_of(trace.entries(), count)

    return lambda sizes: {RATE: asyncio.run(timed(sizes))}


def rate_of(entries: Sequence[tuple[int, float]], count: int) -> float:
    """Each task has written its number at its start and at its end."""
    written = Counter(number for number, _ in entries)
    if len(written) != count or set(written.values()) != {2}:
        raise TasksNotDone(f"expected {count} tasks that run once, got {len(written)} with {len(entries)} entries")
    times = [at for _, at in entries]
    return count / (max(times) - min(times))

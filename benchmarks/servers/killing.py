"""The cost of killed workers: one of two is killed every two seconds, or all are killed at once.

No task may be lost in either case. A task that ran twice counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic

from benchmarks.metrics import RATE
from benchmarks.model import Measure

from .measures import Place, TasksNotDone, opened
from .ours import Ours, OursWaiting
from .settings import Sizes
from .trace import Trace
from .worker import WorkerProcess

SECONDS = "seconds"
KILLS = 5
WORKERS = 2
PATIENCE = 60.0


def storm(place: Place, *, kills: bool) -> Measure:
    """Two workers with a backlog; each that is killed is replaced at once. Tasks per second while it goes on."""

    async def timed(sizes: Sizes) -> float:
        async with opened(Ours, place) as (producer, trace):
            await producer.put_many(sizes.storm)
            workers = [await _begun(producer, trace) for _ in range(WORKERS)]
            try:
                await trace.reaches(1)
                began = monotonic()
                for number in range(KILLS):
                    await asyncio.sleep(began + (number + 1) * sizes.storm_seconds / KILLS - monotonic())
                    if kills:
                        workers[number % WORKERS].kill()
                        workers[number % WORKERS] = await _begun(producer, trace)
                await _all_ran(trace, sizes.storm)
            finally:
                for worker in workers:
                    worker.kill()
            return _rate(trace.entries(), sizes.storm_seconds)

    return lambda sizes: {RATE: asyncio.run(timed(sizes))}


async def _begun(producer: Ours | object, trace: Trace) -> WorkerProcess:
    assert isinstance(producer, Ours)
    worker = WorkerProcess(type(producer), producer.address, trace)
    await worker.be_ready()
    worker.begin()
    return worker


async def _all_ran(trace: Trace, count: int) -> None:
    deadline = monotonic() + PATIENCE
    while (found := trace.distinct()) < count:
        if monotonic() > deadline:
            raise TasksNotDone(f"{count - found} of {count} tasks are lost")
        await asyncio.sleep(0.2)


def _rate(entries: Sequence[tuple[int, float]], seconds: float) -> float:
    """Tasks that ran for the first time within so many seconds, per second; of few tasks, until the last of them."""
    first_runs: dict[int, float] = {}
    for number, at in entries:
        first_runs.setdefault(number, at)
    times = sorted(first_runs.values())
    spans = [at - times[0] for at in times if at - times[0] <= seconds]
    return len(spans) / (seconds if len(spans) < len(times) else spans[-1])


def all_at_once(place: Place) -> Measure:
    """All tasks run when the whole tree of workers is killed; it is started again: seconds until all have ended."""

    async def timed(sizes: Sizes) -> float:
        async with opened(OursWaiting, place) as (producer, trace):
            assert isinstance(producer, OursWaiting)
            await producer.put_for(sizes.held, sizes.held_seconds)
            worker = await _begun(producer, trace)
            await trace.reaches(min(sizes.held, producer.running))
            worker.kill()
            began = monotonic()
            worker = await _begun(producer, trace)
            try:
                await producer.all_ended(sizes.held, PATIENCE)
                return monotonic() - began
            finally:
                worker.kill()

    def measure(sizes: Sizes) -> Mapping[str, float]:
        return {SECONDS: asyncio.run(timed(sizes))}

    return measure

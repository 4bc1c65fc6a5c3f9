"""Many tasks that sleep or wait for an event: what they cost an idle worker, and how long it takes to wake one.

The worker is another process. Its CPU time is read from `/proc`, so these works run on Linux only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic, time
from typing import Any

from benchmarks.measure import PAIRED
from benchmarks.metrics import latency_of
from benchmarks.model import Measure
from benchmarks.servers.library import pages
from benchmarks.servers.measures import Place, opened
from benchmarks.servers.trace import LOOK_CLOSELY, Trace
from benchmarks.servers.worker import ready_workers
from bullpen import current_task

from .ours import AT_ONCE, Ours
from .settings import Sizes

CPU = "cpu"
WARM_UP = 10
NEVER = 10 * 365 * 86_400.0  # seconds
SLEEP = 0.3  # seconds, of a task that is woken at the end of its sleep


class Parking(Ours):
    """Tasks that wait for an event, tasks that sleep, and tasks that do nothing."""

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)

        async def wait(name: str, number: int) -> None:
            task = current_task()
            trace(-1)
            await task.await_event(name)
            trace(number)

        async def sleep(until: float, number: int) -> None:
            task = current_task()
            trace(-1)
            await task.asleep(max(until - time(), 0.0))
            trace(number)

        async def run(number: int) -> None:
            trace(number)

        self.wait: Any = self.queue.task(name="wait")(wait)
        self.sleep: Any = self.queue.task(name="sleep")(sleep)
        self.run_now: Any = self.queue.task(name="run")(run)


Park = Callable[[Parking, int], Awaitable[object]]
Call = Callable[[Parking, Trace, int], Awaitable[float]]


async def none(queue: Parking, count: int) -> None:
    pass


async def waiting(queue: Parking, count: int) -> None:
    for page in pages(count, AT_ONCE):
        await queue.wait.aenqueue_many([(f"never {number}", number) for number in page])


async def sleeping(queue: Parking, count: int) -> None:
    for page in pages(count, AT_ONCE):
        await queue.sleep.aenqueue_many([(time() + NEVER, number) for number in page])


def idle(place: Place, park: Park) -> Measure:
    """The share of one core that the worker uses beside tasks that it has run to their wait or sleep before."""

    async def timed(sizes: Sizes) -> float:
        async with opened(Parking, place) as (producer, trace):
            assert isinstance(producer, Parking)
            await park(producer, sizes.parked)
            async with ready_workers(Parking, producer.address, trace) as workers:
                workers[0].begin()
                await trace.reaches(0 if park is none else sizes.parked, check=workers[0].check)
                await _ran(producer, trace)  # the worker has settled the others
                await asyncio.sleep(2.0)
                before, began = cpu_seconds(workers[0].pid), monotonic()
                await asyncio.sleep(sizes.idle)
                return 100 * (cpu_seconds(workers[0].pid) - before) / (monotonic() - began)

    return lambda sizes: {CPU: asyncio.run(timed(sizes))}


def started(place: Place) -> Measure:
    """An ordinary start, which is the reference. The ratios come from the turns of `woken`."""

    async def start(producer: Parking, trace: Trace, number: int) -> float:
        return await _ran(producer, trace)

    return lambda sizes: latency_of(span * 1e9 for span in asyncio.run(_spans(place, start, sizes))[0])


def woken(place: Place, call: Call) -> Measure:
    """From the moment at which a task becomes due until its function goes on. An ordinary start and a call take turns,
    because the speed of a busy machine changes within a second.
    """

    def measure(sizes: Sizes) -> dict[str, float]:
        spans, starts = asyncio.run(_spans(place, call, sizes))
        figures, reference = (latency_of(span * 1e9 for span in some) for some in (spans, starts))
        return {**figures, **{key + PAIRED: figures[key] / reference[key] for key in figures}}

    return measure


async def _spans(place: Place, call: Call, sizes: Sizes) -> tuple[list[float], list[float]]:
    spans, starts = [], []
    async with opened(Parking, place) as (producer, trace):
        assert isinstance(producer, Parking)
        async with ready_workers(Parking, producer.address, trace) as workers:
            workers[0].begin()
            for number in range(WARM_UP + sizes.calls):
                await asyncio.sleep(sizes.pause)
                starts.append(await _ran(producer, trace))
                await asyncio.sleep(sizes.pause)
                spans.append(await call(producer, trace, number))
    return spans[WARM_UP:], starts[WARM_UP:]


async def by_event(producer: Parking, trace: Trace, number: int) -> float:
    """From `aemit` on."""
    name = f"event {os.getpid()} {number}"
    before = trace.count()
    await producer.wait.aenqueue(name, number)
    await trace.reaches(before + 1, every=LOOK_CLOSELY)
    await _ran(producer, trace)  # the worker has settled the wait
    await asyncio.sleep(0.05)
    before, began = trace.count(), monotonic()
    await producer.queue.aemit(name)
    return await _goes_on(trace, before, number) - began


async def by_its_end(producer: Parking, trace: Trace, number: int) -> float:
    """From the end of the sleep on."""
    before, until = trace.count(), time() + SLEEP
    ends = monotonic() + SLEEP
    await producer.sleep.aenqueue(until, number)
    await trace.reaches(before + 1, every=LOOK_CLOSELY)
    return await _goes_on(trace, before + 1, number) - ends


async def _ran(producer: Parking, trace: Trace) -> float:
    before, began = trace.count(), monotonic()
    await producer.run_now.aenqueue(0)
    await trace.reaches(before + 1, every=LOOK_CLOSELY)
    return trace.entries()[-1][1] - began


async def _goes_on(trace: Trace, before: int, number: int) -> float:
    """The task starts again from its beginning, and then goes on."""
    await trace.reaches(before + 2, every=LOOK_CLOSELY)
    (_, (found, at)) = trace.entries()[before : before + 2]
    assert found == number
    return at


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process and of its children."""
    pids = [pid, *_children(pid)]
    return (
        sum(
            int((Path(f"/proc/{one}/task") / thread / "schedstat").read_text().split()[0])
            for one in pids
            for thread in os.listdir(f"/proc/{one}/task")
        )
        / 1e9
    )


def _children(pid: int) -> list[int]:
    found = (Path(f"/proc/{pid}/task/{pid}/children").read_text()).split()
    return [one for child in map(int, found) for one in (child, *_children(child))]

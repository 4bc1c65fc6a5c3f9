"""One measurement of time: warm up, prove that the work is done, collect garbage, then let the clock run.

The cyclic collector stays on while the clock runs, as it is for users: a pool that makes fewer or smaller objects
gains from that. The objects that a loop returns are freed after the clock has stopped.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import perf_counter

from benchmarks.metrics import RATE, latency_of
from benchmarks.model import Measure

from .peers import Loop, TimedLoop
from .settings import Sizes, noop


class WorkNotDone(Exception):
    """A peer's loop came back although not every call had been made exactly once; its time would mean nothing."""

    def __init__(self, expected: int, made: int) -> None:
        super().__init__(f"expected {expected} calls of the function, got {made}")
        self.expected = expected
        self.made = made


def rate(opened: Callable[[], AbstractContextManager[Loop]]) -> Measure:
    """Tasks per second on a pool that has already run its warm-up."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with opened() as loop:
            _prove(loop, sizes.warm_up)
            return {RATE: sizes.tasks / _seconds(loop, sizes.tasks)}

    return measure


def rate_until_closed(opened: Callable[[], AbstractContextManager[Loop]]) -> Measure:
    """Tasks per second including the close, so each pool serves once: one is warmed up and closed, a second is timed.

    Where workers start lazily, the start of four threads is inside the time.
    """

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with opened() as loop:
            _prove(loop, sizes.warm_up)
        with opened() as loop:
            return {RATE: sizes.tasks / _seconds(loop, sizes.tasks)}

    return measure


def latency(opened: Callable[[], AbstractContextManager[TimedLoop]]) -> Measure:
    """Microseconds from submit to result in hand, one call at a time: the median and the 99th percentile."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with opened() as loop:
            _prove(loop, sizes.warm_up)
            gc.collect()
            return latency_of(loop(noop, sizes.calls))

    return measure


def _prove(loop: Loop, count: int) -> None:
    """Warm the pool up with a function that leaves a trace, and count the traces."""
    calls: list[object] = []

    def trace(x: object = None) -> None:
        calls.append(x)

    loop(trace, count)
    if len(calls) != count:
        raise WorkNotDone(count, len(calls))


def _seconds(loop: Loop, count: int) -> float:
    gc.collect()
    started = perf_counter()
    alive = loop(noop, count)
    elapsed = perf_counter() - started
    del alive
    return elapsed

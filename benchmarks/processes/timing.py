"""One measurement: warm up, collect garbage, then let the clock run.

What ran is in other processes, so there are no traces to be counted; loops look at the results instead.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.model import Measure, Peer
from benchmarks.pool.peers import Loop, TimedLoop

from .settings import Sizes, noop

RATE = "rate"
P50 = "p50"
P99 = "p99"
ROUND_TRIP = "round_trip"
COLD = "cold"
WARM = "warm"

MEGABYTE = 1_000_000


def rate(opened: Callable[[], AbstractContextManager[Loop]], of: str) -> Measure:
    """Calls per second on a pool that has already run its warm-up; `of` names the size."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        count: int = getattr(sizes, of)
        with opened() as loop:
            loop(noop, sizes.warm_up)
            gc.collect()
            started = perf_counter()
            alive = loop(noop, count)
            elapsed = perf_counter() - started
            del alive
        return {RATE: count / elapsed}

    return measure


def latency(opened: Callable[[], AbstractContextManager[TimedLoop]]) -> Measure:
    """Microseconds from submit to result in hand, one call at a time: the median and the 99th percentile."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with opened() as loop:
            loop(noop, sizes.warm_up)
            gc.collect()
            spans = sorted(loop(noop, sizes.calls))
        return {P50: spans[len(spans) // 2] / 1000, P99: spans[len(spans) * 99 // 100] / 1000}

    return measure


Call = Callable[[Any], Callable[[Any], Any]]
"""From an open pool to what sends a value there and back."""


def large(peer: Peer, call: Call) -> Measure:
    """Milliseconds for a megabyte of bytes, there and back."""
    return _round_trip(peer, call, "large", lambda: b"x" * MEGABYTE)


def huge(peer: Peer, call: Call) -> Measure:
    """Milliseconds for an array of a hundred megabytes, there and back."""

    def array() -> Any:
        return import_module("numpy").ones(100 * MEGABYTE // 8)

    return _round_trip(peer, call, "huge", array)


def _round_trip(peer: Peer, call: Call, of: str, make: Callable[[], Any]) -> Measure:
    def measure(sizes: Sizes) -> Mapping[str, float]:
        value = make()
        spans = []
        with peer.open() as pool:
            send = call(pool)
            for number in range(getattr(sizes, of) + 2):
                started = perf_counter()
                back = send(value)
                if number >= 2:
                    spans.append(perf_counter() - started)
                assert len(back) == len(value)
                del back
        return {ROUND_TRIP: median(spans) * 1000}

    return measure


def start(peer: Peer, call: Call) -> Measure:
    """Milliseconds from no pool to the first result: in a fresh app, and for its next pool."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        figures = {}
        for key in (COLD, WARM):
            started = perf_counter()
            with peer.open() as pool:
                assert call(pool)(1) == 1
                figures[key] = (perf_counter() - started) * 1000
        return figures

    return measure

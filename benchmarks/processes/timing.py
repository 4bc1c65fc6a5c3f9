"""One measurement: warm up, collect garbage, then let the clock run.

The calls run in other processes and leave no traces here, so the loops check the results instead.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from benchmarks.model import Measure, Peer
from benchmarks.pool.peers import Loop, TimedLoop

from .calls import PATIENCE_SECONDS, die, meet, nap, noop
from .settings import LIMIT_SECONDS, WORKERS, Sizes

RATE = "rate"
P50 = "p50"
P99 = "p99"
ROUND_TRIP = "round_trip"
COLD = "cold"
WARM = "warm"
ANSWERED = "answered"
NOTICED = "noticed"
REPLACED = "replaced"
PRIVATE = "private"

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
"""Makes a function that sends a value to a worker and back, on an open pool."""


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


Ask = Callable[[Any], Callable[..., Callable[[float], Any]]]
"""Makes a function that submits a call on an open pool, and returns a function that waits for its result."""

OTHERS = 20


def crash(peer: Peer, ask: Ask) -> Measure:
    """A worker is killed in the middle of other requests: how many of these get a result, and how many
    milliseconds pass until the caller of the killed request gets its error, and until all workers are there again.
    Where a crash breaks the pool, its user has to open another one; that time counts.
    """

    def measure(_: Sizes) -> Mapping[str, float]:
        answered, noticed, replaced = _crash(peer, ask)
        return {ANSWERED: answered, NOTICED: noticed * 1000, REPLACED: replaced * 1000}

    return measure


def _crash(peer: Peer, ask: Ask) -> tuple[int, float, float]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)

        def open_pool() -> Callable[..., Callable[[float], Any]]:
            submit = ask(opened.enter_context(peer.open()))
            _meet(submit, folder)
            return submit

        submit = open_pool()
        waits = [submit(nap, 0.001) for _ in range(OTHERS // 2)]
        victim = submit(die, str(folder / "first"))
        waits += [submit(nap, 0.001) for _ in range(OTHERS // 2)]
        noticed = LIMIT_SECONDS
        try:
            victim(LIMIT_SECONDS)
        except Exception:
            noticed = min(noticed, perf_counter() - float((folder / "first").read_text()))
        answered = sum(_is_answered(wait) for wait in waits)

        submit = open_pool()
        submit(die, str(folder / "second"))
        while not (folder / "second").exists() or not (folder / "second").read_text():
            sleep(0.0002)
        try:
            _meet(submit, folder)
        except Exception:
            open_pool()
        replaced = perf_counter() - float((folder / "second").read_text())
    return answered, noticed, replaced


def _meet(submit: Callable[..., Callable[[float], Any]], folder: Path) -> None:
    """Wait until all workers are there."""
    place = tempfile.mkdtemp(dir=folder)
    for wait in [submit(meet, place, WORKERS) for _ in range(WORKERS)]:
        wait(PATIENCE_SECONDS)


def _is_answered(wait: Callable[[float], Any]) -> bool:
    try:
        wait(LIMIT_SECONDS)
    except Exception:
        return False
    return True


def memory(peer: Peer, ask: Ask) -> Measure:
    """Megabytes that a worker has for itself alone after some calls: the cost of one more worker. Linux only."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with peer.open() as pool:
            submit = ask(pool)
            for wait in [submit(noop, number) for number in range(sizes.warm_up)]:
                wait(PATIENCE_SECONDS)
            pid = submit(os.getpid)(PATIENCE_SECONDS)
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return {PRIVATE: sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000}

    return measure

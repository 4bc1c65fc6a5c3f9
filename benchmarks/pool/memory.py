"""Bytes per queued request and per idle worker.

Two views of each. *Traced* is what Python objects weigh (`tracemalloc`, repeatable to the byte). *Resident* is how much
the process grew (pages from the kernel: allocator slack, thread stacks and arenas included, and noisier). The resident
pass comes first, since tracing would itself grow the process.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Barrier, Event, Semaphore
from time import sleep
from typing import Any

from benchmarks.model import Measure

from .settings import WORKERS, Sizes, noop

QUEUED_TRACED = "queued-traced"
QUEUED_RESIDENT = "queued-resident"
WORKER_TRACED = "worker-traced"
WORKER_RESIDENT = "worker-resident"

SETTLE_SECONDS = 0.1
REQUESTS_BEFORE = 5_000  # so that what a pool makes once, or keeps of its first requests, is there in both
Meter = Callable[[], float]
_STATM = Path("/proc/self/statm")


def memory(open_pool: Callable[[int], Any]) -> Measure:
    """Measure a pool opened by its number of workers. Resident figures are left out where the system has no /proc."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        figures: dict[str, float] = {}
        with open_pool(1) as pool:  # what is imported, or made once for all pools, is no pool's weight
            pool.submit(noop).result()
        if _STATM.exists():
            figures[WORKER_RESIDENT] = _per_idle_worker(open_pool, sizes.idle_workers, _resident)
            figures[QUEUED_RESIDENT] = _per_queued_request(open_pool, sizes.queued, _resident)
        tracemalloc.start()
        figures[WORKER_TRACED] = _per_idle_worker(open_pool, sizes.idle_workers, _traced)
        figures[QUEUED_TRACED] = _per_queued_request(open_pool, sizes.queued, _traced)
        tracemalloc.stop()
        return figures

    return measure


def _per_queued_request(open_pool: Callable[[int], Any], count: int, meter: Meter) -> float:
    """Block every worker, then queue no-ops. The caller keeps no future, so what is weighed is what the pool holds."""
    gate, waiting = Event(), Semaphore(0)

    def block() -> None:
        waiting.release()
        gate.wait()

    with open_pool(WORKERS) as pool:
        for _ in range(WORKERS):
            pool.submit(block)
        for _ in range(WORKERS):
            waiting.acquire()
        before = meter()
        for _ in range(count):
            pool.submit(noop)
        grown = meter() - before
        gate.set()
    return grown / count


def _per_idle_worker(open_pool: Callable[[int], Any], count: int, meter: Meter) -> float:
    """What each worker adds: a pool of many weighed against a pool of few, both after the same work."""
    few = count // 4
    weight_of_few = _pool_of(open_pool, few, meter)
    return (_pool_of(open_pool, few + count, meter) - weight_of_few) / count


def _pool_of(open_pool: Callable[[int], Any], count: int, meter: Meter) -> float:
    """Make every worker start by letting them meet, let all do some work and go idle, and weigh the pool."""
    before = meter()
    with open_pool(count) as pool:
        meeting = Barrier(count)
        for future in [pool.submit(meeting.wait) for _ in range(count)]:
            future.result()
        for _ in range(REQUESTS_BEFORE):
            future = pool.submit(noop)
            future.result()
        del meeting, future
        sleep(SETTLE_SECONDS)
        return meter() - before


def _resident() -> float:
    gc.collect()
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _traced() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]

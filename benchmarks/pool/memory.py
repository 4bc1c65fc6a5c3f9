"""Bytes per queued request and per idle worker.

Two views of each. *Traced* is the size of the Python objects (`tracemalloc`, repeatable to the byte). *Resident* is the
growth of the process (pages from the kernel: allocator slack, thread stacks and arenas included, and noisier). The
resident pass comes first, because tracing would grow the process.
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
REQUESTS_BEFORE = 5_000  # both figures include the objects that a pool makes once, or keeps of its first requests
Meter = Callable[[], float]
_STATM = Path("/proc/self/statm")


def memory(open_pool: Callable[[int], Any]) -> Measure:
    """Measure a pool opened by its number of workers. Resident figures are left out where the system has no /proc."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        figures: dict[str, float] = {}
        with open_pool(1) as pool:  # imports, and objects that all pools share, do not count
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
    """Block every worker, then queue no-ops. The caller keeps no future, so the figure is the memory of the pool."""
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
    """The memory of each worker: a pool of many compared with a pool of few, both after the same work."""
    few = count // 4
    weight_of_few = _pool_of(open_pool, few, meter)
    return (_pool_of(open_pool, few + count, meter) - weight_of_few) / count


def _pool_of(open_pool: Callable[[int], Any], count: int, meter: Meter) -> float:
    """Start every worker at a barrier, let all run some requests and go idle, and measure the pool."""
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

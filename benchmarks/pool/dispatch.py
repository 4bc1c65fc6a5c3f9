"""The cost of one dispatch with few and with many workers.

Real threads would measure the kernel at 10,000 workers, so the workers are scripted: they start at once, keep the
requests that they get, and finish them on command. The rest is the pool's own work: admit, reserve a worker, hand over,
complete. All of it happens on the measuring thread.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from time import perf_counter
from typing import Any

from benchmarks.model import Measure

from .settings import Sizes, noop

COST = "cost"
FEW = 10
MANY = 10_000


def cost(workers: int) -> Measure:
    """Microseconds for one submit, hand-over and completion on a pool whose workers have all started.

    Every worker is used at least once before the clock starts, so that no first use is timed at either size.
    """

    def measure(sizes: Sizes) -> Mapping[str, float]:
        runtime = import_module("bullpen.testing").ScriptedRuntime()
        with import_module("bullpen").Pool(workers, min_workers=workers, runtime=runtime) as pool:
            pool.wait_ready()
            _dispatch(pool, runtime, workers + sizes.warm_up)
            gc.collect()
            started = perf_counter()
            _dispatch(pool, runtime, sizes.dispatches)
            elapsed = perf_counter() - started
        return {COST: elapsed / sizes.dispatches * 1e6}

    return measure


def _dispatch(pool: Any, runtime: Any, count: int) -> None:
    for _ in range(count):
        future = pool.submit(noop)
        runtime.finish_next()
        future.result(0)

"""The cost of one request of a session with few and with many sessions.

Workers are scripted, as in `dispatch`: all of it happens on the measuring thread. Every session is bound before the
clock starts. Then requests are made as a web application would make them, `pool.using(session=id).submit(…)`, of
sessions in an order that has nothing to do with the one in which they were made.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable, Mapping
from importlib import import_module
from time import perf_counter
from typing import Any

from benchmarks.model import Measure
from bullpen import SessionPolicy

from .settings import WORKERS, Sizes, noop

STRICT = "strict_queue"
HINT = "hint"
FEW = 10
MANY = 100_000


def cost(count: int) -> Measure:
    """Microseconds for one request among `count` sessions: strict ones, and hints."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        return {affinity: _cost(count, affinity, sizes) for affinity in (STRICT, HINT)}

    return measure


def _cost(count: int, affinity: str, sizes: Sizes) -> float:
    runtime = import_module("bullpen.testing").ScriptedRuntime()
    ids = [f"session-{number}" for number in range(count)]
    used = random.Random(count).choices(ids, k=sizes.dispatches)
    options: dict[str, Any] = {
        "min_workers": WORKERS,
        "sessions": SessionPolicy(max_sessions=count),
        "affinity": affinity,
    }
    with import_module("bullpen").Pool(WORKERS, runtime=runtime, **options) as pool:
        pool.wait_ready()
        _request(pool, runtime, ids)
        _request(pool, runtime, used[: sizes.warm_up])
        gc.collect()
        started = perf_counter()
        _request(pool, runtime, used)
        elapsed = perf_counter() - started
    return elapsed / len(used) * 1e6


def _request(pool: Any, runtime: Any, ids: Iterable[str]) -> None:
    for id in ids:
        future = pool.using(session=id).submit(noop)
        runtime.finish_next()
        future.result(0)

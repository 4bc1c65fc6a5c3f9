"""The numbers every work shares, and the no-op that all peers run."""

from __future__ import annotations

from dataclasses import dataclass

WORKERS = 4
MAX_QUEUE = 10**6
COROUTINES_AT_ONCE = 100
LIMIT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one measurement does. Warm-up calls come on top and are not timed."""

    rounds: int
    tasks: int
    calls: int
    queued: int
    idle_workers: int
    dispatches: int
    warm_up: int


FULL = Sizes(rounds=7, tasks=100_000, calls=20_000, queued=100_000, idle_workers=200, dispatches=50_000, warm_up=2_000)
QUICK = Sizes(rounds=3, tasks=10_000, calls=2_000, queued=10_000, idle_workers=50, dispatches=10_000, warm_up=500)


def noop(x: object = None) -> object:
    """Cost nothing, so that only the pool is measured."""
    return x

"""The numbers every work shares, and what all peers run."""

from __future__ import annotations

from dataclasses import dataclass

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one measurement does. Warm-up calls come on top and are not timed."""

    rounds: int
    tasks: int
    items: int
    calls: int
    large: int  # round trips of a megabyte
    huge: int  # … and of a hundred
    warm_up: int


FULL = Sizes(rounds=7, tasks=20_000, items=100_000, calls=5_000, large=200, huge=10, warm_up=200)
QUICK = Sizes(rounds=3, tasks=5_000, items=20_000, calls=1_000, large=30, huge=3, warm_up=100)


def noop(x: object = None) -> object:
    """Cost nothing, so that only the pool is measured. Also sends back what it is sent."""
    return x

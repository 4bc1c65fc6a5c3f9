"""The numbers every work shares."""

from __future__ import annotations

from dataclasses import dataclass

WORKERS = 2
LIMIT_SECONDS = 2.0  # a caller that gets no error of a crash within this time never gets one


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


FULL = Sizes(rounds=5, tasks=20_000, items=100_000, calls=3_000, large=100, huge=5, warm_up=200)
QUICK = Sizes(rounds=3, tasks=5_000, items=20_000, calls=1_000, large=30, huge=3, warm_up=100)

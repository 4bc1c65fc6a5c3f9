"""Every bound of the ratchets. A bound may only fall: the tests fail above it, and well below it."""

from __future__ import annotations

from typing import NamedTuple


class JourneyBound(NamedTuple):
    calls: int
    files: int
    slack: int
    """How many calls fewer than `calls` still count as the same figure: races between threads change a route."""
    aim: tuple[int, int]
    """Calls and files."""


JOURNEYS = {
    "submit": JourneyBound(calls=36, files=9, slack=3, aim=(34, 9)),
    "do": JourneyBound(calls=28, files=5, slack=2, aim=(33, 8)),
    "enqueue": JourneyBound(calls=45, files=16, slack=3, aim=(45, 12)),
    "task": JourneyBound(calls=415, files=36, slack=45, aim=(350, 28)),
    "crash": JourneyBound(calls=350, files=39, slack=30, aim=(250, 22)),
}

CYCLES: list[int] = []
"""Sizes of the import cycles, the largest first. The aim is none."""

OPTIONS = {"Pool": 20, "AsyncPool": 20}
"""The aim is 20."""

PER_ADAPTER = frozenset({"port", "rows", "schema"})
"""Files that each adapter has: there a class of the same name is the same thing."""

DOUBLE_NAMES: list[str] = []
"""Class names that stand for two things. The aim is none. `python -m tests.ratchets.structure` says where they are."""

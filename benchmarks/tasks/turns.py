"""A contestant and plain SQL, turn by turn in one process: the speed of the disk changes within a second, so
turns expose both to the same disk. The ratio of a round is the median of the ratios of its turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from benchmarks.measure import PAIRED
from benchmarks.metrics import RATE

from .plain import Plain, new_row
from .settings import new_folder


class Turns:
    """Rates of the contestant, and of the reference right after each."""

    def __init__(self) -> None:
        self._own: list[float] = []
        self._reference: list[float] = []

    @contextmanager
    def own(self, count: int) -> Iterator[None]:
        began = perf_counter()
        yield
        self._own.append(count / (perf_counter() - began))

    @contextmanager
    def reference(self, count: int) -> Iterator[None]:
        began = perf_counter()
        yield
        self._reference.append(count / (perf_counter() - began))

    def figures(self) -> dict[str, float]:
        ratios = [own / reference for own, reference in zip(self._own, self._reference, strict=True)]
        return {RATE: statistics.median(self._own), RATE + PAIRED: statistics.median(ratios)}


class Commits:
    """The reference of enqueueing one by one: one `INSERT`, one commit."""

    def __init__(self, plain: Plain, turns: Turns) -> None:
        self._plain = plain
        self._turns = turns

    def take_turn(self, count: int) -> None:
        add = self._plain.add
        with self._turns.reference(count):
            for _ in range(count):
                add(new_row())


@contextmanager
def commits(turns: Turns, synchronous: str = "FULL") -> Iterator[Commits]:
    with new_folder() as folder, Plain(folder, synchronous=synchronous) as plain:
        reference = Commits(plain, Turns())
        reference.take_turn(10)  # warm-up
        yield Commits(plain, turns)

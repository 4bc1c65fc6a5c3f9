"""Counting from many threads."""

from __future__ import annotations

import itertools

from bullpen import primitives


class Tally:
    """A counter whose increment is one atomic step of the interpreter. Only reading takes a lock.

    Reading draws a number too, so reads are counted and subtracted.
    """

    __slots__ = ("_lock", "_reads", "add")

    def __init__(self) -> None:
        self.add = itertools.count().__next__
        self._reads = 0
        self._lock = primitives.backlog_lock()

    @property
    def value(self) -> int:
        with self._lock:
            value = self.add() - self._reads
            self._reads += 1
            return value


class Total:
    """A sum of numbers of either sign. Adding takes a lock, so it is for what happens in batches."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self.value = 0
        self._lock = primitives.backlog_lock()

    def add(self, number: int) -> None:
        with self._lock:
            self.value += number

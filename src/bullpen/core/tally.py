"""Counting from many threads."""

from __future__ import annotations

import itertools

from bullpen import primitives


class Tally:
    """A counter that needs no lock: to add is one step of the interpreter, and so is to read.

    Reading must not add, for the numbers that `add` gives out have a meaning. All that shows where an `itertools.count`
    stands, in every version of Python, is its text.
    """

    __slots__ = ("_count", "add")

    def __init__(self) -> None:
        self._count = itertools.count()
        self.add = self._count.__next__

    @property
    def value(self) -> int:
        return int(repr(self._count)[len("count(") : -1])


class Total:
    """A sum of numbers of either sign. Adding takes a lock, so it is for what happens in batches."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self.value = 0
        self._lock = primitives.backlog_lock()

    def add(self, number: int) -> None:
        with self._lock:
            self.value += number

    def renew(self) -> None:
        """This is a forked child: the lock is made anew, its holder may not exist here."""
        self._lock = primitives.backlog_lock()

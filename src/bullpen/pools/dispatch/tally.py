"""Counters that many threads share."""

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
        self._lock = primitives.leaf_lock()

    def add(self, number: int) -> None:
        with self._lock:
            self.value += number

    def renew(self) -> None:
        """This is a forked child: the lock is made anew, its holder may not exist here."""
        self._lock = primitives.leaf_lock()


class Counts:
    """How the requests of one pool ended, as far as its workers do not count that themselves."""

    __slots__ = (
        "abandoned_workers",
        "cancelled",
        "died",
        "extra_cancelled",
        "extra_completed",
        "extra_failed",
        "extra_submitted",
        "failed_waiting",
        "items",
        "lost",
        "queue_timeouts",
        "retried",
        "runners_queued",
        "saturated",
        "timed_out",
    )

    def __init__(self) -> None:
        self.saturated = Tally()
        self.cancelled = Tally()
        self.lost = Tally()
        self.died = Tally()  # workers
        self.failed_waiting = Tally()
        self.retried = Tally()
        self.timed_out = Tally()
        self.queue_timeouts = Tally()
        self.abandoned_workers = Tally()
        self.items = Tally()  # of maps, unless each item is a request
        self.extra_submitted = Total()  # items of maps count, the requests that run them do not
        self.extra_completed = Total()
        self.extra_failed = Total()
        self.extra_cancelled = Total()
        self.runners_queued = Total()

    def renew(self) -> None:
        """This is a forked child: the locks are made anew, their holders may not exist here."""
        for total in (
            self.extra_submitted,
            self.extra_completed,
            self.extra_failed,
            self.extra_cancelled,
            self.runners_queued,
        ):
            total.renew()

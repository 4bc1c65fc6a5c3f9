"""The slots of a pool: at most one worker has each, so there are never more workers than slots.

A slot is free, taken by a worker, or held. To pop a free slot is the permission to start a worker. A slot is *held*
for a while if its worker died too soon after others. A pool that shrinks removes free slots first. A taken slot that
has to go is *doomed*: it vanishes when its worker gives it back.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque


class Slots:
    """Which slots exist and which are held. The pool's lock is held for every method; only `free` needs no lock."""

    def __init__(self, free: deque[int], limit: int) -> None:
        self._free = free  # the dispatcher's
        self.limit = limit  # `max_workers`
        self._opened = False  # no slot exists before the pool is prepared
        self._existing: set[int] = set()
        self._doomed: set[int] = set()
        self._held: set[int] = set()
        self._numbers = itertools.count()

    def open(self) -> None:
        """Workers may start from now on."""
        self._opened = True
        self._match_limit()

    def resize(self, limit: int) -> None:
        """Change the number of slots. Workers in slots that no longer exist have to end."""
        self.limit = limit
        if self._opened:
            self._match_limit()

    def _match_limit(self) -> None:
        while len(self._existing) < self.limit and self._doomed:
            self._existing.add(self._doomed.pop())
        while len(self._existing) < self.limit:
            slot = next(self._numbers)
            self._existing.add(slot)
            self._free.append(slot)
        while len(self._existing) > self.limit and self._free:
            with contextlib.suppress(IndexError):  # a submitter may take it at this moment
                self._existing.discard(self._free.pop())
        surplus = sorted(self._existing)[self.limit :]
        self._existing.difference_update(surplus)
        self._doomed.update(surplus)

    def __contains__(self, slot: object) -> bool:
        return slot in self._existing

    def give_back(self, slot: int) -> None:
        """No worker is in `slot` any more."""
        if slot in self._existing:
            self._free.append(slot)
        self._doomed.discard(slot)

    # Slots that stay empty for a while.

    @property
    def held(self) -> list[int]:
        return list(self._held)

    def hold(self, slot: int) -> None:
        """Keep `slot`, which its worker gave up, empty until `release`."""
        self._held.add(slot)

    def release(self, slot: int) -> bool:
        """A held slot is free again; False if it is not held."""
        if slot not in self._held:
            return False
        self._held.discard(slot)
        self.give_back(slot)
        return True

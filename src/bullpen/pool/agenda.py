"""What a pool has to do at some instant: start a batch, try again, look whether all is well.

The timekeeper carries it out. Deadlines of requests are not here: there may be millions of them (`core/deadlines.py`).
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable

from bullpen import primitives

logger = logging.getLogger("bullpen")

Action = Callable[[], object]


class Agenda:
    """Actions by the instant at which they are due. All methods may be called from any thread.

    An action that is due runs once, without any lock, on the thread that calls `carry_out`. Whoever enters one cannot
    take it back: an action looks for itself whether there is still something to do.
    """

    def __init__(self) -> None:
        self._lock = primitives.deadlines_lock()
        self._entries: list[tuple[float, int, Action]] = []
        self._waiting: set[Action] = set()  # those entered by `enter_once`
        self._numbers = itertools.count()

    def enter(self, when: float, action: Action) -> None:
        """Do `action` at `when`; what was entered first for the same instant comes first."""
        with self._lock:
            heapq.heappush(self._entries, (when, next(self._numbers), action))

    def enter_once(self, when: float, action: Action) -> bool:
        """Do `action` at `when`, unless it stands here already; whether it was entered."""
        with self._lock:
            if action in self._waiting:
                return False
            self._waiting.add(action)
            heapq.heappush(self._entries, (when, next(self._numbers), action))
            return True

    @property
    def next_at(self) -> float:
        """When the next action is due; infinity if there is none."""
        with self._lock:
            return self._entries[0][0] if self._entries else math.inf

    def carry_out(self, now: float) -> None:
        """Do all that is due at `now`, the earliest first, also what is entered meanwhile. Errors are logged."""
        while (action := self._take_due(now)) is not None:
            try:
                action()
            except Exception:  # what is due next must not suffer
                logger.exception("the supervisor failed at %r and goes on", action)

    def _take_due(self, now: float) -> Action | None:
        with self._lock:
            if not self._entries or self._entries[0][0] > now:
                return None
            action = heapq.heappop(self._entries)[2]
            self._waiting.discard(action)
            return action

    def clear(self) -> None:
        """The pool has ended: nothing is left to do."""
        with self._lock:
            self._entries.clear()
            self._waiting.clear()

    def forget(self) -> None:
        """This is a forked child. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.deadlines_lock()
        self.clear()

    def __len__(self) -> int:
        return len(self._entries)

"""How soon a dead worker may be replaced: at once, unless too many have died of late.

A pool that restarts workers that cannot live, as fast as the machine allows, takes the machine down. So within
`window` seconds `limit` deaths are forgiven. From the next one on the pool is *degraded*: a slot whose worker dies is
given back only after a delay, which doubles with each death. It has recovered when a worker was up for a whole window
in which none has died.

The death of a worker that has finished a request does not count: such workers can live, and each such death costs a
request, so the pool does not restart them for ever.
"""

from __future__ import annotations

import math
from collections import deque

FIRST_DELAY = 0.1  # seconds
MAX_DELAY = 60.0
_MOST_DOUBLINGS = 10  # more than it takes to come to the longest delay

JITTER = 0.1


def jittered(seconds: float, random: float) -> float:
    """`seconds`, up to a tenth less or more; `random` is from 0 to 1."""
    return seconds * (1 - JITTER + 2 * JITTER * random)


class Restarts:
    """The deaths of a pool's workers, those that could not start included. The caller sees to mutual exclusion."""

    def __init__(self, limit: int, window: float) -> None:
        self.limit = limit
        self.window = window
        self.degraded = False
        self.ready_ever = 0  # how many workers came up so far
        self._missed = False  # a worker died before any came up
        self._deaths: deque[float] = deque(maxlen=limit + 1)
        self._delays = 0  # how many were given since the pool is degraded
        self._steady_since = math.inf  # no worker has died since then, and one was up all the time

    def died(self, now: float, random: float, *, others_up: bool) -> float:
        """A worker died; how many seconds its slot has to stay empty. `others_up`: there are some that are ready."""
        self._steady_since = now if others_up else math.inf
        self._deaths.append(now)
        self._missed = self._missed or not self.ready_ever
        too_many = len(self._deaths) > self.limit and now - self._deaths[0] < self.window
        self.degraded = self.degraded or too_many
        if not self.degraded:
            return 0.0
        delay = min(FIRST_DELAY * 2 ** min(self._delays, _MOST_DOUBLINGS), MAX_DELAY)
        self._delays += 1
        return jittered(delay, random)

    def came_up(self, now: float) -> bool:
        """A worker is ready. True if workers died before any came up, and this one is the first since."""
        self._steady_since = min(self._steady_since, now)
        self.ready_ever += 1
        missed, self._missed = self._missed, False
        return missed

    @property
    def steady_at(self) -> float:
        """When a degraded pool will have recovered, if no worker dies before; infinity if none is up."""
        return self._steady_since + self.window if self.degraded else math.inf

    def recover(self, now: float) -> bool:
        """Whether a degraded pool has recovered at `now`; then all is forgiven."""
        if now < self.steady_at:
            return False
        self.degraded = False
        self._delays = 0
        self._deaths.clear()
        return True

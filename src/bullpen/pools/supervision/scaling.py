"""When a pool has more workers than it needs, or fewer.

Under rotation every worker's last use is recent, so it says nothing. What says something is how few workers were
ready at the worst moment: that many were never needed.
"""

from __future__ import annotations

from collections import deque

STEPS = 8  # an idle timeout is watched in that many steps


class Surplus:
    """Watches the fewest ready workers over the last `STEPS` steps."""

    def __init__(self) -> None:
        self._fewest: deque[int] = deque(maxlen=STEPS)

    def step(self, fewest_ready: int, removable: int) -> bool:
        """One step has passed, in which at least `fewest_ready` workers were idle: shall one of `removable` workers
        go?
        """
        self._fewest.append(fewest_ready)
        if removable <= 0 or len(self._fewest) < STEPS or min(self._fewest) <= 0:
            return False
        for index in range(STEPS):
            self._fewest[index] -= 1
        return True

    def reset(self) -> None:
        self._fewest.clear()


def deficit(*, minimum: int, maximum: int, workers: int, waiting: int, room: int, capacity: int) -> int:
    """How many workers are missing.

    There are `workers`, those on their way included, with `room` for requests; `waiting` requests wait. A worker more
    would have room for `capacity` of them. There have to be `minimum`, and may be `maximum`.
    """
    demand = workers - (-max(0, waiting - room) // capacity)
    return max(0, min(max(minimum, demand), maximum) - workers)

"""Where the claims of a client begin in the index of what waits; `schema.py` says why not at its front."""

from __future__ import annotations

from collections.abc import Sequence

PRIORITIES = 10
SWEEP_EVERY = 0.05  # seconds …
SWEEP_SHARE = 10  # … or so many times what the last one took

Floors = tuple[list[str], list[float], list[str]]  # queues; for each priority of each of them, an `eta` and an id


class Line:
    """The places in queues that the server has told, and when to look at the whole of them again: for what was written
    late or put in front, and for what was locked for a moment.
    """

    def __init__(self, queues: Sequence[str]) -> None:
        self._queues = queues
        self._floors = self._front()
        self._is_swept = True  # the last claim has looked at the whole; nothing was passed over yet
        self._swept_at = 0.0  # by the server's clock
        self.sweeps_at = 0.0  # by the loop's

    def _front(self) -> dict[str, tuple[list[float], list[str]]]:
        return {queue: ([0.0] * PRIORITIES, [""] * PRIORITIES) for queue in self._queues}

    def floors(self) -> tuple[list[float], list[str]]:
        """Where a claim begins: for each queue and priority, after which `eta`, and after which id of those."""
        return _flat(self._floors)

    def swept_by(self, now: float) -> float:
        """When the whole was looked at; long ago, if it is time to do so again."""
        return 0.0 if now >= self.sweeps_at else self._swept_at

    def go_on(self, floors: Floors) -> None:
        """Where the next claim begins."""
        queues, etas, ids = floors
        for number, queue in enumerate(queues):
            here = slice(number * PRIORITIES, (number + 1) * PRIORITIES)
            self._floors[queue] = (etas[here], ids[here])
        self._is_swept = False

    def sweep(self, moment: float, began: float, now: float) -> None:
        """The claim that began then has looked at the whole."""
        self._is_swept = True
        self._swept_at = moment
        self.sweeps_at = now + max(SWEEP_EVERY, SWEEP_SHARE * (now - began))

    def waits_behind(self) -> tuple[list[float], list[str]]:
        """Where to look whether there is work: as far as the last claim did, so that as little is looked at twice."""
        return _flat(self._front() if self._is_swept else self._floors)

    def looks_in(self, seconds: float | None, now: float) -> float | None:
        """In how many seconds to claim again, if that is when there may be work."""
        if not self._is_swept:
            until_sweep = self.sweeps_at - now
            seconds = until_sweep if seconds is None else min(seconds, until_sweep)
        elif seconds is not None and seconds <= 0:
            self.sweeps_at = 0.0  # the claim that looked at the whole did not get it
        return None if seconds is None else max(seconds, 0.0)


def _flat(floors: dict[str, tuple[list[float], list[str]]]) -> tuple[list[float], list[str]]:
    return [eta for etas, _ in floors.values() for eta in etas], [one for _, ids in floors.values() for one in ids]

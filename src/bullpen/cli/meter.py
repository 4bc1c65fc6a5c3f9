"""How fast something goes, as a row of numbers to draw."""

from __future__ import annotations


class Meter:
    """What ended per second, one value for each `step` seconds."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._since = 0.0
        self._before = 0
        self.rates: list[float] = []

    def read(self, elapsed: float, ended: int) -> None:
        passed = elapsed - self._since
        if passed >= self._step:
            self.rates.append((ended - self._before) / passed)
            self._since, self._before = elapsed, ended

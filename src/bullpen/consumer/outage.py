"""A store that does not answer: said once, asked again after growing, jittered pauses, and said when it does again."""

from __future__ import annotations

import logging

from bullpen import primitives
from bullpen.consumer.reports import Reports, say
from bullpen.telemetry.catalogue import Kind

SHORTEST = 0.05  # seconds


class Outage:
    """Whether one user of the store has it at the moment."""

    def __init__(self, reports: Reports, who: str, longest: float) -> None:
        self._reports = reports
        self._who = who
        self._longest = longest
        self.failures = 0

    def failed(self, doing: str, error: BaseException) -> float:
        """The store did not do it; how long to wait before it is asked again."""
        self.failures += 1
        level = logging.WARNING if self.failures == 1 else logging.DEBUG
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        say(level, "%s: %s: the store fails to %s, trying again (%s)", self._reports.name, self._who, doing, why)
        if self.failures == 1:
            self._reports.event(Kind.STORE_LOST, detail=self._who)
        longest = min(SHORTEST * 2.0 ** min(self.failures, 30), self._longest)
        return longest * (0.5 + primitives.random.random() / 2)

    def over(self) -> None:
        """The store has answered."""
        if self.failures:
            say(
                logging.WARNING,
                "%s: %s: the store is back after %d failures",
                self._reports.name,
                self._who,
                self.failures,
            )
            self.failures = 0
            self._reports.event(Kind.STORE_FOUND, detail=self._who)

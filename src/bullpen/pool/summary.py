"""What a pool says of itself when it closes: one log record."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bullpen.core.worker import READY

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

logger = logging.getLogger("bullpen")


class Summary:
    """A pool at the moment at which it took no more work."""

    def __init__(self, engine: Engine, *, quiet_if_idle: bool) -> None:
        workers = engine.registry.snapshot()
        self._state = engine.state
        self._workers = len(workers)
        self._idle = sum(worker.status is READY and not worker.requests for worker in workers)
        self._busy = sum(bool(worker.requests) for worker in workers)
        self._queued = engine.queued()
        self._waiters = engine.startup.waiters
        quiet = quiet_if_idle and not self._busy and not self._queued
        self._level = logging.DEBUG if quiet else logging.INFO

    def log(self, engine: Engine) -> None:
        """The pool is closed: what it was like before, and what has become of its requests."""
        if not logger.isEnabledFor(self._level):
            return
        tallies = engine.registry.totals()[0]
        logger.log(
            self._level,
            "%s: closed; it was %s with %d workers (%d idle, %d busy), %d queued, %d waiting until it was "
            "ready; in all %d completed, %d failed, %d cancelled, %d lost, %d workers abandoned",
            engine.name,
            self._state,
            self._workers,
            self._idle,
            self._busy,
            self._queued,
            self._waiters,
            tallies.completed + engine.extra_completed.value,
            tallies.failed + engine.refused.value + engine.extra_failed.value,
            engine.cancelled.value + engine.extra_cancelled.value,
            engine.lost.value,
            engine.workforce.abandoned_ever,
        )

"""The three limits in time of a request, and when it was where. Made only for requests that are limited or sampled.

`queue_timeout` limits the wait in the backlog, `run_timeout` the run on a worker, `timeout` the whole from
submission. They are never mixed: each has its own error.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bullpen.core.lifecycle import RequestState
from bullpen.errors import DeadlineExceeded, QueueTimeout, RunTimeout, Timeout

if TYPE_CHECKING:
    from bullpen.core.request import Request

QUEUED = RequestState.QUEUED
RUNNING = RequestState.RUNNING


class TimeLimits:
    """The limits of a call in seconds; None is no limit. One object serves all calls that are made alike."""

    __slots__ = ("any", "budget", "patience", "queue_timeout", "run_timeout", "stamina", "timeout")

    def __init__(
        self, timeout: float | None = None, queue_timeout: float | None = None, run_timeout: float | None = None
    ) -> None:
        self.timeout = timeout
        self.queue_timeout = queue_timeout
        self.run_timeout = run_timeout
        self.any = timeout is not None or queue_timeout is not None or run_timeout is not None
        self.budget = math.inf if timeout is None else timeout
        self.stamina = math.inf if run_timeout is None else run_timeout
        self.patience = min(self.budget, math.inf if queue_timeout is None else queue_timeout)


NO_LIMITS = TimeLimits()


class Timing:
    """The limits of one request as instants. `started_at` is there once it runs."""

    __slots__ = ("limits", "request", "start_by", "started_at", "submitted_at")

    started_at: float

    def __init__(self, request: Request, now: float, limits: TimeLimits) -> None:
        self.request: Request | None = request  # until it ends
        self.limits = limits
        self.submitted_at = now
        self.start_by = now + limits.patience

    @property
    def deadline(self) -> float:
        """When the caller's whole budget is spent."""
        return self.submitted_at + self.limits.budget

    @property
    def run_until(self) -> float:
        """When it has run for as long as it may."""
        return self.started_at + self.limits.stamina

    def interrupt(self, request: Request) -> Timing:
        """Its worker died, and it may run again: the timing of another try, of which only the deadline stands.

        It is another object because lines of deadlines are in the order of this one's instants.
        """
        again = Timing(request, self.submitted_at, self.limits)
        again.started_at = math.inf  # until it starts once more
        self.request = None
        return again

    def wait_again(self, now: float) -> None:
        """It waits in the backlog once more."""
        queue_timeout = self.limits.queue_timeout
        self.start_by = self.deadline if queue_timeout is None else min(self.deadline, now + queue_timeout)

    def next_at(self, state: RequestState) -> float:
        """The next instant at which a request in `state` has to be looked at."""
        if state is QUEUED:
            return self.start_by
        return min(self.deadline, self.run_until)

    def verdict(self, state: RequestState, now: float) -> Timeout | None:
        """The limit that a request in `state` has passed at `now`, as the error its caller gets."""
        limits = self.limits
        if limits.timeout is not None and now >= self.deadline:
            return DeadlineExceeded(seconds=limits.timeout, ran=state is not QUEUED)
        if state is QUEUED and limits.queue_timeout is not None and now >= self.start_by:
            return QueueTimeout(seconds=limits.queue_timeout)
        if state is RUNNING and limits.run_timeout is not None and now >= self.run_until:
            return RunTimeout(seconds=limits.run_timeout)
        return None

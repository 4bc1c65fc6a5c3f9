"""Requests whose time is up: each of the three limits has its own error, and its caller gets it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from bullpen import primitives
from bullpen.errors import QueueTimeout, RunTimeout, Timeout
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.request import QUEUED, Request
from bullpen.pools.dispatch.tally import Counts
from bullpen.pools.dispatch.worker import Worker


class Expiry:
    """Applies the time limits of requests.

    `withdrawn()` is told of a waiting request that does not run, `cancel(worker, request)` ends a running one if the
    runtime can, and `abandon(worker, request)` gives the worker up if it cannot.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        counts: Counts,
        *,
        withdrawn: Callable[[], None],
        cancel: Callable[[Worker, Request], bool],
        abandon: Callable[[Worker, Request], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._counts = counts
        self._withdrawn = withdrawn
        self._cancel = cancel
        self._abandon = abandon

    def judge(self, request: Request, now: float) -> bool:
        """Apply the limits of `request` at `now`; False if none has passed yet, or it has ended."""
        assert request.timing is not None
        state, worker = request.state, request.holder
        verdict = request.timing.verdict(state, now)
        if verdict is None:
            return False
        if state is QUEUED:
            if not request.expire(verdict):
                return self.judge(request, now)  # it has started, or ended, just now
            self._withdrawn()
        elif not request.abandon(verdict):
            return False
        primitives.failpoint("request.given_up_not_counted")
        self._count(verdict)
        self._dispatcher.report_end(request, worker)
        if worker is not None and not self._cancel(worker, request) and isinstance(verdict, RunTimeout):
            self._abandon(worker, request)
        return True

    def raise_too_late(self, request: Request) -> NoReturn:
        """A submitter has waited for room for as long as it may."""
        assert request.timing is not None
        verdict = request.timing.verdict(QUEUED, request.timing.start_by)
        assert verdict is not None
        request.expire(verdict)
        self._count(verdict)
        self._dispatcher.report_end(request, None)
        raise verdict

    def _count(self, verdict: Timeout) -> None:
        (self._counts.queue_timeouts if isinstance(verdict, QueueTimeout) else self._counts.timed_out).add()

"""Requests whose worker died and which may run again: on another one, and after a moment.

What has killed one worker may kill the next, so there is a delay before each new try, and a number of tries. Until
its delay is over a request stays *running*, as far as its caller, its deadline and the counts are concerned; it is on
no worker then, only here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bullpen import primitives
from bullpen.core.lifecycle import PoolState
from bullpen.core.request import FAILED, RUNNING, Request
from bullpen.core.restarts import jittered
from bullpen.core.tally import Tally
from bullpen.telemetry.catalogue import Kind

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

FIRST_DELAY = 0.05  # seconds, doubled with each crash of the same request


class Retries:
    """The requests of one pool that wait for another try."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = primitives.backlog_lock()
        self._waiting: set[Request] = set()
        self._moving = 0  # on their way back to the backlog
        self.over = False
        self.retried = Tally()

    def __len__(self) -> int:
        """How many requests are here; a pool that drains is not done before there are none."""
        return len(self._waiting) + self._moving

    def __contains__(self, request: object) -> bool:
        return request in self._waiting

    @property
    def running(self) -> int:
        """How many of them somebody still wants."""
        with self._lock:
            return sum(request.state is RUNNING for request in self._waiting)

    def keep(self, requests: tuple[Request, ...]) -> list[Request]:
        """The worker of `requests` died: keep those that may run again; the others, which are lost, are returned."""
        lost, again = list[Request](), list[Request]()
        for request in sorted(requests, key=lambda request: request.number):
            if _may_run_again(request):
                self._prepare(request)
                again.append(request)
            else:
                lost.append(request)
        with self._lock:
            if self.over or self._engine.state in (PoolState.CLOSED, PoolState.FAILED):
                return [*lost, *again]
            self._waiting.update(again)
        if self._engine.dispatcher.draining:  # whoever closes the pool waits for them
            self._fire(again)
        elif again:
            delay = FIRST_DELAY * 2 ** (max(request.crashes for request in again) - 1)
            again_later = functools.partial(self._fire, again)
            self._engine.time.later(jittered(delay, primitives.random.random()), again_later)
        return lost

    def _prepare(self, request: Any) -> None:  # of any of the kinds that have terms
        request.crashes += 1
        timing = request.interrupted()
        if timing is not None and self._engine.time.deadlines.arm_again(timing, timing.deadline):
            self._engine.time.wake()

    def _fire(self, due: Sequence[Request]) -> None:
        """Put those of `due` that still wait here back into the backlog, where they are the oldest again."""
        engine = self._engine
        with self._lock:
            requests = [request for request in due if request in self._waiting]
            self._waiting.difference_update(requests)
            self._moving += len(requests)
        for request in reversed(requests):
            self._requeue(request)
        with self._lock:
            self._moving -= len(requests)
        if requests:
            engine.dispatcher.match()
            engine.use_new_room()
            engine.closed_if_done()

    def _requeue(self, request: Request) -> None:
        engine = self._engine
        timing = request.timing
        if timing is not None:
            timing.wait_again(engine.clock.monotonic())
        if not request.requeue():
            return  # its time was up, or nobody wants it any more
        self.retried.add()
        engine.report(Kind.REQUEST_REQUEUED, None, request)
        if engine.bounded is not None:
            engine.bounded.put_back(request)
        else:
            engine.backlog.appendleft(request)
        if timing is not None and engine.time.deadlines.arm_again(timing, timing.start_by):
            engine.time.wake()

    def fire_all(self) -> None:
        """The pool drains: do not wait any longer."""
        self._fire(sorted(self._waiting, key=lambda request: request.number))

    def cancel(self, request: Request) -> bool:
        """Cancel `request` if it is here."""
        with self._lock:
            if request not in self._waiting:
                return False
            self._waiting.discard(request)
        if not request.cancel_retry():
            return False
        self._engine.cancelled.add()
        self._engine.report_end(request, None)
        return True

    def cancel_all(self) -> None:
        """The pool closes and runs nothing more: neither what is here nor what might still come."""
        self.over = True
        for request in list(self._waiting):
            self.cancel(request)

    def refuse_all(self, error: BaseException) -> None:
        """The pool has failed: nobody can run them."""
        with self._lock:
            requests, self._waiting = self._waiting, set()
        for request in requests:
            if request.settle_aloud(FAILED, error):
                self._engine.refused.add()
                self._engine.report_end(request, None)

    def forget(self) -> None:
        """This is a forked child. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.backlog_lock()
        self._waiting = set()


def _may_run_again(request: Request) -> bool:
    """Whether a crash of its worker costs `request` only time. A strict session lives and dies with its worker."""
    terms = request.terms
    if terms is None or not terms.idempotent or terms.strict or request.ended:
        return False
    return request.crashes < terms.crash_retries

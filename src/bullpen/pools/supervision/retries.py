"""Crash retries: idempotent requests whose worker died, and which run again on another worker after a delay.

A request that killed one worker may kill the next, so there is a delay before each retry, and a limit of retries.
During the delay a request stays *running* for its caller, its deadline and the counts, although no worker has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from bullpen import primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher, Report
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.request import FAILED, RUNNING, Request
from bullpen.pools.dispatch.tally import Counts
from bullpen.pools.runtimes.port import CallsMany
from bullpen.pools.supervision.restarts import jittered
from bullpen.pools.supervision.timer import PoolTimer
from bullpen.telemetry import Kind

FIRST_DELAY = 0.05  # seconds, doubled with each crash of the same request
MOST_SENT_AGAIN = 4  # workers that may die before they begin the same request, besides the first
MOST_REMEMBERED = 10_000  # requests that were sent again


class Retries:
    """The requests of one pool that wait for another try."""

    def __init__(
        self,
        *,
        status: PoolStatus,
        dispatcher: Dispatcher,
        timer: PoolTimer,
        now: Callable[[], float],
        counts: Counts,
        report: Report,
        closed_if_done: Callable[[], None],
    ) -> None:
        self._status = status
        self._dispatcher = dispatcher
        self._timer = timer
        self._now = now
        self._counts = counts
        self._report = report
        self._closed_if_done = closed_if_done
        self._lock = primitives.leaf_lock()
        self._waiting: set[Request] = set()
        self._sent_again: dict[tuple[int, int], int] = {}  # how often, of requests that never began
        self._moving = 0  # on their way back to the backlog
        self.over = False  # the pool runs nothing more

    def __len__(self) -> int:
        """How many requests are here; a pool that drains is not done before there are none."""
        return len(self._waiting) + self._moving

    def __contains__(self, request: object) -> bool:
        return request in self._waiting

    @property
    def running(self) -> int:
        """How many of them have not been given up."""
        with self._lock:
            return sum(request.state is RUNNING for request in self._waiting)

    def keep(self, requests: tuple[Request, ...], never_began: Callable[[Request], bool]) -> list[Request]:
        """The worker of `requests` died: keep those that may run again; the others, which are lost, are returned.

        Those that `never_began` go back to the backlog at once.
        """
        lost, again, fresh = list[Request](), list[Request](), list[Request]()
        for request in sorted(requests, key=lambda request: request.number):
            if never_began(request) and self._may_be_sent_again(request):
                fresh.append(request)
            elif _may_run_again(request):
                _count_crash(request)
                again.append(request)
            else:
                lost.append(request)
        for request in (*fresh, *again):
            self._time_anew(request)
        with self._lock:
            if self.over or self._status.ended:
                return [*lost, *fresh, *again]
            self._waiting.update(fresh, again)
        if fresh:
            self._fire(fresh)
        if self._status.draining:  # the caller of `close` waits for them
            self._fire(again)
        elif again:
            delay = FIRST_DELAY * 2 ** (max(_crashes(request) for request in again) - 1)
            again_later = functools.partial(self._fire, again)
            self._timer.call_later(jittered(delay, primitives.random.random()), again_later)
        return lost

    def _may_be_sent_again(self, request: Request) -> bool:
        """Whether `request`, which its worker had not begun, may go to another one. It may be what kills them: a worker
        may have no memory for its arguments.
        """
        if request.ended or (request.traits is not None and request.traits.strict):
            return False
        if len(self._sent_again) >= MOST_REMEMBERED:
            self._sent_again.clear()
        rest = request.number, _items_before(request)
        times = self._sent_again.get(rest, 0)
        self._sent_again[rest] = times + 1
        return times < MOST_SENT_AGAIN

    def _time_anew(self, request: Request) -> None:
        timing = request.interrupted()
        if timing is not None and self._timer.deadlines.arm_again(timing, timing.deadline):
            self._timer.wake()

    def _fire(self, due: Sequence[Request]) -> None:
        """Put those of `due` that still wait here back into the backlog, where they are the oldest again."""
        with self._lock:
            requests = [request for request in due if request in self._waiting]
            self._waiting.difference_update(requests)
            self._moving += len(requests)
        for request in reversed(requests):
            self._requeue(request)
        with self._lock:
            self._moving -= len(requests)
        if requests:
            self._dispatcher.pair_waiting_with_ready()
            self._dispatcher.use_new_room()
            self._closed_if_done()

    def _requeue(self, request: Request) -> None:
        timing = request.timing
        if timing is not None:
            timing.wait_again(self._now())
        if not request.requeue():
            return  # its time was up, or it was given up
        if _crashes(request):
            self._counts.retried.add()
        self._report(Kind.REQUEST_REQUEUED, None, request)
        self._dispatcher.backlog.put_back(request)
        if timing is not None and self._timer.deadlines.arm_again(timing, timing.start_by):
            self._timer.wake()

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
        self.count_cancelled(request)
        return True

    def count_cancelled(self, request: Request) -> None:
        self._counts.cancelled.add()
        self._dispatcher.report_end(request, None)

    def cancel_all(self) -> None:
        """The pool closes and runs no retry: neither the waiting ones nor later ones."""
        self.over = True
        for request in list(self._waiting):
            self.cancel(request)

    def fail_all(self, error: BaseException) -> None:
        """The pool has failed: no worker can run them."""
        with self._lock:
            requests, self._waiting = self._waiting, set()
        for request in requests:
            if request.settle_and_call_back(FAILED, error):
                self._counts.failed_waiting.add()
                self._dispatcher.report_end(request, None)

    def forget(self) -> None:
        """This is a forked child. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.leaf_lock()
        self._waiting = set()


def _count_crash(request: Request) -> None:
    assert request.traits is not None
    request.traits.crashes += 1


def _may_run_again(request: Request) -> bool:
    """Whether a crash of its worker costs `request` only time. A strict session lives and dies with its worker."""
    traits = request.traits
    if traits is None or not traits.idempotent or traits.strict or request.ended:
        return False
    return traits.crashes < traits.crash_retries


def _items_before(request: Request) -> int:
    """How many of its items have been called, if it is the call of several: each of the others has its own chances."""
    past = request.fn.past if isinstance(request.fn, CallsMany) else None
    return 0 if past is None else len(past.values)


def _crashes(request: Request) -> int:
    return 0 if request.traits is None else request.traits.crashes

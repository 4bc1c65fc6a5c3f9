"""The one door into a pool: `Admission` queues a request, gives it to a worker, or says why it does not.

The rule while a pool closes is the same for all requests. Before a request is queued, a draining pool rejects it,
unless it is an item of a map that began before. After it is queued, it is taken back if no worker will come for it.

This is in `supervision`, not in `dispatch`, because a caller may have to wait here: for room in a bounded backlog, with
a clock. The dispatcher never waits. How to wait is up to the caller, so the line of submitters is written once, as a
generator: it yields a gate and for how long to wait there, and is sent whether the gate was opened. `admit` blocks its
thread at the gate. A coroutine takes the steps of `admit_in_steps`, and awaits the gate.

Plain calls of a pool without `max_queue` take the short way through the door, `offer`: nothing has to be decided for
them but whether the pool closes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from typing import Any

from bullpen import primitives
from bullpen.errors import (
    BullpenError,
    DeadlineExceeded,
    PoolClosed,
    PoolFailed,
    PoolSaturated,
    SessionWorkerUnavailable,
    TooManySessions,
    WorkerBusy,
)
from bullpen.pools.dispatch.backlog import BoundedBacklog, Ticket
from bullpen.pools.dispatch.dispatcher import Dispatcher, Pinned
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.request import CallTraits, Request, TimeLimits, Timing
from bullpen.pools.dispatch.sessions import Session, SessionChanged
from bullpen.pools.dispatch.tally import Counts
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import current_worker
from bullpen.pools.supervision.expiry import Expiry
from bullpen.pools.supervision.nested_waits import NestedWaits
from bullpen.pools.supervision.reports import PoolReports
from bullpen.pools.supervision.timer import PoolTimer

WaitSteps = Generator[tuple[Any, float | None], bool, None]


class Admission:
    """Admits requests to one pool."""

    def __init__(
        self,
        *,
        name: str,
        status: PoolStatus,
        dispatcher: Dispatcher,
        bounded: BoundedBacklog | None,
        timer: PoolTimer,
        clock: primitives.Clock,
        counts: Counts,
        reports: PoolReports,
        expiry: Expiry,
        nested: NestedWaits,
        reports_here: Callable[[], bool],
        closed_if_done: Callable[[], None],
        queued: Callable[[], int],
        rejects: bool,
        max_sessions: int,
    ) -> None:
        self._name = name
        self._status = status
        self._dispatcher = dispatcher
        self.offer = dispatcher.offer  # its callers look first whether the pool drains, as `Pool.submit` does
        self._sessions = dispatcher.sessions
        self._bounded = bounded
        self._clock = clock
        self._now = clock.monotonic
        self._wake = timer.wake
        self._arm_queued = timer.deadlines.arm_queued
        self._counts = counts
        self._reports = reports
        self._raise_too_late = expiry.raise_too_late
        self._nested = nested
        self._reports_here = reports_here
        self._closed_if_done = closed_if_done
        self._queued = queued
        self._rejects = rejects  # when the backlog is full; otherwise a submitter waits
        self._max_sessions = max_sessions

    def admit(
        self, request: Request, limits: TimeLimits, *, enforced: bool = True, wait_for_room: bool = False
    ) -> bool:
        """Queue `request`, or give it to a worker; False if the pool is saturated.

        Not `enforced`: the caller applies the `timeout` itself. `wait_for_room`: the request is an item of a map, so it
        waits for room even if the pool usually rejects, and is accepted while the pool drains.
        """
        if self._status.phase.draining and not wait_for_room:
            raise self._status.not_open()
        timing = self._timed(request, limits) if limits.any else None
        traits, bounded = request.traits, self._bounded
        if traits is not None and traits.session is not None:
            timing = request.timing = timing or Timing(request, self._now(), limits)
            if not self._admit_in_session(request, traits, timing, wait_for_room):
                return False
        elif bounded is None:
            if not self.offer(request):
                raise self.too_late()
        elif not self._dispatcher.offer_bounded(bounded, request) and not self._admit_late(
            bounded, request, wait_for_room
        ):
            return False
        if self._status.phase.ending:
            self._take_back(request)
        if timing is not None and (enforced or limits.queue_timeout is not None):
            self._watch(timing)
        return True

    def admit_in_steps(
        self, request: Request, limits: TimeLimits, new_ticket: Callable[[], Ticket], must_not_wait: Callable[[], bool]
    ) -> WaitSteps:
        """`admit` for a coroutine, which waits for room at the gates of `new_ticket` tickets. Not for a request of a
        session.

        If the coroutine `must_not_wait`, because it could wait for itself, its request is queued above the limit.
        """
        bounded = self._bounded
        if bounded is None:
            self.admit(request, limits)
            return
        if self._status.phase.draining:
            raise self._status.not_open()
        timing = self._timed(request, limits) if limits.any else None
        if not self._dispatcher.offer_bounded(bounded, request):
            if must_not_wait():
                bounded.put_above_limit(request)
            else:
                yield from self._offer_in_turn(bounded, new_ticket(), request, self._offer_to(bounded, request))
        if self._status.phase.ending:
            self._take_back(request)
        if timing is not None:
            self._watch(timing)

    def _timed(self, request: Request, limits: TimeLimits) -> Timing:
        """The timing of a request with limits. If its time is over, it is not even queued."""
        if limits.budget <= 0:
            self._dispatcher.reject_new(request)
            raise DeadlineExceeded(seconds=limits.budget, ran=False)
        timing = request.timing = Timing(request, self._now(), limits)
        return timing

    def _watch(self, timing: Timing) -> None:
        if self._arm_queued(timing):
            self._wake()

    def _take_back(self, request: Request) -> None:
        """The pool closed while `request` was being queued: it is rejected, unless a worker has it."""
        if self._dispatcher.withdraw(request):
            raise self.too_late()

    # Requests of sessions.

    def _admit_in_session(self, request: Request, traits: CallTraits, timing: Timing, wait_for_room: bool) -> bool:
        """Admit a request to its session's worker, if the session has one."""
        self._dispatcher.register(request)
        admitted = None
        while admitted is None:
            session = self._sessions.use(traits, timing.submitted_at)
            if self._sessions.forgotten:
                self._reports.report_forgotten(self._sessions.forgotten)
            if session is None:
                raise self._rejected(request, TooManySessions(pool=self._name, limit=self._max_sessions))
            with contextlib.suppress(SessionChanged):
                admitted = self._admit_to(session, traits, request, wait_for_room)
        return admitted

    def _admit_to(self, session: Session, traits: CallTraits, request: Request, wait_for_room: bool) -> bool | None:
        """Admit a request of `session`; None, or `SessionChanged`, if that has changed meanwhile."""
        worker = session.worker
        if worker is not None:
            return self._admit_pinned(session, worker, traits, request, wait_for_room)
        if not traits.strict:
            return self._admit_anywhere(request, wait_for_room)
        if traits.affinity == "strict_fail_fast" and self._sessions.is_expected(session, self._now()):
            raise self._rejected(request, WorkerBusy(worker="", session=session.id))
        return self._admit_anywhere(request, wait_for_room, session)

    def _admit_anywhere(self, request: Request, wait_for_room: bool, session: Session | None = None) -> bool:
        """Admit a registered request that any worker may run; also the first of a strict `session`."""
        dispatcher, bounded = self._dispatcher, self._bounded
        if bounded is None:
            if not dispatcher.offer_registered(request, session):
                raise self.too_late()
            return True
        return dispatcher.offer_bounded(bounded, request, registered=True, session=session) or self._admit_late(
            bounded, request, wait_for_room, session
        )

    def _rejected(self, request: Request, error: BullpenError) -> BullpenError:
        """A registered request is rejected with `error`."""
        self._dispatcher.reject(request)
        return error

    def _admit_pinned(
        self, session: Session, worker: Worker, traits: CallTraits, request: Request, wait_for_room: bool
    ) -> bool | None:
        """Admit a request of a session that lives on `worker`; None if it does not live there any more."""
        assert traits.session is not None
        line_up = traits.affinity == "strict_queue"
        outcome = self._dispatcher.offer_pinned(worker, request, line_up=line_up)
        if outcome is Pinned.FULL:
            outcome = self._line_up_late(worker, request, wait_for_room)
        if outcome is Pinned.FULL:
            return self._saturated(request)
        if outcome is Pinned.TAKEN:
            return True
        if not traits.strict:
            if outcome is Pinned.GONE:
                self._sessions.rebind(session, worker)
            return self._admit_anywhere(request, wait_for_room)
        if outcome is Pinned.BUSY:
            raise self._rejected(request, WorkerBusy(worker=worker.name, session=traits.session))
        if self._status.phase.draining:  # which is why the worker takes nothing any more
            raise self._rejected(request, self._status.not_open())
        if session.worker is worker:
            raise self._rejected(request, SessionWorkerUnavailable(worker=worker.name, session=traits.session))
        return None

    def _line_up_late(self, worker: Worker, request: Request, wait_for_room: bool) -> Pinned:
        """There was no room for a request that waits for `worker`: wait for it, unless it has to be rejected."""
        backlog = self._bounded
        assert backlog is not None
        if (self._rejects and not wait_for_room) or self._reports_here():
            return Pinned.FULL
        here = current_worker()
        if here is worker and self._nested.is_own(here):
            self._run_here(here, request)
            return Pinned.TAKEN
        if here is not None and self._nested.is_own(here):  # to wait for room here could be to wait for itself
            return Pinned.FULL
        outcome = Pinned.FULL

        def line_up(ticket: Ticket) -> bool:
            nonlocal outcome
            outcome = self._dispatcher.offer_pinned(worker, request, line_up=True, ticket=ticket)
            if outcome is Pinned.FULL:  # another worker may have room, which is of no use here
                backlog.pass_on(ticket)
            return outcome is not Pinned.FULL

        self._block(self._offer_in_turn(backlog, Ticket(), request, line_up, wait_for_room))
        return outcome

    def submit_runner(self, runner: Request) -> bool:
        """Queue a runner of a map; False if the pool has ended. It needs no room, because its items wait elsewhere. Its
        items are counted, and it is not.
        """
        self._dispatcher.backlog.withdraw_place()
        self._counts.extra_submitted.add(-1)
        self._counts.runners_queued.add(1)
        if self.offer(runner):
            return True
        self._counts.extra_submitted.add(1)
        self._counts.runners_queued.add(-1)
        return False

    def _admit_late(
        self, backlog: BoundedBacklog, request: Request, wait_for_room: bool, session: Session | None = None
    ) -> bool:
        """There was no room: reject, or wait for it."""
        if (self._rejects and not wait_for_room) or self._reports_here():
            return self._saturated(request)  # to wait where results arrive would be to wait forever
        worker = current_worker()
        if worker is not None and self._nested.is_own(worker):  # to wait for room here could be to wait for itself
            return self._run_here(worker, request)
        offer = self._offer_to(backlog, request, session)
        self._block(self._offer_in_turn(backlog, Ticket(), request, offer, wait_for_room))
        return True

    def _offer_to(
        self, backlog: BoundedBacklog, request: Request, session: Session | None = None
    ) -> Callable[[Ticket], bool]:
        return lambda ticket: self._dispatcher.offer_bounded(backlog, request, ticket, session=session)

    def _saturated(self, request: Request) -> bool:
        self._counts.saturated.add()
        self._dispatcher.reject(request)
        return False

    def _run_here(self, worker: Worker, request: Request) -> bool:
        if not self._nested.run_here(worker, request, queued=False):
            if request.timing is not None and self._now() < request.timing.start_by:
                raise SessionChanged
            self._raise_too_late(request)
        return True

    # The line of submitters that wait for room.

    def _block(self, steps: WaitSteps) -> None:
        """Take `steps`, and block this thread between them."""
        try:
            gate, timeout = next(steps)
            while True:
                gate, timeout = steps.send(self._clock.wait(gate, timeout))
        except StopIteration:
            return
        finally:
            try:
                steps.close()
            except BaseException:  # interrupted: the submitters behind it must not wait for it forever
                steps.close()
                raise

    def _offer_in_turn(
        self,
        backlog: BoundedBacklog,
        ticket: Ticket,
        request: Request,
        offer: Callable[[Ticket], bool],
        wait_for_room: bool = False,
    ) -> WaitSteps:
        """Call `offer` whenever it is the turn of this ticket, until it succeeds."""
        until = math.inf if request.timing is None else request.timing.start_by
        try:
            backlog.take_ticket(ticket)
            while True:
                backlog.rearm(ticket)
                if self._status.phase.ending or (self._status.phase.draining and not wait_for_room):
                    raise self._status.not_open()
                if offer(ticket):
                    return
                timeout = None if until == math.inf else until - self._now()
                if not (yield ticket.gate, timeout):
                    self._raise_too_late(request)
        except SessionChanged:
            raise
        except BaseException:
            if not request.ended:  # closed, interrupted or cancelled
                self._dispatcher.reject(request)
            raise
        finally:
            try:
                backlog.return_ticket(ticket)
            except BaseException:  # interrupted: the submitters behind it must not wait for it forever
                backlog.return_ticket(ticket)
                raise

    def end_session(self, session: str) -> bool:
        """Forget a session; False if there is none."""
        ended = self._sessions.end(session, self._now())
        if ended:
            self._reports.report_session_ended(session)
        elif self._sessions.forgotten:
            self._reports.report_forgotten(self._sessions.forgotten)
        return ended

    def too_late(self) -> PoolClosed | PoolFailed:
        """The pool closed while a request was being queued; it was taken back."""
        self._closed_if_done()
        return self._status.not_open()

    def saturated_error(self) -> PoolSaturated:
        assert self._bounded is not None
        return PoolSaturated(pool=self._name, queued=self._queued(), limit=self._bounded.limit)

"""Bringing requests and workers together: the hot path of the pool.

No pool-wide lock is taken here. A submitter appends to the backlog and *then* looks for a ready worker or a free
slot; a worker that runs dry lists itself as ready and *then* looks at the backlog again. So whichever of the two
comes second sees the other, and no request is left lying beside an idle worker.

A worker that finishes takes its next request itself, in one section of its own lock. In the same section it makes
room first and publishes the result after: whoever sees the result also finds the worker free.

What has to run on one certain worker waits in that worker's line, which its lock guards. The line and the backlog
compete by age. A line is never left lying either: it is empty, or its worker has no room, or the pool is paused.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from bullpen import primitives
from bullpen.core.affinity import Forestalled, Session, Sessions
from bullpen.core.backlog import Backlog, BoundedBacklog, Ticket
from bullpen.core.lifecycle import RequestState
from bullpen.core.ready import Line, SchedulerStrategy
from bullpen.core.registry import Registry
from bullpen.core.request import DONE, FAILED, QUEUED, RUNNING, Request, ServedRequest
from bullpen.core.tally import Tally
from bullpen.core.timing import NO_LIMITS, Timing
from bullpen.core.worker import BUSY, READY, STARTING, STOPPING, TAINTED, Worker
from bullpen.telemetry.catalogue import Kind

_SAMPLE_ALL_BELOW = 64
_SAMPLE_MASK = 31  # from then on, one request in 32

_SAMPLES_KEPT = 2048

Report = Callable[[Kind, "Worker | None", "Request | None"], None]


class Pinned(enum.Enum):
    """What became of a request that was offered to one certain worker."""

    TAKEN = "the worker has it, or it is in the worker's line"
    BUSY = "the worker has no room"
    FULL = "neither has the backlog"
    GONE = "the worker takes nothing any more, or not now"


class Dispatcher:
    """Who runs what, when.

    `spawn(slot)` starts a worker; `watch(request)` is told of a started request that may not run forever; `now()` is
    the clock; `complain(request, error)` is told of errors that nobody else will see; `report(kind, worker,
    request)` of every move, if anybody listens.
    """

    def __init__(
        self,
        backlog: Backlog,
        ready: SchedulerStrategy,
        *,
        spawn: Callable[[int], None],
        watch: Callable[[Request], None],
        now: Callable[[], float],
        complain: Callable[[Request, BaseException], None],
        report: Report | None = None,
        capacity: int = 1,
        session_ttl: float | None = None,
        max_sessions: int = 10_000,
    ) -> None:
        self.backlog = backlog
        self.ready = ready
        self.registry = Registry()
        self.sessions = Sessions(session_ttl, max_sessions, backlog.shells, told=report is not None)
        self.capacity = capacity  # of a worker that is not there yet
        self.free = primitives.new_deque()  # slots in which a worker may be started
        self._offered = Tally()
        self._turned_away = Tally()
        self.paused = False
        self.draining = False  # no new requests are taken
        self.ending = False  # and nobody brings items of maps any more: workers end when nothing waits
        self.samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES_KEPT)  # how long requests waited and ran
        self.fewest_ready = 0  # since it was last reset: that many workers were not needed
        self._bounded = backlog if isinstance(backlog, BoundedBacklog) else None
        self._left = None if self._bounded is None else self._bounded.left
        self._lines_lock = primitives.pool_lock()  # for requests that may have to wait in a line, if there is a bound
        self._spawn = spawn
        self._watch = watch
        self._now = now
        self._complain = complain
        self._report = report
        self._quiet = report is None
        self._number = self._offered.add
        self._append = backlog.append
        self._popleft = backlog.popleft
        self._waiting = backlog.entries.__len__  # the C functions themselves, where there are any
        self._relist = getattr(ready, "update", None)
        self._idle = ready.ids.__len__ if isinstance(ready, Line) else ready.__len__

    @property
    def submitted(self) -> int:
        """How many requests were taken in so far."""
        turned_away = self._turned_away.value
        return self._offered.value - turned_away

    # A request comes in.

    def offer(self, request: Request) -> bool:
        """Take `request` into an unbounded backlog and see that somebody runs it; False if the pool closed
        meanwhile.
        """
        number = request.number = self._number()
        if not number & _SAMPLE_MASK or number < _SAMPLE_ALL_BELOW or self._report is not None:
            self._accept_specially(request)
        self._append(request)
        if self._idle():
            self.match()
        if self.free and self._waiting():  # also when those that seemed ready were not
            self.grow()
        return not self.ending or not self.withdraw(request)

    def register(self, request: Request) -> None:
        """Take note of a request of a session, which may have to be offered more than once."""
        request.number = self._number()
        if self._report is not None:
            self._report(Kind.REQUEST_QUEUED, None, request)

    def offer_registered(self, request: Request, session: Session | None) -> bool:
        """`offer`, for a request that is registered; a strict one of a `session` without a worker may be
        `Forestalled`.
        """
        follows = session is not None and self._follows(session)
        if session is not None:
            self.sessions.expect(session, request)
        self._append(request)
        if self._idle():
            self.match()
        if self.free and self._waiting() and not follows:
            self.grow()
        return not self.ending or not self.withdraw(request)

    def _follows(self, session: Session) -> bool:
        """Whether a worker is on its way for an earlier strict request of `session`, and will be that of this one."""
        return self.sessions.is_expected(session) and self.registry.coming_count() > 0

    def _accept_specially(self, request: Request) -> None:
        if request.timing is None:
            request.timing = Timing(request, self._now(), NO_LIMITS)
        if self._report is not None:
            self._report(Kind.REQUEST_QUEUED, None, request)

    def offer_bounded(
        self,
        backlog: BoundedBacklog,
        request: Request,
        ticket: Ticket | None = None,
        *,
        registered: bool = False,
        session: Session | None = None,
    ) -> bool:
        """Give `request` to a ready worker, or to one that is started for it, or queue it; False if none of this is
        possible.

        A strict request of a `session` that has no worker may also be `Forestalled`.
        """
        if ticket is None:
            if not registered:
                number = request.number = self._number()
                if not number & _SAMPLE_MASK or number < _SAMPLE_ALL_BELOW or self._report is not None:
                    self._accept_specially(request)
            if backlog.tickets:  # a newcomer does not overtake those who wait
                backlog.call_next()
                return False
            if session is None and not self.free and not self._idle():  # by far the most frequent: all are busy
                try:
                    backlog.pop_place()
                except IndexError:
                    pass
                except BaseException:  # an interrupt, which comes when the place is taken
                    backlog.left()
                    raise
                else:
                    self._append(request)
                    if self._idle():
                        self.match()
                    if self.free and self._waiting():
                        self.grow()
                    return True
        while self._idle() and not self.paused:
            if self._reserve_for(backlog, request, session):
                return True
        may_grow = not self.paused and (session is None or not self._follows(session))
        slot = self.pop_slot() if self.free and may_grow and self._needs_more(self._waiting() + 1) else None
        admitted = slot is None and backlog.take_place(ticket)
        if not admitted and slot is None and self.free and may_grow:
            slot = self.pop_slot()  # what waits for certain workers may have the places of those on their way
        try:
            if slot is not None:
                admitted = backlog.pledge_for(ticket)
            if admitted:
                if session is not None:
                    self._expect(backlog, session, request)
                self._append(request)
        finally:
            if slot is not None:
                self._spawn(slot)
        if admitted and slot is None:
            if self._idle():
                self.match()
            if self.free and self._waiting() and may_grow:
                self.grow()
        return admitted

    def _expect(self, backlog: BoundedBacklog, session: Session, request: Request) -> None:
        try:
            self.sessions.expect(session, request)
        except Forestalled:
            backlog.left()  # the place it has taken
            raise

    def pop_slot(self) -> int | None:
        """Take the permission to start a worker, if there is one."""
        try:
            return self.free.popleft()  # type: ignore[no-any-return]
        except IndexError:
            return None

    def refuse(self, request: Request) -> None:
        """A request comes that is not even looked at."""
        request.number = self._number()
        if self._report is not None:
            self._report(Kind.REQUEST_QUEUED, None, request)
        self.turn_away(request)

    def turn_away(self, request: Request) -> None:
        """A registered request was not taken in."""
        self._turned_away.add()
        if self._report is not None:
            self._report(Kind.REQUEST_REFUSED, None, request)

    def withdraw(self, request: Request) -> bool:
        """Take back a request that was queued too late; False if a worker has it already."""
        if isinstance(request, ServedRequest):
            if not self.backlog.remove(request):
                return False
            request.withdraw()
            self.backlog.left()
        elif request.withdraw():
            self.backlog.withdrawn()
        else:
            return False
        self.turn_away(request)
        return True

    def queued(self) -> int:
        """How many requests wait, in the backlog and in the lines of workers."""
        sums = self.registry.totals()[0]
        return self.backlog.queued(sums.skipped, sums.pinned)

    # A request for one certain worker.

    def offer_pinned(self, worker: Worker, request: Request, *, line_up: bool, ticket: Ticket | None = None) -> Pinned:
        """Let `worker` run `request` at once; if it has no room and `line_up`, put it into the worker's line, for
        which it needs to be registered.
        """
        if line_up and self._bounded is not None:
            with self._lines_lock:  # those who come at once shall not all believe that one place is theirs
                outcome, following = self._place_pinned(worker, request, line_up, ticket)
        else:
            outcome, following = self._place_pinned(worker, request, line_up, ticket)
        if following is not None:
            self._hand(worker, following)
            if worker.line:  # there may be room for more than one
                self._serve_line(worker)
        return outcome

    def _place_pinned(
        self, worker: Worker, request: Request, line_up: bool, ticket: Ticket | None
    ) -> tuple[Pinned, Request | None]:
        """What became of the request, and what `worker` has to be handed now."""
        bounded, following = self._bounded, None
        full = line_up and bounded is not None and self._lines_are_full(bounded)
        with worker.lock:
            if worker.status is not READY and worker.status is not BUSY:
                return Pinned.GONE, None
            free = worker.status is READY and not self.paused
            at_once = free and not worker.line and not self._waiting()
            if not at_once and not line_up:
                return Pinned.BUSY, None
            if not free and bounded is not None and (full or not bounded.take_place(ticket)):
                return Pinned.FULL, None
            if at_once:
                following = self._start_at_once(worker, request)
            else:
                worker.line_up(request)
                following = self._take(worker, None) if free else None
            if free:
                if following is not None:
                    self._loaded(worker)
                elif bounded is not None:
                    bounded.revoke()
        return Pinned.TAKEN, following

    def _lines_are_full(self, backlog: BoundedBacklog) -> bool:
        """Whether as much waits in lines as may wait at all: the places of workers on their way are for others, also of
        those that are sent for at this moment.
        """
        return self._lined_up() >= backlog.limit if backlog.coming.value else not backlog.has_places

    def _lined_up(self) -> int:
        """How many requests wait for certain workers, without the shells of those that left."""
        return sum(not request.ended for worker in self.registry.snapshot() for _, request in list(worker.line))

    def _start_at_once(self, worker: Worker, request: Any) -> Request | None:
        """Start `request` on `worker`, which has room for it and is locked; None if it is too late for that."""
        if request.terms.strict:
            request.pinned_to = worker
        if self._start_timed(worker, request, request.timing):
            worker.add(request)
            return request  # type: ignore[no-any-return]
        worker.skipped += 1
        return None

    def start_out_of_turn(self, worker: Worker, request: Request) -> bool:
        """Start `request` on `worker`, within what runs there now, if it still can start and may do so there."""
        timing = request.timing
        if timing is None:
            return request.start(worker)
        if request.terms is None:
            return self._start_timed(worker, request, timing)
        with worker.lock:
            if self._start_timed(worker, request, timing):
                return True
            # It may have gone to this worker's line just now, behind something older: which waits for it in turn.
            return request.pinned_to is worker and self._start_timed(worker, request, timing)

    def serve_lines(self) -> None:
        """Let workers take what waits for them alone: the pool was paused."""
        for worker in self.registry.snapshot():
            self._serve_line(worker)  # also if its line seems empty: somebody may be about to line up

    def _serve_line(self, worker: Worker) -> None:
        """Hand a worker what waits for it alone, as far as it has room."""
        handed = []
        with worker.lock:
            lined_up = bool(worker.line)
            while worker.line:
                request = None
                if worker.status is READY:
                    request = self._take(worker, self._left)
                elif worker.status is STOPPING and len(worker.requests) < worker.capacity:
                    request = self._take_own(worker)
                if request is None:
                    break
                handed.append(request)
                if worker.status is READY:
                    self._loaded(worker)
            ending = lined_up and worker.status is STOPPING and not worker.requests and not worker.line
        for request in handed:
            self._hand(worker, request)
        if ending:
            self._tell_to_end(worker)

    def empty_line(self, worker: Worker) -> list[Request]:
        """Take what waits for `worker`, which will not run it; oldest first."""
        with worker.lock:
            line, worker.line = worker.line, []
            ending = bool(line) and worker.status is STOPPING and not worker.requests
        if ending:
            self._tell_to_end(worker)
        return [request for _, request in sorted(line, key=lambda entry: entry[0])]

    # Ready workers.

    def match(self) -> None:
        """Hand waiting requests to ready workers until one side runs out."""
        while self._waiting() and self._idle() and not self.paused:
            self.reserve_ready_worker()

    def reserve_ready_worker(self) -> Worker | None:
        """Take the next ready worker, let it take the oldest request it may run, and return it, busy already.

        None if the entry was stale or nothing waits; then nothing has changed.
        """
        worker: Worker | None = None
        before: tuple[Request, ...] = ()
        try:
            worker = self._pop_ready()
            if worker is None:
                return None
            with worker.lock:
                before = worker.requests
                worker.listed = False
                if worker.status is not READY:
                    return None
                request = self._take(worker, self._left)
                if request is None:
                    self._list(worker)
                    return None
                self._loaded(worker)
            self._hand(worker, request)
        except BaseException:
            self._mend(worker, before)
            raise
        if worker.line:
            self._serve_line(worker)
        return worker

    def _mend(self, worker: Worker | None, before: tuple[Request, ...]) -> None:
        """A submitter was interrupted while it had taken a ready `worker`, or any, out: see that no slot is lost.

        The worker gets what was started on it since it had only those `before`, and is listed again if it has room.
        """
        for each in self.registry.snapshot() if worker is None else (worker,):
            with each.lock:
                taken = () if worker is None else [request for request in each.requests if request not in before]
                each.listed = False  # as far as is known; a second entry would only be stale
                if each.status is READY or each.status is BUSY:
                    self._loaded(each)
            for request in taken:
                self._hand(each, request)

    def _pop_ready(self) -> Worker | None:
        try:
            worker_id = self.ready.pop()
        except IndexError:
            return None
        still = self._idle()
        if still < self.fewest_ready:
            self.fewest_ready = still
        return self.registry.get(worker_id)

    def _reserve_for(self, backlog: BoundedBacklog, request: Request, session: Session | None) -> bool:
        worker: Worker | None = None
        before: tuple[Request, ...] = ()
        try:
            worker = self._pop_ready()
            if worker is None:
                return False
            with worker.lock:
                before = worker.requests
                worker.listed = False
                if worker.status is not READY:
                    return False
                if session is not None:
                    self.sessions.expect(session, request)
                backlog.put_free(request)
                oldest = self._take_pledged(worker, backlog)
                if oldest is None:
                    self._list(worker)
                else:
                    self._loaded(worker)
            if oldest is not None:
                self._hand(worker, oldest)
        except BaseException:  # an interrupt, or `Forestalled`
            self._mend(worker, before)
            raise
        if oldest is not None and worker.line:
            self._serve_line(worker)
        return True

    def _take_pledged(self, worker: Worker, backlog: BoundedBacklog) -> Request | None:
        """Let a pledged worker take one request and keep its place, or else take away the place it brought."""
        request = self._take(worker, None)
        if request is None:
            backlog.revoke()
        return request

    def _hand(self, worker: Worker, request: Request) -> None:
        if self._report is not None:
            self._report(Kind.REQUEST_STARTED, worker, request)
        worker.hand(request)

    def _tell_to_end(self, worker: Worker) -> None:
        if self._report is not None:
            self._report(Kind.WORKER_STOPPING, worker, None)
        worker.hand(None)

    def _loaded(self, worker: Worker) -> None:
        if len(worker.requests) >= worker.capacity:
            worker.status = BUSY
        else:
            worker.status = READY
            self._list(worker)

    def _list(self, worker: Worker) -> None:
        if not worker.listed:
            worker.listed = True
            self.ready.push(worker.id, len(worker.requests))
        elif self._relist is not None:
            self._relist(worker.id, len(worker.requests))

    def report_started(self, worker: Worker, request: Request) -> None:
        if self._report is not None:
            self._report(Kind.REQUEST_STARTED, worker, request)

    # More workers.

    def grow(self) -> None:
        """Start one more worker, if a slot is free and something waits."""
        while self._waiting() and not self.paused:
            if not self._needs_more(self._waiting()):
                return
            slot = self.pop_slot()
            if slot is None:
                return
            if self._waiting():
                if self._bounded is not None:
                    self._bounded.pledge()
                self._spawn(slot)
                return
            self.free.appendleft(slot)  # and look again: somebody may have queued while it was missing

    def _needs_more(self, waiting: int) -> bool:
        """Whether the workers that are on their way have no room for all that waits."""
        return self.capacity == 1 or waiting > self.registry.coming_count() * self.capacity

    def grow_to_demand(self) -> None:
        """Start as many workers as there are requests that no worker is on its way for."""
        if self._idle():
            self.match()  # some of those that seem ready may not be
        if not self._waiting() or not self.free:
            return
        missing = -(-self.demand() // self.capacity) - self.registry.coming_count() - self._idle()
        for _ in range(missing):
            self.grow()

    def demand(self) -> int:
        """How many requests wait that one more worker could run."""
        return self.queued() - self._lined_up() - self.sessions.followers()

    # What workers report.

    def started(self, worker: Worker) -> Request | None:
        """A starting worker is ready: its first request, or None if it has to wait or to end."""
        more: list[Request] = []
        with worker.lock:
            worker.was_ready = True
            request = None
            if worker.status is STARTING:
                worker.move(READY)
                if self._bounded is not None:
                    self._bounded.arrived()
                request = self._next(worker, pledged=True)
                if self._bounded is not None:
                    more = self._take_all_pledged(worker, self._bounded, request)
            elif self._bounded is not None:  # told to stop meanwhile: a late `ready` revives nobody
                self._bounded.break_pledge()
            ending = request is None and worker.status is STOPPING and not worker.requests
        for other in more:
            self._hand(worker, other)
        first = self._after(worker, request, ending)
        if worker.capacity > 1:
            self.match()
            if self.free and self._waiting():  # it may have declared less room than was expected
                self.grow()
        return first

    def _take_all_pledged(self, worker: Worker, backlog: BoundedBacklog, first: Request | None) -> list[Request]:
        """The rest of what a worker was pledged to take when it is ready."""
        requests: list[Request] = []
        for _ in range(backlog.per_worker - 1):
            request = None
            if first is not None and worker.status is READY:
                request = self._take(worker, None)
            if request is None:
                backlog.revoke()
            else:
                requests.append(request)
                self._loaded(worker)
        return requests

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """A request ended on its worker: the worker's next one, or None if it has to wait or to end."""
        audience = request.audience
        if audience is not None and audience.callbacks:
            return self._finished_aloud(worker, request, state, value)
        lock = worker.lock
        lock.acquire()
        try:
            single = worker.capacity == 1
            if single:
                worker.requests = ()
            else:
                worker.remove(request)
            given = bool(worker.ahead)
            if given:
                following: Request | None = self._take_given(worker)
            elif worker.status is BUSY or worker.status is READY:
                following = self._take(worker, self._left)
                if following is None:
                    self._rest(worker)
                elif worker.status is not BUSY:
                    self._loaded(worker)
            else:
                following = self._take_own(worker)
            settled = request.settle(state, value)
            if settled:
                if state is DONE:
                    worker.completed += 1
                    if following is not None and single and self._quiet:
                        number = request.number
                        if request.timing is None or (
                            number & _SAMPLE_MASK and number >= _SAMPLE_ALL_BELOW and request.terms is None
                        ):
                            return following  # by far the most frequent end: nothing is left to be told
                else:
                    worker.failed += 1
                ended = True
            else:
                ended = request.state is not RUNNING
                if not ended:  # somebody asked to be called back in the last moment
                    self._undo(worker, request, following, given)
            ending = following is None and worker.status is STOPPING and not worker.requests and not worker.line
        except BaseException:  # a defect: what the worker dies with is lost, and told so
            if not request.ended:
                worker.add(request)
            raise
        finally:
            lock.release()
        if not ended:
            return self._finished_aloud(worker, request, state, value)
        self.tell_end(worker, request, settled)
        return self._after(worker, following, ending)

    def tell_end(self, worker: Worker, request: Request, settled: bool) -> None:
        """Whoever keeps samples, reads logs or observes learns of the end of `request`, if it `settled` just now.

        Otherwise it had been given up, and only now does its worker get free.
        """
        if not settled:
            if self._report is not None:
                self._report(Kind.REQUEST_RETURNED, worker, request)
            return
        timing = request.timing
        if timing is not None:
            timing.request = None  # a served one does not see to that itself
            if not request.number & _SAMPLE_MASK or request.number < _SAMPLE_ALL_BELOW:
                self.samples.append((timing.started_at - timing.submitted_at, self._now() - timing.started_at))
        if request.terms is not None and request.terms.session is not None:
            self.sessions.touch(request.terms.session, self._now())
        if not request.attended and request.state is FAILED:
            self._complain(request, request.value)
        if self._report is not None:
            self._report(Kind.of(request.state), worker, request)

    def _finished_aloud(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """Publish first and make room after: callbacks run on this worker, and nobody shall wait behind them."""
        settled = request.settle_aloud(state, value)
        with worker.lock:
            worker.remove(request)
            if settled and state is DONE:
                worker.completed += 1
            elif settled:
                worker.failed += 1
            following = self._next(worker)
            ending = following is None and worker.status is STOPPING and not worker.requests and not worker.line
        self.tell_end(worker, request, settled)
        return self._after(worker, following, ending)

    def _after(self, worker: Worker, request: Request | None, ending: bool) -> Request | None:
        """What a worker does once its lock is released: run, end, or wait — and then look once more."""
        if request is not None:
            self.report_started(worker, request)
            if worker.line and worker.capacity > 1:
                self._serve_line(worker)
        elif ending:
            self._tell_to_end(worker)
        else:
            if self._waiting():
                self.match()
            if self._bounded is not None:
                self._bounded.call_next()
        return request

    def _next(self, worker: Worker, *, pledged: bool = False) -> Request | None:
        """The worker's next request; without one it becomes ready, or stops if the pool drains. Its lock is held."""
        if worker.ahead:
            return self._take_given(worker)
        if worker.status is not READY and worker.status is not BUSY:
            return self._take_own(worker)
        if pledged and self._bounded is not None:
            request = self._take_pledged(worker, self._bounded)
        else:
            request = self._take(worker, self._left)
        if request is None:
            self._rest(worker)
        elif worker.status is not BUSY or worker.capacity > 1:
            self._loaded(worker)
        return request

    def _rest(self, worker: Worker) -> None:
        """Nothing waits: the worker becomes ready, or stops if the pool drains. Its lock is held."""
        if self.ending and not worker.requests:
            worker.status = STOPPING
        else:
            worker.status = READY
            self._list(worker)

    def _take(self, worker: Worker, left: Callable[[], None] | None) -> Request | None:
        """Start the oldest request that can still be started on `worker`, whose lock is held, and say that it has
        `left`.
        """
        while (self._waiting() or worker.line) and not self.paused:
            try:
                request: Request = self._popleft() if not worker.line else self._pop_oldest(worker)
            except IndexError:
                return None
            timing = request.timing
            try:
                if request.start(worker) if timing is None else self._start_timed(worker, request, timing):
                    worker.requests = (request,) if not worker.requests else (*worker.requests, request)
                    if left is not None:
                        left()
                    return request
            except BaseException:
                if request not in worker.requests and (request.state is QUEUED or request.requeue()):
                    self._put_back(worker, request)
                raise
            worker.skipped += 1
        return None

    def _take_own(self, worker: Worker) -> Request | None:
        """As `_take`, for a worker that stops: it runs what waits for it alone, and nothing else. A tainted one runs
        nothing.
        """
        while worker.line and not self.paused and worker.status is STOPPING:
            _, request = heapq.heappop(worker.line)
            assert request.timing is not None
            if self._start_timed(worker, request, request.timing):
                worker.add(request)
                if self._left is not None:
                    self._left()
                return request
            worker.skipped += 1
        return None

    def _pop_oldest(self, worker: Worker) -> Request:
        """Take the older of what comes next in the worker's line and in the backlog.

        If others take from the backlog at the same moment, it may be the one after that.
        """
        with contextlib.suppress(IndexError):  # there is nothing in the backlog, or not any more
            while self.backlog.entries[0].number < worker.line[0][0]:
                request: Request = self._popleft()
                if request.pinned_to is None:
                    return request
                worker.skipped += 1  # it is in a line, maybe in this one, and its turn comes there
        return heapq.heappop(worker.line)[1]

    def _start_timed(self, worker: Worker, request: Request, timing: Timing) -> bool:
        """Start a request that has limits or terms, if it still may; if it is too late, the timekeeper tells its
        caller.
        """
        now = self._now()
        if now >= timing.start_by or request.state is not QUEUED:  # one that runs shall not seem to begin now
            return False
        timing.started_at = now
        terms = request.terms
        if terms is None or terms.session is None:
            started = request.start(worker)
        else:
            started = self.sessions.start(request, terms, worker, now)
        if started and timing.limits.run_timeout is not None:
            self._watch(request)
        return started

    def _undo(self, worker: Worker, request: Request, following: Request | None, given: bool) -> None:
        """Give back what `_next` took, as if it had not been called. The worker's lock is held."""
        worker.add(request)
        if following is not None:
            worker.remove(following)
            if given:
                worker.ahead = (following, *worker.ahead)
            elif following.requeue():
                self._put_back(worker, following)
        if worker.status is READY and len(worker.requests) >= worker.capacity:
            worker.status = BUSY

    def _put_back(self, worker: Worker, request: Request) -> None:
        """A request that `worker` took but did not begin is the oldest again."""
        if request.terms is not None and request.terms.strict:  # its session is bound to this worker
            if self._bounded is not None:
                self._bounded.revoke()
            worker.line_up(request)
        elif self._bounded is not None:
            self._bounded.put_back(request)
        else:
            self.backlog.appendleft(request)

    # Requests that a worker is given before it can begin them. They count as running, and it has them to itself: so
    # only plain ones are given, without limits in time or sessions, and only where nobody watches single requests.

    def give_ahead(self, worker: Worker, count: int) -> list[Request]:
        """Let a busy worker have up to `count` requests that nobody else is free to run."""
        given: list[Request] = []
        if self._bounded is not None or not self._quiet:
            return given
        with worker.lock:
            while len(given) < count and self._waiting() and not self._idle():
                if worker.status is not BUSY or worker.capacity > 1 or worker.line or self.paused:
                    break
                try:
                    request: Request = self._popleft()
                except IndexError:
                    break
                if request.timing is not None or request.terms is not None:
                    self.backlog.appendleft(request)
                    break
                if request.start(worker):
                    given.append(request)
                else:
                    worker.skipped += 1
            worker.ahead += tuple(given)
        return given

    def take_back(self, worker: Worker, requests: Iterable[Request]) -> Request | None:
        """`worker` has not begun these, and will not: they are the oldest again. But one that it had just come to it
        gets back to run it, unless the pool is paused.
        """
        turn = None
        with worker.lock:
            for request in sorted(requests, key=lambda request: request.number, reverse=True):
                if request in worker.ahead:
                    worker.ahead = tuple(other for other in worker.ahead if other is not request)
                    if request.requeue():
                        self.backlog.appendleft(request)
                elif request in worker.requests:
                    if self.paused and worker.status is BUSY and request.requeue():
                        self.backlog.appendleft(request)
                        worker.remove(request)
                        self._rest(worker)
                    else:
                        turn = request
        self.match()
        self.grow_to_demand()
        return turn

    def _take_given(self, worker: Worker) -> Request:
        """What a worker was given comes first. Its lock is held."""
        request, *left = worker.ahead
        worker.ahead = tuple(left)
        worker.requests = (request,)
        return request

    # Workers under suspicion.

    def taint(self, worker: Worker) -> bool:
        """Let `worker` finish what it runs and take nothing new; False if it takes nothing anyway, or the pool
        drains.
        """
        with worker.lock:
            if self.draining or worker.transient or (worker.status is not READY and worker.status is not BUSY):
                return False
            worker.move(TAINTED)
            return True

    def recover(self, worker: Worker) -> bool:
        """A tainted `worker` takes requests again; False if it is not tainted. The caller calls `resume` next."""
        with worker.lock:
            if worker.status is not TAINTED:
                return False
            worker.move(READY)
            self._loaded(worker)
            return True

    def resume(self, worker: Worker) -> None:
        """`worker` has recovered: let it take what has waited meanwhile."""
        if worker.line:
            self._serve_line(worker)
        self.match()

    # Fewer workers.

    def stop(self, worker: Worker, *, when_idle: bool, unless_needed_at: float | None = None) -> bool:
        """Ask `worker` to end: at once if it is idle, after what it runs now otherwise; only an idle one with
        `when_idle`; none that a strict session needs with `unless_needed_at`, which is now.
        """
        with worker.lock:
            if ((worker.requests or worker.line) and when_idle) or worker.transient:
                return False
            if unless_needed_at is not None and self.sessions.keeps(worker, unless_needed_at):
                return False
            if worker.status not in (READY, BUSY, STARTING, TAINTED):
                return False
            hand = worker.status is not STARTING and not worker.requests and not worker.line
            worker.move(STOPPING)
        if hand:  # a busy one, or one that starts, says so when it comes to it
            self._tell_to_end(worker)
        elif worker.line:  # it was tainted, and would not have taken these yet
            self._serve_line(worker)
        return True

    def stop_one_idle(self) -> bool:
        """Ask the youngest idle worker to end that no strict session needs, if there is one."""
        now = self._now()
        for worker in reversed(self.registry.snapshot()):
            if worker.requests or worker.slot is None:
                continue
            if self.stop(worker, when_idle=True, unless_needed_at=now):
                return True
        return False

"""Bringing requests and workers together: the hot path of the pool.

The problem. Any number of threads submit requests, and any number of workers finish them, at the same time. With one
lock around the backlog and the list of idle workers this would be easy, and slow: every submitter and every worker
would queue for that lock, and a thread that loses the interpreter while it holds it would stop all others. So no
pool-wide lock is taken here. The backlog, the ready queue and the free slots are deques, whose `append` and `popleft`
are atomic. Everything that belongs to one worker is guarded by that worker's own lock, and no thread holds two.

The first race: a request is queued while a worker becomes idle. The submitter looks for a ready worker and finds none;
at the same moment the worker looks at the backlog and finds nothing; both go away, and the request lies beside an idle
worker. It cannot happen, because each side publishes first and looks afterwards. The submitter appends to the backlog
and *then* looks at the ready queue and the free slots. The worker lists itself as ready and *then* looks at the backlog
again. One of the two publishes last, and that one sees the other. Both may see each other: then two threads try to
pair the same request, the deque gives it to one of them, and the other finds nothing to do.

The second race: a worker is told to end while it goes idle. Its status changes only under its lock. Either it is
already `stopping` when it comes to look for work, and then it takes nothing but its own line; or it is listed as ready,
and then the entry is stale. An entry of the ready queue is only a hint: the thread that pops it looks at the status
under the worker's lock and drops an entry that is not true any more. The same holds for a pool that closes: a
submitter looks at the pool's phase again *after* it has queued its request, and takes the request back if no worker
will come for it.

A worker that finishes takes its next request itself, in one section of its own lock: no other thread wakes up for
that. In the same section it makes room first and publishes the result afterwards, so a caller that sees the result
also finds the worker free. Callbacks run before the worker makes room, outside every lock.

A request of a strict session waits in the line of its worker, a heap which that worker's lock guards. The line and the
backlog compete by age.

What holds whenever no thread is inside:

- No request waits in the backlog while a worker is ready, unless the pool is paused. None waits while a slot is free,
  unless the workers that are starting have room for it.
- A line is empty, or its worker has no room, or the pool is paused.
- A worker has at most one entry in the ready queue, and an idle worker has one.
- A request is in exactly one place: the backlog, one line, one worker, or none after its end.

`tests/properties/test_schedules.py` drives both races through every order of steps that it can reach.
"""

from __future__ import annotations

import contextlib
import enum
import heapq
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from bullpen import primitives
from bullpen.pools.dispatch.backlog import Backlog, BoundedBacklog, Ticket
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.ready_queue import ReadyQueue, SchedulerStrategy
from bullpen.pools.dispatch.registry import Registry
from bullpen.pools.dispatch.request import DONE, FAILED, NO_LIMITS, QUEUED, RUNNING, Request, ServedRequest, Timing
from bullpen.pools.dispatch.sessions import Session, SessionChanged, Sessions
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.tally import Tally
from bullpen.pools.dispatch.worker import BUSY, READY, STARTING, STOPPING, TAINTED, Worker
from bullpen.telemetry import Kind

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
    """Which worker runs which request, and when.

    `spawn(slot)` starts a worker; `watch(request)` is told of a started request that may not run forever; `now()` is
    the clock; `complain(request, error)` is told of errors that reach no caller; `report(kind, worker,
    request)` of every move, if the pool has an observer.
    """

    def __init__(
        self,
        backlog: Backlog,
        ready: SchedulerStrategy,
        status: PoolStatus,
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
        self.sessions = Sessions(session_ttl, max_sessions, backlog.tombstones, told=report is not None)
        self.capacity = capacity  # of a worker that is not there yet
        self.free = primitives.new_deque()  # slots in which a worker may be started
        self._offered = Tally()
        self._rejected = Tally()
        self.status = status
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
        self._idle = ready.ids.__len__ if isinstance(ready, ReadyQueue) else ready.__len__

    @property
    def submitted(self) -> int:
        """How many requests were taken in so far."""
        rejected = self._rejected.value
        return self._offered.value - rejected

    # A request comes in.

    def offer(self, request: Request) -> bool:
        """Take `request` into an unbounded backlog and have a worker run it; False if the pool closed
        meanwhile.
        """
        number = request.number = self._number()
        if not number & _SAMPLE_MASK or number < _SAMPLE_ALL_BELOW or self._report is not None:
            self._accept_specially(request)
        self._append(request)
        if self._idle():
            self.pair_waiting_with_ready()
        if self.free and self._waiting():  # also when those that seemed ready were not
            self.grow()
        return not self.status.phase.ending or not self.withdraw(request)

    def register(self, request: Request) -> None:
        """Take note of a request of a session, which may have to be offered more than once."""
        request.number = self._number()
        if self._report is not None:
            self._report(Kind.REQUEST_QUEUED, None, request)

    def offer_registered(self, request: Request, session: Session | None) -> bool:
        """`offer`, for a request that is registered; a strict one of a `session` without a worker may be
        `SessionChanged`.
        """
        follows = session is not None and self._follows(session)
        if session is not None:
            self.sessions.expect(session, request, self._now())
        self._append(request)
        if self._idle():
            self.pair_waiting_with_ready()
        if self.free and self._waiting() and not follows:
            self.grow()
        return not self.status.phase.ending or not self.withdraw(request)

    def _follows(self, session: Session) -> bool:
        """Whether a worker is on its way for an earlier strict request of `session`, and will be that of this one."""
        return self.sessions.is_expected(session, self._now()) and self.registry.starting_count() > 0

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

        A strict request of a `session` that has no worker may also be `SessionChanged`.
        """
        if ticket is None:
            if not registered:
                number = request.number = self._number()
                if not number & _SAMPLE_MASK or number < _SAMPLE_ALL_BELOW or self._report is not None:
                    self._accept_specially(request)
            if backlog.tickets:  # a newcomer does not overtake submitters that wait
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
                        self.pair_waiting_with_ready()
                    if self.free and self._waiting():
                        self.grow()
                    return True
        while self._idle() and not self.status.phase.paused:
            if self._reserve_for(backlog, request, session):
                return True
        may_grow = not self.status.phase.paused and (session is None or not self._follows(session))
        with primitives.Uninterrupted() if self.free else contextlib.nullcontext():  # Ctrl-C must not cost a slot
            return self._offer_late(backlog, request, session, ticket, may_grow=may_grow)

    def _offer_late(
        self,
        backlog: BoundedBacklog,
        request: Request,
        session: Session | None,
        ticket: Ticket | None,
        *,
        may_grow: bool,
    ) -> bool:
        """Queue a request that found no place at once, or start a worker for it."""
        slot = self.pop_slot() if self.free and may_grow and self._needs_more(self._waiting() + 1) else None
        admitted = slot is None and backlog.take_place(ticket)
        if not admitted and slot is None and self.free and may_grow:
            slot = self.pop_slot()  # pinned requests may hold the places of the starting workers
        try:
            if slot is not None:
                admitted = backlog.reserve_place_for(ticket)
            if admitted:
                if session is not None:
                    self._expect(backlog, session, request)
                self._append(request)
        finally:
            if slot is not None:
                self._spawn(slot)
        if admitted and slot is None:
            if self._idle():
                self.pair_waiting_with_ready()
            if self.free and self._waiting() and may_grow:
                self.grow()
        return admitted

    def _expect(self, backlog: BoundedBacklog, session: Session, request: Request) -> None:
        try:
            self.sessions.expect(session, request, self._now())
        except SessionChanged:
            backlog.left()  # the place it has taken
            raise

    def pop_slot(self) -> int | None:
        """Take the permission to start a worker, if there is one."""
        try:
            return self.free.popleft()  # type: ignore[no-any-return]
        except IndexError:
            return None

    def reject_new(self, request: Request) -> None:
        """A request comes that is not even looked at."""
        request.number = self._number()
        if self._report is not None:
            self._report(Kind.REQUEST_QUEUED, None, request)
        self.reject(request)

    def reject(self, request: Request) -> None:
        """A registered request was not taken in."""
        self._rejected.add()
        if self._report is not None:
            self._report(Kind.REQUEST_REJECTED, None, request)

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
        self.reject(request)
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
            with self._lines_lock:  # submitters that come at once must not all take the same place
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
        full = line_up and bounded is not None and not bounded.has_room_in_lines(self._lined_up)
        with worker.lock:
            if worker.status is not READY and worker.status is not BUSY:
                return Pinned.GONE, None
            free = worker.status is READY and not self.status.phase.paused
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
                    bounded.withdraw_place()
        return Pinned.TAKEN, following

    def _lined_up(self) -> int:
        """How many requests wait for certain workers, without the tombstones of those that left."""
        return sum(not request.ended for worker in self.registry.snapshot() for _, request in list(worker.line))

    def _start_at_once(self, worker: Worker, request: Request) -> Request | None:
        """Start `request` on `worker`, which has room for it and is locked; None if it is too late for that."""
        assert request.traits is not None
        assert request.timing is not None
        if request.traits.strict:
            request.traits.pinned_to = worker
        if self._start_timed(worker, request, request.timing):
            worker.add(request)
            return request
        worker.skipped += 1
        return None

    def start_out_of_turn(self, worker: Worker, request: Request) -> bool:
        """Start `request` as an inline call on `worker`, if it still can start and may run there."""
        timing = request.timing
        if timing is None:
            return request.start(worker)
        if request.traits is None:
            return self._start_timed(worker, request, timing)
        with worker.lock:
            if self._start_timed(worker, request, timing):
                return True
            # It may have gone to this worker's line just now, behind an older request, which waits for it in turn.
            return request.pinned_to is worker and self._start_timed(worker, request, timing)

    def serve_lines(self) -> None:
        """Let all workers take the requests in their lines, after a pause of the pool."""
        for worker in self.registry.snapshot():
            self._serve_line(worker)  # also if its line seems empty: a submitter may be about to line up

    def _serve_line(self, worker: Worker) -> None:
        """Hand a worker the requests in its line, as far as it has room."""
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
        """Take all requests out of the line of `worker`, which will not run them; oldest first."""
        with worker.lock:
            line, worker.line = worker.line, []
            ending = bool(line) and worker.status is STOPPING and not worker.requests
        if ending:
            self._tell_to_end(worker)
        return [request for _, request in sorted(line, key=lambda entry: entry[0])]

    # Ready workers.

    def pair_waiting_with_ready(self) -> None:
        """Hand waiting requests to ready workers until one side runs out."""
        while self._waiting() and self._idle() and not self.status.phase.paused:
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
            self._repair_after_interrupt(worker, before)
            raise
        if worker.line:
            self._serve_line(worker)
        return worker

    def _repair_after_interrupt(self, worker: Worker | None, before: tuple[Request, ...]) -> None:
        """A submitter was interrupted after it took `worker`, or an unknown worker, out of the ready queue.

        The worker gets the requests that were started on it and are not in `before`, and is listed again if it has
        room, so that no slot is lost.
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
                    self.sessions.expect(session, request, self._now())
                self._append(request)  # without a place: this worker takes one request for it at once
                oldest = self._take_reserved(worker, backlog)
                if oldest is None:
                    self._list(worker)
                else:
                    self._loaded(worker)
            if oldest is not None:
                self._hand(worker, oldest)
        except BaseException:  # an interrupt, or `SessionChanged`
            self._repair_after_interrupt(worker, before)
            raise
        if oldest is not None and worker.line:
            self._serve_line(worker)
        return True

    def _take_reserved(self, worker: Worker, backlog: BoundedBacklog) -> Request | None:
        """Let a pledged worker take one request and keep its place, or else take away the place it brought."""
        request = self._take(worker, None)
        if request is None:
            backlog.withdraw_place()
        return request

    def _hand(self, worker: Worker, request: Request) -> None:
        if self._report is not None:
            self._report(Kind.REQUEST_STARTED, worker, request)
        worker.handle.hand(request)

    def _tell_to_end(self, worker: Worker) -> None:
        try:
            if self._report is not None:
                self._report(Kind.WORKER_STOPPING, worker, None)
        finally:  # also if Ctrl-C ends the observer
            worker.handle.hand(None)

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

    def report_end(self, request: Request, worker: Worker | None) -> None:
        """Report a request that ended otherwise than by its function, while it waited or on `worker`."""
        if worker is not None and request.traits is not None and request.traits.session is not None:
            self.sessions.touch(request.traits.session, self._now())
        if self._report is not None:
            self._report(Kind.of(request.state), worker, request)

    # More workers.

    def use_new_room(self, *, grow: bool = True) -> None:
        """There may be slots, or places, that were not there before."""
        if grow:
            self.grow_to_demand()
        self.backlog.call_next()

    def grow(self) -> None:
        """Start one more worker, if a slot is free and something waits."""
        while self._waiting() and not self.status.phase.paused:
            if not self._needs_more(self._waiting()):
                return
            with primitives.Uninterrupted():  # Ctrl-C must not cost a slot, or leave a worker half started
                slot = self.pop_slot()
                if slot is None:
                    return
                if self._waiting():
                    self.start_worker(slot)
                    return
                self.free.appendleft(slot)  # and look again: a request may have been queued while it was missing

    def start_worker(self, slot: int) -> None:
        """Start a worker in `slot`, which the caller has taken."""
        self.backlog.reserve_place()
        self._spawn(slot)

    def reserve_for(self, worker: Worker) -> None:
        """`worker`, which starts, has a slot from now on: it brings places along like any other."""
        with worker.lock:
            if worker.status is STARTING and not worker.reserved:
                worker.reserved = True
                self.backlog.reserve_place()

    def does_not_come(self, worker: Worker) -> None:
        """`worker` was on its way, and could not start."""
        with worker.lock:
            if worker.reserved:
                worker.reserved = False
                self.backlog.cancel_reservation()

    def _needs_more(self, waiting: int) -> bool:
        """Whether the workers that are on their way have no room for all that waits."""
        return waiting > self.registry.starting_count() * self.capacity

    def grow_to_demand(self) -> None:
        """Start as many workers as there are requests that no worker is on its way for."""
        if self._idle():
            self.pair_waiting_with_ready()  # some of those that seem ready may not be
        if not self._waiting() or not self.free:
            return
        missing = -(-self.demand() // self.capacity) - self.registry.starting_count() - self._idle()
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
            reserved, worker.reserved = worker.reserved, False
            if worker.status is STARTING:
                worker.move(READY)
                if reserved:
                    self.backlog.arrived()
                request = self._next(worker, reserved=reserved)
                if reserved and self._bounded is not None:
                    more = self._take_all_reserved(worker, self._bounded, request)
            elif reserved:  # told to stop meanwhile: a late `ready` revives no worker
                self.backlog.cancel_reservation()
            ending = request is None and worker.status is STOPPING and not worker.requests
        for other in more:
            self._hand(worker, other)
        first = self._after(worker, request, ending)
        if worker.capacity > 1:
            self.pair_waiting_with_ready()
            if self.free and self._waiting():  # it may have declared less room than was expected
                self.grow()
        return first

    def _take_all_reserved(self, worker: Worker, backlog: BoundedBacklog, first: Request | None) -> list[Request]:
        """The rest of what a worker was pledged to take when it is ready."""
        requests: list[Request] = []
        for _ in range(backlog.per_worker - 1):
            request = None
            if first is not None and worker.status is READY:
                request = self._take(worker, None)
            if request is None:
                backlog.withdraw_place()
            else:
                requests.append(request)
                self._loaded(worker)
        return requests

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """A request ended on its worker: the worker's next one, or None if it has to wait or to end."""
        waiters = request.waiters
        if waiters is not None and waiters.callbacks:
            return self._finished_with_callbacks(worker, request, state, value)
        lock = worker.lock
        lock.acquire()
        try:
            single = worker.capacity == 1
            if single:
                worker.requests = ()
            else:
                worker.remove(request)
            given = bool(worker.prefetched)
            if given:
                following: Request | None = self._take_prefetched(worker)
            elif worker.status is BUSY or worker.status is READY:
                following = self._take(worker, self._left)
                if following is None:
                    self._go_idle(worker)
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
                            number & _SAMPLE_MASK and number >= _SAMPLE_ALL_BELOW and request.traits is None
                        ):
                            return following  # by far the most frequent end: nothing is left to be told
                else:
                    worker.failed += 1
                ended = True
            else:
                ended = request.state is not RUNNING
                if not ended:  # a callback was added in the last moment
                    self._undo(worker, request, following, given)
            ending = following is None and worker.status is STOPPING and not worker.requests and not worker.line
        except BaseException:  # a defect: what the worker dies with is lost, and told so
            if not request.ended:
                worker.add(request)
            raise
        finally:
            lock.release()
        if not ended:
            return self._finished_with_callbacks(worker, request, state, value)
        self.tell_end(worker, request, settled)
        return self._after(worker, following, ending)

    def tell_end(self, worker: Worker, request: Request, settled: bool) -> None:
        """Sample, log and report the end of `request`, if it `settled` just now.

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
        if request.traits is not None and request.traits.session is not None:
            self.sessions.touch(request.traits.session, self._now())
        if not request.attended and request.state is FAILED:
            self._complain(request, request.value)
        if self._report is not None:
            self._report(Kind.of(request.state), worker, request)

    def _finished_with_callbacks(
        self, worker: Worker, request: Request, state: RequestState, value: Any
    ) -> Request | None:
        """Publish first and make room after: callbacks run on this worker, and no request must wait behind them."""
        settled = request.settle_and_call_back(state, value)
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
                self.pair_waiting_with_ready()
            if self._bounded is not None:
                self._bounded.call_next()
        return request

    def _next(self, worker: Worker, *, reserved: bool = False) -> Request | None:
        """The worker's next request; without one it becomes ready, or stops if the pool drains. Its lock is held."""
        if worker.prefetched:
            return self._take_prefetched(worker)
        if worker.status is not READY and worker.status is not BUSY:
            return self._take_own(worker)
        if reserved and self._bounded is not None:
            request = self._take_reserved(worker, self._bounded)
        else:
            request = self._take(worker, self._left)
        if request is None:
            self._go_idle(worker)
        elif worker.status is not BUSY or worker.capacity > 1:
            self._loaded(worker)
        return request

    def _go_idle(self, worker: Worker) -> None:
        """Nothing waits: the worker becomes ready, or stops if the pool drains. Its lock is held."""
        if self.status.phase.ending and not worker.requests:
            worker.status = STOPPING
        else:
            worker.status = READY
            self._list(worker)

    def _take(self, worker: Worker, left: Callable[[], None] | None) -> Request | None:
        """Start the oldest request that can still be started on `worker`, whose lock is held, and say that it has
        `left`.
        """
        while (self._waiting() or worker.line) and not self.status.phase.paused:
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
        """As `_take`, for a stopping worker: it runs only the requests in its line. A tainted one runs none."""
        while worker.line and not self.status.phase.paused and worker.status is STOPPING:
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
        """Take the older one of the first requests in the worker's line and in the backlog.

        If other workers take from the backlog at the same moment, it may be the second one there.
        """
        with contextlib.suppress(IndexError):  # there is nothing in the backlog, or not any more
            while self.backlog.entries[0].number < worker.line[0][0]:
                request: Request = self._popleft()
                if request.pinned_to is None:
                    return request
                worker.skipped += 1  # it is in a line, maybe in this one, and its turn comes there
        return heapq.heappop(worker.line)[1]

    def _start_timed(self, worker: Worker, request: Request, timing: Timing) -> bool:
        """Start a request that has limits or terms, if it still may; if it is too late, the timer tells its
        caller.
        """
        now = self._now()
        if now >= timing.start_by or request.state is not QUEUED:  # one that runs shall not seem to begin now
            return False
        timing.started_at = now
        traits = request.traits
        if traits is None or traits.session is None:
            started = request.start(worker)
        else:
            started = self.sessions.start(request, worker, now)
        if started and timing.limits.run_timeout is not None:
            self._watch(request)
        return started

    def _undo(self, worker: Worker, request: Request, following: Request | None, given: bool) -> None:
        """Give back what `_next` took, as if it had not been called. The worker's lock is held."""
        worker.add(request)
        if following is not None:
            worker.remove(following)
            if given:
                worker.prefetched = (following, *worker.prefetched)
            elif following.requeue():
                self._put_back(worker, following)
        if worker.status is READY and len(worker.requests) >= worker.capacity:
            worker.status = BUSY

    def _put_back(self, worker: Worker, request: Request) -> None:
        """A request that `worker` took but did not begin is the oldest again."""
        if request.traits is not None and request.traits.strict:  # its session is bound to this worker
            self.backlog.withdraw_place()
            worker.line_up(request)
        else:
            self.backlog.put_back(request)

    # Requests that a worker is given before it can begin them. They count as running, and it has them to itself: so
    # only plain ones are given, without limits in time or sessions, and only where no observer watches single requests.

    def prefetch(self, worker: Worker, count: int) -> list[Request]:
        """Let a busy worker have up to `count` requests that no other worker is free to run."""
        given: list[Request] = []
        if self._bounded is not None or not self._quiet:
            return given
        with worker.lock:
            while len(given) < count and self._waiting() and not self._idle():
                if worker.status is not BUSY or worker.capacity > 1 or worker.line or self.status.phase.paused:
                    break
                try:
                    request: Request = self._popleft()
                except IndexError:
                    break
                if request.timing is not None or request.traits is not None:
                    self.backlog.appendleft(request)
                    break
                if request.start(worker):
                    given.append(request)
                else:
                    worker.skipped += 1
            worker.prefetched += tuple(given)
        return given

    def take_back(self, worker: Worker, requests: Iterable[Request]) -> Request | None:
        """`worker` has not begun these, and will not: they are the oldest again. But one that it had just come to it
        gets back to run it, unless the pool is paused.
        """
        turn = None
        with worker.lock:
            for request in sorted(requests, key=lambda request: request.number, reverse=True):
                if request in worker.prefetched:
                    worker.prefetched = tuple(other for other in worker.prefetched if other is not request)
                    if request.requeue():
                        self.backlog.appendleft(request)
                elif request in worker.requests:
                    if self.status.phase.paused and worker.status is BUSY and request.requeue():
                        self.backlog.appendleft(request)
                        worker.remove(request)
                        self._go_idle(worker)
                    else:
                        turn = request
        self.pair_waiting_with_ready()
        self.grow_to_demand()
        return turn

    def _take_prefetched(self, worker: Worker) -> Request:
        """What a worker was given comes first. Its lock is held."""
        request, *left = worker.prefetched
        worker.prefetched = tuple(left)
        worker.requests = (request,)
        return request

    # Workers under suspicion.

    def taint(self, worker: Worker) -> bool:
        """Let `worker` finish what it runs and take nothing new; False if it takes nothing anyway, or the pool
        drains.
        """
        with worker.lock:
            if (
                self.status.phase.draining
                or worker.transient
                or (worker.status is not READY and worker.status is not BUSY)
            ):
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
        """`worker` has recovered: let it take waiting requests."""
        if worker.line:
            self._serve_line(worker)
        self.pair_waiting_with_ready()

    # Fewer workers.

    def stop(self, worker: Worker, *, when_idle: bool, unless_needed_at: float | None = None) -> bool:
        """Ask `worker` to end: at once if it is idle, else after its running requests. `when_idle`: only if it is idle.
        `unless_needed_at`, the time now: only if no strict session needs it.
        """
        with primitives.Uninterrupted():  # Ctrl-C must not leave a worker that ends, but was not told so
            return self._stop(worker, when_idle=when_idle, unless_needed_at=unless_needed_at)

    def _stop(self, worker: Worker, *, when_idle: bool, unless_needed_at: float | None) -> bool:
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

    def stop_idle(self) -> None:
        """Ask every idle worker to end."""
        for worker in self.registry.snapshot():
            self.stop(worker, when_idle=True)

    def stop_one_idle(self) -> bool:
        """Ask the youngest idle worker to end that no strict session needs, if there is one."""
        now = self._now()
        for worker in reversed(self.registry.snapshot()):
            if worker.requests or worker.slot is None:
                continue
            if self.stop(worker, when_idle=True, unless_needed_at=now):
                return True
        return False

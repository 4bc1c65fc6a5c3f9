"""Bringing requests and workers together: the hot path of the pool.

No pool-wide lock is taken here. A submitter appends to the backlog and *then* looks for a ready worker or a free
slot; a worker that runs dry lists itself as ready and *then* looks at the backlog again. So whichever of the two
comes second sees the other, and no request is left lying beside an idle worker.

A worker that finishes takes its next request itself, in one section of its own lock. In the same section it makes
room first and publishes the result after: whoever sees the result also finds the worker free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.core.backlog import Backlog, BoundedBacklog, Ticket
from bullpen.core.lifecycle import RequestState, WorkerStatus
from bullpen.core.ready import Line, SchedulerStrategy
from bullpen.core.registry import Registry
from bullpen.core.request import DONE, FAILED, RUNNING, Request
from bullpen.core.tally import Tally
from bullpen.core.timing import NO_LIMITS, Timing
from bullpen.core.worker import BUSY, READY, STARTING, STOPPING, Worker
from bullpen.telemetry.catalogue import Kind

_SAMPLE_ALL_BELOW = 64
_SAMPLE_MASK = 31  # from then on, one request in 32

_SAMPLES_KEPT = 2048

Report = Callable[[Kind, "Worker | None", "Request | None"], None]


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
    ) -> None:
        self.backlog = backlog
        self.ready = ready
        self.registry = Registry()
        self.free = primitives.new_deque()  # slots in which a worker may be started
        self._offered = Tally()
        self._turned_away = Tally()
        self.paused = False
        self.draining = False
        self.samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES_KEPT)  # how long requests waited and ran
        self.fewest_ready = 0  # since it was last reset: that many workers were not needed
        self._bounded = backlog if isinstance(backlog, BoundedBacklog) else None
        self._left = None if self._bounded is None else self._bounded.left
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
        return not self.draining or not self.withdraw(request)

    def _accept_specially(self, request: Request) -> None:
        if request.timing is None:
            request.timing = Timing(request, self._now(), NO_LIMITS)
        if self._report is not None:
            self._report(Kind.REQUEST_QUEUED, None, request)

    def offer_bounded(self, backlog: BoundedBacklog, request: Request, ticket: Ticket | None = None) -> bool:
        """Give `request` to a ready worker, or to one that is started for it, or queue it; False if none of this is
        possible.
        """
        if ticket is None:
            number = request.number = self._number()
            if not number & _SAMPLE_MASK or number < _SAMPLE_ALL_BELOW or self._report is not None:
                self._accept_specially(request)
            if backlog.has_line:  # a newcomer does not overtake those who wait
                backlog.call_next()
                return False
        while self._idle() and not self.paused:
            if self._reserve_for(backlog, request):
                return True
        slot = self.pop_slot() if self.free and not self.paused else None
        if slot is not None:
            backlog.pledge()
        admitted = backlog.put(request, ticket)
        if slot is not None:
            self._spawn(slot)
        elif admitted:
            if self._idle():
                self.match()
            if self.free and self._waiting():
                self.grow()
        return admitted

    def pop_slot(self) -> int | None:
        """Take the permission to start a worker, if there is one."""
        try:
            return self.free.popleft()  # type: ignore[no-any-return]
        except IndexError:
            return None

    def turn_away(self, request: Request) -> None:
        """A registered request was not taken in."""
        self._turned_away.add()
        if self._report is not None:
            self._report(Kind.REQUEST_REFUSED, None, request)

    def withdraw(self, request: Request) -> bool:
        """Take back a request that was queued too late; False if a worker has it already."""
        if not request.withdraw():
            return False
        self.backlog.withdrawn()
        self.turn_away(request)
        return True

    def match(self) -> None:
        """Hand waiting requests to ready workers until one side runs out."""
        while self._waiting() and self._idle() and not self.paused:
            self.reserve_ready_worker()

    def reserve_ready_worker(self) -> Worker | None:
        """Take the next ready worker, let it take the oldest request it may run, and return it, busy already.

        None if the entry was stale or nothing waits; then nothing has changed.
        """
        worker = self._pop_ready()
        if worker is None:
            return None
        worker.lock.acquire()
        try:
            worker.listed = False
            if worker.status is not READY:
                return None
            request = self._take(worker, self._left)
            if request is None:
                self._list(worker)
                return None
            self._loaded(worker)
        finally:
            worker.lock.release()
        self._hand(worker, request)
        return worker

    def _pop_ready(self) -> Worker | None:
        try:
            worker_id = self.ready.pop()
        except IndexError:
            return None
        still = self._idle()
        if still < self.fewest_ready:
            self.fewest_ready = still
        return self.registry.get(worker_id)

    def _reserve_for(self, backlog: BoundedBacklog, request: Request) -> bool:
        worker = self._pop_ready()
        if worker is None:
            return False
        with worker.lock:
            worker.listed = False
            if worker.status is not READY:
                return False
            backlog.put_free(request)
            oldest = self._take_pledged(worker, backlog)
            if oldest is None:
                self._list(worker)
            else:
                self._loaded(worker)
        if oldest is not None:
            self._hand(worker, oldest)
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

    def report_started(self, worker: Worker, request: Request) -> None:
        if self._report is not None:
            self._report(Kind.REQUEST_STARTED, worker, request)

    # More workers.

    def grow(self) -> None:
        """Start one more worker, if a slot is free and something waits."""
        while self._waiting() and not self.paused:
            slot = self.pop_slot()
            if slot is None:
                return
            if self._waiting():
                if self._bounded is not None:
                    self._bounded.pledge()
                self._spawn(slot)
                return
            self.free.appendleft(slot)  # and look again: somebody may have queued while it was missing

    def grow_to_demand(self) -> None:
        """Start as many workers as there are requests that no worker is on its way for."""
        if not self._waiting() or not self.free:
            return
        waiting = self.backlog.queued(self.registry.totals()[0].skipped)  # without the shells of those that left
        missing = waiting - self.registry.count(STARTING) - self._idle()
        for _ in range(missing):
            self.grow()

    # What workers report.

    def started(self, worker: Worker) -> Request | None:
        """A starting worker is ready: its first request, or None if it has to wait or to end."""
        with worker.lock:
            worker.was_ready = True
            request = None
            if worker.status is STARTING:
                worker.move(READY)
                request = self._next(worker, pledged=True)
            elif self._bounded is not None:  # told to stop meanwhile: a late `ready` revives nobody
                self._bounded.revoke()
            ending = request is None and worker.status is STOPPING and not worker.requests
        return self._after(worker, request, ending)

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """A request ended on its worker: the worker's next one, or None if it has to wait or to end."""
        audience = request.audience
        if audience is not None and audience.callbacks:
            return self._finished_aloud(worker, request, state, value)
        lock = worker.lock
        lock.acquire()
        try:
            if worker.capacity == 1:
                worker.requests = ()
            else:
                worker.remove(request)
            following = None
            if worker.status is not STOPPING:
                following = self._take(worker, self._left)
                if following is None:
                    self._rest(worker)
                elif worker.status is not BUSY:
                    self._loaded(worker)
            settled = request.settle(state, value)
            if settled:
                if state is DONE:
                    worker.completed += 1
                    if following is not None and self._quiet and request.timing is None:
                        return following
                else:
                    worker.failed += 1
                ended = True
            else:
                ended = request.state is not RUNNING
                if not ended:  # somebody asked to be called back in the last moment
                    self._undo(worker, request, following)
            ending = following is None and worker.status is STOPPING and not worker.requests
        finally:
            lock.release()
        if not ended:
            return self._finished_aloud(worker, request, state, value)
        self.tell_end(worker, request, settled)
        return self._after(worker, following, ending)

    def tell_end(self, worker: Worker, request: Request, settled: bool) -> None:
        """Whoever keeps samples, reads logs or observes learns of the end of `request`, if it `settled` just now."""
        if not settled:
            return
        timing = request.timing
        if timing is not None and (not request.number & _SAMPLE_MASK or request.number < _SAMPLE_ALL_BELOW):
            self.samples.append((timing.started_at - timing.submitted_at, self._now() - timing.started_at))
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
            ending = following is None and worker.status is STOPPING and not worker.requests
        self.tell_end(worker, request, settled)
        return self._after(worker, following, ending)

    def _after(self, worker: Worker, request: Request | None, ending: bool) -> Request | None:
        """What a worker does once its lock is released: run, end, or wait — and then look once more."""
        if request is not None:
            self.report_started(worker, request)
        elif ending:
            if self._report is not None:
                self._report(Kind.WORKER_STOPPING, worker, None)
            worker.hand(None)
        else:
            if self._waiting():
                self.match()
            if self._bounded is not None:
                self._bounded.call_next()
        return request

    def _next(self, worker: Worker, *, pledged: bool = False) -> Request | None:
        """The worker's next request; without one it becomes ready, or stops if the pool drains. Its lock is held."""
        if worker.status is STOPPING:
            return None
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
        if self.draining and not worker.requests:
            worker.status = STOPPING
        else:
            worker.status = READY
            self._list(worker)

    def _take(self, worker: Worker, left: Callable[[], None] | None) -> Request | None:
        """Start the oldest request that can still be started on `worker`, whose lock is held, and say that it has
        `left`.
        """
        while self._waiting() and not self.paused:
            try:
                request: Request = self._popleft()
            except IndexError:
                return None
            if request.timing is not None and not self._in_time(request, request.timing):
                worker.skipped += 1
            elif request.start(worker):
                worker.requests = (request,) if not worker.requests else (*worker.requests, request)
                if left is not None:
                    left()
                return request
            else:
                worker.skipped += 1
        return None

    def _in_time(self, request: Request, timing: Timing) -> bool:
        """Whether a request may still start; if it is too late, the timekeeper tells its caller."""
        now = self._now()
        if now >= timing.start_by:
            return False
        timing.start(now)
        if timing.limits.run_timeout is not None:
            self._watch(request)
        return True

    def _undo(self, worker: Worker, request: Request, following: Request | None) -> None:
        """Give back what `_next` took, as if it had not been called. The worker's lock is held."""
        worker.add(request)
        if following is not None:
            worker.remove(following)
            if following.requeue():
                if self._bounded is not None:
                    self._bounded.put_back(following)
                else:
                    self.backlog.appendleft(following)
        if worker.status is READY and len(worker.requests) >= worker.capacity:
            worker.status = BUSY

    # Fewer workers.

    def stop(self, worker: Worker, *, when_idle: bool) -> bool:
        """Ask `worker` to end: at once if it is idle, after what it runs now otherwise; only an idle one with
        `when_idle`.
        """
        with worker.lock:
            if (worker.requests and when_idle) or worker.transient:
                return False
            if worker.status not in (READY, BUSY, STARTING, WorkerStatus.TAINTED):
                return False
            hand = worker.status is not STARTING and not worker.requests
            worker.move(STOPPING)
        if hand:  # a busy one, or one that starts, says so when it comes to it
            if self._report is not None:
                self._report(Kind.WORKER_STOPPING, worker, None)
            worker.hand(None)
        return True

    def stop_one_idle(self) -> bool:
        """Ask the youngest idle worker to end, if there is an idle one."""
        for worker in reversed(self.registry.snapshot()):
            if self.stop(worker, when_idle=True):
                return True
        return False

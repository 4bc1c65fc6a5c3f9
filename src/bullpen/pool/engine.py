"""The machinery behind a `Pool`, held together: admission, dispatch, workers, time, and the pool's own life.

Workers know the engine, not the pool, so a pool that nobody refers to any more can be collected; the engine then
drains by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from bullpen import primitives
from bullpen.core.affinity import Forestalled, Session
from bullpen.core.backlog import Backlog, BoundedBacklog, Ticket
from bullpen.core.dispatcher import Dispatcher, Pinned
from bullpen.core.lifecycle import POOL_MOVES, PoolState, check_move
from bullpen.core.request import DONE, Request
from bullpen.core.tally import Tally, Total
from bullpen.core.terms import Terms
from bullpen.core.timing import TimeLimits, Timing
from bullpen.core.worker import STOPPING, Worker
from bullpen.errors import (
    BullpenError,
    DeadlineExceeded,
    NestedWait,
    PoolClosed,
    PoolFailed,
    PoolSaturated,
    SessionWorkerUnavailable,
    TooManySessions,
    WorkerBusy,
)
from bullpen.pool import exit as at_exit
from bullpen.pool.maps import Maps
from bullpen.pool.nested import NestedWaits, all_on
from bullpen.pool.options import PoolOptions
from bullpen.pool.retries import Retries
from bullpen.pool.startup import Startup
from bullpen.pool.summary import Summary
from bullpen.pool.timekeeper import Timekeeper, Timer
from bullpen.pool.workforce import Workforce
from bullpen.runtimes.port import Runtime, by_name_only, current_worker, is_reporter
from bullpen.telemetry.catalogue import Event, Kind

if TYPE_CHECKING:
    from bullpen.pool.mapping import MapWork
    from bullpen.pool.stream import StreamWork

logger = logging.getLogger("bullpen")

# So many that a thread which loses the interpreter while it holds one hardly ever stands in another's way.
STATE_LOCKS = 4096

OPEN = (PoolState.INITIALIZING, PoolState.RUNNING)


class Engine:
    """Runs one pool."""

    def __init__(
        self,
        options: PoolOptions,
        runtime: Runtime,
        clock: primitives.Clock,
        new_timer: Callable[[Callable[[float], float]], Timer] | None = None,
        call_home: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """With `call_home` all that happens to requests happens on one thread: it makes a call there."""
        starts_ahead = getattr(runtime, "starts_ahead", None)
        if starts_ahead is not None and not starts_ahead():
            options = dataclasses.replace(options, min_workers=0)
        self.options = options
        self.call_home = call_home
        self.runtime = runtime
        self.reports_here: Callable[[], bool] = getattr(runtime, "reports_here", _nowhere)
        self.listen_for: Callable[[Request], None] | None = None  # not where an observer might be called
        if options.observer is None:
            self.listen_for = getattr(runtime, "listen_for", None)
        self.clock = clock
        self.name = options.name
        self.max_workers = options.max_workers
        watched = options.max_requests is not None or bool(options.taint_on)
        self.counts_items = watched or options.observer is not None  # items of maps are requests, one by one
        self.state = PoolState.CONFIGURING
        self.failure: BaseException | None = None
        self.lock = primitives.pool_lock()  # for the pool's own state, and which slots and workers there are
        locks = itertools.starmap(primitives.state_lock, itertools.repeat((), STATE_LOCKS))
        self.state_lock = itertools.cycle(locks).__next__  # makes that many, then deals out the same again
        self.saturated = Tally()
        self.cancelled = Tally()
        self.lost = Tally()
        self.refused = Tally()
        self.items = Tally()  # of maps, as far as they are no requests
        self.extra_submitted = Total()  # items of maps are counted, their runners are not
        self.extra_completed = Total()
        self.extra_failed = Total()
        self.extra_cancelled = Total()
        self.runners_queued = Total()
        self.bounded = None if options.max_queue is None else BoundedBacklog(options.max_queue, options.capacity)
        self.by_name_only = by_name_only(runtime)
        self.instances = options.new_instances()
        self.backlog = Backlog() if self.bounded is None else self.bounded
        self.time = Timekeeper(self, new_timer)
        self.startup = Startup(self)
        self.workforce = Workforce(self)
        self.nested = NestedWaits(self)
        self.retries = Retries(self)
        self.dispatcher = Dispatcher(
            self.backlog,
            options.new_scheduler(),
            spawn=self.workforce.spawn,
            watch=self.time.watch,
            now=clock.monotonic,
            complain=self._complain,
            report=None if options.observer is None else self.report,
            capacity=options.capacity,
            session_ttl=options.session_ttl,
            max_sessions=options.max_sessions,
        )
        self.registry = self.dispatcher.registry
        self.sessions = self.dispatcher.sessions
        self.workforce.finished = self.dispatcher.finished
        if watched or options.max_abandoned:
            self.workforce.finished = self.workforce.finished_watched
        self._closed_because = "it is closed"
        self._summary: Summary | None = None
        self._close_waiters: list[primitives.Lock] = []
        self.streams: dict[int, StreamWork[Any]] = {}  # those that have not ended; changed without a lock
        self.maps = Maps(self)
        self._now = clock.monotonic
        self._arm_queued = self.time.deadlines.arm_queued

    # Start.

    def start(self) -> None:
        """Open for work; start the workers that have to be there from the beginning."""
        self.move(PoolState.INITIALIZING)
        self.report_state()
        at_exit.watch(self)
        self.startup.begin()

    def worker_is_ready(self) -> None:
        """One more worker has started; with enough of them the pool runs."""
        if self.state is not PoolState.INITIALIZING:
            return
        with self.lock:
            if self.state is not PoolState.INITIALIZING or not self.workforce.suffices():
                return
            self.move(PoolState.RUNNING)
        self.report_state()
        self.startup.running()

    def wait_ready(self, timeout: float | None) -> bool:
        """Wait until `min_workers` workers have started; False when `timeout` seconds passed first."""
        if not self.startup.wait(timeout):
            return False
        self.check_open()
        return True

    def check_open(self) -> None:
        if self.state not in OPEN:
            raise self.not_open()

    def check_may_wait(self, timeout: float | None = None) -> None:
        """Raise if results arrive on this very thread, of this pool or of others, for which its work may wait; to look
        without waiting is allowed.
        """
        if (timeout is None or timeout > 0) and (self.reports_here() or is_reporter()):
            raise NestedWait(
                f"a callback waits for pool {self.name!r} on the thread on which results arrive: none does before the "
                "callback has returned; wait on another thread",
                pool=self.name,
            )

    def fail(self, error: BaseException) -> bool:
        """No worker could start, and none ever did: the pool has failed. Called with the lock held; False if one
        once did.
        """
        if self.state is not PoolState.INITIALIZING:
            return False
        self.failure = error
        self.dispatcher.draining = self.dispatcher.ending = True
        self.move(PoolState.FAILED)
        self.startup.release_all()
        return True

    # Requests.

    def submit(self, request: Request, limits: TimeLimits, enforced: bool = True, patient: bool = False) -> bool:
        """Admit `request`; False if the pool is saturated.

        Not `enforced`: the caller sees to the `timeout` itself. `patient`: it is an item of a map, so wait for room
        even if the pool usually rejects, also while the pool drains.
        """
        dispatcher = self.dispatcher
        if dispatcher.draining and not patient:
            raise self.not_open()
        if limits.any:
            timing = request.timing = Timing(request, self._now(), limits)
        bounded = self.bounded
        if bounded is None:
            if not dispatcher.offer(request):
                raise self.too_late()
        else:
            if not dispatcher.offer_bounded(bounded, request) and not self._admit_late(bounded, request, patient):
                return False
            if dispatcher.ending and dispatcher.withdraw(request):
                raise self.too_late()
        if limits.any and (enforced or limits.queue_timeout is not None) and self._arm_queued(timing):
            self.time.wake()
        return True

    def refuse_spent(
        self,
        request: Request,
        limits: TimeLimits,
        enforced: bool = True,  # noqa: ARG002 — to be called as `submit` is
        patient: bool = False,  # noqa: ARG002
    ) -> NoReturn:
        """`submit`, for a request whose time is over before it begins: it is not even queued."""
        if self.dispatcher.draining:
            raise self.not_open()
        self.dispatcher.refuse(request)
        raise DeadlineExceeded(seconds=limits.budget, ran=False)

    def submit_in_session(
        self, request: Request, limits: TimeLimits, enforced: bool = True, patient: bool = False
    ) -> bool:
        """`submit`, for a request of a session: to the session's worker, if it has one."""
        if self.dispatcher.draining and not patient:
            raise self.not_open()
        terms = request.terms
        assert terms is not None
        timing = request.timing = Timing(request, self._now(), limits)
        self.dispatcher.register(request)
        admitted = None
        while admitted is None:
            session = self.sessions.use(terms, timing.submitted_at)
            if self.sessions.forgotten:
                self._report_forgotten()
            if session is None:
                raise self._turned_away(request, TooManySessions(pool=self.name, limit=self.options.max_sessions))
            with contextlib.suppress(Forestalled):
                admitted = self._admit_to(session, terms, request, patient)
        if admitted and (enforced or limits.queue_timeout is not None) and self._arm_queued(timing):
            self.time.wake()
        return admitted

    def _admit_to(self, session: Session, terms: Terms, request: Request, patient: bool) -> bool | None:
        """Admit a request of `session`; None, or `Forestalled`, if that has changed meanwhile."""
        worker = session.worker
        if worker is not None:
            return self._admit_pinned(session, worker, terms, request, patient)
        if not terms.strict:
            return self._admit_anywhere(request, patient)
        if terms.affinity == "strict_fail_fast" and self.sessions.is_expected(session):
            raise self._turned_away(request, WorkerBusy(worker="", session=session.id))
        return self._admit_anywhere(request, patient, session)

    def _turned_away(self, request: Request, error: BullpenError) -> BullpenError:
        """A registered request is refused with `error`."""
        self.dispatcher.turn_away(request)
        return error

    def _admit_anywhere(self, request: Request, patient: bool, session: Session | None = None) -> bool:
        """Admit a request that any worker may run; also the first of a strict `session`."""
        dispatcher, bounded = self.dispatcher, self.bounded
        if bounded is None:
            if not dispatcher.offer_registered(request, session):
                raise self.too_late()
            return True
        if not dispatcher.offer_bounded(bounded, request, registered=True, session=session) and not self._admit_late(
            bounded, request, patient, session
        ):
            return False
        if dispatcher.ending and dispatcher.withdraw(request):
            raise self.too_late()
        return True

    def _admit_pinned(
        self, session: Session, worker: Worker, terms: Terms, request: Request, patient: bool
    ) -> bool | None:
        """Admit a request of a session that lives on `worker`; None if it does not live there any more."""
        assert terms.session is not None
        line_up = terms.affinity == "strict_queue"
        outcome = self.dispatcher.offer_pinned(worker, request, line_up=line_up)
        if outcome is Pinned.FULL:
            outcome = self._line_up_late(worker, request, patient)
        if outcome is Pinned.FULL:
            return self._saturated(request)
        if outcome is Pinned.TAKEN:
            if self.dispatcher.ending and self.dispatcher.withdraw(request):
                raise self.too_late()
            return True
        if not terms.strict:
            if outcome is Pinned.GONE:
                self.sessions.rebind(session, worker)
            return self._admit_anywhere(request, patient)
        if outcome is Pinned.BUSY:
            raise self._turned_away(request, WorkerBusy(worker=worker.name, session=terms.session))
        if self.dispatcher.draining:  # which is why the worker takes nothing any more
            raise self._turned_away(request, self.not_open())
        if session.worker is worker:
            raise self._turned_away(request, SessionWorkerUnavailable(worker=worker.name, session=terms.session))
        return None

    def _line_up_late(self, worker: Worker, request: Request, patient: bool) -> Pinned:
        """There was no room for a request that waits for `worker`: wait for it, unless it has to be refused."""
        backlog = self.bounded
        assert backlog is not None
        if (self.options.when_full == "reject" and not patient) or self.reports_here():
            return Pinned.FULL
        here = current_worker()
        if here is worker and self.nested.is_own(here):
            self._run_here(here, request)
            return Pinned.TAKEN
        if here is not None and self.nested.is_own(here):  # to wait for room here could be to wait for itself
            return Pinned.FULL
        outcome = Pinned.FULL

        def line_up(ticket: Ticket) -> bool:
            nonlocal outcome
            outcome = self.dispatcher.offer_pinned(worker, request, line_up=True, ticket=ticket)
            if outcome is Pinned.FULL:  # another worker may have room, which is of no use here
                backlog.pass_on(ticket)
            return outcome is not Pinned.FULL

        self._wait_for_room(backlog, request, line_up, patient)
        return outcome

    def submit_runner(self, runner: Request) -> bool:
        """Queue a runner of a map; False if the pool has ended. It needs no room: what waits are the items, and they
        wait elsewhere.
        """
        if self.bounded is not None:
            self.bounded.revoke()
        return self.dispatcher.offer(runner)

    def _admit_late(
        self, backlog: BoundedBacklog, request: Request, patient: bool, session: Session | None = None
    ) -> bool:
        """There was no room: refuse, or wait for it."""
        if (self.options.when_full == "reject" and not patient) or self.reports_here():
            return self._saturated(request)  # to wait where results arrive would be to wait forever
        worker = current_worker()
        if worker is not None and self.nested.is_own(worker):  # to wait for room here could be to wait for itself
            return self._run_here(worker, request)

        def offer(ticket: Ticket) -> bool:
            return self.dispatcher.offer_bounded(backlog, request, ticket, session=session)

        self._wait_for_room(backlog, request, offer, patient)
        return True

    def _saturated(self, request: Request) -> bool:
        self.saturated.add()
        self.dispatcher.turn_away(request)
        return False

    def _run_here(self, worker: Worker, request: Request) -> bool:
        if not self.nested.run_here(worker, request, queued=False):
            if request.timing is not None and self._now() < request.timing.start_by:
                raise Forestalled
            self.time.raise_too_late(request)
        return True

    def _wait_for_room(
        self, backlog: BoundedBacklog, request: Request, offer: Callable[[Ticket], bool], patient: bool
    ) -> None:
        """Stand in line until `offer` succeeds."""
        until = math.inf if request.timing is None else request.timing.start_by
        ticket = Ticket()
        try:
            backlog.take_ticket(ticket)
            while True:
                backlog.rearm(ticket)
                if self.dispatcher.ending or (self.dispatcher.draining and not patient):
                    raise self.not_open()
                if offer(ticket):
                    return
                timeout = None if until == math.inf else until - self._now()
                if not self.clock.wait(ticket.gate, timeout):
                    self.time.raise_too_late(request)
        except Forestalled:
            raise
        except BaseException:
            if not request.ended:  # closed, or interrupted
                self.dispatcher.turn_away(request)
            raise
        finally:
            try:
                backlog.return_ticket(ticket)
            except BaseException:  # interrupted: nobody behind it shall wait for it forever
                backlog.return_ticket(ticket)
                raise

    def end_session(self, session: str) -> bool:
        """Forget a session; False if there is none."""
        ended = self.sessions.end(session, self._now())
        if ended:
            self._report_session_ended(session)
        elif self.sessions.forgotten:
            self._report_forgotten()
        return ended

    def _report_forgotten(self) -> None:
        """Sessions were forgotten: nobody had used them for long, or there were too many."""
        with contextlib.suppress(IndexError):
            while True:
                self._report_session_ended(self.sessions.forgotten.popleft())

    def _report_session_ended(self, session: str) -> None:
        if self.options.observer is not None:
            self._observe(Event(Kind.SESSION_ENDED, self._now(), self.name, session=session))

    def cancel_queued(self, request: Request) -> bool:
        if not request.cancel_queued():
            return False
        self.cancelled.add()
        self.withdrawn()
        self.report_end(request, None)
        return True

    def cancel(self, request: Request) -> bool:
        """Cancel a waiting request; end a running one where the runtime can."""
        if self.cancel_queued(request) or (len(self.retries) and self.retries.cancel(request)):
            return True
        worker = request.holder
        if worker is None or not self.runtime.capabilities & {"cancel_running", "kill_running"}:
            return False
        if not request.cancel_running():  # before the runtime ends it: what it then says of it comes too late
            return False
        self.cancelled.add()
        self.report_end(request, worker)
        self.runtime.cancel(worker, request)
        return True

    def interrupt(self, request: Request, kill: bool) -> bool:
        """End a running request where the runtime can, without telling its caller before it has ended."""
        if self.cancel_queued(request):
            return True
        worker = request.holder
        if worker is None:
            return False
        return self.runtime.kill(worker) if kill else self.runtime.cancel(worker, request)

    def started_by_hand(self, request: Request) -> None:
        """A waiting request runs outside the pool."""
        self.withdrawn()
        self.report(Kind.REQUEST_STARTED, None, request)

    def ended_by_hand(self, request: Request) -> None:
        """A request was given its outcome from outside the pool."""
        (self.extra_completed if request.state is DONE else self.extra_failed).add(1)
        self.report_end(request, None)

    def refuse_backlog(self, error: BaseException) -> None:
        """Nobody can run what waits: tell all who wait for it."""
        for request in self._take_waiting():
            self._drop(request, request.refuse(error), self.refused)
        if self.state is PoolState.FAILED:
            self.retries.refuse_all(error)

    def refuse_line(self, worker: Worker) -> None:
        """`worker` will not run what waits for it alone: tell all who wait for it."""
        for request in self.dispatcher.empty_line(worker):
            assert request.terms is not None
            assert request.terms.session is not None
            error = SessionWorkerUnavailable(worker=worker.name, session=request.terms.session)
            self._drop(request, request.refuse(error), self.refused)

    def _take_waiting(self) -> Iterator[Request]:
        """Take out all that waits at this moment, in the backlog and in the lines of workers."""
        for _ in range(len(self.backlog)):
            try:
                yield self.backlog.popleft()
            except IndexError:
                break
        for worker in self.registry.snapshot():
            yield from self.dispatcher.empty_line(worker)

    def _drop(self, request: Request, ended: bool, count: Tally) -> None:
        """A request that was taken out of the backlog `ended` just now; or else it was only a shell."""
        if not ended:
            self.backlog.dropped()
            return
        self.backlog.left()
        count.add()
        self.report_end(request, None)
        if self.dispatcher.draining:
            self.closed_if_done()

    def withdrawn(self) -> None:
        """A waiting request will not run, or runs out of turn."""
        self.backlog.withdrawn()
        if self.dispatcher.draining:
            self.closed_if_done()

    def saturated_error(self) -> PoolSaturated:
        assert self.bounded is not None
        return PoolSaturated(pool=self.name, queued=self.queued(), limit=self.bounded.limit)

    def queued(self) -> int:
        """How many requests, and items of maps, wait."""
        waiting = self.dispatcher.queued()
        return max(0, self.maps.waiting + waiting - self.runners_queued.value)

    def most_at_once(self) -> int:
        """How many requests can run at once: on the workers that stay, and on those that may still come."""
        workers = [w for w in self.registry.snapshot() if not w.transient and w.status is not STOPPING]
        to_come = max(0, self.max_workers - len(workers)) * self.options.capacity
        return sum(worker.capacity for worker in workers) + to_come

    # Change.

    def resize(self, max_workers: int) -> None:
        """From now on at most `max_workers`. Growth is by demand; surplus workers end after what they run now."""
        with self.lock:
            if self.state not in OPEN:
                raise self.not_open()
            self.max_workers = max_workers
            if self.startup.prepared:
                self.workforce.deal_slots(max_workers)
        self.workforce.stop_slotless()
        self.use_new_room()
        self.maps.resized()

    def pause(self) -> None:
        """Start nothing from now on. What runs goes on, and what is submitted waits. A pool that drains goes on."""
        with self.lock:
            if self.state in OPEN:
                self.dispatcher.paused = True
        self.workforce.recall_given()

    def resume(self) -> None:
        self.dispatcher.paused = False
        if self.state in (PoolState.CLOSED, PoolState.FAILED):
            return
        self.dispatcher.match()
        self.dispatcher.serve_lines()
        self.use_new_room()

    def use_new_room(self, *, grow: bool = True) -> None:
        """There may be slots, or places, that were not there before."""
        if grow:
            self.dispatcher.grow_to_demand()
        if self.bounded is not None:
            self.bounded.call_next()

    # End.

    def close(self, grace: float | None, drain: bool, wait: bool = True) -> None:
        """End the pool: no new work, then what waits is run or cancelled, then workers end. Safe to call again, from
        anywhere.
        """
        for work in self.refuse_work("it is closed", drain):
            self.maps.start_feeder(work)
        if not drain:
            self.cancel_waiting()
        worker = current_worker()
        wait = wait and (worker is None or not self.nested.is_own(worker)) and not self.maps.feeds_here()
        wait = wait and not self.reports_here()
        self._settle_streams(drain, primitives.current_thread_id() if wait else None)
        if not wait:
            return
        until = None if grace is None else self._now() + grace
        if not self._wait_closed(grace):
            self.cancel_waiting()
            self.workforce.give_up_running(grace or 0.0)
        self.startup.join(None if until is None else max(0.0, until - self._now()))
        self.workforce.join()
        self.maps.join()
        self.time.join()

    def cut_short(self) -> None:
        """Ctrl-C: if this pool's workers can be killed, nothing more starts, what runs is told to end, and who is just
        starting ends too.
        """
        if "kill_running" not in self.runtime.capabilities:
            return
        self.close(None, drain=False, wait=False)
        for worker in self.registry.snapshot():
            if not worker.was_ready:
                self.runtime.kill(worker)
            for request in (*all_on(worker), *worker.ahead):
                self.cancel(request)

    def _settle_streams(self, drain: bool, closer: int | None = None) -> None:
        """Streams are read to their end, unless their reader is the thread `closer`, which waits for them to end."""
        for work in list(self.streams.values()):
            work.pool_closes(drain=drain, closer=closer)

    def go_on_at_exit(self) -> None:
        """The interpreter exits, and starts no threads any more: let the workers that are there do what they can."""
        self.startup.join(None)
        self.dispatcher.free.clear()
        self.resume()

    def drain_at_exit(self) -> None:
        """Every pool goes on: wait until this one has ended. What no worker is there for runs on this thread."""
        self.maps.cut_endless()
        unread = self.refuse_work(at_exit.AT_EXIT)
        self._settle_streams(drain=False)
        if len(self.registry):
            for work in unread:
                self.maps.start_feeder(work)
        else:
            self._drain_here(unread)
        self.close(None, drain=True)

    def _drain_here(self, unread: list[MapWork[Any]]) -> None:
        """Run what waits, and these maps, on this thread."""
        here = self.workforce.enlist_this_thread()
        try:
            self._run_waiting(here)
            for work in unread:
                while not work.exhausted:
                    work.fill(1)
                    self._run_waiting(here)
                self.maps.is_fed(work)
        finally:
            self.workforce.dismiss_this_thread(here)

    def _run_waiting(self, here: Worker) -> None:
        while len(self.backlog):  # a runner of a map may have let others pass, a request may have taken one out of turn
            for request in self._take_waiting():
                if getattr(request.function, "needs_instance", False):  # there is no instance, nor will there be one
                    self._drop(request, request.refuse(self.not_open()), self.refused)
                elif not self.nested.run_here(here, request, queued=False):
                    self.backlog.dropped()

    def refuse_work(self, because: str, drain: bool = True) -> list[MapWork[Any]]:
        """Take no new work from now on; workers end when nothing waits any more.

        Returns the maps that the caller has to see fed to their end; until then items are still taken.
        """
        with self.lock:
            if self.state not in OPEN:
                return []
            self._closed_because = because
            self._summary = Summary(self, quiet_if_idle=because == at_exit.AT_EXIT)
            self.move(PoolState.DRAINING)
            self.dispatcher.draining = True
            unread = self.maps.settle() if drain else []
            self.dispatcher.ending = not self.maps.being_fed()
            self.startup.release_all()
        primitives.failpoint("pool.draining_not_stopped")
        self.report_state()
        self.maps.warn()
        if not drain:  # before a paused pool goes on
            self.cancel_waiting()
        self.retries.fire_all()
        self.workforce.release_held()
        self.workforce.suspects.recover_all()
        self.resume()
        if self.bounded is not None:
            self.bounded.call_all()
        if self.dispatcher.ending:
            self._let_workers_end()
        return unread

    def end_if_fed(self) -> None:
        """Called whenever a map has been fed: once nobody brings items any more, the workers of a draining pool may
        end.
        """
        with self.lock:
            if self.state is not PoolState.DRAINING or self.dispatcher.ending or self.maps.being_fed():
                return
            self.dispatcher.ending = True
        if self.bounded is not None:
            self.bounded.call_all()
        self._let_workers_end()

    def _let_workers_end(self) -> None:
        if not len(self.backlog) and not len(self.retries):
            self.workforce.stop_idle()
        self.closed_if_done()

    def cancel_waiting(self) -> None:
        """Start nothing more."""
        self.maps.give_up()
        self._cancel_backlog()

    def _cancel_backlog(self) -> None:
        self.retries.cancel_all()
        for request in self._take_waiting():
            self._drop(request, request.cancel_queued(), self.cancelled)
        self.workforce.stop_idle()
        self.closed_if_done()

    def closed_if_done(self) -> None:
        """Called whenever a worker is gone, or something that waited: the last of them closes a draining pool.

        A pool without workers is not done while something waits: somebody is just about to start a worker for it.
        """
        with self.lock:
            if self.state is not PoolState.DRAINING or not self.dispatcher.ending:
                return
            if len(self.retries) or self.registry.serves_behind() or self.dispatcher.queued():
                return
            workers = self.registry.snapshot()
            if not workers:
                self.move(PoolState.CLOSED)
                waiters, self._close_waiters = self._close_waiters, []
        if workers:
            self._end_starting(workers)
            return
        assert self._summary is not None
        self._summary.log(self)
        _open(waiters)
        self.report_state()
        self.time.wake(start=False)

    def _end_starting(self, workers: Collection[Worker]) -> None:
        """If these, for which there is nothing left to do, all only start, which may take any time, they need not."""
        if "kill_running" in self.runtime.capabilities and not any(worker.was_ready for worker in workers):
            for worker in workers:
                self.runtime.kill(worker)

    def _wait_closed(self, grace: float | None) -> bool:
        gate = primitives.gate()
        gate.acquire()
        return not self.opens_when_closed(gate) or self.clock.wait(gate, grace)

    def opens_when_closed(self, gate: primitives.Lock) -> bool:
        """Have `gate` opened once a pool that drains is closed; False if it does not drain."""
        with self.lock:
            if self.state is not PoolState.DRAINING:
                return False
            self._close_waiters.append(gate)
            return True

    def forget_workers(self, because: str) -> None:
        """This is a forked child: the workers are the parent's. Locks are made anew, their holders may not exist
        here.
        """
        self._closed_because = because
        self.state = PoolState.CLOSED
        self.lock = primitives.pool_lock()
        self.dispatcher.draining = self.dispatcher.ending = True
        self.dispatcher.free.clear()
        self.maps.forget()
        for total in (
            self.extra_submitted,
            self.extra_completed,
            self.extra_failed,
            self.extra_cancelled,
            self.runners_queued,
        ):
            total.renew()
        for _ in range(STATE_LOCKS):  # these are where they are, in futures
            primitives.renew_lock(self.state_lock())
        self.backlog.forget()
        self.registry.forget()
        self.sessions.forget()
        self.workforce.forget()
        self.startup.forget()
        self.retries.forget()
        self.time.forget()

    def too_late(self) -> PoolClosed | PoolFailed:
        """The pool closed while a request was being queued; it was taken back."""
        self.closed_if_done()
        return self.not_open()

    def not_open(self) -> PoolClosed | PoolFailed:
        """Why the pool takes no work."""
        error: PoolClosed | PoolFailed
        if self.state is PoolState.FAILED:
            error = PoolFailed(f"pool {self.name!r} could not start a worker: {self.failure!r}", pool=self.name)
            error.__cause__ = self.failure
        else:
            error = PoolClosed(f"pool {self.name!r} takes no new work: {self._closed_because}", pool=self.name)
        return error

    def move(self, state: PoolState) -> None:
        """Change the pool's state, if the table allows it."""
        check_move(POOL_MOVES, self.state, state)
        self.state = state

    # Telling people. Never with a lock held.

    def report_state(self) -> None:
        if self.options.observer is not None:
            self._observe(Event(Kind.POOL_STATE, self._now(), self.name, detail=self.state))

    def report(self, kind: Kind, worker: Worker | None, request: Request | None) -> None:
        """Tell the observer, if there is one."""
        if self.options.observer is not None:
            name = None if worker is None else worker.name
            number = None if request is None else request.number
            session = None if request is None or request.terms is None else request.terms.session
            if kind is Kind.REQUEST_STARTED and request is not None and request.binds:
                self._observe(Event(Kind.SESSION_BOUND, self._now(), self.name, name, number, session))
            detail = worker.capacity if worker is not None and kind is Kind.WORKER_READY else None
            self._observe(Event(kind, self._now(), self.name, name, number, session, detail))

    def report_end(self, request: Request, worker: Worker | None) -> None:
        """A request ended otherwise than by its function, while it waited or on `worker`."""
        if worker is not None and request.terms is not None and request.terms.session is not None:
            self.sessions.touch(request.terms.session, self._now())
        if self.options.observer is not None:
            self.report(Kind.of(request.state), worker, request)

    def _observe(self, event: Event) -> None:
        assert self.options.observer is not None
        try:
            self.options.observer(event)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and primitives.on_main_thread():
                raise  # it is not the observer's
            logger.exception("%s: the observer failed on %s and is ignored for it", self.name, event.kind.value)

    def _complain(self, request: Request, error: BaseException) -> None:
        if self.options.log_errors:
            message = "%s: served request %d failed, and nobody waits for it"
            logger.error(message, self.name, request.number, exc_info=error)


def _nowhere() -> bool:
    """Most runtimes report on the threads of their workers, about which more is known."""
    return False


def _open(gates: list[primitives.Lock]) -> None:
    for gate in gates:
        gate.release()

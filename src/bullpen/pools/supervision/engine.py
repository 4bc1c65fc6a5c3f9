"""Builds the machinery behind one `Pool` and connects its parts.

Every part gets the functions, values and other parts that it needs, and knows nothing of the engine. They are built in
an order in which each finds what it needs; where two need each other, one gets a `LateCall` of the other. The end of
the pool cuts these calls. Then no part refers to another in a circle, and a closed pool that is dropped is freed at
once, without the garbage collector.

Workers know these parts, not the pool, so a pool to which no reference is left can be collected; it then drains by
itself.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.errors import NestedWait
from bullpen.pools.dispatch.backlog import Backlog, BoundedBacklog
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.dispatch.tally import Counts
from bullpen.pools.dispatch.worker import PoolContext
from bullpen.pools.instances import Instances
from bullpen.pools.options import PoolOptions
from bullpen.pools.runtimes.port import (
    DecidesPrestart,
    LimitsMemory,
    Runtime,
    SharesReportThread,
    by_name_only,
    is_reporter,
)
from bullpen.pools.supervision import at_exit
from bullpen.pools.supervision.abandonment import Abandonment
from bullpen.pools.supervision.admission import Admission
from bullpen.pools.supervision.deaths import Deaths
from bullpen.pools.supervision.expiry import Expiry
from bullpen.pools.supervision.feeding import Maps
from bullpen.pools.supervision.nested_waits import NestedWaits
from bullpen.pools.supervision.outcomes import ForcedOutcomes
from bullpen.pools.supervision.pausing import Pausing
from bullpen.pools.supervision.recycling import Recycling
from bullpen.pools.supervision.reports import PoolReports
from bullpen.pools.supervision.restarts import Restarts
from bullpen.pools.supervision.retries import Retries
from bullpen.pools.supervision.shutdown import DrainWatch, OpenStream, Shutdown
from bullpen.pools.supervision.sizing import Sizing
from bullpen.pools.supervision.slots import Slots
from bullpen.pools.supervision.starting import WorkerStarter
from bullpen.pools.supervision.startup import Startup
from bullpen.pools.supervision.taint import TaintedWorkers
from bullpen.pools.supervision.timer import PoolTimer, Timer
from bullpen.pools.supervision.workforce import Workforce

# So many that a thread which loses the interpreter while it holds one hardly ever blocks another.
STATE_LOCKS = 4096

LEAST_RESTARTS = 8  # the default of `restarts.limit` is twice `max_workers`, and at least this


class LateCall:
    """A function of a part that is built later. Once the pool has ended, it does nothing."""

    __slots__ = ("target",)

    target: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.target(*args)


def _nothing(*_: Any) -> int:
    return 0


class Engine:
    """The parts of one pool."""

    def __init__(
        self,
        options: PoolOptions,
        runtime: Runtime,
        clock: primitives.Clock,
        instances: Instances | None,
        new_timer: Callable[[Callable[[float], float]], Timer] | None = None,
        call_on_loop: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """With `call_on_loop` everything that happens to requests happens on one thread: it makes a call there."""
        if isinstance(runtime, DecidesPrestart) and not runtime.can_prestart():
            options = dataclasses.replace(options, min_workers=0)
        self.options = options
        self.name = options.name
        self.runtime = runtime
        self.clock = clock
        self.instances = instances
        self.by_name_only = by_name_only(runtime)
        # Most runtimes report on the threads of their workers, which the port knows.
        self._reports_here: Callable[[], bool] = (
            runtime.reports_here if isinstance(runtime, SharesReportThread) else bool
        )
        self._watched = options.max_requests is not None or bool(options.taint_on)
        self.counts_items = self._watched or options.observer is not None  # items of maps are requests, one by one
        self.lock = primitives.pool_lock()  # for the pool's status, its slots and which workers there are
        locks = itertools.starmap(primitives.state_lock, itertools.repeat((), STATE_LOCKS))
        self.state_lock = itertools.cycle(locks).__next__  # makes that many, then deals out the same again
        self._late_calls: dict[str, LateCall] = defaultdict(LateCall)
        self._build_dispatch(new_timer)
        self._build_forced_outcomes()
        self._build_starts(call_on_loop)
        self._build_ends()
        self._build_callers_side()
        self._offer_calls()
        self._connect_late_calls()

    def _build_dispatch(self, new_timer: Callable[[Callable[[float], float]], Timer] | None) -> None:
        """State, time and dispatch."""
        self.status = status = PoolStatus(self.name)
        self.counts = Counts()
        options, clock, now, late = self.options, self.clock, self.clock.monotonic, self._late_calls
        self.reports = PoolReports(self.name, status, now, options.observer, log_errors=options.log_errors)
        self.bounded = None if options.max_queue is None else BoundedBacklog(options.max_queue, options.capacity)
        self.backlog = Backlog() if self.bounded is None else self.bounded
        self.timer = PoolTimer(
            clock,
            self.name,
            status,
            expire=late["expire"],
            help_waiting=late["help_waiting"],
            new_timer=new_timer,
        )
        self.dispatcher = dispatcher = Dispatcher(
            self.backlog,
            options.new_scheduler(),
            status,
            spawn=late["spawn"],
            watch=self.timer.watch,
            now=now,
            complain=self.reports.complain,
            report=None if options.observer is None else self.reports.report,
            capacity=options.capacity,
            session_ttl=options.session_ttl,
            max_sessions=options.max_sessions,
        )
        self.registry = dispatcher.registry
        self.sessions = dispatcher.sessions
        self.pausing = Pausing(self.lock, status, dispatcher)
        self.drain_watch = DrainWatch(
            lock=self.lock,
            status=status,
            dispatcher=dispatcher,
            runtime=self.runtime,
            counts=self.counts,
            report_state=self.reports.report_state,
            wake=self.timer.wake,
            retrying=late["retrying"],
            release=late["release"],
        )

    def _build_forced_outcomes(self) -> None:
        """Requests that do not end by their functions."""
        self.retries = Retries(
            status=self.status,
            dispatcher=self.dispatcher,
            timer=self.timer,
            now=self.clock.monotonic,
            counts=self.counts,
            report=self.reports.report,
            closed_if_done=self.drain_watch.closed_if_done,
        )
        self.outcomes = ForcedOutcomes(
            status=self.status,
            dispatcher=self.dispatcher,
            runtime=self.runtime,
            retries=self.retries,
            counts=self.counts,
            report=self.reports.report,
            closed_if_done=self.drain_watch.closed_if_done,
        )

    def _build_starts(self, call_on_loop: Callable[[Callable[[], object]], object] | None) -> None:
        """Workers: how many, and how they start."""
        self.slots = Slots(self.dispatcher.free, self.options.max_workers)
        limit = self.options.restart_limit
        limit = max(LEAST_RESTARTS, 2 * self.options.max_workers) if limit is None else limit
        self.restarts = Restarts(limit, self.options.restart_window)
        self.starter = WorkerStarter(
            lock=self.lock,
            status=self.status,
            slots=self.slots,
            dispatcher=self.dispatcher,
            runtime=self.runtime,
            report=self.reports.report,
            clock=self.clock,
            context=PoolContext(self.clock, self.options.worker),
            name_prefix=self.options.thread_name_prefix or self.name,
        )
        self.sizing = Sizing(
            name=self.name,
            lock=self.lock,
            status=self.status,
            slots=self.slots,
            dispatcher=self.dispatcher,
            timer=self.timer,
            restarts=self.restarts,
            start_failed=self._late_calls["start_failed"],
            min_workers=self.options.min_workers,
            startup_batch=(self.options.startup_batch_size, self.options.startup_batch_delay),
            reconcile_batch_size=self.options.reconcile_batch_size,
            reconcile_interval=self.options.reconcile_interval,
            idle_timeout=self.options.idle_timeout,
        )
        self.startup = Startup(
            name=self.name,
            lock=self.lock,
            status=self.status,
            slots=self.slots,
            sizing=self.sizing,
            dispatcher=self.dispatcher,
            outcomes=self.outcomes,
            timer=self.timer,
            clock=self.clock,
            report_state=self.reports.report_state,
            check_may_wait=self._late_calls["check_may_wait"],
            min_workers=self.options.min_workers,
            delegate=self.options.initialization,
            call_on_loop=call_on_loop,
        )

    def _build_ends(self) -> None:
        """Workers: why they are replaced, how they end, and what they report."""
        self.tainted_workers = TaintedWorkers(
            name=self.name,
            lock=self.lock,
            dispatcher=self.dispatcher,
            timer=self.timer,
            now=self.clock.monotonic,
            report=self.reports.report,
            errors=self.options.taint_on,
            duration=self.options.taint_duration,
        )
        self.recycling = Recycling(
            lock=self.lock,
            status=self.status,
            dispatcher=self.dispatcher,
            starter=self.starter,
            timer=self.timer,
            max_requests=self.options.max_requests,
            max_age=self.options.max_age,
        )
        self.deaths = Deaths(
            name=self.name,
            lock=self.lock,
            status=self.status,
            slots=self.slots,
            dispatcher=self.dispatcher,
            runtime=self.runtime,
            now=self.clock.monotonic,
            report=self.reports.report,
            counts=self.counts,
            timer=self.timer,
            restarts=self.restarts,
            retries=self.retries,
            outcomes=self.outcomes,
            sizing=self.sizing,
            startup=self.startup,
            recycling=self.recycling,
            instances=self.instances,
            closed_if_done=self.drain_watch.closed_if_done,
        )
        self.abandonment = Abandonment(
            name=self.name,
            limit=self.options.max_abandoned,
            lock=self.lock,
            slots=self.slots,
            dispatcher=self.dispatcher,
            runtime=self.runtime,
            report=self.reports.report,
            counts=self.counts,
            outcomes=self.outcomes,
            sizing=self.sizing,
            recycling=self.recycling,
            closed_if_done=self.drain_watch.closed_if_done,
        )
        self.workforce = self.starter.events = Workforce(
            lock=self.lock,
            dispatcher=self.dispatcher,
            now=self.clock.monotonic,
            report=self.reports.report,
            restarts=self.restarts,
            starter=self.starter,
            sizing=self.sizing,
            startup=self.startup,
            recycling=self.recycling,
            tainted_workers=self.tainted_workers,
            deaths=self.deaths,
            instances=self.instances,
            closed_if_done=self.drain_watch.closed_if_done,
            may_prefetch=not (
                self._watched
                or self.options.max_age is not None
                or (isinstance(self.runtime, LimitsMemory) and self.runtime.max_rss is not None)
            ),
            watched=self._watched or self.options.max_abandoned > 0,
        )

    def _build_callers_side(self) -> None:
        """The parts that callers meet."""
        self.expiry = Expiry(
            self.dispatcher,
            self.counts,
            withdrawn=self.outcomes.withdrawn,
            cancel=self.runtime.cancel,
            abandon=self.abandonment.abandon,
        )
        self.nested = NestedWaits(
            name=self.name,
            slots=self.slots,
            dispatcher=self.dispatcher,
            report=self.reports.report,
            tainted_workers=self.tainted_workers,
            ends=self.deaths,
            instances=self.instances,
            withdrawn=self.outcomes.withdrawn,
            wake=self.timer.wake,
            start_helper=self.starter.start_helper,
            runs_inline="run_inline" in self.runtime.capabilities,
        )
        self.admission = Admission(
            name=self.name,
            status=self.status,
            dispatcher=self.dispatcher,
            bounded=self.bounded,
            timer=self.timer,
            clock=self.clock,
            counts=self.counts,
            reports=self.reports,
            expiry=self.expiry,
            nested=self.nested,
            reports_here=self._reports_here,
            closed_if_done=self.drain_watch.closed_if_done,
            queued=self._late_calls["queued"],
            rejects=self.options.when_full == "reject",
            max_sessions=self.options.max_sessions,
        )
        self.maps = Maps(self.name, self.lock, self.status, end_if_fed=self._late_calls["end_if_fed"])
        self.streams: dict[int, OpenStream] = {}  # those that have not ended; changed without a self.lock
        self.shutdown = Shutdown(
            name=self.name,
            lock=self.lock,
            status=self.status,
            clock=self.clock,
            dispatcher=self.dispatcher,
            runtime=self.runtime,
            timer=self.timer,
            report_state=self.reports.report_state,
            reports_here=self._reports_here,
            queued=self._late_calls["queued"],
            counts=self.counts,
            renew_state_locks=functools.partial(_renew_state_locks, self.state_lock),
            drain_watch=self.drain_watch,
            pausing=self.pausing,
            outcomes=self.outcomes,
            retries=self.retries,
            startup=self.startup,
            starter=self.starter,
            deaths=self.deaths,
            abandonment=self.abandonment,
            tainted_workers=self.tainted_workers,
            nested=self.nested,
            maps=self.maps,
            streams=self.streams,
        )

    def _offer_calls(self) -> None:
        """What futures, maps, streams and pools call on their engine."""
        self.admit = self.admission.admit
        self.admit_in_steps = self.admission.admit_in_steps
        self.submit_runner = self.admission.submit_runner
        self.too_late = self.admission.too_late
        self.saturated_error = self.admission.saturated_error
        self.end_session = self.admission.end_session
        self.not_open = self.status.not_open
        self.check_open = self.status.check_open
        self.cancel = self.outcomes.cancel
        self.cancel_queued = self.outcomes.cancel_queued
        self.interrupt = self.outcomes.interrupt
        self.started_by_hand = self.outcomes.started_by_hand
        self.ended_by_hand = self.outcomes.ended_by_hand
        self.report_end = self.dispatcher.report_end
        self.wait_ready = self.startup.wait_ready
        self.most_at_once = self.sizing.most_at_once
        self.pause = self.pausing.pause
        self.resume = self.pausing.resume
        self.close = self.shutdown.close
        self.cut_short = self.shutdown.cut_short
        self.reject_new_work = self.shutdown.reject_new_work
        self.cancel_waiting = self.shutdown.cancel_waiting
        self.opens_when_closed = self.drain_watch.opens_when_closed

    def _connect_late_calls(self) -> None:
        late = self._late_calls
        late["expire"].target = self.expiry.judge
        late["help_waiting"].target = self.nested.help
        late["spawn"].target = self.starter.spawn
        late["retrying"].target = self.retries.__len__
        late["start_failed"].target = self.deaths.start_failed
        late["end_if_fed"].target = self.shutdown.end_if_fed
        late["check_may_wait"].target = self.check_may_wait
        late["queued"].target = self.queued
        late["release"].target = self._release

    def _release(self) -> None:
        """The pool has ended: from now on no part refers to another in a circle."""
        for call in self._late_calls.values():
            call.target = _nothing
        self.starter.release()
        self.timer.release()
        self.shutdown.join_departed = self.deaths.release()
        if self.instances is not None:
            self.instances.release()

    def start(self) -> None:
        """Accept requests; start the workers that have to be there from the beginning."""
        self.status.change(PoolState.INITIALIZING)
        self.reports.report_state()
        at_exit.watch(self.shutdown, self.clock)
        self.startup.begin()

    def resize(self, max_workers: int) -> None:
        """From now on at most `max_workers`."""
        self.sizing.resize(max_workers)
        self.maps.resized()

    @property
    def state(self) -> PoolState:
        return self.status.state

    @property
    def max_workers(self) -> int:
        return self.slots.limit

    def queued(self) -> int:
        """How many requests, and items of maps, wait."""
        return max(0, self.maps.waiting + self.dispatcher.queued() - self.counts.runners_queued.value)

    def check_may_wait(self, timeout: float | None = None) -> None:
        """Raise if results, of this pool or of others for which its work may wait, arrive on this very thread. To look
        without waiting is allowed.
        """
        if (timeout is None or timeout > 0) and (self._reports_here() or is_reporter()):
            raise NestedWait(
                f"a callback waits for pool {self.name!r} on the thread that receives results, so no result can arrive "
                "before the callback returns; wait on another thread",
                pool=self.name,
            )


def _renew_state_locks(deal: Callable[[], primitives.Lock]) -> None:
    """This is a forked child: the holders of locks may not exist here. The locks stay where they are, in futures."""
    for _ in range(STATE_LOCKS):
        primitives.renew_lock(deal())

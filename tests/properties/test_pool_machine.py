"""A whole pool against a plain model of it, one step at a time.

Workers are scripted, time is moved by hand and the supervisor's thread never runs: its `tick` is a step like any
other, so it may come late, as it does on a busy machine. Nothing sleeps; only the choice of steps is left to chance.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bullpen import CallPolicy, Pool, RecyclePolicy, RestartPolicy, SessionPolicy, primitives
from bullpen.errors import (
    DeadlineExceeded,
    PoolClosed,
    PoolFailed,
    PoolSaturated,
    SessionWorkerUnavailable,
    WorkerBusy,
)
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.sessions import serves
from bullpen.pools.dispatch.states import PoolState, RequestState, WorkerStatus
from bullpen.pools.dispatch.worker import Worker
from bullpen.telemetry import Kind, TelemetryEvent
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.moves import checked_moves
from tests.tools import lock_order

QUEUED, RUNNING = "queued", "running"
COMPLETED, FAILED, CANCELLED, LOST = "completed", "failed", "cancelled", "lost"
TIMED_OUT, QUEUE_TIMEOUT = "timed_out", "queue_timeouts"
ENDS = (COMPLETED, FAILED, CANCELLED, TIMED_OUT, QUEUE_TIMEOUT, LOST)

STATES = {
    QUEUED: {RequestState.QUEUED},
    RUNNING: {RequestState.RUNNING},
    COMPLETED: {RequestState.DONE},
    FAILED: {RequestState.FAILED},
    CANCELLED: {RequestState.CANCELLED},
    LOST: {RequestState.LOST},
    TIMED_OUT: {RequestState.EXPIRED, RequestState.ABANDONED},
    QUEUE_TIMEOUT: {RequestState.EXPIRED},
}
END_EVENTS = {
    Kind.REQUEST_DONE,
    Kind.REQUEST_FAILED,
    Kind.REQUEST_CANCELLED,
    Kind.REQUEST_EXPIRED,
    Kind.REQUEST_LOST,
    Kind.REQUEST_ABANDONED,
    Kind.REQUEST_REJECTED,
}

RETRY_DELAY = 0.05

OPEN = (PoolState.INITIALIZING, PoolState.RUNNING)
SECONDS = st.sampled_from([1.0, 2.0, 5.0])
LIMITS: st.SearchStrategy[dict[str, float]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"run_timeout": SECONDS}),
    st.fixed_dictionaries({"timeout": st.just(50.0), "run_timeout": SECONDS}),
    st.fixed_dictionaries({"timeout": SECONDS | st.just(0.0)}),
    st.fixed_dictionaries({"queue_timeout": SECONDS | st.just(0.0)}),
    st.fixed_dictionaries({"timeout": SECONDS, "queue_timeout": SECONDS, "run_timeout": SECONDS}),
)


@dataclass(eq=False)
class Call:
    """What the model knows of one call."""

    submitted_at: float
    timeout: float = math.inf
    queue_timeout: float = math.inf
    run_timeout: float = math.inf
    idempotent: bool = False
    session: str | None = None
    affinity: str = "hint"
    pinned: Worker | None = field(default=None, init=False)  # the worker in whose line it is
    crashes: int = field(default=0, init=False)
    retry_at: float = field(default=math.inf, init=False)  # its worker died: when it will wait for another
    waits_since: float = field(default=math.nan, init=False)
    state: str = field(default=QUEUED, init=False)
    started_at: float = field(default=math.nan, init=False)
    request: Request | None = field(
        default=None, init=False
    )  # as soon as it can be known: a served request, when it starts

    def __call__(self) -> None:
        raise AssertionError("a scripted worker calls nothing")

    def __post_init__(self) -> None:
        self.waits_since = self.submitted_at

    @property
    def is_strict(self) -> bool:
        return self.session is not None and self.affinity != "hint"

    def may_run_on(self, worker: Worker) -> bool:
        return self.pinned is None or self.pinned is worker

    def may_start(self, now: float) -> bool:
        return now < min(self.submitted_at + self.timeout, self.waits_since + self.queue_timeout)

    @property
    def is_pending(self) -> bool:
        """It counts as running, but is on no worker: the last one died."""
        return self.state == RUNNING and self.retry_at < math.inf

    def crash(self, now: float) -> None:
        """Its worker died: it is lost, or will run again."""
        if self.idempotent and not self.crashes:
            self.crashes = 1
            self.retry_at = now + RETRY_DELAY
            self.started_at = math.inf
        else:
            self.state = LOST

    def wait_again(self, now: float) -> None:
        self.state = QUEUED
        self.retry_at = math.inf
        self.waits_since = now

    def judge(self, now: float) -> None:
        """What a look at the clock does to it."""
        too_late = now >= self.submitted_at + self.timeout
        if self.state == QUEUED and not self.may_start(now):
            self.state = TIMED_OUT if too_late else QUEUE_TIMEOUT
        elif self.state == RUNNING and (too_late or now >= self.started_at + self.run_timeout):
            self.state = TIMED_OUT


class Tainting(Exception):
    """Says that the worker may be broken."""


class WatchedRuntime(ScriptedRuntime):
    """Tells the model of every start, at the moment of the start."""

    machine: PoolMachine

    def ready(self, worker: Worker | None = None) -> Worker:
        worker = super().ready(worker)
        self.machine.started_workers += 1
        return worker

    def took(self, worker: Worker, request: Request) -> None:
        try:
            self.machine.started(worker, request)
        except AssertionError as error:  # the supervisor logs what fails, and goes on
            self.machine.objections.append(error)


class PoolMachine(RuleBasedStateMachine):
    """One pool, whatever happens to it."""

    pool: Pool

    def __init__(self) -> None:
        super().__init__()
        self.threads = primitives.start_thread
        primitives.start_thread = lambda target, name: SimpleNamespace(ident=primitives.current_thread_id())  # type: ignore[assignment,return-value]
        logging.disable(logging.CRITICAL)
        self.random = primitives.random.random
        primitives.random.random = lambda: 0.5  # type: ignore[method-assign]
        self.no_retries = False
        self.objections: list[AssertionError] = []
        self.moves = contextlib.ExitStack()
        self.moves.enter_context(checked_moves())
        self.clock = ManualClock(now=0.0)
        self.calls: list[Call] = []
        self.saturated = 0
        self.paused = False
        self.start_failed = False
        self.started_workers = 0
        self.over = False
        self.ceiling = 0
        self.events: list[TelemetryEvent] = []
        self.bound: dict[str, Worker | None] = {}
        self.strict: set[str] = set()

    @initialize(
        max_workers=st.integers(1, 4),
        min_workers=st.integers(0, 4),
        max_queue=st.sampled_from([None, None, 0, 1, 1, 2, 3]),
        scheduler=st.sampled_from(["rotation", "most_recently_used", "least_loaded"]),
        auto_ready=st.booleans(),
        auto_exit=st.booleans(),
        capabilities=st.sets(st.sampled_from(["cancel_running", "kill_running"])),
        max_abandoned=st.integers(0, 2),
        idle_timeout=st.sampled_from([None, 8.0]),
        observed=st.booleans(),
        max_requests=st.sampled_from([None, None, 1, 3]),
        deaths=st.sampled_from([0, 2, 1000]),
        capacity=st.sampled_from([1, 1, 2, 3]),
    )
    def make(
        self,
        max_workers: int,
        min_workers: int,
        max_queue: int | None,
        scheduler: str,
        auto_ready: bool,
        auto_exit: bool,
        capabilities: set[str],
        max_abandoned: int,
        idle_timeout: float | None,
        observed: bool,
        max_requests: int | None,
        deaths: int,
        capacity: int,
    ) -> None:
        self.runtime = WatchedRuntime(auto_ready=auto_ready, auto_exit=auto_exit, capabilities=capabilities)
        self.runtime.machine = self
        self.max_workers = self.ceiling = max_workers
        self.min_workers = min(min_workers, max_workers)
        self.max_queue = max_queue
        self.max_abandoned = max_abandoned
        self.max_requests = max_requests
        self.capacity = capacity
        self.pool = Pool(
            max_workers,
            runtime=self.runtime,
            min_workers=self.min_workers,
            max_queue=max_queue,
            restarts=RestartPolicy(max_abandoned=max_abandoned, limit=deaths, within=60.0),
            recycling=RecyclePolicy(idle_timeout=idle_timeout, max_requests=max_requests, taint_on=Tainting),
            calls=CallPolicy(scheduler=scheduler, log_errors=False),
            capacity=capacity,
            sessions=SessionPolicy(ttl=None),
            observer=self.events.append if observed else None,
            clock=self.clock,
        )
        self.engine = self.pool._engine

    # Steps: requests.

    @rule(served=st.booleans(), limits=LIMITS, idempotent=st.booleans())
    def submit(self, served: bool, limits: dict[str, Any], idempotent: bool = False) -> None:
        to = self.pool.using(**limits, idempotent=idempotent) if limits or idempotent else self.pool
        must, may = self.has_room(late_ones_count=True), self.has_room(late_ones_count=False)
        call = Call(self.clock.monotonic(), **limits, idempotent=idempotent)
        self.calls.append(call)
        try:
            if served:
                accepted = to.serve(call)
            else:
                call.request = to.submit(call)
                accepted = True
        except PoolSaturated:
            accepted = False
        except DeadlineExceeded:
            self.calls.remove(call)
            assert call.timeout == 0, "rejected although there was time"
            return
        except PoolClosed:
            self.calls.remove(call)
            assert self.engine.state in (PoolState.DRAINING, PoolState.CLOSED)
            return
        except PoolFailed:
            self.calls.remove(call)
            assert self.engine.state is PoolState.FAILED
            return
        assert self.engine.state in OPEN
        assert accepted or not must, "rejected although there is room"
        assert may or not accepted, "the backlog is over its bound"
        if not accepted:
            self.calls.remove(call)
            self.saturated += 1

    def has_room(self, *, late_ones_count: bool) -> bool:
        """Whether an open pool has a worker, a slot or a place in the backlog for one more.

        A request that a worker is on its way for takes no place. One that is late has its place until a tick comes.
        """
        if self.max_queue is None:
            return True
        coming = sum(worker.slot is not None for worker in self.runtime.starting)
        if not self.paused:
            if any(worker.status is WorkerStatus.READY for worker in self.engine.registry.snapshot()):
                return True
            coming += bool(self.engine.dispatcher.free)
        now = self.clock.monotonic()
        waiting = sum(late_ones_count or call.may_start(now) for call in self.among(QUEUED))
        return waiting - coming * self.capacity < self.max_queue

    def started(self, worker: Worker, request: Request) -> None:
        """The pool has started `request`: it has to be the oldest that may start, and never before."""
        if self.over:
            return
        call = request.fn
        assert isinstance(call, Call)
        now = self.clock.monotonic()
        assert call.state == QUEUED, f"a {call.state} request was started"
        assert call.may_start(now), "it was started too late"
        assert not self.paused, "a paused pool started something"
        assert call.may_run_on(worker), "it was started on the wrong worker"
        older = [other for other in self.calls[: self.calls.index(call)] if other.state == QUEUED]
        if call.crashes:  # it may be back a moment later than others, or earlier
            older = []
        older = [other for other in older if not other.crashes]
        if self.capacity == 1:  # else those that are handed over come before the one that is returned
            overtaken = [other for other in older if other.may_start(now) and other.may_run_on(worker)]
            if worker.status is WorkerStatus.STOPPING and call.pinned is worker:  # it takes nothing from the backlog
                overtaken = [other for other in overtaken if other.pinned is worker]
            assert not overtaken, "an older request was overtaken"
        assert request.state is RequestState.RUNNING
        call.state = RUNNING
        call.started_at = now
        call.request = request
        if call.session is not None and call.pinned is None:
            self.bind(call, worker)

    @precondition(lambda self: self.runtime.running)
    @rule(data=st.data(), error=st.none() | st.sampled_from([ValueError(), KeyboardInterrupt(), Tainting()]))
    def finish(self, data: st.DataObject, error: BaseException | None) -> None:
        request = data.draw(st.sampled_from(self.runtime.running))
        call, value = self.call_of(request), object()
        expected = call.state == RUNNING
        if expected:
            call.state = COMPLETED if error is None else FAILED
        if error is None:
            self.runtime.finish(request, value)
        else:
            self.runtime.fail(request, error)
        if expected and isinstance(request, PoolFuture):
            assert request.exception(0) is error
            assert error is not None or request.result(0) is value

    @rule(count=st.integers(2, 6), served=st.booleans(), limits=LIMITS)
    def submit_many(self, count: int, served: bool, limits: dict[str, Any]) -> None:
        for _ in range(count):
            self.submit(served, limits)

    @precondition(lambda self: self.runtime.running)
    @rule(count=st.integers(2, 9))
    def finish_many(self, count: int) -> None:
        for _ in range(min(count, len(self.runtime.running))):
            self.finish_one()

    @precondition(lambda self: any(isinstance(call.request, PoolFuture) for call in self.calls))
    @rule(data=st.data(), by_pool=st.booleans())
    def cancel(self, data: st.DataObject, by_pool: bool) -> None:
        call = data.draw(st.sampled_from([call for call in self.calls if isinstance(call.request, PoolFuture)]))
        future = call.request
        assert isinstance(future, PoolFuture)
        can_end = by_pool and bool(self.runtime.capabilities & {"cancel_running", "kill_running"})
        now_cancelled = call.state == QUEUED or ((can_end or (by_pool and call.is_pending)) and call.state == RUNNING)
        was_cancelled = call.state == CANCELLED
        if now_cancelled:
            call.state = CANCELLED
        answer = self.pool.cancel(future) if by_pool else future.cancel()
        assert answer == (now_cancelled or (was_cancelled and not by_pool)) or (was_cancelled and by_pool)

    # Steps: sessions.

    @rule(
        session=st.sampled_from("stu"),
        affinity=st.sampled_from(["hint", "strict_queue", "strict_queue", "strict_fail_fast"]),
        served=st.booleans(),
        limits=LIMITS,
        count=st.integers(1, 3),
    )
    def submit_in_session(self, session: str, affinity: str, served: bool, limits: dict[str, Any], count: int) -> None:
        for _ in range(count):
            self.submit_one_in_session(session, affinity, served, limits)

    def submit_one_in_session(self, session: str, affinity: str, served: bool, limits: dict[str, Any]) -> None:
        call = Call(self.clock.monotonic(), **limits, session=session, affinity=affinity)
        to = self.pool.using(session=session, affinity=affinity, **limits)
        worker = self.bound.get(session)
        serving = worker is not None and serves(worker)
        expected = [other for other in self.among(QUEUED) if other.session == session and other.is_strict]
        if self.is_open and call.timeout > 0:
            if call.is_strict:
                self.strict.add(session)
                if affinity == "strict_queue" and serving:
                    call.pinned = worker
            elif worker is not None and not serving and session not in self.strict:
                self.bound[session] = None
        self.calls.append(call)
        try:
            if served:
                accepted = to.serve(call)
            else:
                call.request = to.submit(call)
                accepted = True
        except PoolSaturated:
            accepted = False
        except DeadlineExceeded:
            self.calls.remove(call)
            assert call.timeout == 0
            return
        except WorkerBusy:
            self.calls.remove(call)
            assert affinity == "strict_fail_fast"
            assert serving or (worker is None and expected)
            return
        except SessionWorkerUnavailable:
            self.calls.remove(call)
            assert call.is_strict
            assert worker is not None
            assert not serving
            return
        except (PoolClosed, PoolFailed):
            self.calls.remove(call)
            assert not self.is_open
            return
        assert self.is_open
        assert not call.is_strict or worker is None or serving, "accepted although its worker is gone"
        assert accepted or self.max_queue is not None
        if not accepted:
            self.calls.remove(call)
            self.saturated += 1
        elif call.state == RUNNING and serving:
            assert call.request is not None
            assert not call.is_strict or self.runtime.worker_of(call.request) is worker
        elif call.state == QUEUED and affinity == "strict_fail_fast" and call.may_start(call.submitted_at):
            assert worker is None, "it waits although it was told not to"

    def bind(self, call: Call, worker: Worker) -> None:
        """A request of a session that nothing binds to another worker starts on `worker`."""
        assert call.session is not None
        before = self.bound.get(call.session)
        if before is worker:
            return
        if before is not None and (call.session in self.strict or serves(before)):
            assert not call.is_strict, "a strict session has moved"
            return
        self.bound[call.session] = worker
        for other in self.among(QUEUED):
            if other.session == call.session and other.is_strict and other.pinned is None:
                other.pinned = worker

    def lines_of_the_gone(self) -> None:
        """What waited for a worker that is gone is rejected."""
        there = self.engine.registry.snapshot()
        for call in self.among(QUEUED):
            if call.pinned is not None and call.pinned not in there:
                call.state = FAILED

    @rule(session=st.sampled_from("stu"))
    def end_session(self, session: str) -> None:
        ended = self.pool.end_session(session)
        unbound = [call for call in self.among(QUEUED) if call.session == session and call.is_strict]
        now = self.clock.monotonic()
        unbound = [call for call in unbound if call.pinned is None and call.may_start(now)]
        assert ended or (session not in self.bound and not unbound)
        self.bound.pop(session, None)
        if not unbound:
            self.strict.discard(session)

    @invariant()
    def sessions_are_where_the_model_says(self) -> None:
        names = {info.id: info.worker for info in self.pool.sessions()}
        for session, worker in self.bound.items():
            assert names[session] == (None if worker is None else worker.name)
        now = self.clock.monotonic()
        waiting = [call for call in self.among(QUEUED) if call.pinned is not None and call.may_start(now)]
        for worker in self.engine.registry.snapshot():
            lined_up = {request.fn for _, request in worker.line if not request.ended}
            assert {call for call in waiting if call.pinned is worker} == {
                call for call in lined_up if call.may_start(now)
            }

    # Steps: time.

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 5.0, 20.0]), noticed=st.booleans())
    def advance(self, seconds: float, noticed: bool) -> None:
        self.clock.advance(seconds)
        if noticed:
            self.tick()

    @precondition(lambda self: self.overruns_at < math.inf)
    @rule()
    def overrun(self) -> None:
        """What would overrun its limit first does."""
        until = self.overruns_at
        self.advance(max(0.0, until - self.clock.monotonic()), noticed=True)

    @property
    def overruns_at(self) -> float:
        return min((call.started_at + call.run_timeout for call in self.among(RUNNING)), default=math.inf)

    def tick(self) -> None:
        now = self.clock.monotonic()
        for call in self.calls:
            call.judge(now)
            if call.is_pending and call.retry_at <= now:
                call.wait_again(now)
        until = self.engine.timer.tick(now)
        assert until > now
        self.lines_of_the_gone()

    # Steps: workers.

    @precondition(lambda self: self.runtime.starting)
    @rule(data=st.data(), count=st.integers(1, 4))
    def ready(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.runtime.starting))):
            self.runtime.ready(data.draw(st.sampled_from(self.runtime.starting)))

    @precondition(lambda self: self.runtime.cancelling or self.runtime.stopped)
    @rule()
    def obey(self) -> None:
        """What was cancelled ends, and who was told to go goes."""
        self.runtime.end_cancelled()
        self.runtime.exit_stopped()

    @precondition(lambda self: self.runtime.workers)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.tick()
        worker = data.draw(st.sampled_from(self.runtime.workers))
        now = self.clock.monotonic()
        for call in self.among(RUNNING):
            assert call.request is not None
            if not call.is_pending and self.runtime.worker_of(call.request) is worker:
                call.crash(now)
                if call.is_pending and not self.is_open:
                    if self.no_retries:
                        call.state = LOST
                    else:
                        call.wait_again(now)
        known = self.engine.registry.snapshot()
        self.start_failed = self.start_failed or worker in self.runtime.starting
        hopeless = worker in self.runtime.starting and known == [worker]
        rejected = self.among(QUEUED) if hopeless else []
        if hopeless and self.engine.state is PoolState.INITIALIZING:
            rejected += [call for call in self.among(RUNNING) if call.is_pending]
        for call in rejected:
            call.state = FAILED
        self.runtime.die(worker)
        self.lines_of_the_gone()
        for call in rejected:
            if isinstance(call.request, PoolFuture):
                assert call.request.exception(0) is not None

    @precondition(lambda self: self.runtime.workers)
    @rule(data=st.data(), seconds=SECONDS)
    def taint(self, data: st.DataObject, seconds: float) -> None:
        worker = data.draw(st.sampled_from(self.runtime.workers))
        if worker in self.engine.registry.snapshot():
            taken = self.pool.taint(worker.id, seconds)
            assert taken == (worker.status is WorkerStatus.TAINTED)

    # Steps: the pool.

    @precondition(lambda self: self.is_open)
    @rule(max_workers=st.integers(1, 5))
    def resize(self, max_workers: int) -> None:
        self.max_workers = max_workers = max(max_workers, self.min_workers)
        self.ceiling = max(self.ceiling, max_workers)
        self.pool.resize(max_workers)

    @precondition(lambda self: self.is_open)
    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.paused = paused
        if paused:
            self.pool.pause()
        else:
            self.pool.resume()

    @precondition(lambda self: len(self.calls) > 20)
    @rule(drain=st.booleans())
    def shut_down(self, drain: bool) -> None:
        self.tick()
        self.fire_pending()
        self.no_retries = self.no_retries or not drain
        if not drain and self.is_open:
            self.paused = False
            # What a worker is free for starts, as if the pool were to drain; the rest is cancelled.
            self.pool.shutdown(wait=False)
        if self.engine.state is not PoolState.FAILED:
            self.paused = False
            if not drain:
                for call in self.among(QUEUED):
                    call.state = CANCELLED
        self.pool.shutdown(wait=False, cancel_futures=not drain)

    def fire_pending(self) -> None:
        """A pool that drains lets nobody wait for another try."""
        if self.is_open:
            for call in self.among(RUNNING):
                if call.is_pending:
                    call.wait_again(self.clock.monotonic())

    @precondition(lambda self: len(self.calls) > 25)
    @rule()
    def close_without_grace(self) -> None:
        self.shut_down(drain=False)
        if self.engine.state is PoolState.DRAINING:
            killed = "kill_running" in self.runtime.capabilities
            for call in self.among(RUNNING):
                call.state = LOST if killed else TIMED_OUT
        self.pool.close(grace=0)
        assert self.engine.state in (PoolState.CLOSED, PoolState.FAILED)
        assert not self.among(QUEUED, RUNNING)

    # What holds after every step.

    @invariant()
    def nobody_objects_to_a_start(self) -> None:
        for objection in self.objections:
            raise objection

    @invariant()
    def nothing_is_lost_and_nothing_counted_twice(self) -> None:
        stats = self.pool.stats()
        counted = Counter(call.state for call in self.calls)
        assert {name: getattr(stats, name) for name in (QUEUED, RUNNING, *ENDS)} == {
            name: counted[name] for name in (QUEUED, RUNNING, *ENDS)
        }
        assert stats.submitted == len(self.calls)
        assert stats.saturated == self.saturated

    @invariant()
    def every_request_stands_where_the_model_says(self) -> None:
        for call in self.calls:
            if call.request is not None:
                assert call.request.state in STATES[call.state], call
                assert (call.request.fn is None) == (call.state not in (QUEUED, RUNNING)), "kept its function"

    @invariant()
    def what_runs_is_on_exactly_one_worker(self) -> None:
        workers = [*self.engine.registry.snapshot(), *self.engine.registry.abandoned()]
        for call in self.among(RUNNING):
            assert sum(call.request in worker.requests for worker in workers) == (not call.is_pending)
        on_workers = {request for worker in self.runtime.workers for request in worker.requests}
        assert on_workers == set(self.runtime.running)
        assert all(worker.load <= worker.capacity for worker in self.runtime.workers)

    @invariant()
    def there_are_never_too_many_workers(self) -> None:
        workers = self.engine.registry.snapshot()
        staying = [worker for worker in workers if worker.status is not WorkerStatus.STOPPING]
        successors = [worker for worker in workers if worker.slot is None]
        assert len([worker for worker in staying if worker not in successors]) <= self.max_workers
        assert len(successors) <= (self.max_requests is not None)
        if not any(worker.status is WorkerStatus.STOPPING for worker in workers):
            self.ceiling = self.max_workers  # until then, those that a smaller pool has no slot for are still there
        assert len(workers) - len(successors) <= self.ceiling
        if self.is_open:
            left_behind = [worker for worker in self.runtime.workers if worker not in workers]
            assert len(left_behind) <= self.max_abandoned

    @invariant()
    def it_runs_once_enough_workers_have_started(self) -> None:
        if self.is_open and not self.start_failed:
            enough = self.started_workers >= max(1, self.min_workers)
            enough = enough or (self.started_workers > 0 and self.pool.stats().degraded)
            assert self.engine.state is (PoolState.RUNNING if enough else PoolState.INITIALIZING)

    @invariant()
    def nothing_waits_beside_an_idle_worker(self) -> None:
        now = self.clock.monotonic()
        waiting = [call for call in self.among(QUEUED) if call.may_start(now)]
        if not waiting or self.paused or self.engine.state is PoolState.FAILED:
            return
        workers = self.engine.registry.snapshot()
        ready = [worker for worker in workers if worker.status is WorkerStatus.READY]
        assert not [worker for worker in ready for call in waiting if call.may_run_on(worker)], "an idle worker"
        coming = [worker for worker in workers if worker.status is WorkerStatus.STARTING]
        leaving = [worker for worker in workers if worker.status is WorkerStatus.STOPPING]  # and is replaced then
        if self.engine.slots._held or any(worker.status is WorkerStatus.TAINTED for worker in workers):
            return  # until some time has passed
        coming = [worker for worker in coming if worker.slot is not None]
        assert coming or leaving or any(worker.requests for worker in workers), "nobody will ever run it"
        if not self.start_failed:  # then the pool is careful
            anywhere = [call for call in waiting if call.pinned is None]
            first = {call.session: call for call in reversed(anywhere) if call.is_strict}  # others follow where it goes
            wanted = [call for call in anywhere if not call.is_strict or first[call.session] is call]
            enough = len(coming) * self.capacity >= len(wanted)
            assert enough or not self.engine.dispatcher.free, "a free slot"

    @invariant()
    def each_request_is_reported_once_per_move(self) -> None:
        moves = Counter((event.kind, event.request) for event in self.events if event.request is not None)
        for (kind, number), times in moves.items():
            again = moves[Kind.REQUEST_REQUEUED, number] if kind is Kind.REQUEST_STARTED else 0
            assert times <= 1 + again, (kind, number)
        ends = Counter(event.request for event in self.events if event.kind in END_EVENTS)
        assert set(ends.values()) <= {1}, "ended twice"

    def teardown(self) -> None:
        try:
            if not hasattr(self, "engine"):
                pass
            elif sys.exc_info()[0] is None:
                self.drain()
            else:  # do not cover up what has failed, and leave no pool that waits for its script
                self.over = True
                with contextlib.suppress(Exception):
                    self.engine.timer.tick(self.clock.monotonic())
                    self.pool.close(grace=0)
        finally:
            self.moves.close()
            primitives.start_thread = self.threads
            primitives.random.random = self.random  # type: ignore[method-assign]
            logging.disable(logging.NOTSET)
        assert lock_order.drain_violations() == []

    def drain(self) -> None:
        """A drain ends everything, whatever happened before."""
        if self.engine.state is not PoolState.FAILED:
            self.paused = False
        self.tick()
        self.fire_pending()
        self.pool.shutdown(wait=False)
        for _ in range(10 * (len(self.calls) + 10)):
            self.nobody_objects_to_a_start()
            if self.runtime.starting:
                self.runtime.ready()
            elif self.runtime.running:
                self.finish_one()
            elif self.runtime.stopped:
                self.runtime.exit_stopped()
            else:
                break
        self.tick()
        assert self.engine.state in (PoolState.CLOSED, PoolState.FAILED)
        assert self.runtime.workers == []
        assert not self.among(QUEUED, RUNNING)
        self.nothing_is_lost_and_nothing_counted_twice()
        self.every_request_stands_where_the_model_says()
        self.pool.close()

    def finish_one(self) -> None:
        call = self.call_of(self.runtime.running[0])
        if call.state == RUNNING:
            call.state = COMPLETED
        self.runtime.finish_next()

    def among(self, *states: str) -> list[Call]:
        return [call for call in self.calls if call.state in states]

    def call_of(self, request: Request) -> Call:
        return next(call for call in self.calls if call.request is request)

    @property
    def is_open(self) -> bool:
        return self.engine.state in OPEN


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    yield
    assert primitives.start_thread.__name__ == "_start_thread"


TestPoolMachine: Any = PoolMachine.TestCase

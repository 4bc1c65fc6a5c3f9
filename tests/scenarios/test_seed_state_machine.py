"""Every arrow of the four diagrams, driven: a pool's life, a request's execution, a worker's availability, the queue.

The arrows are those of `docs/explanation/state-machines.md`. An arrow without a driver, and a driver without an arrow,
fail.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    DeadlineExceeded,
    InvalidOption,
    Kind,
    Pool,
    PoolClosed,
    PoolFailed,
    PoolFuture,
    PoolNotFound,
    Pools,
    PoolSaturated,
    PoolState,
    QueueTimeout,
    RecyclePolicy,
    RestartPolicy,
    RunTimeout,
    SessionWorkerUnavailable,
    StartupPolicy,
    TelemetryEvent,
    WorkerBusy,
    WorkerInfo,
    WorkerLost,
    WorkerStatus,
)
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import Worker
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.docs.state_machines import DRIVEN
from tests.docs.steps import END, START, Arrow
from tests.moves import checked_moves

from .support import Background, eventually

DRIVERS: dict[tuple[str, str, str, str], Callable[[], None]] = {}


def drives(diagram: str, old: str, new: str, when: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """This function drives that arrow."""

    def register(driver: Callable[[], None]) -> Callable[[], None]:
        assert (diagram, old, new, when) not in DRIVERS
        DRIVERS[diagram, old, new, when] = driver
        return driver

    return register


def key(arrow: Arrow) -> tuple[str, str, str, str]:
    return arrow.diagram, arrow.old, arrow.new, arrow.when


@pytest.mark.parametrize("arrow", DRIVEN, ids=lambda arrow: arrow.id)
def test_arrow(arrow: Arrow, caplog: pytest.LogCaptureFixture) -> None:
    assert key(arrow) in DRIVERS, "nothing drives this arrow"
    with checked_moves():
        DRIVERS[key(arrow)]()


def test_every_driver_has_an_arrow() -> None:
    assert set(DRIVERS) <= {key(arrow) for arrow in DRIVEN}


class Stage:
    """A pool whose workers and time are moved by hand."""

    def __init__(self, workers: int = 1, *, auto_ready: bool = True, auto_exit: bool = True, **options: Any) -> None:
        self.clock = ManualClock()
        self.runtime = ScriptedRuntime(auto_ready=auto_ready, auto_exit=auto_exit)
        self.pool = Pool(
            workers, runtime=self.runtime, clock=self.clock, recycling=RecyclePolicy(idle_timeout=None), **options
        )

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        while self.runtime.starting:
            self.runtime.ready()
        self.pool.shutdown(wait=False, cancel_futures=True)
        while self.runtime.running:
            self.runtime.finish_next()
        self.runtime.exit_stopped()
        self.pool.close(grace=0)

    def submit(self, **using: Any) -> PoolFuture[Any]:
        return self.pool.using(**using).submit(int)

    def state(self) -> PoolState:
        return self.pool.stats().state

    def worker(self) -> WorkerInfo:
        """The only one."""
        (worker,) = self.pool.workers()
        return worker

    @property
    def queued(self) -> int:
        return self.pool.stats().queued

    def is_on(self, future: PoolFuture[Any], worker: Worker) -> bool:
        return future.running() and self.runtime.worker_of(future) is worker

    def wait_out(self, seconds: float, future: PoolFuture[Any]) -> None:
        """Let time pass until a limit of `future` has."""
        assert self.clock.wait_for_waiters()
        self.clock.advance(seconds)
        assert eventually(future.done)


# A pool's life.


@drives("pool", "configuring", "initializing", "start")
def _() -> None:
    with Stage(auto_ready=False, min_workers=1) as stage:
        assert stage.state() is PoolState.INITIALIZING
        assert len(stage.runtime.starting) == 1


@drives("pool", "configuring", "failed", "InvalidOption")
def _() -> None:
    runtime = ScriptedRuntime()
    with pytest.raises(InvalidOption):
        Pool(2, runtime=runtime, min_workers=3)
    assert runtime.workers == []


@drives("pool", "initializing", "running", "worker_is_ready")
def _() -> None:
    with Stage(2, auto_ready=False, min_workers=2) as stage:
        stage.runtime.ready()
        stage.runtime.ready()
        assert stage.state() is PoolState.RUNNING
        assert stage.pool.wait_ready(0)


@drives("pool", "initializing", "draining", "reject_new_work")
def _() -> None:
    with Stage(auto_ready=False, min_workers=1) as stage:
        waits = stage.submit()
        stage.pool.shutdown(wait=False)
        assert stage.state() is PoolState.DRAINING
        stage.runtime.ready()
        stage.runtime.finish(waits, 7)
        assert waits.result(0) == 7
        assert stage.state() is PoolState.CLOSED


@drives("pool", "initializing", "failed", "fail")
def _() -> None:
    with Stage(auto_ready=False) as stage:
        waits = stage.submit()
        stage.runtime.die(stage.runtime.starting[0], LookupError("no luck"))
        assert stage.state() is PoolState.FAILED
        assert isinstance(waits.exception(0), PoolFailed)


@drives("pool", "running", "draining", "reject_new_work")
def _() -> None:
    with Stage() as stage:
        stage.submit()
        assert stage.state() is PoolState.RUNNING
        stage.pool.shutdown(wait=False)
        assert stage.state() is PoolState.DRAINING


@drives("pool", "draining", "closed", "closed_if_done")
def _() -> None:
    with Stage(auto_exit=False) as stage:
        future = stage.submit()
        stage.pool.shutdown(wait=False)
        stage.runtime.finish(future)
        assert stage.state() is PoolState.DRAINING
        stage.runtime.exit_stopped()
        assert stage.state() is PoolState.CLOSED


@drives("pool", "initializing", "initializing", "a worker of several is ready")
def _() -> None:
    with Stage(2, auto_ready=False, min_workers=2) as stage:
        stage.runtime.ready()
        assert stage.state() is PoolState.INITIALIZING
        assert not stage.pool.wait_ready(0)


@drives("pool", "initializing", "initializing", "requests wait")
def _() -> None:
    with Stage(auto_ready=False, min_workers=1) as stage:
        future = stage.submit()
        assert (stage.state(), stage.queued, future.running()) == (PoolState.INITIALIZING, 1, False)
        stage.runtime.ready()
        assert future.running()


@drives("pool", "running", "running", "requests run")
@drives("pool", "running", "running", "workers are taken and given back")
def _() -> None:
    with Stage() as stage:
        for number in range(3):
            future = stage.submit()
            assert (stage.state(), stage.worker().status) == (PoolState.RUNNING, WorkerStatus.BUSY)
            stage.runtime.finish(future, number)
            assert (stage.state(), stage.worker().status) == (PoolState.RUNNING, WorkerStatus.READY)
            assert future.result(0) == number


@drives("pool", "running", "running", "requests wait")
def _() -> None:
    with Stage() as stage:
        futures = [stage.submit() for _ in range(3)]
        assert (stage.state(), stage.queued) == (PoolState.RUNNING, 2)
        for future in futures:
            assert stage.runtime.finish_next() is future


@drives("pool", "running", "running", "a dead worker is replaced")
def _() -> None:
    with Stage(2, min_workers=2) as stage:
        first, second = stage.runtime.workers
        stage.runtime.die(first)
        assert eventually(lambda: len(stage.runtime.workers) == 2)
        assert stage.state() is PoolState.RUNNING
        assert second in stage.runtime.workers
        assert first not in stage.runtime.workers


@drives("pool", "draining", "draining", "waiting requests still run")
def _() -> None:
    with Stage() as stage:
        futures = [stage.submit() for _ in range(3)]
        stage.pool.shutdown(wait=False)
        for future in futures:
            assert stage.state() is PoolState.DRAINING
            assert stage.runtime.finish_next() is future
        assert stage.state() is PoolState.CLOSED


@drives("pool", "initializing", "initializing", "workers start in batches")
def _() -> None:
    with Stage(3, auto_ready=False, min_workers=3, startup=StartupPolicy(batch_size=2, batch_delay=5)) as stage:
        assert len(stage.runtime.starting) == 2
        assert stage.state() is PoolState.INITIALIZING
        assert stage.clock.wait_for_waiters()
        stage.clock.advance(5)
        assert eventually(lambda: len(stage.runtime.starting) == 3)
        assert stage.state() is PoolState.INITIALIZING


@drives("pool", "running", "running", "reconcile")
def _() -> None:
    with Stage(2, min_workers=1, restarts=RestartPolicy(reconcile_interval=60)) as stage:
        first = stage.submit()
        engine = stage.pool._engine
        slot = engine.dispatcher.pop_slot()  # a slot that went astray, as no slot should
        waits = stage.submit()
        assert not waits.running()
        assert slot is not None
        engine.dispatcher.free.append(slot)  # and comes back, but nobody notices
        assert stage.clock.wait_for_waiters()
        stage.clock.advance(60)
        assert eventually(waits.running)
        assert (stage.state(), len(stage.runtime.workers)) == (PoolState.RUNNING, 2)
        assert first.running()


# A request's execution.


@drives("execution", START, "received", "submit, serve, do")
def _() -> None:
    with Stage(3) as stage:
        future = stage.submit()
        assert stage.pool.serve(int)
        with Background(lambda: stage.pool.do(int)) as doing:
            assert eventually(lambda: len(stage.runtime.running) == 3)
            stage.runtime.run_all()
        assert (future.result(0), doing.join().result) == (0, 0)
        assert stage.pool.stats().completed == 3


@drives("execution", "received", "check_pool", "with or without a name")
@drives("execution", "check_pool", "check_worker", "it accepts requests")
def _() -> None:
    runtimes = {"default": ScriptedRuntime(), "gpu": ScriptedRuntime()}
    with Pools({name: {"runtime": runtime} for name, runtime in runtimes.items()}) as pools:
        first, second = pools.submit(int), pools.using(pool="gpu").submit(int)
        running = [first.running(), second.running(), *(runtime.running for runtime in runtimes.values())]
        for runtime in runtimes.values():
            runtime.run_all()
    assert running == [True, True, [first], [second]]


@drives("execution", "check_pool", "not_found", "no pool of that name")
@drives("execution", "not_found", END, "PoolNotFound")
def _() -> None:
    runtime = ScriptedRuntime()
    with Pools(default={"runtime": runtime}) as pools:
        with pytest.raises(PoolNotFound):
            pools.using(pool="gpu").submit(int)
        assert runtime.workers == []


@drives("execution", "check_pool", "not_open", "it closes, is closed or has failed")
@drives("execution", "not_open", END, "PoolClosed or PoolFailed")
def _() -> None:
    with Stage() as stage:
        future = stage.submit()
        stage.pool.shutdown(wait=False)
        with pytest.raises(PoolClosed):  # it closes
            stage.submit()
        stage.runtime.finish(future)
        with pytest.raises(PoolClosed):  # it is closed
            stage.submit()
    with Stage() as stage:
        stage.runtime.start_error = LookupError("no luck")
        stage.submit()
        with pytest.raises(PoolFailed):
            stage.submit()


@drives("execution", "check_worker", "session_affinity", "it has a session")
@drives("execution", "session_affinity", "select_any", "the session has no worker yet")
def _() -> None:
    with Stage(2) as stage:
        stage.submit(session="u1")
        (session,) = stage.pool.sessions()
        assert (session.id, session.worker) == ("u1", stage.runtime.workers[0].name)


@drives("execution", "check_worker", "select_any", "it has none")
def _() -> None:
    with Stage(2) as stage:
        future = stage.submit()
        assert stage.is_on(future, stage.runtime.workers[0])
        assert stage.pool.sessions() == []


def bound(stage: Stage, **using: Any) -> Worker:
    """The worker of session u1, which is idle; another one is ready too, and has been for longer."""
    other = stage.submit()
    first = stage.submit(session="u1", **using)
    worker = stage.runtime.worker_of(first)
    stage.runtime.finish(other)
    stage.runtime.finish(first)
    assert len(stage.runtime.workers) == 2
    return worker


@drives("execution", "session_affinity", "use_preferred", "its worker has room")
@drives("execution", "use_preferred", "executing", "")
def _() -> None:
    for affinity in ("hint", "strict_queue", "strict_fail_fast"):
        with Stage(2, affinity=affinity) as stage:
            worker = bound(stage)
            assert stage.is_on(stage.submit(session="u1"), worker)


@drives("execution", "session_affinity", "affinity_mode", "its worker is busy")
@drives("execution", "affinity_mode", "select_any", "hint")
def _() -> None:
    with Stage(2) as stage:
        worker = bound(stage)
        assert stage.is_on(stage.submit(session="u1"), worker)
        again = stage.submit(session="u1")
        assert again.running()
        assert not stage.is_on(again, worker)


@drives("execution", "affinity_mode", "queue_for_worker", "strict_queue")
@drives("execution", "queue_for_worker", "queued", "in the line of its worker")
def _() -> None:
    with Stage(2, affinity="strict_queue") as stage:
        worker = bound(stage)
        blocking, waits = stage.submit(session="u1"), stage.submit(session="u1")
        assert (waits.state, stage.queued) == (RequestState.QUEUED, 1)
        assert len(stage.runtime.running) == 1, "the other worker is idle, and stays so"
        stage.runtime.finish(blocking)
        assert stage.is_on(waits, worker)


@drives("execution", "affinity_mode", "fail_fast", "strict_fail_fast")
@drives("execution", "fail_fast", END, "WorkerBusy")
def _() -> None:
    with Stage(2, affinity="strict_fail_fast") as stage:
        worker = bound(stage)
        stage.submit(session="u1")
        with pytest.raises(WorkerBusy) as caught:
            stage.submit(session="u1")
        assert (caught.value.worker, caught.value.session) == (worker.name, "u1")
        assert stage.queued == 0


@drives("execution", "session_affinity", "select_any", "its worker is gone, and the affinity is hint")
def _() -> None:
    with Stage(2) as stage:
        worker = bound(stage)
        stage.runtime.die(worker)
        again = stage.submit(session="u1")
        assert again.running()
        assert stage.pool.sessions()[0].worker == stage.runtime.worker_of(again).name


@drives("execution", "session_affinity", "unavailable", "its worker is gone, and the affinity is strict")
@drives("execution", "unavailable", END, "SessionWorkerUnavailable")
def _() -> None:
    for affinity in ("strict_queue", "strict_fail_fast"):
        with Stage(2, affinity=affinity) as stage:
            worker = bound(stage)
            stage.runtime.die(worker)
            with pytest.raises(SessionWorkerUnavailable) as caught:
                stage.submit(session="u1")
            assert caught.value.worker == worker.name
            assert stage.runtime.running == []


@drives("execution", "select_any", "use_worker", "a worker is ready")
@drives("execution", "use_worker", "executing", "")
def _() -> None:
    for max_queue in (None, 0, 5):
        with Stage(2, min_workers=1, max_queue=max_queue) as stage:
            (worker,) = stage.runtime.workers
            assert stage.is_on(stage.submit(), worker)
            assert stage.runtime.workers == [worker]


@drives("execution", "select_any", "start_worker", "a slot is free")
@drives("execution", "start_worker", "executing", "the worker is ready")
def _() -> None:
    for max_queue in (None, 0, 5):
        with Stage(1, auto_ready=False, max_queue=max_queue) as stage:
            future = stage.submit()
            (worker,) = stage.runtime.starting
            assert future.state is RequestState.QUEUED
            stage.runtime.ready()
            assert stage.is_on(future, worker)


@drives("execution", "select_any", "check_queue", "neither")
@drives("execution", "check_queue", "queued", "the backlog has room")
def _() -> None:
    with Stage(max_queue=1) as stage:
        stage.submit()
        waits = stage.submit()
        assert (waits.state, stage.queued) == (RequestState.QUEUED, 1)


@drives("execution", "check_queue", "saturated", "full, and when_full is reject")
@drives("execution", "saturated", END, "PoolSaturated, or False from serve")
def _() -> None:
    with Stage(max_queue=1) as stage:
        stage.submit()
        stage.submit()
        with pytest.raises(PoolSaturated):
            stage.submit()
        assert stage.pool.serve(int) is False
        assert (stage.queued, stage.pool.stats().saturated) == (1, 2)


@drives("execution", "check_queue", "wait_for_room", "full, and when_full is block")
@drives("execution", "wait_for_room", "queued", "a request left the backlog")
def _() -> None:
    events: list[TelemetryEvent] = []
    with Stage(max_queue=1, when_full="block", observer=events.append) as stage:
        stage.submit()
        stage.submit()
        with Background(lambda: stage.submit()) as blocked:
            assert eventually(lambda: sum(event.kind is Kind.REQUEST_QUEUED for event in events) == 3)
            assert blocked.running
            assert stage.queued == 1
            stage.runtime.finish_next()
        future = blocked.join().result
        assert isinstance(future, PoolFuture)
        assert (future.state, stage.queued) == (RequestState.QUEUED, 1)


@drives("execution", "queued", "queue_timeout", "queue_timeout or timeout passed")
@drives("execution", "queue_timeout", END, "QueueTimeout or DeadlineExceeded")
def _() -> None:
    for limit, error in (("queue_timeout", QueueTimeout), ("timeout", DeadlineExceeded)):
        with Stage() as stage:
            blocking = stage.submit()
            waits = stage.submit(**{limit: 5})
            stage.wait_out(5, waits)
            assert isinstance(waits.exception(0), error)
            stage.runtime.finish(blocking)
            assert stage.runtime.running == [], "it never runs"


@drives("execution", "queued", "withdrawn", "cancelled")
@drives("execution", "withdrawn", END, "CancelledError")
def _() -> None:
    with Stage() as stage:
        blocking, waits = stage.submit(), stage.submit()
        assert waits.cancel()
        with pytest.raises(CancelledError):
            waits.result(0)
        stage.runtime.finish(blocking)
        assert stage.runtime.running == [], "it never runs"


@drives("execution", "queued", "dequeued", "a worker has room")
@drives("execution", "dequeued", "executing", "")
def _() -> None:
    for max_queue in (None, 5):
        with Stage(max_queue=max_queue) as stage:
            blocking, waits = stage.submit(), stage.submit()
            assert not waits.running()
            stage.runtime.finish(blocking)
            assert stage.runtime.running == [waits]
            assert waits.running()


@drives("execution", "executing", "success", "it returned")
@drives("execution", "success", "checkin", "its worker has room again")
def _() -> None:
    with Stage() as stage:
        future = stage.submit()
        stage.runtime.finish(future, 7)
        assert future.result(0) == 7
        assert (stage.worker().status, stage.worker().load) == (WorkerStatus.READY, 0)


@drives("execution", "executing", "error", "it raised")
@drives("execution", "error", "checkin", "its worker has room again")
def _() -> None:
    with Stage() as stage:
        future = stage.submit()
        stage.runtime.fail(future, LookupError("as it should"))
        assert isinstance(future.exception(0), LookupError)
        assert (stage.worker().status, stage.worker().load) == (WorkerStatus.READY, 0)


@drives("execution", "executing", "given_up", "run_timeout or timeout passed")
@drives("execution", "given_up", "checkin", "its function returned after all")
def _() -> None:
    for limit, error in (("run_timeout", RunTimeout), ("timeout", DeadlineExceeded)):
        with Stage() as stage:
            future = stage.submit(**{limit: 5})
            stage.wait_out(5, future)
            assert isinstance(future.exception(0), error)
            assert stage.worker().status is WorkerStatus.BUSY
            stage.runtime.finish(future, "too late")
            assert isinstance(future.exception(0), error)
            assert stage.worker().status is WorkerStatus.READY


@drives("execution", "executing", "crash_retry", "its worker died, and it is idempotent")
@drives("execution", "crash_retry", "executing", "it runs again on another worker, after a delay")
@drives("execution", "crash_retry", "lost", "crash_retries are used up")
def _() -> None:
    with Stage(calls=CallPolicy(crash_retries=1)) as stage:
        future = stage.submit(idempotent=True)
        first = stage.runtime.worker_of(future)
        stage.runtime.die(first)
        assert future.running(), "as far as its caller is concerned"
        assert stage.runtime.running == []
        assert stage.clock.wait_for_waiters()
        stage.clock.advance(1)
        assert eventually(lambda: stage.runtime.running == [future])
        second = stage.runtime.worker_of(future)
        assert second is not first
        stage.runtime.die(second)
        assert isinstance(future.exception(0), WorkerLost)
        assert stage.pool.stats().retried == 1


@drives("execution", "executing", "lost", "its worker died")
@drives("execution", "lost", END, "WorkerLost")
def _() -> None:
    with Stage() as stage:
        future = stage.submit()
        stage.runtime.die(stage.runtime.worker_of(future))
        assert isinstance(future.exception(0), WorkerLost)
        assert stage.runtime.running == []


@drives("execution", "checkin", "drive_queue", "the worker takes the oldest request that it may run")
def _() -> None:
    with Stage(2, affinity="strict_queue") as stage:
        worker = bound(stage)
        mine, others = stage.submit(session="u1"), stage.submit()
        pinned, oldest, youngest = stage.submit(session="u1"), stage.submit(), stage.submit()
        stage.runtime.finish(others)
        assert stage.runtime.running == [mine, oldest], "what is older waits for the other worker"
        stage.runtime.finish(mine)
        assert stage.is_on(pinned, worker)
        stage.runtime.finish(pinned)
        assert stage.is_on(youngest, worker)


@drives("execution", "drive_queue", END, "the result, the error, or the timeout")
def _() -> None:
    with Stage() as stage:
        done, failed = stage.submit(), stage.submit()
        stage.runtime.finish(done, 7)
        assert done.result(0) == 7, "the caller has its result although its worker is busy again"
        assert stage.worker().status is WorkerStatus.BUSY
        stage.runtime.fail(failed, LookupError())
        assert isinstance(failed.exception(0), LookupError)


# A worker's availability.


@drives("worker", "starting", "ready", "started")
def _() -> None:
    with Stage(auto_ready=False, min_workers=1) as stage:
        assert stage.worker().status is WorkerStatus.STARTING
        stage.runtime.ready()
        assert stage.worker().status is WorkerStatus.READY


@drives("worker", "starting", "stopping", "stop")
def _() -> None:
    with Stage(auto_ready=False, auto_exit=False, min_workers=1) as stage:
        stage.pool.shutdown(wait=False)
        assert stage.worker().status is WorkerStatus.STOPPING
        stage.runtime.ready()
        assert stage.worker().status is WorkerStatus.STOPPING, "a late ready revives nobody"


@drives("worker", "starting", "dead", "died")
def _() -> None:
    with Stage(auto_ready=False) as stage:
        stage.submit()
        (worker,) = stage.runtime.starting
        stage.runtime.die(worker)
        assert worker.status is WorkerStatus.DEAD
        assert stage.pool.workers() == []


@drives("worker", "ready", "busy", "reserve_ready_worker")
@drives("worker", "ready", "ready", "takes one and has room left")
def _() -> None:
    with Stage(min_workers=1, capacity=2) as stage:
        assert (stage.worker().status, stage.worker().load) == (WorkerStatus.READY, 0)
        stage.submit()
        assert (stage.worker().status, stage.worker().load) == (WorkerStatus.READY, 1)
        stage.submit()
        assert (stage.worker().status, stage.worker().load) == (WorkerStatus.BUSY, 2)


@drives("worker", "busy", "ready", "finished")
@drives("worker", "busy", "busy", "gives one back and takes the next")
def _() -> None:
    for capacity in (1, 3):
        with Stage(capacity=capacity) as stage:
            futures = [stage.submit() for _ in range(capacity + 1)]
            stage.runtime.finish(futures[0])
            assert (stage.worker().status, stage.worker().load) == (WorkerStatus.BUSY, capacity)
            stage.runtime.finish(futures[1])
            assert (stage.worker().status, stage.worker().load) == (WorkerStatus.READY, capacity - 1)


@drives("worker", "ready", "stopping", "stop")
def _() -> None:
    with Stage(auto_exit=False, min_workers=1) as stage:
        stage.pool.shutdown(wait=False)
        assert stage.worker().status is WorkerStatus.STOPPING
        assert len(stage.runtime.stopped) == 1


@drives("worker", "busy", "stopping", "stop")
def _() -> None:
    with Stage(2, auto_exit=False) as stage:
        futures = [stage.submit(), stage.submit()]
        stage.pool.resize(1)
        leaving = next(worker for worker in stage.runtime.workers if worker.status is WorkerStatus.STOPPING)
        last = next(future for future in futures if stage.is_on(future, leaving))
        assert stage.runtime.stopped == [], "it finishes what it runs"
        stage.runtime.finish(last)
        assert stage.runtime.stopped == [leaving]


@drives("worker", "ready", "dead", "died")
@drives("worker", "busy", "dead", "died")
def _() -> None:
    with Stage(2) as stage:
        idle, lost = stage.submit(), stage.submit()
        ready, busy = stage.runtime.worker_of(idle), stage.runtime.worker_of(lost)
        stage.runtime.finish(idle)
        assert (ready.status, busy.status) == (WorkerStatus.READY, WorkerStatus.BUSY)
        stage.runtime.die(ready)
        stage.runtime.die(busy)
        assert (ready.status, busy.status) == (WorkerStatus.DEAD, WorkerStatus.DEAD)
        assert isinstance(lost.exception(0), WorkerLost)


@drives("worker", "ready", "tainted", "taint")
@drives("worker", "busy", "tainted", "taint")
@drives("worker", "tainted", "ready", "recover")
def _() -> None:
    for busy in (False, True):
        with Stage(min_workers=1) as stage:
            if busy:
                stage.submit()
            assert stage.pool.taint(stage.worker().name, 5)
            assert stage.worker().status is WorkerStatus.TAINTED
            waits = stage.submit()
            if busy:
                stage.runtime.finish_next()
            assert not waits.running(), "it gets nothing new"
            assert stage.clock.wait_for_waiters()
            stage.clock.advance(5)
            assert eventually(waits.running)
            stage.runtime.finish_next()
            assert stage.worker().status is WorkerStatus.READY


@drives("worker", "tainted", "stopping", "stop")
def _() -> None:
    with Stage(2, auto_exit=False, min_workers=1) as stage:
        stage.runtime.finish(stage.submit())
        futures = [stage.submit(), stage.submit()]
        for worker in stage.runtime.workers:
            assert stage.pool.taint(worker.name)
        stage.pool.resize(1)
        statuses = sorted(worker.status.value for worker in stage.runtime.workers)
        assert statuses == ["stopping", "tainted"]
        assert all(future.running() for future in futures)


@drives("worker", "tainted", "dead", "died")
def _() -> None:
    with Stage() as stage:
        future = stage.submit()
        worker = stage.runtime.worker_of(future)
        assert stage.pool.taint(worker.name)
        stage.runtime.die(worker)
        assert worker.status is WorkerStatus.DEAD
        assert isinstance(future.exception(0), WorkerLost)


@drives("worker", "stopping", "exited", "exited")
@drives("worker", "stopping", "dead", "died")
def _() -> None:
    with Stage(2, auto_exit=False, min_workers=2) as stage:
        stage.pool.shutdown(wait=False)
        exits, dies = stage.runtime.stopped
        stage.runtime.die(dies)
        assert dies.status is WorkerStatus.DEAD
        stage.runtime.exit_stopped()
        assert exits.status is WorkerStatus.EXITED
        assert stage.state() is PoolState.CLOSED


@drives("worker", "dead", "starting", "its slot has another worker")
def _() -> None:
    with Stage(auto_ready=False) as stage:
        stage.submit()
        first = stage.runtime.ready()
        stage.runtime.die(first)
        waits = stage.submit()
        (second,) = stage.runtime.starting
        assert (second.slot, second.status) == (0, WorkerStatus.STARTING)
        assert first.status is WorkerStatus.DEAD, "which is final"
        stage.runtime.ready()
        assert stage.is_on(waits, second)


# The queue.


@drives("queue", START, "empty", "")
def _() -> None:
    with Stage() as stage:
        assert stage.queued == 0


@drives("queue", "empty", "has_requests", "a request has to wait")
@drives("queue", START, "waiting", "it is queued")
@drives("queue", "has_requests", "has_requests", "another one has to wait")
@drives("queue", "has_requests", "empty", "the last one leaves")
def _() -> None:
    for max_queue in (None, 2):
        with Stage(max_queue=max_queue) as stage:
            futures = [stage.submit()]
            assert stage.queued == 0
            futures.append(stage.submit())
            assert (stage.queued, futures[1].state) == (1, RequestState.QUEUED)
            futures.append(stage.submit())
            assert stage.queued == 2
            stage.runtime.finish_next()
            assert stage.queued == 1
            stage.runtime.finish_next()
            assert stage.queued == 0
            assert futures[2].running()


@drives("queue", "waiting", "timed_out", "queue_timeout or timeout passed")
@drives("queue", "timed_out", "dropped", "its function and arguments are released at once")
@drives("queue", "dropped", END, "it never runs")
def _() -> None:
    class Cargo:
        """Something to hold on to."""

    cargo = Cargo()
    held = weakref.ref(cargo)
    with Stage(max_queue=1) as stage:
        blocking = stage.submit()
        waits = stage.pool.using(queue_timeout=5).submit(print, cargo)
        del cargo
        stage.wait_out(5, waits)
        assert waits.state is RequestState.EXPIRED
        assert eventually(lambda: gc.collect() is not None and held() is None)
        assert eventually(lambda: stage.queued == 0)
        assert stage.submit().state is RequestState.QUEUED, "its place is free at once"
        stage.runtime.finish(blocking)
        assert waits not in stage.runtime.running


@drives("queue", "waiting", "dropped", "cancelled")
def _() -> None:
    with Stage(max_queue=1) as stage:
        stage.submit()
        waits = stage.submit()
        waits.cancel()
        assert (waits.fn, waits.args, stage.queued) == (None, None, 0)
        assert stage.submit().state is RequestState.QUEUED, "its place is free at once"


@drives("queue", "waiting", "dropped", "no worker can run it")
def _() -> None:
    with Stage(2, auto_ready=False) as stage:
        waits = [stage.submit() for _ in range(3)]
        for worker in stage.runtime.starting:
            stage.runtime.die(worker, LookupError("no luck"))
        assert [future.state for future in waits] == [RequestState.FAILED] * 3
        assert stage.queued == 0


@drives("queue", "waiting", "processing", "a worker takes the oldest")
@drives("queue", "processing", "completed", "it ended")
@drives("queue", "completed", END, "")
def _() -> None:
    with Stage() as stage:
        futures = [stage.submit() for _ in range(4)]
        for future in futures:
            assert stage.runtime.running == [future]
            stage.runtime.finish(future, future.number)
            assert (future.state, future.result(0)) == (RequestState.DONE, future.number)
        assert stage.queued == 0

"""What an observer is told: every change of state, once, in an order that the tables allow."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    Kind,
    Pool,
    PoolClosed,
    PoolFuture,
    PoolSaturated,
    PoolState,
    RecyclePolicy,
    RestartPolicy,
    RunTimeout,
    TelemetryEvent,
    WorkerStatus,
    primitives,
)
from bullpen.pools.dispatch.states import POOL_MOVES, REQUEST_MOVES, WORKER_MOVES, Moves, RequestState
from bullpen.testing import ManualClock, ScriptedRuntime

from .support import PATIENCE, Background, Blocker, eventually

REQUEST = {
    Kind.REQUEST_QUEUED: RequestState.QUEUED,
    Kind.REQUEST_STARTED: RequestState.RUNNING,
    Kind.REQUEST_REQUEUED: RequestState.QUEUED,
    Kind.REQUEST_DONE: RequestState.DONE,
    Kind.REQUEST_FAILED: RequestState.FAILED,
    Kind.REQUEST_CANCELLED: RequestState.CANCELLED,
    Kind.REQUEST_EXPIRED: RequestState.EXPIRED,
    Kind.REQUEST_LOST: RequestState.LOST,
    Kind.REQUEST_ABANDONED: RequestState.ABANDONED,
}
WORKER = {
    Kind.WORKER_STARTING: WorkerStatus.STARTING,
    Kind.WORKER_READY: WorkerStatus.READY,
    Kind.WORKER_TAINTED: WorkerStatus.TAINTED,
    Kind.WORKER_RECOVERED: WorkerStatus.READY,
    Kind.WORKER_STOPPING: WorkerStatus.STOPPING,
    Kind.WORKER_EXITED: WorkerStatus.EXITED,
    Kind.WORKER_DEAD: WorkerStatus.DEAD,
    Kind.WORKER_ABANDONED: WorkerStatus.STOPPING,
}
OVER_ON_WORKER = (Kind.REQUEST_DONE, Kind.REQUEST_FAILED, Kind.REQUEST_LOST, Kind.REQUEST_RETURNED)


class Life:
    """The life of one worker as events tell it: also when it was busy, and with what."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.history: list[WorkerStatus] = []
        self.requests: set[int] = set()
        self._capacity = 1

    def tell(self, event: TelemetryEvent) -> None:
        if event.kind in WORKER:
            self._is(WORKER[event.kind])
        if event.kind is Kind.WORKER_READY:
            self._capacity = event.detail
        elif event.kind is Kind.REQUEST_STARTED:
            assert event.request is not None
            self.requests.add(event.request)
        elif event.kind in OVER_ON_WORKER:
            assert event.request is not None
            self.requests.discard(event.request)
        if self.history[-1] in (WorkerStatus.READY, WorkerStatus.BUSY):
            self._is(WorkerStatus.BUSY if len(self.requests) >= self._capacity else WorkerStatus.READY)

    def _is(self, status: WorkerStatus) -> None:
        if not self.history or self.history[-1] is not status:
            self.history.append(status)


class Recorder:
    """An observer that keeps everything, and can rebuild who was in which state when."""

    def __init__(self) -> None:
        self.events: list[TelemetryEvent] = []

    def __call__(self, event: TelemetryEvent) -> None:
        self.events.append(event)

    def kinds(self) -> list[Kind]:
        return [event.kind for event in self.events]

    def of_request(self, number: int) -> list[Kind]:
        return [event.kind for event in self.events if event.request == number]

    def requests(self) -> dict[int, list[RequestState]]:
        """The history of each request that was taken in."""
        histories: dict[int, list[RequestState]] = defaultdict(list)
        rejected = {event.request for event in self.events if event.kind is Kind.REQUEST_REJECTED}
        for event in self.events:
            if event.kind in REQUEST and event.request not in rejected:
                assert event.request is not None
                histories[event.request].append(REQUEST[event.kind])
        return histories

    def lives(self) -> list[Life]:
        """The life of each worker; a name is used again when its slot is."""
        current: dict[str, Life] = {}
        lives: list[Life] = []
        for event in self.events:
            if event.worker is None:
                continue
            if event.kind is Kind.WORKER_STARTING:
                current[event.worker] = Life(event.worker)
                lives.append(current[event.worker])
            current[event.worker].tell(event)
        return lives

    def workers(self) -> list[list[WorkerStatus]]:
        """The history of each worker."""
        return [life.history for life in self.lives()]

    def pool(self) -> list[PoolState]:
        return [event.detail for event in self.events if event.kind is Kind.POOL_STATE]


def assert_legal(history: list[Any], moves: Moves[Any], what: object) -> None:
    for old, new in itertools.pairwise(history):
        assert new in moves[old], f"{what}: {old} → {new} in {[str(state) for state in history]}"


def assert_ended_legally(recorder: Recorder) -> None:
    for number, history in recorder.requests().items():
        assert history[0] is RequestState.QUEUED, f"request {number}: {history}"
        assert_legal(history, REQUEST_MOVES, f"request {number}")
        assert not REQUEST_MOVES[history[-1]], f"request {number} never ended: {history}"
    for worker in recorder.workers():
        assert worker[0] is WorkerStatus.STARTING
        assert_legal(worker, WORKER_MOVES, "a worker")
        assert not WORKER_MOVES[worker[-1]], f"a worker never ended: {worker}"
    assert_legal(recorder.pool(), POOL_MOVES, "the pool")
    assert recorder.pool()[-1] in (PoolState.CLOSED, PoolState.FAILED)


def assert_agrees(recorder: Recorder, pool: Pool) -> None:
    """The events tell the same story as the numbers."""
    stats = pool.stats()
    ends = Counter(history[-1] for history in recorder.requests().values())
    assert sum(ends.values()) == stats.submitted
    assert ends[RequestState.DONE] == stats.completed
    assert ends[RequestState.FAILED] == stats.failed
    assert ends[RequestState.CANCELLED] == stats.cancelled
    assert ends[RequestState.EXPIRED] + ends[RequestState.ABANDONED] == stats.timed_out + stats.queue_timeouts
    assert len(recorder.workers()) == stats.spawned


def fail() -> None:
    raise LookupError("as it should")


def test_the_life_of_one_request_and_one_worker() -> None:
    recorder = Recorder()
    with Pool(1, name="press", observer=recorder) as pool:
        pool.submit(int).result(PATIENCE)
    assert recorder.of_request(0) == [Kind.REQUEST_QUEUED, Kind.REQUEST_STARTED, Kind.REQUEST_DONE]
    assert recorder.pool() == [PoolState.INITIALIZING, PoolState.RUNNING, PoolState.DRAINING, PoolState.CLOSED]
    assert {event.pool for event in recorder.events} == {"press"}
    assert {event.worker for event in recorder.events if event.kind is Kind.REQUEST_DONE} == {"press_0"}
    times = [event.at for event in recorder.events if event.request == 0]
    assert times == sorted(times)


@pytest.mark.parametrize("drain", [True, False], ids=["busy at the end", "idle at the end"])
def test_workers_tell_that_they_stop(drain: bool) -> None:
    recorder = Recorder()
    with Blocker() as blocker, Pool(2, observer=recorder) as pool:
        pool.submit(blocker)
        blocker.wait_entered()
        if drain:
            pool.shutdown(wait=False)
        blocker.release()
    assert_ended_legally(recorder)


@pytest.mark.parametrize("options", [{}, {"max_queue": 100}], ids=["unbounded", "bounded"])
def test_every_way_to_end_is_told_once(options: dict[str, Any]) -> None:
    recorder = Recorder()
    with Blocker() as blocker, Pool(1, observer=recorder, calls=CallPolicy(log_errors=False), **options) as pool:
        pool.submit(blocker)
        blocker.wait_entered()
        cancelled, expired, failed, done = (
            pool.submit(int),
            pool.using(queue_timeout=0.01).submit(int),
            pool.submit(fail),
            pool.submit(int),
        )
        cancelled.cancel()
        expired.exception(PATIENCE)
        pool.serve(fail)
        blocker.release()
        done.result(PATIENCE)
        failed.exception(PATIENCE)
    ends = Counter(history[-1] for history in recorder.requests().values())
    assert ends == {
        RequestState.DONE: 2,
        RequestState.FAILED: 2,
        RequestState.CANCELLED: 1,
        RequestState.EXPIRED: 1,
    }
    assert_agrees(recorder, pool)
    for number, history in recorder.requests().items():
        assert_legal(history, REQUEST_MOVES, number)


@pytest.mark.parametrize("limit", ["timeout", "run_timeout"])
@pytest.mark.parametrize("max_abandoned", [0, 1])
def test_a_request_that_is_given_up_is_told_once_although_its_function_returns_later(
    limit: str, max_abandoned: int, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder()
    with Blocker() as blocker, Pool(1, observer=recorder, restarts=RestartPolicy(max_abandoned=max_abandoned)) as pool:
        pool.using(**{limit: 0.2}).submit(blocker).exception(PATIENCE)
        blocker.release()
        pool.submit(int).result(PATIENCE)
        assert eventually(lambda: Kind.REQUEST_RETURNED in recorder.of_request(0))  # maybe on another thread
    assert recorder.of_request(0) == [
        Kind.REQUEST_QUEUED,
        Kind.REQUEST_STARTED,
        Kind.REQUEST_ABANDONED,
        Kind.REQUEST_RETURNED,
    ]
    assert recorder.kinds().count(Kind.WORKER_ABANDONED) == (max_abandoned if limit == "run_timeout" else 0)


def test_a_rejected_request_is_told() -> None:
    recorder = Recorder()
    with Blocker() as blocker, Pool(1, max_queue=0, observer=recorder) as pool:
        pool.submit(blocker)
        with pytest.raises(PoolSaturated):
            pool.submit(int)
        assert not pool.serve(int)
        blocker.release()
    assert recorder.kinds().count(Kind.REQUEST_REJECTED) == 2
    assert_agrees(recorder, pool)


def test_a_submitter_that_waited_too_long_for_room_is_told() -> None:
    recorder = Recorder()
    with Blocker() as blocker, Pool(1, max_queue=0, when_full="block", observer=recorder) as pool:
        pool.submit(blocker)
        blocker.wait_entered()
        with pytest.raises(TimeoutError):
            pool.using(timeout=0.02).submit(int)
        blocker.release()
    for number, history in recorder.requests().items():
        assert not REQUEST_MOVES[history[-1]], f"request {number} never ended: {history}"


def test_helpers_tell_their_whole_life() -> None:
    recorder = Recorder()
    with Pool(1, observer=recorder) as pool:

        def outer() -> int:
            return len(wait([pool.submit(int) for _ in range(3)]).done)

        assert pool.submit(outer).result(PATIENCE) == 3
        assert eventually(lambda: pool.stats().workers <= 1)
    assert_ended_legally(recorder)
    assert_agrees(recorder, pool)


def test_a_helper_that_cannot_start_is_told_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    start = primitives.start_thread

    def start_no_helper(target: Callable[[], None], name: str) -> threading.Thread:
        if "_helper_" in name:
            raise RuntimeError("can't start new thread")
        return start(target, name)

    monkeypatch.setattr(primitives, "start_thread", start_no_helper)
    recorder = Recorder()
    with Pool(1, observer=recorder) as pool:

        def outer() -> int:
            return len(wait([pool.submit(int)]).done)

        assert pool.submit(outer).result(PATIENCE) == 1
    assert [WorkerStatus.STARTING, WorkerStatus.DEAD] in recorder.workers()
    assert_ended_legally(recorder)


def test_a_worker_that_cannot_start_is_told_as_dead() -> None:
    recorder = Recorder()
    pool = Pool(1, observer=recorder, initializer=fail)
    pool.submit(int).exception(PATIENCE)
    pool.close()
    assert recorder.workers() == [[WorkerStatus.STARTING, WorkerStatus.DEAD]]
    assert recorder.pool() == [PoolState.INITIALIZING, PoolState.FAILED]
    assert recorder.of_request(0) == [Kind.REQUEST_QUEUED, Kind.REQUEST_FAILED]


class Stage:
    """A scripted pool under a recorder, whose story is compared with the truth after every step."""

    def __init__(self, **options: Any) -> None:
        self.recorder = Recorder()
        self.clock = ManualClock()
        self.runtime = ScriptedRuntime(auto_exit=False, capabilities=("cancel_running", "kill_running"))
        self.pool = Pool(2, observer=self.recorder, runtime=self.runtime, clock=self.clock, **options)
        self.requests: list[PoolFuture[Any]] = []

    def submit(self, **using: Any) -> PoolFuture[Any]:
        future = self.pool.using(**using).submit(int)
        self.requests.append(future)
        self.check()
        return future

    def check(self) -> None:
        told = self.recorder.requests()
        for future in self.requests:
            assert told[future.number][-1] is future.state, f"request {future.number}"
        alive = {life.name: life for life in self.recorder.lives()}
        for worker in self.pool.workers():
            assert alive[worker.name].history[-1] is worker.status, worker
            assert len(alive[worker.name].requests) == worker.load, worker
        assert self.recorder.pool()[-1] is self.pool.stats().state


def test_events_tell_the_whole_truth_at_every_step(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(max_queue=10)
    runtime, pool, clock, check = stage.runtime, stage.pool, stage.clock, stage.check
    done, failed = stage.submit(session="u1"), stage.submit()
    runtime.finish(done)
    check()
    runtime.fail(failed, LookupError())
    check()
    cancelled_running, timed_out = stage.submit(idempotent=True), stage.submit(run_timeout=1)
    cancelled_queued, expired, lost = stage.submit(), stage.submit(queue_timeout=0.5), stage.submit(session="u2")
    pool.cancel(cancelled_queued)
    check()
    pool.cancel(cancelled_running)
    check()
    assert clock.wait_for_waiters()
    clock.advance(0.5)
    assert eventually(expired.done)
    assert clock.wait_for_waiters()
    clock.advance(0.5)
    assert eventually(timed_out.done)
    check()
    runtime.end_cancelled()  # both workers get free only now
    check()
    runtime.die(runtime.worker_of(lost))
    check()
    left_behind = stage.submit()
    pool.shutdown(wait=False)
    check()
    runtime.exit_stopped()
    check()
    runtime.die(runtime.worker_of(left_behind))
    pool.close()
    assert {future.state for future in stage.requests} == set(RequestState) - {
        RequestState.QUEUED,
        RequestState.RUNNING,
    }
    assert_ended_legally(stage.recorder)
    assert_agrees(stage.recorder, pool)


def test_events_tell_of_taint_and_crash_retry(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    runtime, pool, clock, check = stage.runtime, stage.pool, stage.clock, stage.check
    again, other = stage.submit(idempotent=True), stage.submit()
    tainted = runtime.worker_of(other)
    pool.taint(tainted.name, 5)
    check()
    runtime.die(runtime.worker_of(again))
    check()
    assert clock.wait_for_waiters()
    clock.advance(1)
    assert eventually(lambda: again in runtime.running)
    check()
    runtime.finish(other)
    check()
    assert clock.wait_for_waiters()
    clock.advance(4)
    assert eventually(lambda: tainted.status is WorkerStatus.READY)
    assert eventually(lambda: Kind.WORKER_RECOVERED in stage.recorder.kinds())
    check()
    runtime.finish(again)
    pool.shutdown(wait=False)
    runtime.exit_stopped()
    pool.close()
    assert stage.recorder.of_request(again.number) == [
        Kind.REQUEST_QUEUED,
        Kind.REQUEST_STARTED,
        Kind.REQUEST_REQUEUED,
        Kind.REQUEST_STARTED,
        Kind.REQUEST_DONE,
    ]
    assert_ended_legally(stage.recorder)


def test_events_of_a_request_carry_its_session() -> None:
    stage = Stage(max_queue=1)
    runtime, pool = stage.runtime, stage.pool
    stage.submit(session="u1")
    stage.submit()
    stage.submit(session="u3")
    with pytest.raises(PoolSaturated):
        pool.using(session="u4").submit(int)
    runtime.finish_next()
    runtime.die(runtime.worker_of(stage.requests[2]))
    runtime.finish_next()
    pool.shutdown(wait=False)
    runtime.exit_stopped()
    pool.close()
    told = {event.request: event.session for event in stage.recorder.events if event.request is not None}
    assert list(told.values()) == ["u1", None, "u3", "u4"]
    for event in stage.recorder.events:
        assert event.request is not None or event.session is None
        assert event.session == (None if event.request is None else told[event.request])


@pytest.mark.parametrize("seed", range(4))
def test_a_wild_history_is_legal_and_agrees_with_the_numbers(seed: int) -> None:
    recorder = Recorder()
    bounds: list[Mapping[str, Any]] = [{}, {"max_queue": 3}, {"max_queue": 2, "when_full": "block"}, {"max_queue": 0}]
    pool = Pool(
        3,
        observer=recorder,
        calls=CallPolicy(log_errors=False),
        recycling=RecyclePolicy(idle_timeout=0.05),
        **bounds[seed],
    )

    def submit(number: int) -> None:
        dice = random.Random(100 * seed + number)
        for _ in range(60):
            with suppress(PoolSaturated, PoolClosed, TimeoutError):
                match dice.randrange(7):
                    case 0:
                        pool.serve(fail)
                    case 1:
                        pool.submit(int).cancel()
                    case 2:
                        pool.using(queue_timeout=0.0005).submit(int)
                    case 3:
                        list(pool.map(abs, range(3)))
                    case 4:
                        pool.submit(lambda: pool.submit(int).result())
                    case 5:
                        pool.resize(dice.randint(1, 4))
                    case _:
                        pool.do(int)

    for thread in [Background(lambda number=number: submit(number)) for number in range(6)]:  # type: ignore[misc]
        assert thread.join().error is None
    pool.close()
    for number, history in recorder.requests().items():
        assert_legal(history, REQUEST_MOVES, f"request {number}")
    assert_agrees(recorder, pool)
    assert_ended_legally(recorder)


def test_a_failing_observer_is_logged_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    def observe(event: TelemetryEvent) -> None:
        raise LookupError(event.kind.value)

    with Pool(2, name="press", observer=observe) as pool:
        assert list(pool.map(abs, range(20))) == list(range(20))
        assert pool.submit(int).result(PATIENCE) == 0
    assert pool.stats().completed == 21
    assert "press: the observer failed on request.done; it missed this event" in caplog.text
    assert all(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_an_observer_that_raises_the_exit_is_logged_and_harmless(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def observe(event: TelemetryEvent) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise error(event.kind.value)

    with Pool(2, name="press", observer=observe, calls=CallPolicy(run_timeout=0.05)) as pool:
        assert [pool.submit(abs, -1).result(PATIENCE) for _ in range(5)] == [1] * 5
        with Blocker() as blocker:
            assert isinstance(pool.submit(blocker).exception(PATIENCE), RunTimeout)  # told by the supervisor
            assert isinstance(pool.submit(blocker).exception(PATIENCE), RunTimeout)
    assert "press: the observer failed on request.done; it missed this event" in caplog.text


def test_an_interrupt_of_main_inside_the_observer_is_not_lost() -> None:
    def observe(event: TelemetryEvent) -> None:
        if event.kind is Kind.REQUEST_QUEUED and event.request == 1:
            raise KeyboardInterrupt

    with Pool(1, observer=observe) as pool:
        assert pool.submit(abs, -1).result(PATIENCE) == 1
        with pytest.raises(KeyboardInterrupt):
            pool.submit(abs, -2)
        assert pool.submit(abs, -3).result(PATIENCE) == 3


def test_an_interrupt_of_main_inside_a_callback_is_not_lost() -> None:
    called: list[Any] = []

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with Pool(1) as pool, Blocker() as blocker:
        pool.submit(blocker)
        waiting = pool.submit(int)
        waiting.add_done_callback(interrupted)
        waiting.add_done_callback(called.append)
        with pytest.raises(KeyboardInterrupt):
            eventually(lambda: not waiting.cancel())  # it comes a moment later
        assert called == [waiting]
        blocker.release()
        assert pool.submit(abs, -1).result(PATIENCE) == 1


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("kind", [Kind.POOL_STATE, Kind.WORKER_STOPPING])
def test_a_close_that_is_interrupted_inside_the_observer_can_be_repeated(kind: Kind, drain: bool) -> None:
    interrupts: list[TelemetryEvent] = []

    def observe(event: TelemetryEvent) -> None:
        if closing and event.kind is kind and threading.current_thread() is threading.main_thread() and not interrupts:
            interrupts.append(event)
            raise KeyboardInterrupt

    closing = False
    pool = Pool(2, min_workers=2, observer=observe)
    assert pool.wait_ready(PATIENCE)
    assert eventually(lambda: pool.stats().idle == 2)
    closing = True
    with pytest.raises(KeyboardInterrupt):
        pool.close(drain=drain)
    Background(pool.close).join()
    assert not pool.stats().workers


@pytest.mark.parametrize("options", [{}, {"max_queue": 50}, {"max_queue": 0, "when_full": "block"}], ids=str)
def test_an_observer_may_look_at_the_pool(options: dict[str, Any]) -> None:
    pools: list[Pool] = []
    seen: list[object] = []

    def observe(event: TelemetryEvent) -> None:
        if pools:
            seen.append((pools[0].stats(), pools[0].workers(), repr(pools[0])))

    with Pool(2, observer=observe, recycling=RecyclePolicy(idle_timeout=0.05), **options) as pool:
        pools.append(pool)
        for _ in range(30):
            pool.submit(int)
        assert list(pool.map(abs, range(30))) == list(range(30))
        pool.submit(fail).exception(PATIENCE)
        pool.submit(lambda: pool.submit(int).result()).result(PATIENCE)
        pool.resize(1)
        eventually(lambda: not pool.stats().workers, within=5)
    assert seen


def test_an_observer_may_submit_and_close() -> None:
    pools: list[Pool] = []
    extra: list[int] = []

    def observe(event: TelemetryEvent) -> None:
        if event.kind is Kind.REQUEST_DONE and pools:
            if len(extra) < 5:
                pools[0].submit(extra.append, 1)
            else:
                pools[0].close()

    pool = Pool(2, observer=observe, calls=CallPolicy(log_errors=False))
    pools.append(pool)
    pool.submit(int)
    assert eventually(lambda: pool.stats().state is PoolState.CLOSED)
    pool.close()
    assert len(extra) >= 5


def test_a_pool_closes_while_it_is_observed_slowly() -> None:
    told = threading.Event()
    go_on = threading.Event()

    def observe(event: TelemetryEvent) -> None:
        if event.kind is Kind.REQUEST_STARTED:
            told.set()
            go_on.wait(PATIENCE)

    pool = Pool(1, observer=observe)
    future = pool.submit(int)
    assert told.wait(PATIENCE)
    with Background(pool.close):
        assert eventually(lambda: pool.stats().state is PoolState.DRAINING)
        go_on.set()
    assert future.result(0) == 0


@pytest.mark.parametrize("log_errors", [True, False])
def test_errors_of_served_requests_are_logged_unless_that_is_off(
    log_errors: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Pool(1, name="press", calls=CallPolicy(log_errors=log_errors)) as pool:
        pool.serve(fail)
        pool.submit(fail)
    assert pool.stats().failed == 2
    logged = [record for record in caplog.records if record.name == "bullpen" and record.levelno == logging.ERROR]
    assert len(logged) == int(log_errors), "and errors that a future shows are never logged"
    if log_errors:
        assert "press: served request 0 failed" in logged[0].getMessage()
        assert logged[0].exc_info
        assert isinstance(logged[0].exc_info[1], LookupError)

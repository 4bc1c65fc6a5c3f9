"""Idempotent requests survive the death of their worker; nothing else runs twice."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    DeadlineExceeded,
    Kind,
    Pool,
    PoolFailed,
    PoolState,
    QueueTimeout,
    RestartPolicy,
    RunTimeout,
    TelemetryEvent,
    WorkerBroken,
    WorkerLost,
)
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.scenarios.support import PATIENCE, advance, end, eventually, tick

ONCE_MORE = {"idempotent": True}


def test_an_idempotent_request_goes_again_to_another_worker_after_a_moment(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, runtime=runtime, clock=by_hand)
    future = pool.using(**ONCE_MORE).submit(int)
    first = runtime.worker_of(future)
    runtime.die(first)
    assert future.running(), "as far as anybody can see"
    assert (pool.stats().running, pool.stats().queued, pool.stats().retried) == (1, 0, 0)
    advance(pool, 0.04)
    assert runtime.running == []
    advance(pool, 0.01)
    assert runtime.running == [future]
    assert runtime.worker_of(future) is not first
    runtime.finish(future, 77)
    assert future.result(0) == 77
    stats = pool.stats()
    assert (stats.retried, stats.completed, stats.lost, stats.submitted, stats.running) == (1, 1, 0, 1, 0)
    end(pool, runtime)


@pytest.mark.parametrize("crash_retries", [0, 1, 3])
def test_it_goes_again_as_often_as_it_may_and_is_lost_then(crash_retries: int, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand, calls=CallPolicy(crash_retries=crash_retries))
    future = pool.using(**ONCE_MORE).submit(int)
    for retry in range(crash_retries):
        runtime.die(runtime.worker_of(future))
        delay = 0.05 * 2**retry
        advance(pool, delay * 0.99)
        assert runtime.running == []
        advance(pool, delay * 0.01)
        assert runtime.running == [future]
    runtime.die(runtime.worker_of(future))
    assert isinstance(future.exception(0), WorkerLost)
    assert (pool.stats().retried, pool.stats().lost) == (crash_retries, 1)
    end(pool, runtime)


@pytest.mark.parametrize("options", [{}, {"idempotent": False}, {"crash_retries": 5}])
def test_a_request_that_is_not_idempotent_never_runs_twice(options: dict[str, bool], by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(**options).submit(int)
    runtime.die(runtime.worker_of(future))
    assert isinstance(future.exception(0), WorkerLost)
    advance(pool, 10)
    assert runtime.running == []
    end(pool, runtime)


def test_a_strict_session_dies_with_its_worker(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, runtime=runtime, clock=by_hand)
    strict = pool.using(session="u42", affinity="strict_queue", idempotent=True).submit(int)
    loose = pool.using(session="u43", idempotent=True).submit(int)
    runtime.die(runtime.worker_of(strict))
    runtime.die(runtime.worker_of(loose))
    assert isinstance(strict.exception(0), WorkerLost)
    advance(pool, 1)
    assert runtime.running == [loose]
    end(pool, runtime)


def test_requests_whose_worker_crashed_are_the_oldest_again(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, capacity=3, runtime=runtime, clock=by_hand)
    crashed = [pool.using(**ONCE_MORE).submit(int) for _ in range(3)]
    waiting = [pool.submit(int) for _ in range(2)]
    runtime.die(runtime.workers[0])
    assert set(runtime.running) == set(waiting), "its replacement is not kept waiting"
    late = [pool.submit(int) for _ in range(3)]
    assert set(runtime.running) == {*waiting, late[0]}
    advance(pool, 0.05)
    for expected in (*crashed, *late[1:]):
        runtime.finish_next()
        assert runtime.running[-1] is expected
    end(pool, runtime)


def test_requests_whose_workers_crash_again_keep_their_first_order(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, capacity=2, calls=CallPolicy(crash_retries=9), runtime=runtime, clock=by_hand)
    first = pool.using(**ONCE_MORE).submit(int)
    runtime.die(runtime.worker_of(first))
    second = pool.using(**ONCE_MORE).submit(int)
    advance(pool, 0.05)
    assert runtime.running == [second, first], "the older one came to it later"
    others = [pool.submit(int) for _ in range(2)]
    runtime.die(runtime.worker_of(first))
    advance(pool, 0.1)
    assert set(runtime.running) == set(others)
    for expected in (first, second):
        runtime.finish_next()
        assert runtime.running[-1] is expected
    end(pool, runtime)


def test_a_draining_pool_runs_crash_retries_in_their_first_order(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    crashed = [pool.using(**ONCE_MORE).submit(int) for _ in range(7)]
    for future in crashed:
        runtime.die(runtime.worker_of(future))
    assert runtime.running == []
    pool.shutdown(wait=False)
    for future in crashed:
        assert runtime.running == [future]
        runtime.finish(future)
    pool.close()


def test_a_bounded_backlog_stays_within_its_bound(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, max_queue=1, runtime=runtime, clock=by_hand)
    crashed, waiting = pool.using(**ONCE_MORE).submit(int), pool.submit(int)
    runtime.die(runtime.worker_of(crashed))
    assert runtime.running == [waiting]
    advance(pool, 0.05)
    assert pool.stats().queued == 1
    assert not pool.serve(int), "the place is taken"
    runtime.finish_next()
    assert runtime.running == [crashed]
    assert pool.serve(int)
    assert not pool.serve(int)
    end(pool, runtime)


def test_its_moves_are_reported(by_hand: ManualClock) -> None:
    runtime, events = ScriptedRuntime(), list[TelemetryEvent]()
    pool = Pool(1, runtime=runtime, clock=by_hand, observer=events.append)
    future = pool.using(**ONCE_MORE).submit(int)
    runtime.die(runtime.worker_of(future))
    advance(pool, 1)
    runtime.finish(future)
    assert [event.kind for event in events if event.request is not None] == [
        Kind.REQUEST_QUEUED,
        Kind.REQUEST_STARTED,
        Kind.REQUEST_REQUEUED,
        Kind.REQUEST_STARTED,
        Kind.REQUEST_DONE,
    ]
    end(pool, runtime)


# Limits in time.


def test_the_deadline_of_its_caller_stands(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(timeout=0.04, **ONCE_MORE).submit(int)
    runtime.die(runtime.worker_of(future))
    advance(pool, 0.04)
    assert isinstance(future.exception(0), DeadlineExceeded)
    advance(pool, 1)
    assert runtime.running == []
    assert (pool.stats().timed_out, pool.stats().running, pool.stats().retried) == (1, 0, 0)
    end(pool, runtime)


def test_the_time_between_two_runs_is_no_run(by_hand: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(run_timeout=1, **ONCE_MORE).submit(int)
    advance(pool, 0.97)
    runtime.die(runtime.worker_of(future))
    advance(pool, 0.04)
    assert future.running()
    advance(pool, 0.01)
    assert runtime.running == [future]
    advance(pool, 0.99)
    assert future.running(), "the new run has its whole time"
    advance(pool, 0.02)
    assert isinstance(future.exception(0), RunTimeout)
    end(pool, runtime)


def test_the_second_wait_has_its_own_limit_and_delays_no_other(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    patient = pool.using(queue_timeout=1)
    future = patient.using(**ONCE_MORE).submit(int)
    advance(pool, 0.5)
    blocker, other = pool.submit(int), patient.submit(int)
    runtime.die(runtime.worker_of(future))
    assert runtime.running == [blocker]
    advance(pool, 0.5)  # 1.0: the first limit, long served
    assert pool.stats().queued == 2
    advance(pool, 0.5)  # 1.5
    assert isinstance(other.exception(0), QueueTimeout)
    advance(pool, 0.51)
    assert isinstance(future.exception(0), QueueTimeout), "it waited for a second since it crashed"
    assert pool.stats().queue_timeouts == 2
    end(pool, runtime)


# While it waits for its next try.


def test_it_can_be_cancelled_by_the_pool(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(**ONCE_MORE).submit(int)
    runtime.die(runtime.worker_of(future))
    assert not future.cancel(), "the standard's cancel leaves alone what runs"
    assert pool.cancel(future)
    assert future.cancelled()
    advance(pool, 1)
    assert runtime.running == []
    assert (pool.stats().cancelled, pool.stats().running) == (1, 0)
    end(pool, runtime)


def test_a_pool_that_drains_runs_it_at_once_and_is_not_closed_before(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(**ONCE_MORE).submit(int)
    runtime.die(runtime.worker_of(future))
    assert runtime.workers == []
    pool.shutdown(wait=False)
    assert runtime.running == [future]
    runtime.finish(future, 77)
    assert future.result(0) == 77
    assert pool.stats().state is PoolState.CLOSED
    pool.close()


def test_a_worker_that_dies_while_the_pool_drains_costs_only_time(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(crash_retries=2, **ONCE_MORE).submit(int)
    pool.shutdown(wait=False)
    runtime.die(runtime.worker_of(future))
    runtime.die(runtime.worker_of(future))
    assert runtime.running == [future]
    runtime.finish(future)
    assert future.exception(0) is None
    assert pool.stats().state is PoolState.CLOSED
    pool.close()


def test_a_pool_that_closes_without_draining_cancels_it(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, runtime=runtime, clock=by_hand)
    pending, running = (pool.using(**ONCE_MORE).submit(int) for _ in range(2))
    runtime.die(runtime.worker_of(pending))
    pool.shutdown(wait=False, cancel_futures=True)
    assert pending.cancelled()
    runtime.die(runtime.worker_of(running))
    assert isinstance(running.exception(0), WorkerLost), "nothing starts any more"
    assert pool.stats().state is PoolState.CLOSED
    pool.close()


@pytest.mark.parametrize("capabilities", [(), ("kill_running",)])
def test_after_the_grace_nothing_is_tried_again(capabilities: tuple[str, ...], by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(capabilities=capabilities)
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(crash_retries=9, **ONCE_MORE).submit(int)
    pool.close(grace=0)
    assert future.exception(0) is not None
    assert runtime.running == [] or not capabilities
    assert pool.stats().state is PoolState.CLOSED


def test_a_pool_that_fails_rejects_it(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(2, min_workers=2, runtime=runtime, clock=by_hand)
    runtime.ready()
    future = pool.using(**ONCE_MORE).submit(int)
    runtime.die(runtime.worker_of(future))
    runtime.die(runtime.starting[0])
    assert isinstance(future.exception(0), PoolFailed)
    assert (pool.stats().failed, pool.stats().running) == (1, 0)
    advance(pool, 1)
    pool.close()


def test_a_pool_that_is_paused_does_not_start_it(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    future = pool.using(**ONCE_MORE).submit(int)
    pool.pause()
    runtime.die(runtime.worker_of(future))
    advance(pool, 1)
    assert (runtime.running, pool.stats().queued) == ([], 1)
    pool.resume()
    assert runtime.running == [future]
    end(pool, runtime)


def test_served_requests_go_again_too(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    assert pool.using(**ONCE_MORE).serve(int)
    runtime.die(runtime.workers[0])
    advance(pool, 1)
    assert len(runtime.running) == 1
    end(pool, runtime)
    assert pool.stats().completed == 1
    assert tick(pool) == float("inf")


# Threads that say that they are broken.


def test_a_thread_that_is_broken_is_replaced_and_its_request_lost() -> None:
    cause = WorkerBroken("lost its context")

    def break_down() -> None:
        raise cause

    with Pool(1, min_workers=1, name="press") as pool:
        pool.wait_ready()
        (before,) = pool.workers()
        future, waiting = pool.submit(break_down), pool.submit(pow, 2, 3)
        error = future.exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert error.__cause__ is cause
        assert error.worker == before.name
        assert waiting.result(PATIENCE) == 8
        assert eventually(lambda: pool.stats().idle == 1)
        assert [worker.id for worker in pool.workers()] != [before.id]
    assert (pool.stats().lost, pool.stats().spawned) == (1, 2)


def test_an_idempotent_request_that_breaks_its_thread_runs_again_on_another() -> None:
    threads = list[int]()

    def break_down_once() -> int:
        threads.append(threading.get_ident())
        if len(threads) == 1:
            raise WorkerBroken
        return len(threads)

    with Pool(1) as pool:
        assert pool.using(timeout=PATIENCE, **ONCE_MORE).do(break_down_once) == 2
    assert len(threads) == 2


@pytest.mark.parametrize("how", ["result", "map", "stream", "submit"])
def test_a_worker_that_breaks_in_a_request_within_a_request_is_replaced_after_it(how: str) -> None:
    def break_down(_: int = 0) -> Any:
        raise WorkerBroken("within")

    calls: dict[str, Callable[[], Any]] = {
        "result": lambda: pool.submit(break_down).result(),
        "submit": lambda: pool.submit(break_down).result(),
        "map": lambda: next(pool.map(break_down, range(1))),
        "stream": lambda: next(pool.stream(break_down)),
    }

    def outer() -> str:
        with pytest.raises(WorkerLost, match="within"):
            calls[how]()
        return threading.current_thread().name

    bound: dict[str, Any] = {"max_queue": 0, "when_full": "block"} if how == "submit" else {}
    with Pool(1, min_workers=1, restarts=RestartPolicy(limit=0, within=60), **bound) as pool:
        (before,) = pool.workers()
        assert pool.submit(outer).result(PATIENCE) == before.name
        assert pool.submit(int).result(PATIENCE) == 0
        assert [worker.id for worker in pool.workers()] != [before.id]
        assert pool.stats().degraded, "it counts as a death"
        assert pool.stats().lost == (how != "map")


@pytest.mark.parametrize("how", ["inline", "helped"])
def test_a_request_that_breaks_the_worker_it_runs_on_within_another_does_not_run_again(how: str) -> None:
    """The other one waits for it, in the only slot that there is."""
    runs: list[int] = []

    def break_down() -> None:
        runs.append(1)
        raise WorkerBroken

    def outer(how: str) -> BaseException | None:
        future = pool.using(**ONCE_MORE).submit(break_down)
        if how == "helped":
            wait([future])
        return future.exception()

    with Pool(1) as pool:
        assert isinstance(pool.submit(outer, how).result(PATIENCE), WorkerLost)
    assert len(runs) == 1


def test_an_item_of_a_map_that_breaks_its_worker_is_lost_alone() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise WorkerBroken("no more")
        return threading.get_ident()

    with Pool(1) as pool:
        results = pool.map(work, range(6))
        threads = [next(results) for _ in range(3)]
        with pytest.raises(WorkerLost, match="no more"):
            next(results)
        assert pool.submit(work, 4).result(PATIENCE) not in threads
    assert pool.stats().spawned == 2


def test_nothing_is_kept_alive_by_a_thread_that_broke() -> None:
    class Thing:
        pass

    def break_down(_: Thing) -> None:
        raise WorkerBroken

    gc.disable()
    try:
        with Pool(1) as pool:
            thing = Thing()
            watched = weakref.ref(thing)
            future = pool.submit(break_down, thing)
            assert isinstance(future.exception(PATIENCE), WorkerLost)
            del thing, future
            assert eventually(lambda: watched() is None, within=2)
    finally:
        gc.enable()


def test_many_crashes_under_load_lose_nothing_that_is_idempotent() -> None:
    lock = threading.Lock()
    runs: dict[int, int] = {}

    def work(number: int) -> int:
        with lock:
            runs[number] = runs.get(number, 0) + 1
            first = runs[number] == 1
        if first and not number % 10:
            raise WorkerBroken
        return number

    with Pool(4, restarts=RestartPolicy(limit=1000, within=1)) as pool:
        again = pool.using(**ONCE_MORE)
        futures = [again.submit(work, number) for number in range(300)]
        assert [future.result(PATIENCE) for future in futures] == list(range(300))
    assert sum(runs.values()) == 300 + 30
    stats = pool.stats()
    assert (stats.completed, stats.retried, stats.lost, stats.queued, stats.running) == (300, 30, 0, 0, 0)

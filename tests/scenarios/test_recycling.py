"""Workers are replaced after a number of requests or at an age, without a gap and without one too many at work."""

from __future__ import annotations

import threading

import pytest

from bullpen import Pool, PoolState, RecyclePolicy, RestartPolicy, WorkerStatus, primitives
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.moves import checked_moves
from tests.scenarios.support import PATIENCE, advance, end, eventually, tick


def names(pool: Pool) -> list[str]:
    return [worker.name for worker in pool.workers()]


def test_a_worker_is_replaced_after_so_many_requests(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(1, name="press", recycling=RecyclePolicy(max_requests=2), runtime=runtime, clock=by_hand)
    futures = [pool.submit(int) for _ in range(5)]
    old = runtime.ready()
    runtime.finish_next()
    tick(pool)
    assert runtime.starting == []
    runtime.fail(futures[1], ValueError())
    assert runtime.running == [futures[2]], "it does not wait for its successor"
    tick(pool)
    (new,) = runtime.starting
    runtime.finish_next()
    assert runtime.running == [futures[3]], "it goes on working"
    runtime.ready()
    assert runtime.running == [futures[3]], "never one too many at work"
    assert runtime.worker_of(futures[3]) is old
    assert (old.status, new.status) == (WorkerStatus.STOPPING, WorkerStatus.STARTING)
    runtime.finish_next()
    assert runtime.running == [futures[4]]
    assert runtime.worker_of(futures[4]) is new
    assert runtime.workers == [new]
    assert (pool.stats().recycled, pool.stats().workers, new.slot) == (1, 1, 0)
    assert names(pool) == ["press_0.1"]
    end(pool, runtime)


def test_an_idle_worker_is_replaced_at_once(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, recycling=RecyclePolicy(max_requests=1), runtime=runtime, clock=by_hand)
    for number in range(1, 4):
        runtime.finish(pool.submit(int))
        tick(pool)
        assert (pool.stats().recycled, pool.stats().idle, len(runtime.workers)) == (number, 1, 1)
    end(pool, runtime)
    assert pool.stats().completed == 3


def test_workers_are_replaced_at_an_age_that_differs(by_hand: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    rolls = iter([0.0, 1.0, *[0.5] * 10])
    monkeypatch.setattr(primitives.random, "random", lambda: next(rolls))
    runtime = ScriptedRuntime()
    pool = Pool(
        2, min_workers=2, recycling=RecyclePolicy(max_age=100, idle_timeout=None), runtime=runtime, clock=by_hand
    )
    first, second = runtime.workers
    advance(pool, 89.9)
    assert runtime.workers == [first, second]
    advance(pool, 0.2)
    assert first not in runtime.workers
    assert second in runtime.workers
    advance(pool, 19)
    assert second in runtime.workers
    advance(pool, 1)
    assert second not in runtime.workers
    assert (pool.stats().recycled, len(runtime.workers)) == (2, 2)
    end(pool, runtime)


def test_one_worker_changes_at_a_time(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(3, min_workers=3, recycling=RecyclePolicy(max_requests=1), runtime=runtime, clock=by_hand)
    for _ in range(3):
        runtime.ready()
    for future in [pool.submit(int) for _ in range(3)]:
        runtime.finish(future)
    for number in range(1, 4):
        tick(pool)
        assert len(runtime.starting) == 1
        assert len(runtime.workers) == 4
        pool._engine.sizing.reconcile()
        assert len(runtime.workers) == 4, "neither a deficit nor a surplus"
        runtime.ready()
        assert pool.stats().recycled == number
        assert len(runtime.workers) == 3
    tick(pool)
    assert runtime.starting == []
    end(pool, runtime)


def test_the_next_change_waits_until_the_last_one_is_over(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, recycling=RecyclePolicy(max_requests=1), runtime=runtime, clock=by_hand)
    futures = [pool.submit(int) for _ in range(6)]
    runtime.finish(futures[0])
    runtime.finish(futures[1])
    for _ in range(3):
        tick(pool)
        assert len(runtime.workers) == 3
        assert len(runtime.running) == 2
    runtime.finish(futures[2])
    assert pool.stats().recycled == 1
    tick(pool)
    assert len(runtime.workers) == 3
    end(pool, runtime)


def test_a_successor_that_cannot_start_leaves_the_old_one_at_work_and_is_tried_again(
    by_hand: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(
        1,
        recycling=RecyclePolicy(max_requests=1),
        max_queue=3,
        restarts=RestartPolicy(limit=2, within=60),
        runtime=runtime,
        clock=by_hand,
    )
    runtime.finish(pool.submit(int))
    (old,) = runtime.workers
    runtime.start_error = OSError("no licence")
    advance(pool, 0)
    assert runtime.workers == [old]
    assert pool.stats().degraded, "it was tried twice, and once more"
    tries = pool.stats().spawned
    for _ in range(10):
        future = pool.submit(int)
        assert runtime.running == [future]
        runtime.finish(future)
    tick(pool)
    assert pool.stats().spawned == tries, "it is in no hurry"
    waiting = [pool.submit(int) for _ in range(4)]
    assert not pool.serve(int), "the backlog has three places"
    for future in waiting:
        runtime.finish(future)
    runtime.start_error = None
    advance(pool, 0.2)
    assert pool.stats().recycled == 1
    assert old not in runtime.workers
    waiting = [pool.submit(int) for _ in range(4)]
    assert not pool.serve(int), "the backlog still has three places"
    end(pool, runtime)


@pytest.mark.parametrize("when", ["starting", "ready"])
def test_a_successor_takes_over_from_an_old_one_that_dies(when: str, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(1, recycling=RecyclePolicy(max_requests=1), max_queue=2, runtime=runtime, clock=by_hand)
    futures = [pool.submit(int) for _ in range(3)]
    old = runtime.ready()
    runtime.finish_next()
    tick(pool)
    if when == "ready":
        runtime.ready()
    runtime.die(old)
    if when == "starting":
        assert runtime.running == []
        assert len(runtime.workers) == 1, "nobody else starts in its slot"
        runtime.ready()
    assert runtime.running == [futures[2]]
    assert pool.serve(int)
    assert pool.serve(int)
    assert not pool.serve(int)
    end(pool, runtime)


@pytest.mark.parametrize("ready", [False, True])
def test_a_successor_that_dies_leaves_its_slot_to_others(ready: bool, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(1, recycling=RecyclePolicy(max_requests=1), max_queue=2, runtime=runtime, clock=by_hand)
    futures = [pool.submit(int) for _ in range(3)]
    old = runtime.ready()
    runtime.finish_next()
    tick(pool)
    (new,) = runtime.starting
    if ready:
        runtime.ready()
    runtime.die(new)
    assert runtime.running == [futures[1]]
    runtime.finish_next()
    if ready:
        assert old not in runtime.workers, "it had been told to end"
        runtime.ready()
    assert runtime.running == [futures[2]]
    end(pool, runtime)
    assert pool.stats().completed == 3


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("queued", [0, 3])
@pytest.mark.parametrize("drain", [True, False])
def test_a_pool_may_close_during_a_change(ready: bool, queued: int, drain: bool, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    with checked_moves():
        pool = Pool(1, recycling=RecyclePolicy(max_requests=1), runtime=runtime, clock=by_hand)
        futures = [pool.submit(int) for _ in range(2 + queued)]
        runtime.ready()
        runtime.finish_next()
        tick(pool)
        if ready:
            runtime.ready()
        pool.shutdown(wait=False, cancel_futures=not drain)
        end(pool, runtime)
    assert pool.stats().state is PoolState.CLOSED
    assert all(future.done() for future in futures)
    assert pool.stats().completed == (2 + queued if drain else 2)
    assert runtime.workers == []


@pytest.mark.parametrize("ready", [False, True])
def test_a_pool_that_is_made_smaller_during_a_change_has_its_number(ready: bool, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(2, min_workers=1, recycling=RecyclePolicy(max_requests=1), runtime=runtime, clock=by_hand)
    futures = [pool.submit(int) for _ in range(6)]
    runtime.ready()
    runtime.ready()
    runtime.finish(futures[1])
    tick(pool)
    if ready:
        runtime.ready()
    pool.resize(1)
    while runtime.running:
        runtime.finish_next()
        while runtime.starting:
            runtime.ready()
        assert len(runtime.running) <= 2
    assert all(future.done() for future in futures)
    assert len([worker for worker in runtime.workers if worker.slot is not None]) == 1
    end(pool, runtime)


@pytest.mark.parametrize("ready", [False, True])
def test_a_successor_without_a_slot_brings_no_room_along(ready: bool, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(2, recycling=RecyclePolicy(max_requests=1), max_queue=1, runtime=runtime, clock=by_hand)
    for _ in range(2):
        pool.serve(int)
        runtime.ready()
    second = runtime.running[1]
    pool.serve(int)
    runtime.finish(second)
    tick(pool)
    (successor,) = runtime.starting
    assert pool.serve(int)
    assert not pool.serve(int)
    if ready:
        runtime.ready()
    pool.resize(1)
    runtime.finish_next()
    while runtime.worker_of(runtime.running[0]).slot != 0:
        runtime.finish_next()
    waiting = pool.stats().queued
    while pool.serve(int):
        waiting += 1
    assert waiting == 1, "the backlog has one place"
    if not ready:
        runtime.ready(successor)
        assert not pool.serve(int)
    assert successor not in runtime.workers
    end(pool, runtime)


def test_a_worker_whose_line_is_not_empty_runs_it_before_it_ends(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, recycling=RecyclePolicy(max_requests=1), runtime=runtime, clock=by_hand)
    session = pool.using(session="u42", affinity="strict_queue")
    futures = [session.submit(int) for _ in range(4)]
    old = runtime.worker_of(futures[0])
    runtime.finish_next()
    tick(pool)
    for future in futures[1:]:
        assert runtime.worker_of(future) is old
        runtime.finish(future)
    assert all(future.exception(0) is None for future in futures)
    assert old not in runtime.workers
    end(pool, runtime)


def test_items_of_a_map_count() -> None:
    with Pool(1, recycling=RecyclePolicy(max_requests=10)) as pool:
        assert list(pool.map(abs, range(15))) == list(range(15))
        assert eventually(lambda: pool.stats().recycled == 1)


def test_threads_are_recycled_under_load_without_a_gap() -> None:
    lock = threading.Lock()
    at_once, most, threads = 0, 0, set[str]()

    def work(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            threads.add(threading.current_thread().name)
        with lock:
            at_once -= 1
        return number

    with Pool(3, recycling=RecyclePolicy(max_requests=20)) as pool:
        submitted = 0
        while submitted < 3000 or pool.stats().recycled < 2:
            futures = [pool.submit(work, number) for number in range(500)]
            assert [future.result(PATIENCE) for future in futures] == list(range(500))
            submitted += 500
        assert most <= 3
    stats = pool.stats()
    assert len(threads) >= 3
    assert (stats.completed, stats.lost, stats.workers) == (submitted, 0, 0)


def test_a_successor_whose_old_one_died_brings_room_before_it_is_ready(by_hand: ManualClock) -> None:
    """As any worker does that is being started: it has the slot now, in which else one would be started."""
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(1, max_queue=0, recycling=RecyclePolicy(max_requests=1), runtime=runtime, clock=by_hand)
    assert pool.serve(int)
    old = runtime.ready()
    runtime.finish_next()
    tick(pool)
    (new,) = runtime.starting
    runtime.die(old)
    assert new.slot == 0
    waiting = pool.submit(int)
    assert not pool.serve(int), "and for one only"
    runtime.ready()
    assert runtime.running == [waiting]
    end(pool, runtime)

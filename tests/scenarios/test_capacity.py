"""Several requests at once on one worker."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    InvalidOption,
    Pool,
    PoolSaturated,
    PoolState,
    RecyclePolicy,
    RestartPolicy,
    RunTimeout,
    WorkerAbandoned,
)
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import current_worker
from bullpen.testing import ScriptedRuntime
from tests.scenarios.support import PATIENCE, Background, Blocker, eventually


def scripted(workers: int, capacity: int, **options: Any) -> tuple[Pool, ScriptedRuntime]:
    runtime = ScriptedRuntime(auto_ready=options.pop("auto_ready", True))
    return Pool(
        workers, runtime=runtime, capacity=capacity, recycling=RecyclePolicy(idle_timeout=None), **options
    ), runtime


def close(pool: Pool) -> None:
    pool.close(grace=0, drain=False)


def loads(runtime: ScriptedRuntime) -> list[int]:
    return [worker.load for worker in runtime.workers]


def test_a_worker_runs_as_many_at_once_as_it_has_room_for() -> None:
    pool, runtime = scripted(1, 3)
    futures = [pool.submit(print) for _ in range(5)]
    assert runtime.running == futures[:3]
    assert pool.stats().queued == 2
    assert (pool.workers()[0].load, pool.workers()[0].capacity) == (3, 3)
    runtime.finish(futures[1])
    assert runtime.running == [futures[0], futures[2], futures[3]]
    close(pool)


def test_a_worker_that_is_ready_takes_as_many_as_it_has_room_for() -> None:
    pool, runtime = scripted(1, 3, auto_ready=False)
    futures = [pool.submit(print) for _ in range(5)]
    assert runtime.running == []
    runtime.ready()
    assert set(runtime.running) == set(futures[:3])
    close(pool)


@pytest.mark.parametrize("max_queue", [None, 0, 2, 100])
@pytest.mark.parametrize("declared", [1, 2, 5])
def test_a_worker_may_declare_its_own_capacity(declared: int, max_queue: int | None) -> None:
    pool, runtime = scripted(1, 3, auto_ready=False, max_queue=max_queue)
    accepted = sum(pool.serve(print) for _ in range(5))
    runtime.starting[0].capacity = declared
    runtime.ready()
    assert len(runtime.running) == min(declared, accepted)
    while runtime.running:
        runtime.finish_next()
        assert pool.stats().running <= declared
    assert pool.stats().completed == accepted
    limit = declared + (10**6 if max_queue is None else max_queue)
    assert sum(pool.serve(print) for _ in range(20)) == min(20, limit), "a place was lost or made"
    close(pool)


def test_no_more_workers_start_than_are_needed() -> None:
    pool, runtime = scripted(4, 3, auto_ready=False)
    started = []
    for _ in range(7):
        pool.submit(print)
        started.append(len(runtime.starting))
    assert started == [1, 1, 1, 2, 2, 2, 3]
    for _ in range(3):
        runtime.ready()
    assert loads(runtime) == [3, 3, 1]
    assert pool.stats().queued == 0
    pool.resize(8)
    assert len(runtime.workers) == 3
    close(pool)


def test_after_a_pause_no_more_workers_start_than_are_needed() -> None:
    pool, runtime = scripted(4, 3)
    pool.pause()
    for _ in range(7):
        pool.submit(print)
    pool.resume()
    assert len(runtime.workers) == 3
    assert sum(loads(runtime)) == 7
    close(pool)


@pytest.mark.parametrize("auto_ready", [True, False])
def test_without_a_backlog_as_many_are_accepted_as_can_run(auto_ready: bool) -> None:
    pool, runtime = scripted(1, 4, max_queue=0, auto_ready=auto_ready)
    for _ in range(4):
        pool.submit(print)
    for _ in range(2):
        with pytest.raises(PoolSaturated):
            pool.submit(print)
    if not auto_ready:
        runtime.ready()
    assert len(runtime.running) == 4
    with pytest.raises(PoolSaturated):
        pool.submit(print)
    runtime.finish_next()
    pool.submit(print)
    with pytest.raises(PoolSaturated):
        pool.submit(print)
    close(pool)


def test_the_least_loaded_worker_is_next() -> None:
    pool, runtime = scripted(2, 4, calls=CallPolicy(scheduler="least_loaded"), min_workers=2)
    futures = [pool.submit(print) for _ in range(8)]
    first, second = runtime.workers
    assert loads(runtime) == [4, 4]
    for future in futures:
        if runtime.worker_of(future) is first:
            runtime.finish(future)
    runtime.finish(next(iter(second.requests)))
    assert loads(runtime) == [0, 3]
    for expected in ([1, 3], [2, 3], [3, 3]):
        pool.submit(print)
        assert loads(runtime) == expected
    close(pool)


def test_rotation_deals_out_one_by_one() -> None:
    pool, runtime = scripted(3, 2, min_workers=3)
    seen = []
    for _ in range(6):
        seen.append(runtime.worker_of(pool.submit(print)))
    assert seen == runtime.workers * 2
    close(pool)


def test_the_most_recently_used_is_filled_first() -> None:
    pool, runtime = scripted(3, 2, min_workers=3, calls=CallPolicy(scheduler="most_recently_used"))
    seen = [runtime.worker_of(pool.submit(print)) for _ in range(6)]
    assert [seen.count(worker) for worker in runtime.workers] == [2, 2, 2]
    assert seen[0] is seen[1]
    assert seen[2] is seen[3]
    close(pool)


def test_a_session_uses_the_room_of_its_worker() -> None:
    pool, runtime = scripted(2, 2)
    strict = pool.using(session="s", affinity="strict_queue")
    futures = [strict.submit(print) for _ in range(4)]
    worker = runtime.worker_of(futures[0])
    assert runtime.running == futures[:2]
    runtime.finish(futures[0])
    runtime.finish(futures[1])
    assert runtime.running == futures[2:]
    assert {runtime.worker_of(future) for future in futures[2:]} == {worker}
    close(pool)


def test_requests_that_wait_for_a_binding_use_all_the_room() -> None:
    pool, runtime = scripted(1, 3, auto_ready=False)
    strict = pool.using(session="s", affinity="strict_queue")
    futures = [strict.submit(print) for _ in range(4)]
    runtime.ready()
    assert set(runtime.running) == set(futures[:3])
    close(pool)


def test_a_worker_that_has_to_go_ends_after_the_last_request() -> None:
    pool, runtime = scripted(2, 2, min_workers=1)
    futures = [pool.submit(print) for _ in range(4)]
    leaving = runtime.workers[1]
    pool.resize(1)
    mine = [future for future in futures if runtime.worker_of(future) is leaving]
    runtime.finish(mine[0])
    assert leaving in runtime.workers
    runtime.finish(mine[1])
    assert leaving not in runtime.workers
    close(pool)


def test_a_dead_worker_loses_all_that_ran_on_it() -> None:
    pool, runtime = scripted(1, 3)
    futures = [pool.submit(print) for _ in range(4)]
    runtime.die(runtime.workers[0])
    assert pool.stats().lost == 3
    assert runtime.running == futures[3:]
    close(pool)


def test_a_draining_pool_ends_its_workers_after_their_last_request() -> None:
    pool, runtime = scripted(1, 2)
    for _ in range(3):
        pool.submit(print)
    pool.shutdown(wait=False)
    for left in (2, 1, 0):
        runtime.finish_next()
        assert len(runtime.running) == left
    assert runtime.workers == []
    pool.close()
    assert pool.stats().completed == 3


def test_capacity_is_a_whole_number() -> None:
    with pytest.raises(InvalidOption, match="capacity"):
        Pool(1, capacity=0)


def test_really_at_once() -> None:
    with Pool(2, capacity=4) as pool, Blocker() as blocker:
        futures = [pool.submit(blocker) for _ in range(9)]
        blocker.wait_entered(8)
        assert not blocker.was_entered(within=0.05)
        assert [worker.load for worker in pool.workers()] == [4, 4]
        blocker.release()
        for future in futures:
            future.result()


@pytest.mark.parametrize("max_queue", [None, 10])
@pytest.mark.parametrize("scheduler", ["rotation", "most_recently_used", "least_loaded"])
def test_never_more_than_the_capacity_under_load(scheduler: str, max_queue: int | None) -> None:
    options: Any = {} if max_queue is None else {"max_queue": max_queue, "when_full": "block"}
    now, most, lock = Counter[Worker | None](), Counter[Worker | None](), threading.Lock()

    def work() -> None:
        worker = current_worker()
        with lock:
            now[worker] += 1
            most[worker] = max(most[worker], now[worker])
        with lock:
            now[worker] -= 1

    with Pool(3, capacity=3, calls=CallPolicy(scheduler=scheduler), **options) as pool:
        for number in range(600):
            to: Any = pool.using(session=str(number % 20), affinity="strict_queue") if number % 3 else pool
            assert to.serve(work)
    assert pool.stats().completed == 600
    assert max(most.values()) <= 3


@pytest.mark.parametrize("grace", [None, 0.05])
def test_what_shares_a_worker_with_an_overrun_is_not_forgotten_when_the_pool_closes(grace: float | None) -> None:
    with Blocker() as stuck, Blocker() as beside:
        pool = Pool(1, capacity=2, restarts=RestartPolicy(max_abandoned=1))
        overrun = pool.using(run_timeout=0.2).submit(stuck)
        kept = pool.submit(beside, "done")
        stuck.wait_entered()
        beside.wait_entered()
        with pytest.raises(RunTimeout):
            overrun.result(PATIENCE)
        assert eventually(lambda: pool.stats().abandoned == 1)
        closing = Background(lambda: pool.close(grace))
        if grace is None:
            assert not eventually(lambda: pool.stats().state is PoolState.CLOSED, within=0.05)
            beside.release()
            assert kept.result(PATIENCE) == "done"
        else:
            with pytest.raises(WorkerAbandoned, match="closed and its grace"):
                kept.result(PATIENCE)
        assert closing.join().error is None
        assert pool.stats().state is PoolState.CLOSED

"""Workers under suspicion: they finish what they run, get nothing new, and are trusted again after a while."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from bullpen import (
    InvalidOption,
    Kind,
    Pool,
    PoolState,
    RecyclePolicy,
    RestartPolicy,
    SessionWorkerUnavailable,
    TelemetryEvent,
    WorkerStatus,
)
from bullpen.pools.dispatch.worker import Worker
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.moves import checked_moves
from tests.scenarios.support import PATIENCE, advance, end, eventually, tick
from tests.tools.explore import Run, explore


class Overheated(Exception):
    pass


def test_an_error_that_tells_of_the_worker_taints_it_for_a_while(by_hand: ManualClock) -> None:
    runtime, events = ScriptedRuntime(), list[TelemetryEvent]()
    pool = Pool(
        1,
        recycling=RecyclePolicy(taint_on=(Overheated,), taint_duration=10),
        runtime=runtime,
        clock=by_hand,
        observer=events.append,
    )
    failed, waiting = pool.submit(int), pool.submit(int)
    runtime.fail(failed, Overheated())
    assert isinstance(failed.exception(0), Overheated)
    assert runtime.running == []
    (info,) = pool.workers()
    assert info.status is WorkerStatus.TAINTED
    stats = pool.stats()
    assert (stats.tainted, stats.idle, stats.queued, stats.failed) == (1, 0, 1, 1)
    assert "1 tainted" in str(stats)
    advance(pool, 9.9)
    assert runtime.running == []
    advance(pool, 0.1)
    assert runtime.running == [waiting]
    assert pool.stats().tainted == 0
    kinds = [event.kind for event in events]
    assert (kinds.count(Kind.WORKER_TAINTED), kinds.count(Kind.WORKER_RECOVERED)) == (1, 1)
    end(pool, runtime)


def test_other_errors_say_nothing_about_the_worker(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, recycling=RecyclePolicy(taint_on=Overheated), runtime=runtime, clock=by_hand)
    runtime.fail(pool.submit(int), ValueError())
    runtime.finish(pool.submit(int), Overheated())
    assert pool.stats().tainted == 0
    end(pool, runtime)


def test_others_go_on_meanwhile_and_new_ones_start_where_there_is_room(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, recycling=RecyclePolicy(taint_on=Overheated), runtime=runtime, clock=by_hand)
    first = pool.submit(int)
    tainted = runtime.worker_of(first)
    runtime.fail(first, Overheated())
    futures = [pool.submit(int) for _ in range(3)]
    for future in futures:
        assert runtime.running == [future]
        assert runtime.worker_of(future) is not tainted
        runtime.finish(future)
    end(pool, runtime)


def test_a_tainted_worker_finishes_what_it_runs(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, capacity=2, runtime=runtime, clock=by_hand)
    running = [pool.submit(int) for _ in range(2)]
    waiting = pool.submit(int)
    assert pool.taint(0, 5)
    runtime.finish(running[0], 1)
    assert running[0].result(0) == 1
    assert runtime.running == [running[1]]
    advance(pool, 5)
    assert runtime.running == [running[1], waiting]
    end(pool, runtime)


def test_a_worker_can_be_tainted_by_id_and_by_name(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_exit=False)
    pool = Pool(2, min_workers=2, name="press", runtime=runtime, clock=by_hand)
    first, second = pool.workers()
    assert pool.taint(first.id)
    assert pool.taint("press_1", seconds=3)
    assert pool.stats().tainted == 2
    with pytest.raises(InvalidOption, match="worker"):
        pool.taint("nobody")
    with pytest.raises(InvalidOption, match="seconds"):
        pool.taint(0, seconds=-1)
    advance(pool, 3)
    assert [worker.status for worker in pool.workers()] == [WorkerStatus.TAINTED, WorkerStatus.READY]
    advance(pool, 57)
    assert pool.stats().tainted == 0
    pool.shutdown(wait=False)
    assert not pool.taint(second.id), "it ends"
    end(pool, runtime)


def test_to_taint_again_is_to_begin_anew(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, min_workers=1, runtime=runtime, clock=by_hand)
    assert pool.taint(0, 10)
    advance(pool, 8)
    assert pool.taint(0, 10)
    advance(pool, 2)
    assert pool.stats().tainted == 1
    advance(pool, 8)
    assert pool.stats().tainted == 0
    assert pool.taint(0, 10)
    assert pool.taint(0, 1)
    advance(pool, 1)
    assert pool.stats().tainted == 0
    end(pool, runtime)


def test_a_worker_that_starts_is_not_under_suspicion(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime(auto_ready=False)
    pool = Pool(1, min_workers=1, runtime=runtime, clock=by_hand)
    assert not pool.taint(0)
    runtime.ready()
    assert pool.taint(0)
    end(pool, runtime)


def test_requests_wait_if_all_are_tainted_and_keep_their_timeouts(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, min_workers=1, max_queue=1, runtime=runtime, clock=by_hand)
    pool.taint(0, 10)
    late = pool.using(queue_timeout=5).submit(int)
    assert not pool.serve(int)
    advance(pool, 5)
    assert isinstance(late.exception(0), TimeoutError)
    waiting = pool.submit(int)
    advance(pool, 5)
    assert runtime.running == [waiting]
    end(pool, runtime)


@pytest.mark.parametrize("queued", [0, 2])
def test_a_pool_that_drains_needs_everybody(queued: int, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, min_workers=1, runtime=runtime, clock=by_hand, recycling=RecyclePolicy(taint_on=Overheated))
    pool.taint(0, 1e6)
    waiting = [pool.submit(int) for _ in range(queued)]
    pool.shutdown(wait=False)
    for future in waiting:
        runtime.fail(future, Overheated())
    assert pool.stats().state is PoolState.CLOSED
    pool.close()


def test_strict_sessions_do_not_wait_for_a_tainted_worker_but_requests_in_its_line_do(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(1, runtime=runtime, clock=by_hand)
    session = pool.using(session="u42", affinity="strict_queue")
    running, lined_up = session.submit(int), session.submit(int)
    pool.taint(0, 10)
    with pytest.raises(SessionWorkerUnavailable):
        session.submit(int)
    runtime.finish(running)
    assert runtime.running == []
    advance(pool, 10)
    assert runtime.running == [lined_up]
    end(pool, runtime)


@pytest.mark.parametrize("how", ["resize", "recycle"])
@pytest.mark.parametrize("capacity", [1, 2])
def test_a_tainted_worker_that_has_to_go_runs_its_line_first(how: str, capacity: int, by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    recycling = RecyclePolicy(max_requests=1 if how == "recycle" else None)
    pool = Pool(2, capacity=capacity, runtime=runtime, clock=by_hand, recycling=recycling)
    kept = [pool.submit(int) for _ in range(capacity)]
    view = pool.using(session="s", affinity="strict_queue")
    first = [view.submit(int) for _ in range(capacity)]
    worker = runtime.worker_of(first[0])
    waiting = view.submit(int)
    assert pool.taint(worker.id, 100)
    for future in first:
        runtime.finish(future)
    assert not waiting.running()
    if how == "resize":
        pool.resize(1)
    else:
        tick(pool)
        tick(pool)
    assert waiting.running()
    assert runtime.worker_of(waiting) is worker
    runtime.finish(waiting)
    assert worker.status is WorkerStatus.EXITED
    assert all(future.running() for future in kept)
    end(pool, runtime)


def test_idle_tainted_workers_may_be_shrunk_away(by_hand: ManualClock) -> None:
    runtime = ScriptedRuntime()
    pool = Pool(2, recycling=RecyclePolicy(idle_timeout=8), runtime=runtime, clock=by_hand)
    futures = [pool.submit(int) for _ in range(2)]
    for future in futures:
        runtime.finish(future)
    pool.taint(1, 1e6)
    for _ in range(40):
        advance(pool, 1)
    assert runtime.workers == []
    end(pool, runtime)


STEPS: dict[str, Callable[[Pool, ScriptedRuntime, Worker], object]] = {
    "taint": lambda pool, runtime, worker: pool._engine.tainted_workers.taint(worker, 1, because="test"),
    "recover": lambda pool, runtime, worker: pool._engine.tainted_workers._recover(worker),
    "finish": lambda pool, runtime, worker: runtime.run_all() if worker in runtime.workers else None,
    "submit": lambda pool, runtime, worker: pool.submit(int) if not pool._engine.status.draining else None,
    "stop": lambda pool, runtime, worker: pool._engine.dispatcher.stop(worker, when_idle=False),
    "die": lambda pool, runtime, worker: runtime.die(worker) if worker in runtime.workers else None,
    "drain": lambda pool, runtime, worker: pool.shutdown(wait=False),
}


@pytest.mark.parametrize("first", STEPS)
def test_whatever_comes_in_whatever_order_every_move_is_in_the_table_and_nothing_is_lost(
    first: str, by_hand: ManualClock
) -> None:
    for steps in itertools.permutations(STEPS, 5):
        if steps[0] != first:
            continue
        runtime = ScriptedRuntime()
        with checked_moves():
            pool = Pool(1, runtime=runtime, clock=by_hand)
            futures = [pool.submit(int), pool.submit(int)]
            (worker,) = runtime.workers
            for step in steps:
                STEPS[step](pool, runtime, worker)
                stats = pool.stats()
                assert stats.submitted == stats.completed + stats.lost + stats.queued + stats.running, steps
            end(pool, runtime)
        assert all(future.done() for future in futures), steps
        assert pool.stats().state is PoolState.CLOSED, steps


def test_no_schedule_loses_a_request_between_taint_recovery_and_the_end() -> None:
    def scenario(run: Run) -> None:
        pool = Pool(
            1,
            min_workers=1,
            recycling=RecyclePolicy(idle_timeout=None),
            restarts=RestartPolicy(reconcile_interval=None),
        )
        tainted_workers = pool._engine.tainted_workers
        (worker,) = pool._engine.registry.snapshot()
        done = list[int]()

        def suspect() -> None:
            tainted_workers.taint(worker, 1e9, because="test")
            tainted_workers._recover(worker)

        def use() -> None:
            for number in range(2):
                done.append(pool.submit(abs, -number).result())
            pool.close()

        run.actor(suspect, name="suspect")
        run.actor(use, name="use")

        def check() -> None:
            assert done == [0, 1]

        run.check(check)

    explore(scenario, schedules=200).raise_for_failure()


def test_threads_are_tainted_too() -> None:
    def overheat() -> None:
        raise Overheated

    with Pool(1, recycling=RecyclePolicy(taint_on=Overheated, taint_duration=0.05)) as pool:
        assert isinstance(pool.submit(overheat).exception(PATIENCE), Overheated)
        assert pool.submit(pow, 2, 3).result(PATIENCE) == 8
        assert eventually(lambda: pool.stats().idle == 1)


def test_an_item_of_a_map_taints_its_worker_too() -> None:
    def overheat(number: int) -> None:
        raise Overheated(number)

    with Pool(1, recycling=RecyclePolicy(taint_on=Overheated)) as pool:
        with pytest.raises(Overheated):
            list(pool.map(overheat, range(3)))
        assert eventually(lambda: pool.stats().tainted == 1)


def test_a_request_that_runs_within_another_taints_its_worker_too() -> None:
    def overheat() -> None:
        raise Overheated

    def outer() -> bool:
        return isinstance(pool.submit(overheat).exception(), Overheated)

    with Pool(1, recycling=RecyclePolicy(taint_on=Overheated)) as pool:
        assert pool.submit(outer).result(PATIENCE)
        assert pool.stats().tainted == 1

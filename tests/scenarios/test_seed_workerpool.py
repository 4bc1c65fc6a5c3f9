"""The contract of a pool that never queues: `Pool(n, max_queue=0)` takes what a worker can run now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bullpen import CallPolicy, DeadlineExceeded, Pool, PoolClosed, PoolSaturated, PoolState, RecyclePolicy

from .support import PATIENCE, Background, Blocker, eventually


@pytest.fixture
def blocker() -> Iterator[Blocker]:
    with Blocker() as blocker:
        yield blocker


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_serve_is_true_while_a_worker_is_free_and_false_when_none_is(blocker: Blocker, workers: int) -> None:
    with Pool(workers, max_queue=0) as pool:
        assert [pool.serve(blocker) for _ in range(workers)] == [True] * workers
        assert [pool.serve(int) for _ in range(5)] == [False] * 5
        blocker.wait_entered(workers)
        stats = pool.stats()
        assert (stats.submitted, stats.workers, stats.busy, stats.queued) == (workers, workers, workers, 0)
        assert stats.saturated == 5
        blocker.release()
        assert eventually(lambda: pool.stats().busy == 0)
        assert pool.serve(int)


def test_the_number_of_workers_need_not_be_a_power_of_two(blocker: Blocker) -> None:
    with Pool(7, max_queue=0) as pool:
        assert sum(pool.serve(blocker) for _ in range(20)) == 7
        blocker.release()


def test_exactly_as_many_are_served_as_there_are_workers_from_any_thread(blocker: Blocker) -> None:
    with Pool(5, max_queue=0) as pool:
        together = threading.Barrier(20)

        def ask() -> int:
            together.wait(PATIENCE)
            return sum(pool.serve(blocker) for _ in range(10))

        askers = [Background(ask) for _ in range(20)]
        assert sum(int(str(asker.join().result)) for asker in askers) == 5
        assert pool.stats().saturated == 195
        blocker.release()


def test_do_returns_the_result_raises_the_error_or_says_saturated(blocker: Blocker) -> None:
    with Pool(1, max_queue=0) as pool:
        within = pool.using(timeout=PATIENCE)
        assert within.do(abs, -3) == 3
        with pytest.raises(ZeroDivisionError):
            within.do(lambda: 1 / 0)
        assert pool.serve(blocker)
        with pytest.raises(PoolSaturated):
            within.do(int)
        blocker.release()


def test_do_gives_up_at_its_deadline_and_the_slot_stays_taken_until_the_function_returns(blocker: Blocker) -> None:
    with Pool(1, max_queue=0) as pool:
        pool.do(int)
        with pytest.raises(DeadlineExceeded) as caught:
            pool.using(timeout=0.4).do(blocker)  # long enough for a worker that is ready to begin
        assert caught.value.ran
        assert not pool.serve(int)
        with pytest.raises(PoolSaturated):
            pool.do(int)
        assert (pool.stats().busy, pool.stats().workers) == (1, 1)
        blocker.release()
        assert eventually(lambda: pool.serve(int))
    assert (pool.stats().timed_out, pool.stats().spawned) == (1, 1)


def test_workers_are_started_lazily_one_per_request_that_finds_none_idle(blocker: Blocker) -> None:
    with Pool(4, max_queue=0) as pool:
        assert pool.stats().spawned == 0
        for _ in range(50):
            pool.do(int)
        assert pool.stats().spawned == 1
        for number in range(1, 5):
            assert pool.serve(blocker)
            blocker.wait_entered()
            assert pool.stats().spawned == number
        blocker.release()


def test_each_request_runs_on_one_of_at_most_that_many_threads() -> None:
    threads: set[int] = set()
    with Pool(4, max_queue=0, when_full="block") as pool:
        for _ in range(500):
            pool.submit(lambda: threads.add(threading.get_ident()))
    assert 1 <= len(threads) <= 4


def test_idle_workers_are_cleaned_up_and_their_slots_used_again(blocker: Blocker) -> None:
    with Pool(4, max_queue=0, recycling=RecyclePolicy(idle_timeout=0.08)) as pool:
        for _ in range(2):
            with Blocker() as round_:
                assert all(pool.serve(round_) for _ in range(4))
                round_.wait_entered(4)
                assert not pool.serve(int)
            assert eventually(lambda: pool.stats().workers == 0, within=10)
        stats = pool.stats()
        assert (stats.spawned, stats.retired) == (8, 8)


def test_stop_lets_busy_workers_finish_and_waits_for_them(blocker: Blocker) -> None:
    pool = Pool(2, max_queue=0)
    ended: list[int] = []

    def work() -> None:
        blocker()
        ended.append(1)

    assert pool.serve(work)
    assert pool.serve(work)
    blocker.wait_entered(2)
    with Background(pool.close) as closing:
        assert eventually(lambda: pool.stats().state is PoolState.DRAINING)
        with pytest.raises(PoolClosed):
            pool.serve(int)
        assert closing.running
        blocker.release()
    assert ended == [1, 1]
    assert (pool.stats().workers, pool.stats().state) == (0, PoolState.CLOSED)


def test_a_worker_function_wraps_every_call() -> None:
    calls: list[str] = []

    def wrap(call: Any) -> Any:
        calls.append("before")
        try:
            return call()
        except ZeroDivisionError:
            return "rescued"
        finally:
            calls.append("after")

    with Pool(1, max_queue=0, calls=CallPolicy(wrap=wrap)) as pool:
        assert pool.do(abs, -1) == 1
        assert str(pool.do(lambda: 1 / 0)) == "rescued"
        assert eventually(lambda: pool.stats().idle)
        assert pool.serve(int)
    assert calls == ["before", "after"] * 3
    assert pool.stats().failed == 0


def test_the_numbers_have_their_names() -> None:
    with Pool(2, max_queue=0, name="press") as pool:
        pool.do(int)
        stats = pool.stats()
    assert stats.name == "press"
    assert (stats.submitted, stats.workers, stats.saturated) == (1, 1, 0)
    assert (stats.completed, stats.failed, stats.cancelled, stats.timed_out, stats.abandoned) == (1, 0, 0, 0, 0)
    assert (stats.spawned, stats.retired, stats.max_workers) == (1, 0, 2)
    assert "press" in str(stats)
    assert "completed 1" in str(stats)


def test_a_storm_of_serves_runs_each_accepted_one_once() -> None:
    ran: list[int] = []
    with Pool(3, max_queue=0) as pool:

        def ask() -> int:
            return sum(pool.serve(ran.append, 1) for _ in range(2000))

        askers = [Background(ask) for _ in range(8)]
        accepted = sum(int(str(asker.join().result)) for asker in askers)
    assert len(ran) == accepted == pool.stats().submitted == pool.stats().completed
    assert pool.stats().saturated == 16000 - accepted

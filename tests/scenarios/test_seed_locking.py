"""The promises of the locking model: rotation, reservation, stale entries, derived counts, no revival."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bullpen import CallPolicy, Pool, RecyclePolicy, WorkerStatus
from bullpen.pools.dispatch.worker import Worker

from .support import PATIENCE, Blocker, eventually


@pytest.fixture
def blocker() -> Iterator[Blocker]:
    with Blocker() as blocker:
        yield blocker


def warm(pool: Pool, workers: int) -> None:
    """Have `workers` workers, all idle."""
    with Blocker() as blocker:
        futures = [pool.submit(blocker) for _ in range(workers)]
        blocker.wait_entered(workers)
    for future in futures:
        future.result(PATIENCE)
    assert eventually(lambda: pool.stats().idle == workers)


def who() -> str:
    return threading.current_thread().name


def engine_workers(pool: Pool) -> list[Worker]:
    return pool._engine.registry.snapshot()


@pytest.mark.parametrize("max_queue", [None, 5])
def test_rotation_uses_the_worker_that_was_idle_longest(max_queue: int | None) -> None:
    with Pool(4, max_queue=max_queue) as pool:
        warm(pool, 4)
        turns = [pool.do(who) for _ in range(40)]
    assert set(turns[:4]) == {f"{pool.stats().name}_{slot}" for slot in range(4)}
    assert turns == turns[:4] * 10


def test_most_recently_used_keeps_to_one_worker() -> None:
    with Pool(4, calls=CallPolicy(scheduler="most_recently_used")) as pool:
        warm(pool, 4)
        assert len({pool.do(who) for _ in range(40)}) == 1


def test_a_reserved_worker_is_returned_busy_with_the_request_on_it(blocker: Blocker) -> None:
    with Pool(2) as pool:
        warm(pool, 2)
        dispatcher = pool._engine.dispatcher
        first_in_line = dispatcher.ready.ids[0]  # type: ignore[attr-defined]
        pool.pause()
        future = pool.submit(blocker)
        dispatcher.status.change(paused=False)
        worker = dispatcher.reserve_ready_worker()
        assert worker is not None
        assert worker.id == first_in_line
        assert worker.status is WorkerStatus.BUSY
        assert list(worker.requests) == [future]
        blocker.wait_entered()
        blocker.release()


def test_nothing_is_reserved_when_nothing_waits() -> None:
    with Pool(2) as pool:
        warm(pool, 2)
        assert pool._engine.dispatcher.reserve_ready_worker() is None
        assert pool.stats().idle == 2
        assert pool.do(who)


def test_stale_entries_are_skipped() -> None:
    with Pool(3) as pool:
        warm(pool, 3)
        dispatcher = pool._engine.dispatcher
        order = list(dispatcher.ready.ids)  # type: ignore[attr-defined]
        first = next(worker for worker in engine_workers(pool) if worker.id == order[0])
        assert dispatcher.stop(first, when_idle=True)
        assert order[0] in dispatcher.ready.ids, "a stopping worker may linger in the queue"  # type: ignore[attr-defined]
        dispatcher.ready.push(99999, 0)  # one that never was
        names = {worker.name for worker in engine_workers(pool) if worker.id in order[1:]}
        turns = [pool.do(who) for _ in range(10)]
    assert set(turns[:2]) <= names
    assert first.name not in turns[:2]


def test_a_worker_has_one_entry_at_most() -> None:
    with Pool(3) as pool:
        warm(pool, 3)
        for _ in range(200):
            pool.submit(int)
        pool.do(int)
        assert eventually(lambda: pool.stats().idle == 3)
        ids = list(pool._engine.dispatcher.ready.ids)  # type: ignore[attr-defined]
        assert len(ids) == len(set(ids)) == 3


def test_how_many_are_busy_is_derived_and_always_agrees(blocker: Blocker) -> None:
    with Pool(5) as pool:
        registry = pool._engine.registry
        assert registry.busy_count() == 0
        for number in range(1, 6):
            pool.submit(blocker)
            blocker.wait_entered()
            assert registry.busy_count() == pool.stats().busy == number
            assert sum(info.load for info in pool.workers()) == number
        assert not registry.all_idle()
        blocker.release()
        assert eventually(registry.all_idle)
        assert registry.busy_count() == pool.stats().busy == 0
        assert registry.all_ready()


def test_only_an_idle_worker_is_stopped_to_shrink(blocker: Blocker) -> None:
    with Pool(2) as pool:
        pool.submit(blocker)
        blocker.wait_entered()
        worker = engine_workers(pool)[0]
        assert not pool._engine.dispatcher.stop(worker, when_idle=True)
        assert worker.status is WorkerStatus.BUSY
        blocker.release()


def test_a_late_ready_never_revives_a_worker_that_stops() -> None:
    with Blocker() as starting, Pool(1, initializer=starting) as pool:
        pool.pause()
        assert pool._engine.dispatcher.free
        pool.resume()
        future = pool.submit(int)
        starting.wait_entered()
        worker = engine_workers(pool)[0]
        assert pool._engine.dispatcher.stop(worker, when_idle=False)
        assert worker.status is WorkerStatus.STOPPING
        starting.release()
        assert future.result(PATIENCE) == 0, "another worker runs it"
        assert eventually(lambda: worker not in engine_workers(pool))
        assert str(worker.status) == "exited"
        assert worker.completed == 0


def test_an_exited_worker_gets_no_more_work_and_its_slot_is_used_again() -> None:
    with Pool(1, recycling=RecyclePolicy(idle_timeout=0.05)) as pool:
        pool.do(int)
        worker = engine_workers(pool)[0]
        assert eventually(lambda: pool.stats().workers == 0, within=10)
        assert worker.status is WorkerStatus.EXITED
        assert pool.do(who) == worker.name
        assert engine_workers(pool)[0] is not worker


def test_counts_of_workers_that_are_gone_are_kept() -> None:
    with Pool(3, recycling=RecyclePolicy(idle_timeout=0.05)) as pool:
        for _ in range(3):
            warm(pool, 3)
            assert eventually(lambda: pool.stats().workers == 0, within=10)
    assert (pool.stats().completed, pool.stats().spawned, pool.stats().retired) == (9, 9, 9)

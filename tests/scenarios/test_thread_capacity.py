"""Workers with capacity on threads: several requests at once on one worker, each answered once."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from typing import Any

import pytest

from bullpen import NestedWait, Pool, PoolFuture, WorkerBroken, WorkerLost, WorkerStartFailed, primitives
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import current_request, current_worker
from bullpen.pools.runtimes.thread import ThreadRuntime
from bullpen.testing import ScriptedRuntime
from bullpen.testing.contracts import ReportLog, new_request, new_worker

from .support import PATIENCE, Blocker, eventually


def test_one_worker_runs_as_many_requests_at_once_as_its_capacity_says() -> None:
    together = threading.Barrier(4)
    with Pool(1, capacity=4) as pool:
        futures = [pool.submit(together.wait, PATIENCE) for _ in range(4)]
        assert sorted(future.result(PATIENCE) for future in futures) == [0, 1, 2, 3]
        assert pool.stats().spawned == 1
        assert [worker.capacity for worker in pool.workers()] == [4]


def test_no_more_run_at_once_than_the_capacity_of_all_workers() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1

    with Pool(2, capacity=3) as pool:
        for future in [pool.submit(count) for _ in range(200)]:
            future.result(PATIENCE)
        assert pool.stats().spawned <= 2
    assert most <= 6
    assert pool.stats().completed == 200


def test_threads_start_as_they_are_needed_and_all_of_them_end() -> None:
    before = threading.active_count()
    with Blocker() as blocker, Pool(1, capacity=50) as pool:
        assert pool.do(int) == 0
        held = [pool.submit(blocker) for _ in range(3)]
        blocker.wait_entered(3)
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith(f"{pool.stats().name}_0")]
        assert len(names) <= 4, "no more threads than were needed at once"
        blocker.release()
        for future in held:
            future.result(PATIENCE)
    assert threading.active_count() == before


def test_every_thread_knows_its_worker_and_its_own_request() -> None:
    together = threading.Barrier(3)
    futures: list[PoolFuture[Any]] = []
    known = threading.Event()

    def look(number: int) -> tuple[object, object]:
        known.wait(PATIENCE)
        together.wait(PATIENCE)
        return current_worker(), current_request() is futures[number]

    with Pool(1, capacity=3) as pool:
        futures.extend(pool.submit(look, number) for number in range(3))
        known.set()
        seen = [future.result(PATIENCE) for future in futures]
    assert len({worker for worker, _ in seen}) == 1
    assert [own for _, own in seen] == [True] * 3


def test_a_thread_that_cannot_start_fails_one_request_and_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    log, worker = ReportLog(), new_worker(capacity=3)
    runtime = ThreadRuntime()
    runtime.start(worker, log)
    log.wait_for("ready")
    start_thread = primitives.start_thread
    with Blocker() as blocker:
        worker.handle.hand(new_request(worker, blocker))
        blocker.wait_entered()
        log.following = [following := new_request(worker, abs, -5)]

        def reject(*_: object) -> threading.Thread:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(primitives, "start_thread", reject)
        worker.handle.hand(unlucky := new_request(worker, abs, -1))
        assert [request for request, _, _ in log.ends] == [unlucky]
        assert isinstance(log.ends[0][2], WorkerStartFailed)
        assert "can't start new thread" in str(log.ends[0][2])
        monkeypatch.setattr(primitives, "start_thread", start_thread)
        blocker.release()
        log.wait_for("finished", 3)
        assert (following, 5) in [(request, value) for request, _, value in log.ends], "it waited for a thread"
        worker.handle.hand(None)
        assert runtime.join(worker, PATIENCE)
    assert log.kinds == ["ready", "finished", "finished", "finished", "exited"]


def test_a_pool_whose_threads_cannot_start_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with Blocker() as blocker, Pool(1, capacity=4) as pool:
        assert pool.do(int) == 0
        first = pool.submit(blocker)
        blocker.wait_entered()
        start_thread = primitives.start_thread

        def reject(target: Any, name: str) -> threading.Thread:
            if "." in name:
                raise RuntimeError("can't start new thread")
            return start_thread(target, name)

        monkeypatch.setattr(primitives, "start_thread", reject)
        futures = [pool.submit(abs, -number) for number in range(20)]
        blocker.release()
        first.result(PATIENCE)
        outcomes = [future.exception(PATIENCE) for future in futures]
        assert all(error is None or isinstance(error, WorkerStartFailed) for error in outcomes)
        assert pool.submit(abs, -7).result(PATIENCE) == 7


def test_scripted_workers_declare_their_capacity() -> None:
    runtime = ScriptedRuntime(capacities=[3])
    with Pool(1, runtime=runtime) as pool:
        futures = [pool.submit(int) for _ in range(5)]
        assert eventually(lambda: len(runtime.running) == 3, within=1)
        runtime.run_all()
        assert [future.result(0) for future in futures] == [0] * 5


# Waiting for each other.


@pytest.mark.parametrize("options", [{}, {"max_queue": 100}, {"max_queue": 0, "when_full": "block"}], ids=str)
@pytest.mark.parametrize(("workers", "capacity"), [(1, 2), (2, 2), (1, 3)])
def test_requests_nest_deeper_than_there_are_threads(workers: int, capacity: int, options: dict[str, Any]) -> None:
    with Pool(workers, capacity=capacity, **options) as pool:

        def count(depth: int) -> int:
            children = [pool.submit(count, depth - 1) for _ in range(3)] if depth else []
            return 1 + sum(child.result() for child in children)

        assert pool.submit(count, 4).result(PATIENCE) == 121
    assert pool.stats().completed == 121


def test_a_thread_may_wait_for_another_one_of_its_worker() -> None:
    with Blocker() as blocker, Pool(1, capacity=2) as pool:
        slow = pool.submit(blocker, 5)
        blocker.wait_entered()
        waits = pool.submit(slow.result)
        assert eventually(waits.running)
        blocker.release()
        assert waits.result(PATIENCE) == 5, "the same worker, but no ring"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_threads_of_one_worker_that_wait_in_a_ring_get_an_error(length: int) -> None:
    with Pool(1, capacity=length + 1) as pool:
        ring: list[PoolFuture[Any]] = []
        known = threading.Event()
        all_run = threading.Barrier(length)

        def wait_for_the_next(number: int) -> None:
            known.wait(PATIENCE)
            all_run.wait(PATIENCE)
            ring[(number + 1) % length].result()

        ring.extend(pool.submit(wait_for_the_next, number) for number in range(length))
        known.set()
        assert all(isinstance(future.exception(PATIENCE), NestedWait) for future in ring)
        assert pool.submit(int).result(PATIENCE) == 0


def test_a_ring_through_an_inline_call_on_a_thread_is_an_error() -> None:
    with Blocker() as blocker, Pool(1, capacity=2) as pool:
        outer_future: list[PoolFuture[Any]] = []
        known = threading.Event()

        def outer() -> None:
            known.wait(PATIENCE)
            pool.submit(outer_future[0].result).result()

        pool.submit(blocker)
        blocker.wait_entered()
        outer_future.append(pool.submit(outer))
        known.set()
        assert isinstance(outer_future[0].exception(PATIENCE), NestedWait)
        blocker.release()


def test_threads_of_two_pools_that_wait_for_each_other_never_hang_silently() -> None:
    with Pool(1, capacity=2) as first, Pool(1, capacity=2) as second:

        def there(depth: int) -> int:
            return 0 if depth == 0 else 1 + second.submit(back, depth - 1).result()

        def back(depth: int) -> int:
            return 0 if depth == 0 else 1 + first.submit(there, depth - 1).result()

        futures = [first.submit(there, 6) for _ in range(2)] + [second.submit(back, 6) for _ in range(2)]
        outcomes = [future.exception(PATIENCE) for future in futures]
        assert all(error is None or isinstance(error, NestedWait) for error in outcomes)


def test_each_thread_that_waits_in_foreign_code_has_a_helper_of_its_own() -> None:
    inner_together = threading.Barrier(2)
    outer_together = threading.Barrier(2)

    with Pool(1, capacity=2) as pool:

        def outer() -> bool:
            outer_together.wait(PATIENCE)
            future = pool.submit(inner_together.wait, PATIENCE)
            return bool(wait([future]).done)

        futures = [pool.submit(outer) for _ in range(2)]
        assert [future.result(PATIENCE) for future in futures] == [True, True]


@pytest.mark.parametrize("options", [{}, {"observer": lambda event: None}], ids=["runners", "requests"])
def test_map_fills_the_capacity_of_all_workers(options: dict[str, Any]) -> None:
    together = threading.Barrier(6)  # opens only if six items run at once

    def meet(number: int) -> int:
        together.wait(PATIENCE)
        return number

    with Pool(2, capacity=3, **options) as pool:
        assert list(pool.map(meet, range(12))) == list(range(12))


def test_a_dying_broken_worker_starts_no_thread_for_a_late_request() -> None:
    """What was on its way to it is lost with it, so it must not run."""

    def break_down() -> Worker | None:
        workers.append(current_worker())
        raise WorkerBroken

    workers: list[Worker | None] = []
    with Pool(1, capacity=2) as pool:
        assert isinstance(pool.submit(break_down).exception(PATIENCE), WorkerLost)
        (worker,) = workers
        assert worker is not None
        assert eventually(lambda: not worker.handle._open)
        threads = list(worker.handle._more)
        worker.handle.hand(PoolFuture(pool._engine, int, (), {}))
        assert worker.handle._more == threads
        assert not worker.handle._inbox

"""Requests that wait for requests of their own pool: it never stands still, or it says why it would."""

from __future__ import annotations

import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    DeadlineExceeded,
    Kind,
    NestedWait,
    Pool,
    RestartPolicy,
    RunTimeout,
    TelemetryEvent,
    WorkerAbandoned,
)

from .support import PATIENCE, Background, Blocker, eventually, printed

POOLS: list[dict[str, Any]] = [{}, {"max_queue": 100}, {"max_queue": 0, "when_full": "block"}]


@pytest.fixture(params=POOLS, ids=["unbounded", "bounded", "blocking"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    chosen: dict[str, Any] = request.param
    return chosen


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_requests_nest_deeper_than_there_are_workers(options: dict[str, Any], workers: int) -> None:
    with Pool(workers, **options) as pool:

        def descend(depth: int) -> int:
            return 0 if depth == 0 else 1 + pool.submit(descend, depth - 1).result()

        assert pool.submit(descend, 50).result(PATIENCE) == 50
    assert pool.stats().completed == 51
    assert pool.stats().spawned <= workers


@pytest.mark.parametrize("workers", [1, 2])
def test_do_nests(options: dict[str, Any], workers: int) -> None:
    with Pool(workers, **options) as pool:

        def descend(depth: int) -> int:
            return 0 if depth == 0 else 1 + pool.do(descend, depth - 1)

        assert pool.do(descend, 30) == 30


@pytest.mark.parametrize("workers", [1, 3])
def test_a_tree_of_requests_is_walked(options: dict[str, Any], workers: int) -> None:
    with Pool(workers, **options) as pool:

        def count(depth: int) -> int:
            children = [pool.submit(count, depth - 1) for _ in range(3)] if depth else []
            return 1 + sum(child.result() for child in children)

        assert pool.submit(count, 4).result(PATIENCE) == 121
    assert pool.stats().completed == 121


@pytest.mark.parametrize("workers", [1, 2])
def test_maps_nest(options: dict[str, Any], workers: int) -> None:
    with Pool(workers, **options) as pool:

        def total(depth: int) -> int:
            return 1 if depth == 0 else sum(pool.map(total, [depth - 1] * 3))

        assert pool.submit(total, 4).result(PATIENCE) == 81
        assert sum(pool.map(total, [2, 2, 2])) == 27


@pytest.mark.parametrize("options", [{"max_queue": 0}, {"max_queue": 1}, *POOLS], ids=str)
def test_a_map_without_a_reader_is_run_although_it_was_made_in_a_request(options: dict[str, Any]) -> None:
    ran: list[int] = []
    with Pool(1, **options) as pool:

        def scatter() -> None:
            pool.map(ran.append, range(3))

        pool.submit(scatter).result(PATIENCE)
    assert sorted(ran) == [0, 1, 2]
    assert pool.stats().queued == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_wait_nests(workers: int) -> None:
    with Pool(workers) as pool:

        def outer() -> int:
            futures = [pool.submit(abs, -number) for number in range(10)]
            assert not wait(futures).not_done
            return sum(future.result() for future in futures)

        outers = [pool.submit(outer) for _ in range(workers)]
        assert [future.result(PATIENCE) for future in outers] == [45] * workers
        assert pool.submit(int).result(PATIENCE) == 0
        assert eventually(lambda: pool.stats().workers <= workers), "helpers end when they are not needed any more"


def test_a_helper_that_is_about_to_end_keeps_no_worker_from_waiting() -> None:
    with Blocker() as blocker:

        def hold_helpers(event: TelemetryEvent) -> None:
            if event.kind is Kind.WORKER_STOPPING and event.worker is not None and "helper" in event.worker:
                blocker()

        with Pool(1, observer=hold_helpers) as pool:

            def outer() -> int:
                return len(wait([pool.submit(int)]).done)

            assert pool.submit(outer).result(PATIENCE) == 1
            blocker.wait_entered()
            assert pool.submit(outer).result(PATIENCE) == 1
            blocker.release()


def test_wait_for_the_first_nests() -> None:
    with Pool(1) as pool:

        def outer() -> bool:
            futures = [pool.submit(int) for _ in range(3)]
            return bool(wait(futures, return_when=FIRST_COMPLETED).done)

        assert pool.submit(outer).result(PATIENCE)


@pytest.mark.parametrize("workers", [1, 2])
def test_as_completed_nests(workers: int) -> None:
    with Pool(workers) as pool:

        def outer() -> list[int]:
            futures: list[Future[int]] = [pool.submit(abs, -number) for number in range(10)]
            return sorted(future.result() for future in as_completed(futures))

        assert pool.submit(outer).result(PATIENCE) == list(range(10))


def test_wait_with_a_timeout_nests() -> None:
    with Blocker() as blocker, Pool(1) as pool:

        def outer() -> int:
            return len(wait([pool.submit(blocker)], timeout=0.05).not_done)

        assert pool.submit(outer).result(PATIENCE) == 1
        blocker.release()


def test_a_wait_that_is_rejected_leaves_the_other_futures_alone() -> None:
    out = printed(
        """
        import concurrent.futures
        from bullpen import NestedWait, Pool

        def inner():
            waiting = [pool.submit(int) for _ in range(20)]
            try:
                concurrent.futures.wait([first[0], *waiting], timeout=1)
            except NestedWait:
                pass

        def outer():
            concurrent.futures.wait([pool.submit(inner)])

        first = []
        with Pool(1) as pool:
            pool.pause()
            first.append(pool.submit(outer))
            pool.resume()
            print(first[0].result())
        """,
        within=5,
    )
    assert out == "None\n"


def test_a_helper_that_is_told_to_stop_while_it_starts_ends() -> None:
    out = printed(
        """
        import concurrent.futures, threading
        from bullpen import Pool

        starts, helper_starts, helper_may_go_on = [], threading.Event(), threading.Event()

        def prepare():
            starts.append(1)
            if len(starts) == 2:
                helper_starts.set()
                helper_may_go_on.wait(20)

        def outer():
            return len(concurrent.futures.wait([pool.submit(int)]).done)

        pool = Pool(1, initializer=prepare)
        future = pool.submit(outer)
        helper_starts.wait(20)
        pool.shutdown(wait=False, cancel_futures=True)
        print(future.result())
        helper_may_go_on.set()
        pool.close()
        print("closed")
        """,
        within=5,
    )
    assert out == "1\nclosed\n"


def test_a_pool_closes_while_its_workers_wait_in_foreign_code() -> None:
    out = printed(
        """
        import concurrent.futures
        from bullpen import Pool

        def outer(pool):
            futures = [pool.submit(int) for _ in range(3)]
            return bool(concurrent.futures.wait(futures, return_when="FIRST_COMPLETED").done)

        for _ in range(300):
            with Pool(1) as pool:
                assert pool.submit(outer, pool).result()
        print("closed")
        """,
        within=10,
    )
    assert out == "closed\n"


def test_a_request_that_waits_for_itself_is_told() -> None:
    with Pool(1) as pool:
        mine: list[Future[Any]] = []
        known = threading.Event()

        def wait_for_myself() -> None:
            known.wait(PATIENCE)
            mine[0].result()

        mine.append(pool.submit(wait_for_myself))
        known.set()
        with pytest.raises(NestedWait) as caught:
            mine[0].result(PATIENCE)
        assert isinstance(caught.value, RuntimeError)
        assert caught.value.pool == pool.stats().name
        assert pool.submit(int).result(PATIENCE) == 0


@pytest.mark.parametrize("length", [2, 3, 5])
def test_requests_that_wait_for_each_other_in_a_ring_are_told(length: int) -> None:
    with Pool(length) as pool:
        ring: list[Future[Any]] = []
        known = threading.Event()
        all_run = threading.Barrier(length)

        def wait_for_the_next(number: int) -> None:
            known.wait(PATIENCE)
            all_run.wait(PATIENCE)
            ring[(number + 1) % length].result()

        ring.extend(pool.submit(wait_for_the_next, number) for number in range(length))
        known.set()
        errors = [future.exception(PATIENCE) for future in ring]
        assert all(isinstance(error, NestedWait) for error in errors), "the error travels around the ring"
        assert pool.submit(int).result(PATIENCE) == 0


def test_a_ring_by_way_of_a_request_that_runs_inline_is_told() -> None:
    with Pool(1) as pool:
        outer_future: list[Future[Any]] = []
        known = threading.Event()

        def inner() -> None:
            outer_future[0].result()

        def outer() -> None:
            known.wait(PATIENCE)
            pool.submit(inner).result()

        outer_future.append(pool.submit(outer))
        known.set()
        assert isinstance(outer_future[0].exception(PATIENCE), NestedWait)


def test_no_wait_that_can_end_is_rejected() -> None:
    """A diamond is no ring."""
    with Pool(3) as pool:
        base_may_end = threading.Event()
        base = pool.submit(base_may_end.wait, PATIENCE)
        left, right = pool.submit(base.result), pool.submit(base.result)
        top = pool.submit(lambda: (left.result(), right.result()))
        base_may_end.set()
        assert top.result(PATIENCE) == (True, True)


def test_a_wait_with_a_timeout_is_no_ring() -> None:
    with Pool(1) as pool:
        mine: list[Future[Any]] = []
        known = threading.Event()

        def look_at_myself() -> str:
            known.wait(PATIENCE)
            try:
                mine[0].result(timeout=0.01)
            except TimeoutError:
                return "not yet"
            return "how?"

        mine.append(pool.submit(look_at_myself))
        known.set()
        assert mine[0].result(PATIENCE) == "not yet"


@pytest.mark.parametrize("call", ["do", "result"])
def test_a_timeout_holds_inside_a_worker_too(call: str) -> None:
    with Blocker() as blocker, Pool(1) as pool:

        def outer() -> None:
            if call == "do":
                pool.using(timeout=0.1).do(blocker)
            else:
                pool.submit(blocker).result(timeout=0.1)

        with Background(pool.submit(outer).result) as reader:
            held = eventually(lambda: not reader.running, within=3)
            blocker.release()
        assert held
        assert isinstance(reader.error, TimeoutError)


def test_a_budget_that_is_spent_in_the_backlog_is_told_inside_a_worker() -> None:
    ran: list[int] = []
    with Pool(1) as pool:

        def outer() -> object:
            future = pool.using(timeout=0.02).submit(ran.append, 1)
            time.sleep(0.1)
            return future.exception()

        assert isinstance(pool.submit(outer).result(PATIENCE), DeadlineExceeded)
    assert ran == []


def test_a_full_pool_that_rejects_runs_a_nested_map_on_its_reader() -> None:
    with Pool(1, max_queue=0) as pool:
        assert pool.submit(lambda: list(pool.map(abs, range(-50, 0)))).result(PATIENCE) == list(range(50, 0, -1))


def test_a_nested_map_whose_items_may_not_wait_ends() -> None:
    out = printed(
        """
        from bullpen import Pool

        def outer():
            try:
                return list(pool.using(queue_timeout=0).map(abs, range(3)))
            except Exception as error:
                return type(error).__name__

        with Pool(1, max_queue=0) as pool:
            print(pool.submit(outer).result())
        """,
        within=5,
    )
    assert out in ("QueueTimeout\n", "PoolSaturated\n", "[0, 1, 2]\n")


def test_callbacks_may_submit_to_a_full_pool_that_blocks() -> None:
    ended = threading.Semaphore(0)
    with Pool(1, max_queue=1, when_full="block") as pool:

        def again(_: object) -> None:
            for _ in range(5):
                pool.submit(ended.release)

        for _ in range(10):
            pool.submit(int).add_done_callback(again)
        for _ in range(50):
            assert ended.acquire(timeout=PATIENCE)


def test_callbacks_may_wait_for_results() -> None:
    results: list[int] = []
    ended = threading.Event()
    with Blocker() as blocker, Pool(1) as pool:

        def wait_for_another(_: object) -> None:
            results.append(pool.submit(abs, -3).result())
            ended.set()

        pool.submit(blocker).add_done_callback(wait_for_another)
        blocker.release()
        assert ended.wait(PATIENCE)
    assert results == [3]


def test_a_callback_that_raises_the_exit_harms_neither_worker_nor_pool() -> None:
    out = printed(
        """
        import logging, threading
        from bullpen import Pool

        logging.disable(logging.CRITICAL)
        threading.excepthook = lambda _: None

        def leave(future):
            raise SystemExit

        go = threading.Event()
        with Pool(1) as pool:
            future = pool.submit(go.wait)
            future.add_done_callback(leave)
            go.set()
            print(future.result(), pool.submit(abs, -1).result())
        print(pool.stats().completed)
        """,
        within=5,
    )
    assert out == "True 1\n2\n"


def test_a_worker_of_one_pool_may_wait_for_another() -> None:
    with Pool(1) as first, Pool(1) as second:

        def ping(depth: int) -> int:
            return 0 if depth == 0 else 1 + second.submit(abs, -depth).result()

        assert [first.submit(ping, depth).result(PATIENCE) for depth in (0, 1, 5)] == [0, 2, 6]


def test_two_pools_whose_workers_wait_for_each_other_never_hang_silently() -> None:
    out = printed(
        """
        from bullpen import NestedWait, Pool

        first, second = Pool(1), Pool(1)

        def there():
            return second.submit(back).result()

        def back():
            return first.submit(int).result()

        try:
            print(first.submit(there).result())
        except NestedWait:
            print("told")
        """,
        within=5,
    )
    assert out in ("0\n", "told\n")


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("count", [2, 3])
def test_pools_that_wait_for_each_other_again_and_again_never_stand_still(count: int, capacity: int) -> None:
    """Whoever begins to wait last may not be the one whose request waits in a pool that stands still."""
    for _ in range(15):
        pools = [Pool(1, capacity=capacity) for _ in range(count)]

        def descend(depth: int, pools: list[Pool] = pools) -> int:
            return 0 if depth == 0 else 1 + pools[depth % count].submit(descend, depth - 1).result()

        futures = [pool.submit(descend, 7) for pool in pools for _ in range(3)]
        assert [future.result(PATIENCE) for future in futures] == [7] * 3 * count
        for pool in pools:
            pool.close()


def test_two_pools_that_wait_in_a_ring_of_running_requests_are_told() -> None:
    with Pool(1) as first, Pool(1) as second:
        futures: list[Future[Any]] = []
        known = threading.Event()
        both_run = threading.Barrier(2)

        def wait_for(number: int) -> None:
            known.wait(PATIENCE)
            both_run.wait(PATIENCE)
            futures[number].result()

        futures.extend([first.submit(wait_for, 1), second.submit(wait_for, 0)])
        known.set()
        assert all(isinstance(future.exception(PATIENCE), NestedWait) for future in futures)


def test_a_request_may_close_its_pool_and_a_closed_pool_finishes_nested_work() -> None:
    with Pool(1) as pool:

        def outer() -> int:
            inner = pool.submit(abs, -4)
            pool.close()
            return inner.result()

        assert pool.submit(outer).result(PATIENCE) == 4


def test_cancelling_while_a_worker_waits_for_it() -> None:
    """Either it was cancelled first or it ran inline first; never both, never neither."""
    with Pool(2) as pool:
        for _ in range(200):
            ran: list[int] = []
            inner: list[Future[Any]] = []

            def outer(ran: list[int] = ran, inner: list[Future[Any]] = inner) -> None:
                inner.append(pool.submit(ran.append, 1))
                inner[0].exception() if not inner[0].cancelled() else None

            future = pool.submit(outer)
            eventually(lambda inner=inner: inner)  # type: ignore[misc]
            cancelled = inner[0].cancel()
            future.exception(PATIENCE)
            assert cancelled == (not ran)


def test_the_grace_holds_for_callers_that_wait_for_inline_calls() -> None:
    with Blocker() as blocker:
        pool = Pool(1, name="press")
        inner: list[Future[Any]] = []

        def outer() -> Any:
            inner.append(pool.submit(blocker))
            return inner[0].result()

        future = pool.submit(outer)
        blocker.wait_entered()
        stats = pool.stats()
        assert (stats.submitted, stats.running, stats.queued, stats.busy) == (2, 2, 0, 1)
        assert len(pool.workers()[0].running) == 2
        pool.close(grace=0.05)
        assert isinstance(future.exception(PATIENCE), WorkerAbandoned)
        assert isinstance(inner[0].exception(PATIENCE), WorkerAbandoned)
        stats = pool.stats()
        assert (stats.submitted, stats.timed_out, stats.running) == (2, 2, 0)


def test_what_ends_on_an_abandoned_worker_is_counted() -> None:
    with Blocker() as blocker:
        pool = Pool(1, calls=CallPolicy(run_timeout=0.05), restarts=RestartPolicy(max_abandoned=1))
        inner: list[Future[Any]] = []

        def outer() -> Any:
            inner.append(pool.using(run_timeout=None).submit(blocker, 1))
            return inner[0].result()

        assert isinstance(pool.submit(outer).exception(PATIENCE), RunTimeout)
        assert eventually(lambda: pool.stats().abandoned)
        stats = pool.stats()
        assert (stats.submitted, stats.timed_out, stats.running) == (2, 1, 1)
        blocker.release()
        assert inner[0].result(PATIENCE) == 1
        pool.close()
        stats = pool.stats()
        assert (stats.submitted, stats.timed_out, stats.completed, stats.running) == (2, 1, 1, 0)

"""The lock-order checker raises before a lock is taken out of order, and forgets nothing."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bullpen import primitives
from tests.tools import lock_order
from tests.tools.explore import explore
from tests.tools.lock_order import LockOrderViolation


@pytest.fixture(autouse=True)
def checked_from_scratch() -> Iterator[None]:
    """Every lock here is checked, and what these tests provoke is nobody else's failure."""
    with lock_order.checked():
        yield
    lock_order.drain_violations()


def lock(rank: str) -> Any:
    return getattr(primitives, f"{rank}_lock")()


def in_a_thread(work: Callable[[], object]) -> BaseException | None:
    caught: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=guarded, name="other")
    thread.start()
    thread.join()
    return caught[0] if caught else None


def test_ranks_in_order_are_allowed() -> None:
    locks = [lock(rank) for rank in primitives.RANKS]
    for each in locks:
        assert each.acquire()
    for each in locks:
        each.release()
    assert not any(each.locked() for each in locks)
    assert lock_order.drain_violations() == []


@pytest.mark.parametrize(
    ("held", "wanted"),
    [(held, wanted) for i, held in enumerate(primitives.RANKS) for wanted in primitives.RANKS[: i + 1]],
)
def test_a_lower_or_equal_rank_is_rejected(held: str, wanted: str) -> None:
    first, second = lock(held), lock(wanted)
    with first:
        if held == wanted == "request":
            with second:
                return
        with pytest.raises(LockOrderViolation, match=f"took the {wanted} lock while holding the {held} lock"):
            second.acquire()
        with pytest.raises(LockOrderViolation):
            second.acquire(False)
        with pytest.raises(LockOrderViolation), second:
            pass
        assert not second.locked()
    assert len(lock_order.drain_violations()) == 3
    assert lock_order.drain_violations() == []


def test_the_message_says_where_the_first_lock_was_taken() -> None:
    first, second = lock("worker"), lock("registry")
    with first, pytest.raises(LockOrderViolation) as violation:
        second.acquire()
    where = "test_the_message_says_where_the_first_lock_was_taken (" + __file__
    assert str(violation.value).count(where) == 2


def test_releasing_in_any_order_keeps_the_rest_held() -> None:
    pool, worker, request = lock("pool"), lock("worker"), lock("request")
    pool.acquire(), worker.acquire(), request.acquire()
    worker.release()
    with pytest.raises(LockOrderViolation, match="holding the request lock"):
        worker.acquire()
    request.release()
    with worker:
        pass
    pool.release()


def test_a_failed_acquire_holds_nothing() -> None:
    worker, registry = lock("worker"), lock("registry")
    with worker:

        def try_both() -> None:
            assert not worker.acquire(False)
            assert not worker.acquire(timeout=0.001)
            with registry:
                pass

        assert in_a_thread(try_both) is None


def test_locks_of_other_threads_do_not_count() -> None:
    worker, registry = lock("worker"), lock("registry")

    def take_the_lower_rank() -> None:
        with registry:
            pass

    with worker:
        assert in_a_thread(take_the_lower_rank) is None


def test_a_violation_swallowed_by_a_worker_is_kept() -> None:
    worker, registry = lock("worker"), lock("registry")

    def break_the_order() -> None:
        with worker:
            registry.acquire()

    assert isinstance(in_a_thread(break_the_order), LockOrderViolation)
    [violation] = lock_order.drain_violations()
    assert "thread 'other'" in str(violation)


def test_releasing_what_another_thread_holds_is_rejected() -> None:
    worker = lock("worker")
    with worker:
        assert isinstance(in_a_thread(worker.release), LockOrderViolation)
        assert worker.locked()


def test_waiting_at_a_gate_with_a_lock_is_rejected() -> None:
    gate, worker = primitives.gate(), lock("worker")
    assert gate.acquire()
    with worker:
        for timeout in (None, 0.0, 0.01):
            with pytest.raises(LockOrderViolation, match="waited at a gate while holding the worker lock"):
                primitives.system_clock.wait(gate, timeout)
        assert gate.acquire(False) is False
        assert in_a_thread(gate.release) is None
        assert gate.acquire(False) is True
    assert primitives.system_clock.wait(gate, 0.001) is False


def test_a_request_lock_is_reentrant() -> None:
    request, worker = lock("request"), lock("worker")
    with request, request:
        assert request.locked()
    assert not request.locked()
    with worker, request:
        pass


def test_a_condition_on_a_request_lock_waits_and_wakes() -> None:
    request = lock("request")
    condition = threading.Condition(request)
    seen: list[bool] = []

    def wait_holding_twice() -> None:
        with condition, condition:
            seen.append(condition.wait(5))
            assert request._is_owned()

    waiter = threading.Thread(target=wait_holding_twice)
    waiter.start()
    while waiter.is_alive():
        with condition:
            condition.notify_all()
    waiter.join()
    assert seen == [True]
    with condition:
        assert condition.wait(0.001) is False
    with lock("pool"):
        pass
    assert lock_order.drain_violations() == []


def test_waiting_on_a_condition_with_another_lock_is_rejected() -> None:
    condition = threading.Condition(lock("request"))
    with lock("worker"), condition, pytest.raises(LockOrderViolation, match="waited on a request's condition"):
        condition.wait(0.01)


def test_standard_wait_holds_several_request_locks() -> None:
    futures = [concurrent.futures.Future[int]() for _ in range(3)]
    for future in futures:
        future._condition = threading.Condition(lock("request"))
        future.set_result(1)
    assert len(concurrent.futures.wait(futures).done) == 3
    assert lock_order.drain_violations() == []


def test_uninstall_gives_the_interpreters_locks_back() -> None:
    lock_order.uninstall()
    try:
        plain = primitives.worker_lock
        with lock_order.checked():
            assert isinstance(primitives.worker_lock(), lock_order.CheckedLock)
            with lock_order.checked():
                pass
            assert lock_order.is_installed()
        assert primitives.worker_lock is plain
        assert not lock_order.is_installed()
    finally:
        lock_order.install()


def test_an_exploration_keeps_checking() -> None:
    def scenario(run: Any) -> None:
        worker, registry = lock("worker"), lock("registry")

        def break_the_order() -> None:
            with worker, registry:
                pass

        run.actor(break_the_order)

    report = explore(scenario, schedules=1)
    assert report.failure is not None
    assert isinstance(report.failure.error, LockOrderViolation)

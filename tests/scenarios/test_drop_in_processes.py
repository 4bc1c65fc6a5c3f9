"""Code that was written for `ProcessPoolExecutor` works unchanged: every test here passes with both."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Lock
from typing import Any, Literal

import pytest

from bullpen import Pool, PoolFailed, ProcessRuntime, WorkerLost
from tests.scenarios.process_support import PATIENCE

CONTEXT = multiprocessing.get_context("forkserver")
Make = Callable[..., Executor]


def standard(workers: int, **options: Any) -> Executor:
    return ProcessPoolExecutor(workers, mp_context=CONTEXT, **options)


def bullpen(workers: int, **options: Any) -> Executor:
    return Pool(workers, runtime="process", **options)


@pytest.fixture(params=[standard, bullpen])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


shared: dict[str, Any] = {}


def remember(lock: Lock, queue: Queue[int]) -> None:
    shared.update(lock=lock, queue=queue)


def put_under_lock(number: int) -> bool:
    with shared["lock"]:
        shared["queue"].put(number)
        return not shared["lock"].acquire(block=False)


def add_to(results: Any, number: int) -> None:
    results.append(number)


@pytest.mark.leaks("the standard keeps its resource tracker and forkserver")
def test_proxies_of_a_manager_are_arguments(make: Make, manager: Any) -> None:
    results = manager.list()
    with make(2) as executor:
        executor.submit(int).result(PATIENCE)
        for number in range(20):
            executor.submit(add_to, results, number)
    assert sorted(results) == list(range(20))


@pytest.mark.leaks("the standard keeps its resource tracker and forkserver")
def test_locks_and_queues_are_initargs(make: Make) -> None:
    lock, queue = CONTEXT.Lock(), CONTEXT.Queue()
    with make(2, initializer=remember, initargs=(lock, queue)) as executor:
        assert all(executor.map(put_under_lock, range(10)))
    assert sorted(queue.get(timeout=PATIENCE) for _ in range(10)) == list(range(10))
    queue.close()
    queue.join_thread()


def remember_memory(memory: dict[str, Any]) -> None:
    shared.update(memory)


def add_to_memory(number: int) -> None:
    with shared["value"].get_lock():
        shared["value"].value += number
        shared["raw_value"].value += number
    shared["array"][number] = number
    shared["raw_array"][number] = float(number)


def memory_of(context: Any) -> dict[str, Any]:
    return {
        "value": context.Value("i", 0),
        "array": context.Array("i", 10),
        "raw_value": context.RawValue("q", 0),
        "raw_array": context.RawArray("d", 10),
    }


def assert_added(memory: dict[str, Any]) -> None:
    assert (memory["value"].value, memory["raw_value"].value) == (45, 45)
    assert list(memory["array"]) == list(memory["raw_array"]) == list(range(10))


@pytest.mark.leaks("the standard keeps its resource tracker and forkserver")
def test_values_and_arrays_are_initargs(make: Make) -> None:
    memory = memory_of(CONTEXT)
    with make(2, initializer=remember_memory, initargs=(memory,)) as executor:
        list(executor.map(add_to_memory, range(10)))
    assert_added(memory)


@pytest.mark.leaks("multiprocessing keeps its resource tracker")
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_values_and_arrays_reach_workers_however_they_start(
    start: Literal["forkserver", "spawn"], context: str
) -> None:
    memory = memory_of(multiprocessing.get_context(context))
    runtime = ProcessRuntime(start=start)
    with Pool(2, runtime=runtime, initializer=remember_memory, initargs=(memory,)) as pool:
        list(pool.map(add_to_memory, range(10)))
    assert_added(memory)


@pytest.mark.leaks("multiprocessing keeps its resource tracker")
def test_values_reach_an_initializer_that_is_pickled_by_value() -> None:
    value = CONTEXT.Value("i", 0)

    def increment(value: Any) -> None:
        with value.get_lock():
            value.value += 1

    with Pool(1, runtime="process", initializer=increment, initargs=(value,)) as pool:
        pool.submit(int).result(PATIENCE)
    assert value.value == 1


@pytest.mark.leaks("multiprocessing keeps its resource tracker")
def test_a_number_of_ctypes_is_copied_although_a_shared_one_has_its_type() -> None:
    memory = {"shared": CONTEXT.RawValue(ctypes.c_int, 1), "copied": ctypes.c_int(2)}
    with Pool(1, runtime="process", initializer=remember_memory, initargs=(memory,)) as pool:
        assert pool.submit(read_copied).result(PATIENCE) == 2


def read_copied() -> int:
    number: int = shared["copied"].value
    return number


@pytest.mark.leaks("the standard keeps its resource tracker and forkserver")
def test_a_dead_worker_raises_broken_process_pool(make: Make) -> None:
    executor = make(1)
    with pytest.raises(BrokenProcessPool):
        executor.submit(os._exit, 3).result(PATIENCE)
    executor.shutdown()


@pytest.mark.leaks("the standard keeps its resource tracker and forkserver")
def test_a_value_that_cannot_be_pickled_raises_what_pickle_raises(make: Make) -> None:
    with make(1) as executor, pytest.raises((pickle.PicklingError, TypeError)):
        executor.submit(print, threading.Lock()).result(PATIENCE)


def test_every_error_of_pickling_is_a_pickling_error() -> None:
    with Pool(1, runtime="process") as pool, pytest.raises(pickle.PicklingError):
        pool.submit(print, threading.Lock()).result(PATIENCE)


def test_a_lost_worker_can_be_pickled() -> None:
    with Pool(1, runtime="process") as pool:
        error = pool.submit(os._exit, 3).exception(PATIENCE)
    assert isinstance(error, WorkerLost)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, BrokenProcessPool)
    assert isinstance(again, WorkerLost)
    assert again.exit_code == 3


def test_a_lock_of_the_fork_context_is_named_with_what_to_do() -> None:
    lock = multiprocessing.get_context("fork").Lock()
    with (
        Pool(1, runtime="process", initializer=remember, initargs=(lock, None)) as pool,
        pytest.raises(PoolFailed, match=r"initargs\[0\].*get_context\('forkserver'\)"),
    ):
        pool.submit(int).result(PATIENCE)

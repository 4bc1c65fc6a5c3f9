"""Code that was written for `ThreadPoolExecutor` works unchanged: every test here passes with both."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import pickle
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from typing import Any, NoReturn

import pytest

from bullpen import Pool

from .support import Background, Blocker, eventually, printed

Make = Callable[..., Executor]


@pytest.fixture(params=[ThreadPoolExecutor, Pool], ids=["standard", "bullpen"])
def make(request: pytest.FixtureRequest) -> Make:
    chosen: Make = request.param
    return chosen


@pytest.fixture
def executor(make: Make) -> Iterator[Executor]:
    with make(2) as executor:
        yield executor


@pytest.fixture
def single(make: Make) -> Iterator[Executor]:
    with make(1) as executor:
        yield executor


@pytest.fixture
def blocker() -> Iterator[Blocker]:
    with Blocker() as blocker:
        yield blocker


class Oops(Exception):
    pass


class Base(BaseException):
    pass


def fail_with(error: BaseException) -> NoReturn:
    raise error


def source_of(kind: Make) -> str:
    return f"from {kind.__module__} import {kind.__name__} as Make\n"


# Futures.


def test_a_result_arrives(executor: Executor) -> None:
    assert executor.submit(pow, 2, exp=10).result() == 1024


def test_any_keyword_may_be_the_functions_own(executor: Executor) -> None:
    def echo(**kwargs: int) -> dict[str, int]:
        return kwargs

    assert executor.submit(echo, self=1, timeout=2, args=3, kwargs=4).result() == {
        "self": 1,
        "timeout": 2,
        "args": 3,
        "kwargs": 4,
    }


def test_a_future_is_a_standard_future(executor: Executor) -> None:
    future = executor.submit(int)
    assert isinstance(future, Future)
    assert isinstance(executor, Executor)
    assert future.result() == 0


def test_a_future_can_be_a_key_be_referred_to_weakly_and_take_attributes(executor: Executor) -> None:
    future = executor.submit(int)
    future.page = 7  # type: ignore[attr-defined]
    assert {future: 1}[future] == 1
    assert weakref.ref(future)() is future
    assert future.page == 7  # type: ignore[attr-defined]


def test_states_show_while_it_waits_runs_and_has_ended(single: Executor, blocker: Blocker) -> None:
    running = single.submit(blocker)
    waiting = single.submit(int)
    blocker.wait_entered()
    assert (running.running(), running.done(), running.cancelled()) == (True, False, False)
    assert (waiting.running(), waiting.done(), waiting.cancelled()) == (False, False, False)
    blocker.release()
    assert waiting.result() == 0
    assert (waiting.running(), waiting.done(), waiting.cancelled()) == (False, True, False)


@pytest.mark.parametrize("error", [Oops("x"), Base("y"), KeyboardInterrupt(), SystemExit(3), StopIteration(4)])
def test_an_error_arrives_as_itself(executor: Executor, error: BaseException) -> None:
    future = executor.submit(fail_with, error)
    with pytest.raises(type(error)) as caught:
        future.result()
    assert caught.value is error
    assert future.exception() is error


def test_an_error_keeps_its_traceback_and_its_cause(executor: Executor) -> None:
    def the_culprit() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise Oops("second") from error

    future = executor.submit(the_culprit)
    with pytest.raises(Oops) as caught:
        future.result()
    assert "the_culprit" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_harms_no_other_request(single: Executor) -> None:
    failing = [single.submit(fail_with, error) for error in (Oops(), Base(), SystemExit())]
    assert single.submit(int).result() == 0
    assert all(future.exception() is not None for future in failing)


def test_waiting_for_a_result_can_time_out_and_be_repeated(executor: Executor, blocker: Blocker) -> None:
    future = executor.submit(blocker, 5)
    for timeout in (0.01, 0, -1):
        with pytest.raises(TimeoutError):
            future.result(timeout=timeout)
        with pytest.raises(TimeoutError):
            future.exception(timeout=timeout)
    blocker.release()
    assert future.result(timeout=20) == 5
    assert future.exception() is None


def test_many_threads_may_wait_for_one_result(executor: Executor, blocker: Blocker) -> None:
    future = executor.submit(blocker, 5)
    readers = [Background(future.result) for _ in range(20)]
    blocker.wait_entered()
    blocker.release()
    assert [reader.join().result for reader in readers] == [5] * 20


def test_a_cancelled_future_never_runs(single: Executor, blocker: Blocker) -> None:
    ran: list[int] = []
    single.submit(blocker)
    blocker.wait_entered()
    future = single.submit(ran.append, 1)
    assert future.cancel()
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert not future.running()
    with pytest.raises(CancelledError):
        future.result()
    with pytest.raises(CancelledError):
        future.exception()
    blocker.release()
    assert single.submit(int).result() == 0
    assert ran == []


def test_running_and_finished_futures_cannot_be_cancelled(single: Executor, blocker: Blocker) -> None:
    future = single.submit(blocker, 1)
    blocker.wait_entered()
    assert not future.cancel()
    blocker.release()
    assert future.result() == 1
    assert not future.cancel()
    assert not future.cancelled()


def test_a_future_refuses_to_end_twice(executor: Executor) -> None:
    future = executor.submit(int)
    assert future.result() == 0
    with pytest.raises(InvalidStateError):
        future.set_result(1)
    with pytest.raises(InvalidStateError):
        future.set_exception(Oops())
    assert future.result() == 0


def test_a_cancelled_future_takes_no_result(single: Executor, blocker: Blocker) -> None:
    single.submit(blocker)
    future = single.submit(int)
    future.cancel()
    with pytest.raises(InvalidStateError):
        future.set_result(1)


def test_neither_executor_nor_future_can_be_pickled(executor: Executor) -> None:
    future = executor.submit(int)
    for thing in (executor, future):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError), match="pickle"):  # of checked locks, too
            pickle.dumps(thing)


def test_arguments_and_results_are_not_kept_alive(executor: Executor) -> None:
    class Thing:
        pass

    def make_thing(_: Thing) -> Thing:
        return Thing()

    argument = Thing()
    future = executor.submit(make_thing, argument)
    watched = [weakref.ref(argument), weakref.ref(future.result())]
    del argument, future

    def gone() -> bool:
        gc.collect()
        return all(thing() is None for thing in watched)

    assert eventually(gone)


# Callbacks.


def test_callbacks_come_once_each_in_order_with_the_future(executor: Executor, blocker: Blocker) -> None:
    seen: list[tuple[int, object]] = []
    last = threading.Event()
    future = executor.submit(blocker)
    for number in range(5):
        future.add_done_callback(lambda done, number=number: seen.append((number, done)))  # type: ignore[misc]
    future.add_done_callback(lambda _: last.set())
    blocker.release()
    assert last.wait(20)
    assert seen == [(number, future) for number in range(5)]


def test_a_callback_that_comes_late_is_called_at_once_by_its_own_thread(executor: Executor) -> None:
    future = executor.submit(int)
    future.result()
    threads: list[threading.Thread] = []
    future.add_done_callback(lambda _: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_an_error_in_a_callback_is_logged_and_harmless(
    executor: Executor, blocker: Blocker, caplog: pytest.LogCaptureFixture
) -> None:
    reached = threading.Event()
    future = executor.submit(blocker, 3)
    future.add_done_callback(lambda _: fail_with(Oops("in the callback")))
    future.add_done_callback(lambda _: reached.set())
    blocker.release()
    assert reached.wait(20)
    assert future.result() == 3
    future.add_done_callback(lambda _: fail_with(Oops("too late")))
    logged = [record for record in caplog.records if "exception calling callback" in record.getMessage()]
    assert [record.exc_info[1].args for record in logged if record.exc_info and record.exc_info[1]] == [
        ("in the callback",),
        ("too late",),
    ]
    assert {record.levelno for record in logged} == {logging.ERROR}


def test_a_cancelled_future_calls_back(single: Executor, blocker: Blocker) -> None:
    seen: list[Future[Any]] = []
    single.submit(blocker)
    future = single.submit(int)
    future.add_done_callback(seen.append)
    future.cancel()
    assert seen == [future]


def test_a_callback_may_submit_again_and_again(single: Executor) -> None:
    ended = threading.Event()

    def count_down(number: int) -> int:
        return number - 1

    def go_on(future: Future[int]) -> None:
        left = future.result()
        if left:
            single.submit(count_down, left).add_done_callback(go_on)
        else:
            ended.set()

    single.submit(count_down, 200).add_done_callback(go_on)
    assert ended.wait(20)


# wait and as_completed.


def test_wait_for_all(executor: Executor) -> None:
    futures = [executor.submit(abs, -number) for number in range(50)]
    outcome = wait(futures, timeout=20, return_when=ALL_COMPLETED)
    assert outcome.done == set(futures)
    assert outcome.not_done == set()


def test_wait_for_the_first(executor: Executor, blocker: Blocker) -> None:
    slow, quick = executor.submit(blocker), executor.submit(int)
    done, not_done = wait([slow, quick], timeout=20, return_when=FIRST_COMPLETED)
    assert (done, not_done) == ({quick}, {slow})


def test_wait_for_the_first_error(executor: Executor, blocker: Blocker) -> None:
    slow, good, bad = executor.submit(blocker), executor.submit(int), executor.submit(fail_with, Oops())
    done, not_done = wait([slow, good, bad], timeout=20, return_when=FIRST_EXCEPTION)
    assert bad in done
    assert not_done == {slow}


def test_wait_for_the_first_error_when_there_is_none_waits_for_all(executor: Executor) -> None:
    futures = [executor.submit(int) for _ in range(9)]
    assert wait(futures, timeout=20, return_when=FIRST_EXCEPTION).done == set(futures)


@pytest.mark.parametrize("return_when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait_gives_up_in_time_and_leaves_the_future_usable(
    single: Executor, blocker: Blocker, return_when: str
) -> None:
    futures = {single.submit(blocker, 1), single.submit(int)}
    assert wait(futures, timeout=0.02, return_when=return_when) == (set(), futures)
    blocker.release()
    assert {future.result() for future in futures} == {0, 1}


def test_wait_sees_cancelled_futures_as_done(single: Executor, blocker: Blocker) -> None:
    running, waiting = single.submit(blocker), single.submit(int)
    waiting.cancel()
    blocker.release()
    assert wait([running, waiting], timeout=20).not_done == set()


@pytest.mark.parametrize("return_when", [ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION])
def test_wait_for_finished_futures_returns_at_once(executor: Executor, return_when: str) -> None:
    futures: set[Future[Any]] = {executor.submit(int), executor.submit(fail_with, Oops())}
    for future in futures:
        future.exception()
    assert wait(futures, timeout=0, return_when=return_when).done == futures


def test_as_completed_yields_each_once_in_the_order_of_their_end(executor: Executor) -> None:
    with Blocker() as first, Blocker() as second:
        one, two = executor.submit(first), executor.submit(second)
        ended = as_completed([one, two, one, two], timeout=20)
        second.release()
        assert next(ended) is two
        first.release()
        assert list(ended) == [one]


def test_as_completed_with_many(executor: Executor) -> None:
    futures = [executor.submit(abs, -number) for number in range(300)]
    assert sorted(future.result() for future in as_completed(futures, timeout=20)) == list(range(300))


def test_as_completed_times_out_and_counts_the_unfinished_futures(executor: Executor, blocker: Blocker) -> None:
    quick, slow = executor.submit(int), executor.submit(blocker)
    quick.result()
    ended = as_completed([quick, slow], timeout=0.02)
    assert next(ended) is quick
    with pytest.raises(TimeoutError, match=r"1 \(of 2\) futures unfinished"):
        next(ended)


def test_as_completed_yields_cancelled_futures(single: Executor, blocker: Blocker) -> None:
    running, waiting = single.submit(blocker), single.submit(int)
    waiting.cancel()
    blocker.release()
    assert set(as_completed([running, waiting], timeout=20)) == {running, waiting}


def test_as_completed_and_wait_mix_futures_of_different_executors(executor: Executor) -> None:
    with ThreadPoolExecutor(1) as other, Pool(1) as another:
        futures = [source.submit(abs, -1) for source in (executor, other, another) for _ in range(5)]
        assert sum(future.result() for future in as_completed(futures, timeout=20)) == 15
        assert wait(futures, timeout=20).not_done == set()


# map.


def test_map_keeps_the_order(executor: Executor) -> None:
    assert list(executor.map(abs, range(-500, 0))) == list(range(500, 0, -1))


def test_map_takes_several_iterables_and_ends_with_the_shortest(executor: Executor) -> None:
    assert list(executor.map(pow, [2, 3, 4], itertools.repeat(2))) == [4, 9, 16]
    assert list(executor.map(pow, [2, 3, 4], [1])) == [2]
    assert list(executor.map(pow, [], [])) == []


def test_map_raises_at_the_place_of_the_error(executor: Executor) -> None:
    def check(number: int) -> int:
        if number == 3:
            raise Oops(number)
        return number

    results = executor.map(check, range(6))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Oops, match="3"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_map_does_not_mistake_a_stop_iteration_in_the_function_for_its_end(executor: Executor) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(executor.map(next, [iter([1]), iter([]), iter([2])]))


def test_map_times_out(executor: Executor, blocker: Blocker) -> None:
    results = executor.map(blocker, range(5), timeout=0.05)
    with pytest.raises(TimeoutError):
        next(results)


def test_map_that_is_closed_early_starts_nothing_more(single: Executor, blocker: Blocker) -> None:
    ran: list[int] = []

    def run(number: int) -> int:
        if number == 1:
            blocker()
        ran.append(number)
        return number

    results = single.map(run, range(5))
    assert next(results) == 0
    blocker.wait_entered()
    results.close()  # type: ignore[attr-defined]
    blocker.release()
    assert single.submit(int).result() == 0
    assert ran == [0, 1]


@pytest.mark.parametrize("count", [3, 1024, 5000])
def test_map_as_a_statement_does_all_the_work(make: Make, count: int) -> None:
    ran: list[int] = []
    with make(2) as executor:
        executor.map(ran.append, range(count))
    assert sorted(ran) == list(range(count))


def test_map_as_a_statement_outside_of_with_does_all_the_work(executor: Executor) -> None:
    ran: list[int] = []
    executor.map(ran.append, range(3000))
    assert eventually(lambda: len(ran) == 3000)


@pytest.mark.parametrize("count", [3, 5000])
def test_results_of_map_can_be_read_after_the_block(make: Make, count: int) -> None:
    with make(2) as executor:
        results = executor.map(abs, range(count))
    assert list(results) == list(range(count))


def test_results_of_map_can_be_read_partly_within_and_partly_after_the_block(make: Make) -> None:
    out = printed(
        source_of(make)
        + """
with Make(2) as executor:
    results = executor.map(abs, range(5000))
    read = [next(results)]
read.extend(results)
print(read == list(range(5000)))
""",
        within=5,
    )
    assert out == "True\n"


def test_map_of_an_unreferenced_executor_yields_everything(make: Make) -> None:
    out = printed(source_of(make) + "print(sum(Make(2).map(abs, range(5000))))", within=5)
    assert out == f"{sum(range(5000))}\n"


def test_map_raises_what_an_iterable_raises(executor: Executor) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise Oops("no more numbers")

    with pytest.raises(Oops, match="no more numbers"):
        list(executor.map(abs, numbers()))


def test_map_accepts_a_chunksize(executor: Executor) -> None:
    assert list(executor.map(abs, range(10), chunksize=3)) == list(range(10))


def test_two_maps_at_once_do_not_stand_in_each_others_way(single: Executor) -> None:
    evens, odds = single.map(abs, range(0, 100, 2)), single.map(abs, range(1, 100, 2))
    assert [number for pair in zip(evens, odds, strict=True) for number in pair] == list(range(100))


# asyncio.


@pytest.mark.anyio
async def test_asyncio_wraps_a_future(executor: Executor) -> None:
    assert await asyncio.wrap_future(executor.submit(abs, -3)) == 3
    with pytest.raises(Oops):
        await asyncio.wrap_future(executor.submit(fail_with, Oops()))


@pytest.mark.anyio
async def test_asyncio_runs_in_the_executor(executor: Executor) -> None:
    loop = asyncio.get_running_loop()
    assert await asyncio.gather(*(loop.run_in_executor(executor, abs, -number) for number in range(50))) == list(
        range(50)
    )


@pytest.mark.anyio
async def test_cancelling_the_wrapper_cancels_what_waits(single: Executor, blocker: Blocker) -> None:
    ran: list[int] = []
    single.submit(blocker)
    blocker.wait_entered()
    future = single.submit(ran.append, 1)
    wrapped = asyncio.wrap_future(future)
    wrapped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wrapped
    await asyncio.sleep(0)
    assert future.cancelled()
    blocker.release()
    assert single.submit(int).result() == 0
    assert ran == []


# Threads.


def test_threads_carry_the_prefix_in_their_names(make: Make) -> None:
    with make(2, thread_name_prefix="press") as executor:
        assert executor.submit(lambda: threading.current_thread().name).result().startswith("press_")


def test_the_second_positional_argument_is_the_prefix_and_then_come_the_initializer_and_its_arguments(
    make: Make,
) -> None:
    said: list[str] = []
    with make(1, "press", said.append, ("hello",)) as executor:
        assert executor.submit(lambda: threading.current_thread().name).result() == "press_0"
    assert said == ["hello"]


def test_the_initializer_runs_first_in_every_thread(make: Make) -> None:
    local = threading.local()
    barrier = threading.Barrier(3)

    def prepare(value: str, *, _calls: list[int] = []) -> None:  # noqa: B006
        _calls.append(1)
        local.value = f"{value}{len(_calls)}"

    def read() -> str:
        barrier.wait(20)
        return str(local.value)

    with make(3, initializer=prepare, initargs=("v",)) as executor:
        assert {future.result() for future in [executor.submit(read) for _ in range(3)]} == {"v1", "v2", "v3"}


def test_the_arguments_of_the_initializer_may_be_a_list(make: Make) -> None:
    said: list[str] = []
    with make(1, initializer=said.append, initargs=["hello"]) as executor:
        executor.submit(int).result()
    assert said == ["hello"]


def test_no_prefix_may_be_said_with_none(make: Make) -> None:
    with make(1, thread_name_prefix=None) as executor:
        assert executor.submit(int).result() == 0


def test_a_failing_initializer_breaks_the_executor(make: Make) -> None:
    with make(2, initializer=fail_with, initargs=(Oops("no licence"),)) as executor:
        with pytest.raises(BrokenExecutor):
            executor.submit(int).result(20)
        with pytest.raises(BrokenExecutor):
            executor.submit(int)


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_is_a_value_error(make: Make, workers: int) -> None:
    with pytest.raises(ValueError, match="max_workers"):
        make(workers)


def test_an_initializer_must_be_callable(make: Make) -> None:
    with pytest.raises(TypeError, match="initializer"):
        make(1, initializer=5)


def test_it_works_without_arguments(make: Make) -> None:
    with make() as executor:
        assert sum(future.result() for future in [executor.submit(abs, -1) for _ in range(1000)]) == 1000


def test_no_more_run_at_once_than_there_are_workers(make: Make) -> None:
    lock = threading.Lock()
    running = most = 0
    met = threading.Barrier(3)

    def run(number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if number < 3:
            met.wait(20)
        with lock:
            running -= 1

    with make(3) as executor:
        executor.map(run, range(300))
    assert most == 3


# The end.


def test_with_gives_the_executor_and_waits_at_the_end(make: Make) -> None:
    ran: list[int] = []
    executor = make(1)
    with executor as entered:
        assert entered is executor
        for number in range(100):
            executor.submit(ran.append, number)
    assert ran == list(range(100))


def test_an_exception_leaves_with_unchanged(make: Make) -> None:
    with pytest.raises(Oops, match="mine"), make(1):
        raise Oops("mine")


def test_shutdown_without_waiting_returns_while_work_goes_on(make: Make, blocker: Blocker) -> None:
    executor = make(1)
    running, waiting = executor.submit(blocker, 1), executor.submit(abs, -2)
    blocker.wait_entered()
    executor.shutdown(wait=False)
    assert not running.done()
    blocker.release()
    assert (running.result(20), waiting.result(20)) == (1, 2)
    executor.shutdown()


def test_shutdown_can_cancel_what_waits(make: Make, blocker: Blocker) -> None:
    executor = make(1)
    running = executor.submit(blocker, 1)
    waiting = [executor.submit(int) for _ in range(10)]
    blocker.wait_entered()
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    blocker.release()
    executor.shutdown()
    assert running.result(0) == 1


def test_waiting_futures_can_be_cancelled_after_a_shutdown_that_would_have_run_them(
    make: Make, blocker: Blocker
) -> None:
    executor = make(1)
    running = executor.submit(blocker, 1)
    waiting = [executor.submit(int) for _ in range(10)]
    blocker.wait_entered()
    executor.shutdown(wait=False)
    assert not any(future.done() for future in waiting)
    executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    blocker.release()
    executor.shutdown()
    assert running.result(0) == 1


def test_shutdown_waits_for_running_and_waiting_calls(make: Make, blocker: Blocker) -> None:
    executor = make(1)
    futures = [executor.submit(blocker), *(executor.submit(int) for _ in range(10))]
    blocker.wait_entered()
    with Background(executor.shutdown) as shutdown:
        assert shutdown.running
        blocker.release()
    assert all(future.done() for future in futures)


def test_shutdown_may_be_called_again_and_by_several_threads(make: Make, blocker: Blocker) -> None:
    executor = make(2)
    future = executor.submit(blocker)
    closers = [Background(executor.shutdown) for _ in range(5)]
    blocker.release()
    for closer in closers:
        assert closer.join().error is None
    executor.shutdown()
    assert future.done()


def test_no_work_is_taken_after_the_end(make: Make) -> None:
    executor = make(1)
    executor.shutdown()
    with pytest.raises(RuntimeError):
        executor.submit(int)
    with pytest.raises(RuntimeError):
        executor.map(int, ["1"])


@pytest.mark.parametrize("used", [True, False])
def test_an_unreferenced_executor_finishes_its_work_and_its_threads_end(make: Make, used: bool) -> None:
    threads: list[threading.Thread] = []
    blocker = Blocker()
    executor = make(2)
    futures = []
    if used:
        futures = [executor.submit(blocker, 1), *(executor.submit(abs, -1) for _ in range(20))]
        blocker.wait_entered()
        futures.append(executor.submit(lambda: threads.append(threading.current_thread()) or 1))  # type: ignore[func-returns-value]
    del executor
    gc.collect()
    blocker.release()
    assert [future.result(20) for future in futures] == [1] * len(futures)
    assert eventually(lambda: not any(thread.is_alive() for thread in threads))


def test_many_executors_made_and_forgotten_leave_nothing(make: Make) -> None:
    futures = [make(2).submit(abs, -number) for number in range(50)]
    assert [future.result(20) for future in futures] == list(range(50))


# What only subclasses and other libraries use.


class Counting(Pool):
    """Counts what goes through `submit`."""

    def __init__(self) -> None:
        super().__init__(2)
        self.submitted = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


def test_map_goes_through_a_submit_that_a_subclass_overrides() -> None:
    with Counting() as pool:
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
        assert pool.submitted == 3


def test_the_number_of_workers_is_where_other_libraries_read_it(make: Make) -> None:
    with make(3) as executor:
        assert executor._max_workers == 3  # type: ignore[attr-defined]


def test_an_exhausted_map_does_not_keep_its_pool(make: Make) -> None:
    executor: Executor | None = make(2)
    assert executor is not None
    results = executor.map(abs, [-1, -2])
    assert list(results) == [1, 2]
    gone = weakref.ref(executor)
    executor = None
    gc.collect()
    assert gone() is None
    assert list(results) == []


def test_a_pool_is_the_default_executor_of_an_event_loop() -> None:
    async def names() -> list[str]:
        asyncio.get_running_loop().set_default_executor(pool.as_default_executor())
        return [await asyncio.to_thread(lambda: threading.current_thread().name) for _ in range(2)]

    with Pool(2, name="shared") as pool:
        assert all(name.startswith("shared_") for name in asyncio.run(names()))
        assert pool.submit(abs, -1).result() == 1, "the end of the loop leaves the pool open"
        executor = pool.as_default_executor()
        assert list(executor.map(abs, [-1])) == [1]
        executor.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(abs, -1)

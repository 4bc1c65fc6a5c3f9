"""Maps over real data: an outcome for every item, results as they come, and bundles with a slow or deadly item."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bullpen import AsyncPool, InvalidOption, Outcome, Pool, Pools, RunTimeout, WorkerBroken, WorkerLost
from tests.scenarios.process_support import note_pid, read_pid
from tests.scenarios.support import PATIENCE, Background, Blocker, eventually

MANY = 2000  # enough quick items for large bundles


class Oops(Exception):
    """An error of an item."""


def halve(number: int) -> float:
    if number % 3 == 1:
        raise Oops(number)
    return number / 2


async def halve_on_the_loop(number: int) -> float:
    return halve(number)


def check(outcomes: Iterable[Outcome[int, float]], count: int) -> None:
    for number, outcome in enumerate(outcomes):
        item, value, error = outcome
        assert item == number
        if number % 3 == 1:
            assert value is None
            assert isinstance(error, Oops)
            assert error.args == (number,)
        else:
            assert (value, error) == (number / 2, None)
    assert number == count - 1


# An outcome for every item.


@pytest.fixture(params=["threads", "requests", "processes", "one process", "view"])
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    options: dict[str, dict[str, Any]] = {
        "requests": {"observer": lambda event: None},
        "processes": {"runtime": "process"},
        "one process": {"runtime": "process", "max_workers": 1},
    }
    with Pool(**{"max_workers": 2, **options.get(request.param, {})}) as pool:
        yield pool.using(idempotent=True) if request.param == "view" else pool


@pytest.mark.parametrize("ordered", [True, False])
def test_every_item_has_an_outcome(pool: Any, ordered: bool) -> None:
    outcomes = list(pool.map(halve, range(MANY), on_error="return", ordered=ordered))
    check(outcomes if ordered else sorted(outcomes, key=lambda outcome: outcome.item), MANY)


def test_an_iterator_may_be_the_input(pool: Any) -> None:
    check(pool.map(halve, iter(range(MANY)), on_error="return", buffersize=100), MANY)


def test_the_item_of_several_iterables_is_a_tuple(pool: Any) -> None:
    outcomes = list(pool.map(divmod, [7, 8, 9], [2, 0, 4], on_error="return"))
    assert [outcome.item for outcome in outcomes] == [(7, 2), (8, 0), (9, 4)]
    assert [outcome.value for outcome in outcomes] == [(3, 1), None, (2, 1)]
    assert [type(outcome.error) for outcome in outcomes] == [type(None), ZeroDivisionError, type(None)]


def test_results_without_outcomes_may_come_out_of_order_too(pool: Any) -> None:
    assert sorted(pool.map(abs, range(-MANY, 0), ordered=False)) == list(range(1, MANY + 1))


def test_an_error_ends_a_map_without_order(pool: Any) -> None:
    results = pool.map(halve, [0, 1, 2], ordered=False)
    with pytest.raises(Oops):
        list(results)
    assert list(results) == []


def test_an_error_of_the_input_is_raised_after_the_outcomes(pool: Any) -> None:
    def numbers() -> Iterator[int]:
        yield from range(4)
        raise OSError("the input")

    outcomes = pool.map(halve, numbers(), on_error="return")
    check([next(outcomes) for _ in range(4)], 4)
    with pytest.raises(OSError, match="the input"):
        next(outcomes)


def test_the_timeout_of_a_map_is_raised() -> None:
    with Blocker() as blocker, Pool(1) as pool:
        outcomes = pool.map(blocker, range(3), on_error="return", timeout=0.05)
        with pytest.raises(TimeoutError):
            next(outcomes)
        unordered = pool.map(blocker, range(3), ordered=False, timeout=0.05)
        with pytest.raises(TimeoutError):
            next(unordered)
        blocker.release()


def test_an_item_that_runs_too_long_has_its_timeout_as_its_error() -> None:
    with Pool(2, runtime="process") as pool:
        quick, slow = pool.using(run_timeout=0.2).map(time.sleep, [0, PATIENCE], on_error="return")
    assert quick.error is None
    assert isinstance(slow.error, RunTimeout)


def test_a_pool_that_closes_without_draining_ends_the_map() -> None:
    with Blocker() as blocker:
        pool = Pool(1)
        outcomes = pool.map(blocker, range(5000), on_error="return", ordered=False)
        blocker.wait_entered()
        with Background(lambda: pool.close(drain=False)) as closing:
            assert eventually(lambda: pool.stats().cancelled)
            blocker.release()
        assert closing.error is None
        with pytest.raises(CancelledError):
            list(outcomes)


def test_pools_pass_the_options_on() -> None:
    with Pools(default={"max_workers": 1}) as pools:
        check(pools.map(halve, range(4), on_error="return", ordered=True), 4)


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"on_error": None}, {"ordered": 1}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with Pool(1) as pool, pytest.raises((InvalidOption, TypeError), match=next(iter(options))):
        pool.map(abs, [1], **options)


def test_a_class_with_a_submit_of_its_own_has_the_map_of_the_standard() -> None:
    class Own(Pool):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return super().submit(fn, *args, **kwargs)

    with Own(1) as pool, pytest.raises(InvalidOption, match="overrides submit"):
        pool.map(abs, [1], on_error="return")


# As they come.


@pytest.mark.parametrize("options", [{}, {"observer": lambda event: None}, {"runtime": "process"}])
def test_results_come_while_an_earlier_item_still_runs(options: dict[str, Any], tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Pool(2, **options) as pool:
        results = pool.map(partial(wait_for_file_if, 0, go), range(20), ordered=False)
        assert sorted(next(results) for _ in range(19)) == list(range(1, 20))
        go.touch()
        assert list(results) == [0]


def wait_for_file_if(number: int, path: Path, item: int) -> int:
    if item == number:
        assert eventually(path.exists)
    return item


def test_a_worker_may_read_a_map_of_its_own_pool_without_order() -> None:
    with Pool(1) as pool:
        assert pool.submit(lambda: sorted(pool.map(abs, range(100), ordered=False))).result(PATIENCE) == [*range(100)]


# Bundles on threads.


def test_a_slow_item_does_not_hold_up_the_items_behind_it_in_its_bundle() -> None:
    """The slow item waits for the one behind it, with which it is in one bundle of quick items."""
    behind = threading.Event()
    ran: Counter[int] = Counter()

    def run(number: int) -> int:
        ran[number] += 1
        if number == MANY - 100:
            assert behind.wait(PATIENCE)
        elif number == MANY - 99:
            behind.set()
        return number

    with Pool(2) as pool:
        assert list(pool.map(run, range(MANY))) == list(range(MANY))
        ran.clear()
        behind.clear()
        assert sorted(pool.map(run, iter(range(MANY)), ordered=False)) == list(range(MANY))
    assert set(ran.values()) == {1}


@pytest.mark.parametrize("ordered", [True, False])
def test_a_slow_item_does_not_hold_up_the_results_before_it_in_its_bundle(ordered: bool) -> None:
    with Blocker() as blocker, Pool(1) as pool:
        results = pool.map(lambda number: blocker(number) if number == 1500 else number, range(MANY), ordered=ordered)
        assert [next(results) for _ in range(1500)] == list(range(1500))
        blocker.wait_entered()
        blocker.release()
        assert list(results) == list(range(1500, MANY))


def test_items_of_an_iterator_start_as_they_are_taken_also_after_many_quick_ones() -> None:
    done: list[threading.Event] = []

    def events() -> Iterator[threading.Event]:
        for number in range(MANY):
            if number > MANY // 2:
                assert done[-1].wait(PATIENCE)
            done.append(threading.Event())
            yield done[-1]

    with Pool(1) as pool:
        assert len(list(pool.map(threading.Event.set, events()))) == MANY


def test_a_stop_iteration_is_the_error_of_one_item_and_no_item_runs_twice() -> None:
    ran: Counter[int] = Counter()

    def run(number: int) -> int:
        ran[number] += 1
        if number % 100 == 99:
            raise StopIteration
        return number

    with Pool(2) as pool:
        outcomes = list(pool.map(run, range(MANY), on_error="return"))
        assert [outcome.item for outcome in outcomes if outcome.error] == list(range(99, MANY, 100))
        stats = pool.stats()
    assert set(ran.values()) == {1}
    assert (stats.completed, stats.failed, stats.submitted) == (MANY - MANY // 100, MANY // 100, MANY)


def test_a_map_that_is_closed_in_the_middle_of_a_bundle_begins_no_further_item() -> None:
    ran: list[int] = []
    with Blocker() as blocker, Pool(1) as pool:

        def run(number: int) -> int:
            ran.append(number)
            if number == 1500:
                blocker()
            return number

        results = pool.map(run, range(MANY))
        for _ in range(1400):
            next(results)
        blocker.wait_entered()
        results.close()
        blocker.release()
        assert pool.submit(int).result(PATIENCE) == 0
        stats = pool.stats()
    assert ran[-1] == 1500
    assert stats.completed == 1502
    assert stats.completed + stats.cancelled == stats.submitted


def test_a_worker_that_is_broken_by_an_item_leaves_the_rest_of_its_bundle_to_another() -> None:
    ran: dict[int, threading.Thread] = {}

    def run(number: int) -> int:
        assert number not in ran
        ran[number] = threading.current_thread()
        if number == 1500:
            raise WorkerBroken("on purpose")
        return number

    with Pool(1) as pool:
        outcomes = list(pool.map(run, range(MANY), on_error="return"))
    assert [outcome.item for outcome in outcomes if outcome.error] == [1500]
    assert isinstance(outcomes[1500].error, WorkerLost)
    assert ran[1501] is not ran[1500]


# Processes that die in the middle of a chunk.


def note_and_die_at(numbers: tuple[int, ...], path: Path, number: int) -> int:
    with path.open("a") as file:
        file.write(f"{number}\n")
    if number in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("capacity", [1, 2])
def test_of_a_chunk_whose_process_is_killed_only_the_running_item_is_lost(
    tmp_path: Path, ordered: bool, capacity: int
) -> None:
    """Results that were there are kept, and items that had not begun run elsewhere: every item runs exactly once."""
    deadly = (300, 301, 900)
    noted = tmp_path / "ran"
    with Pool(1, capacity=capacity, runtime="process") as pool:
        run = partial(note_and_die_at, deadly, noted)
        outcomes = list(pool.map(run, range(1000), on_error="return", ordered=ordered, chunksize=100))
        assert sorted(outcome.item for outcome in outcomes) == list(range(1000))
        lost = sorted(outcome.item for outcome in outcomes if outcome.error)
        stats = pool.stats()
    assert ordered is False or [outcome.item for outcome in outcomes] == list(range(1000))
    assert set(lost).issuperset(deadly)
    assert all(isinstance(outcome.error, WorkerLost) for outcome in outcomes if outcome.item in lost)
    assert all(outcome.value == outcome.item for outcome in outcomes if outcome.item not in lost)
    ran = Counter(map(int, noted.read_text().split()))
    assert set(ran.values()) == {1}
    if capacity == 1:  # otherwise another chunk runs beside it, and loses the item that runs then
        assert lost == list(deadly)
        assert len(ran) == 1000
    assert (stats.submitted, stats.lost, stats.completed) == (1000, len(lost), 1000 - len(lost))


def test_items_behind_a_killed_one_run_though_the_map_is_read_after_the_close(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        run = partial(note_and_die_at, (3, 4, 9), tmp_path / "ran")
        reading = pool.map(run, range(20), on_error="return", chunksize=20)
    outcomes = list(reading)
    assert [outcome.item for outcome in outcomes if isinstance(outcome.error, WorkerLost)] == [3, 4, 9]
    assert [outcome.value for outcome in outcomes if not outcome.error] == [*range(3), *range(5, 9), *range(10, 20)]


def test_items_behind_a_killed_one_run_though_the_map_is_never_read(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with Pool(1, runtime="process") as pool:
        pool.map(partial(note_and_die_at, (3, 19), ran), range(20), on_error="return", chunksize=20)
    assert list(map(int, ran.read_text().split())) == list(range(20))
    stats = pool.stats()
    assert (stats.submitted, stats.lost, stats.completed) == (20, 2, 18)


def test_each_item_of_a_chunk_may_kill_its_process(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        run = partial(note_and_die_at, tuple(range(2, 12)), tmp_path / "ran")
        outcomes = list(pool.map(run, range(14), on_error="return", chunksize=14))
        stats = pool.stats()
    assert [outcome.value for outcome in outcomes] == [0, 1, *[None] * 10, 12, 13]
    assert all(isinstance(outcome.error, WorkerLost) for outcome in outcomes[2:12])
    assert (stats.submitted, stats.lost, stats.completed) == (14, 10, 4)


def test_a_process_that_is_killed_from_outside_loses_one_item(tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    with Pool(1, runtime="process") as pool:
        outcomes = pool.map(partial(wait_at, 50, begun, go), range(100), on_error="return", chunksize=100)
        os.kill(read_pid(begun), signal.SIGKILL)
        go.touch()
        read = list(outcomes)
    assert [outcome.item for outcome in read] == list(range(100))
    assert [outcome.item for outcome in read if outcome.error] == [50]
    assert [outcome.value for outcome in read[:50]] == list(range(50))


def wait_at(place: int, begun: Path, go: Path, number: int) -> int:
    if number == place:
        note_pid(begun)
        assert eventually(go.exists)
    return number


def broken_at(place: int, number: int) -> int:
    if number == place:
        raise WorkerBroken("on purpose")
    return number


def test_an_item_that_says_that_its_process_is_broken_is_lost_alone() -> None:
    with Pool(1, runtime="process") as pool:
        outcomes = list(pool.map(partial(broken_at, 5), range(20), on_error="return", chunksize=10))
    assert [outcome.item for outcome in outcomes if isinstance(outcome.error, WorkerLost)] == [5]
    assert [outcome.value for outcome in outcomes if not outcome.error] == [n for n in range(20) if n != 5]


def unpicklable_at(place: int, number: int) -> Any:
    if number == place:
        return threading.Lock()
    if number == 2 * place:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_result_that_cannot_be_pickled_is_the_error_of_its_item() -> None:
    with Pool(1, runtime="process") as pool:
        outcomes = list(pool.map(partial(unpicklable_at, 3), range(10), on_error="return", chunksize=10))
    assert [outcome.item for outcome in outcomes if outcome.error] == [3, 6]
    assert "pickle" in str(outcomes[3].error)


class Unreadable:
    """It can be pickled, and not be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def die_at(deadly: Any, item: Any) -> Any:
    if item == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("bad", [threading.Lock(), Unreadable()])
def test_an_item_that_cannot_be_sent_does_not_affect_a_chunk_whose_process_dies(bad: Any) -> None:
    items = [0, 1, bad, 3, 4, 5]
    with Pool(1, runtime="process") as pool:
        outcomes = list(pool.map(partial(die_at, 4), items, on_error="return", chunksize=6))
    assert [outcome.item for outcome in outcomes] == items
    assert [outcome.value for outcome in outcomes] == [0, 1, None, 3, None, 5]
    assert "pickle" in str(outcomes[2].error)
    assert isinstance(outcomes[4].error, WorkerLost)


def test_without_outcomes_the_death_of_a_worker_ends_the_map(tmp_path: Path) -> None:
    with Pool(1, runtime="process") as pool:
        results = pool.map(partial(note_and_die_at, (5,), tmp_path / "ran"), range(20), chunksize=10)
        with pytest.raises(WorkerLost):
            list(results)


# On an event loop.


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


Inputs = Callable[[int], Any]


@pytest.mark.parametrize("inputs", [range, numbers])
@pytest.mark.parametrize("function", [halve, halve_on_the_loop])
@pytest.mark.parametrize("options", [{}, {"timeout": PATIENCE}, {"max_queue": 3}])
@pytest.mark.anyio
async def test_every_item_of_an_async_map_has_an_outcome(
    inputs: Inputs, function: Any, options: dict[str, Any]
) -> None:
    limits = {name: value for name, value in options.items() if name == "timeout"}
    async with AsyncPool(3, max_queue=options.get("max_queue")) as pool:
        view = pool.using(**limits) if limits else pool
        check([outcome async for outcome in view.map(function, inputs(300), on_error="return")], 300)
        unordered = [outcome async for outcome in view.map(function, inputs(300), on_error="return", ordered=False)]
        check(sorted(unordered, key=lambda outcome: outcome.item), 300)


@pytest.mark.parametrize("inputs", [range, numbers])
@pytest.mark.anyio
async def test_results_come_on_a_loop_while_an_earlier_item_still_runs(inputs: Inputs) -> None:
    go = asyncio.Event()

    async def run(number: int) -> int:
        if number == 0:
            await go.wait()
        return number

    async with AsyncPool(2) as pool:
        results = pool.map(run, inputs(20), ordered=False)
        assert sorted([await anext(results) for _ in range(19)]) == list(range(1, 20))
        go.set()
        assert [result async for result in results] == [0]


@pytest.mark.anyio
async def test_the_items_of_several_async_iterables_are_tuples() -> None:
    async with AsyncPool(2) as pool:
        outcomes = [outcome async for outcome in pool.map(divmod, numbers(3), [1, 0, 2], on_error="return")]
    assert [outcome.item for outcome in outcomes] == [(0, 1), (1, 0), (2, 2)]
    assert [outcome.value for outcome in outcomes] == [(0, 0), None, (1, 0)]


@pytest.mark.anyio
async def test_a_process_that_dies_is_the_error_of_its_item_on_a_loop(tmp_path: Path) -> None:
    async with AsyncPool(2, runtime="process") as pool:
        run = partial(note_and_die_at, (3,), tmp_path / "ran")
        outcomes = [outcome async for outcome in pool.map(run, range(8), on_error="return")]
    assert [outcome.item for outcome in outcomes if isinstance(outcome.error, WorkerLost)] == [3]


@pytest.mark.anyio
async def test_options_of_an_async_map_are_checked() -> None:
    async with AsyncPool(1) as pool:
        with pytest.raises(InvalidOption, match="on_error"):
            pool.map(abs, [1], on_error="ignore")  # type: ignore[call-overload]

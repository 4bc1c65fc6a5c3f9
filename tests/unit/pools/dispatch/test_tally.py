"""No count is lost, however many threads count."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from bullpen.pools.dispatch.tally import Tally, Total

THREADS = 8
TIMES = 5000


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_many_threads(function: Callable[[], object]) -> None:
    start = threading.Barrier(THREADS)

    def run() -> None:
        start.wait()
        for _ in range(TIMES):
            function()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_reading_does_not_count() -> None:
    tally = Tally()
    assert [tally.value for _ in range(5)] == [0] * 5
    tally.add()
    tally.add()
    assert [tally.value for _ in range(5)] == [2] * 5


def test_each_number_is_given_out_once_in_order_to_any_reader() -> None:
    tally = Tally()
    assert [(tally.add(), tally.value) for _ in range(3)] == [(0, 1), (1, 2), (2, 3)]


def test_many_threads_count_exactly() -> None:
    tally = Tally()
    in_many_threads(tally.add)
    assert tally.value == THREADS * TIMES


def test_reading_meanwhile_disturbs_no_count() -> None:
    tally, seen = Tally(), list[int]()

    def count_and_read() -> None:
        tally.add()
        if len(seen) < 20_000:
            seen.append(tally.value)

    in_many_threads(count_and_read)
    assert tally.value == THREADS * TIMES
    assert 0 < min(seen) <= max(seen) <= THREADS * TIMES


def test_many_threads_add_exactly() -> None:
    total = Total()

    def add() -> None:
        total.add(3)
        total.add(-2)

    in_many_threads(add)
    assert total.value == THREADS * TIMES

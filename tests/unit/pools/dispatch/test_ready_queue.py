"""Each strategy has its order, loses nobody and invents nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.pools.dispatch.ready_queue import LeastLoaded, MostRecentlyUsed, Rotation, SchedulerStrategy

STRATEGIES: list[Callable[[], SchedulerStrategy]] = [Rotation, MostRecentlyUsed, LeastLoaded]


def pop_all(strategy: SchedulerStrategy) -> list[int]:
    return [strategy.pop() for _ in range(len(strategy))]


@pytest.mark.parametrize("make", STRATEGIES)
def test_no_worker_is_ready_at_first_and_after_the_last(make: Callable[[], SchedulerStrategy]) -> None:
    strategy = make()
    for _ in range(2):
        assert len(strategy) == 0
        with pytest.raises(IndexError):
            strategy.pop()
        strategy.push(7, 0)
        assert len(strategy) == 1
        assert strategy.pop() == 7


@pytest.mark.parametrize(("make", "expected"), [(Rotation, [3, 1, 2]), (MostRecentlyUsed, [2, 1, 3])])
def test_the_order_of_a_line(make: Callable[[], SchedulerStrategy], expected: list[int]) -> None:
    strategy = make()
    for worker_id in (3, 1, 2):
        strategy.push(worker_id, 0)
    assert pop_all(strategy) == expected


def test_the_least_loaded_comes_first_and_among_equals_the_longest_idle() -> None:
    strategy = LeastLoaded()
    for worker_id, load in [(1, 2), (2, 0), (3, 1), (4, 0)]:
        strategy.push(worker_id, load)
    assert pop_all(strategy) == [2, 4, 3, 1]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)) | st.none(), max_size=60))
@pytest.mark.parametrize("make", STRATEGIES)
def test_any_mixture_of_pushes_and_pops_is_as_with_a_plain_list(
    make: Callable[[], SchedulerStrategy], steps: list[tuple[int, int] | None]
) -> None:
    strategy, model = make(), list[tuple[int, int]]()
    for step in steps:
        if step is not None:
            if step[0] not in [worker_id for worker_id, _ in model]:  # at most one entry per worker
                strategy.push(*step)
                model.append(step)
        elif model:
            expected = {
                Rotation: model[0],
                MostRecentlyUsed: model[-1],
                LeastLoaded: min(model, key=lambda entry: entry[1]),
            }[type(strategy)]
            model.remove(expected)
            assert strategy.pop() == expected[0]
        else:
            with pytest.raises(IndexError):
                strategy.pop()
        assert len(strategy) == len(model)

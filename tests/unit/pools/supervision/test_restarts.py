from __future__ import annotations

import math

import pytest

from bullpen.pools.supervision.restarts import MAX_DELAY, Restarts, jittered

EVEN = 0.5  # the luck that changes nothing


def deaths(restarts: Restarts, *instants: float, others_up: bool = False) -> list[float]:
    return [restarts.died(now, EVEN, others_up=others_up) for now in instants]


def test_as_many_deaths_as_the_limit_are_forgiven_and_the_next_one_is_not() -> None:
    restarts = Restarts(3, 60.0)
    assert deaths(restarts, 0, 1, 2) == [0, 0, 0]
    assert not restarts.degraded
    assert deaths(restarts, 3) == pytest.approx([0.1])
    assert restarts.degraded


def test_deaths_count_only_within_the_window() -> None:
    restarts = Restarts(3, 60.0)
    assert deaths(restarts, 0, 30, 59, 60, 100, 119, 130) == [0] * 7
    assert not restarts.degraded


def test_a_limit_of_nothing_forgives_nothing() -> None:
    assert deaths(Restarts(0, 1.0), 0) == pytest.approx([0.1])


def test_the_delay_doubles_with_each_death_up_to_a_minute() -> None:
    delays = deaths(Restarts(0, 1.0), *range(2000))
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert delays[8:12] == pytest.approx([25.6, 51.2, MAX_DELAY, MAX_DELAY])
    assert delays[-1] == pytest.approx(MAX_DELAY)


def test_a_degraded_pool_is_not_forgiven_because_its_workers_die_more_slowly() -> None:
    restarts = Restarts(1, 10.0)
    assert deaths(restarts, 0, 1, 100, 200) == pytest.approx([0, 0.1, 0.2, 0.4])


def test_it_recovers_when_a_worker_was_up_for_the_window() -> None:
    restarts = Restarts(0, 10.0)
    deaths(restarts, 0)
    assert restarts.steady_at == math.inf
    assert not restarts.recover(1000), "nobody was up"
    restarts.came_up(1000)
    restarts.came_up(1005)
    assert restarts.steady_at == 1010
    assert not restarts.recover(1009.9)
    assert restarts.degraded
    assert restarts.recover(1010)
    assert not restarts.degraded
    assert restarts.steady_at == math.inf
    assert deaths(restarts, 1011) == pytest.approx([0.1]), "the delay begins anew"


def test_a_death_begins_the_window_anew_for_the_living_workers() -> None:
    restarts = Restarts(0, 10.0)
    deaths(restarts, 0, 5, others_up=True)
    assert restarts.steady_at == 15
    deaths(restarts, 6)
    assert restarts.steady_at == math.inf, "the last one died"


def test_what_never_was_degraded_does_not_recover() -> None:
    restarts = Restarts(5, 10.0)
    restarts.came_up(0)
    assert restarts.steady_at == math.inf
    assert not restarts.recover(1000)


def test_after_a_recovery_the_limit_is_whole_again() -> None:
    restarts = Restarts(1, 10.0)
    deaths(restarts, 0, 1)
    restarts.came_up(2)
    assert restarts.recover(12)
    assert deaths(restarts, 12, 13) == pytest.approx([0, 0.1])


def test_jitter_is_a_tenth_either_way() -> None:
    assert [jittered(10, random) for random in (0, 0.5, 1)] == pytest.approx([9, 10, 11])

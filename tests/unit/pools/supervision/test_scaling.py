"""A pool lets go exactly the workers that it never needed."""

from __future__ import annotations

from bullpen.pools.supervision.scaling import STEPS, Surplus


def steps(surplus: Surplus, *fewest_ready: int, removable: int = 9) -> list[bool]:
    return [surplus.step(fewest, removable) for fewest in fewest_ready]


def test_no_worker_is_removed_before_the_whole_time_was_watched() -> None:
    surplus = Surplus()
    assert steps(surplus, *[3] * (STEPS - 1)) == [False] * (STEPS - 1)
    assert steps(surplus, 3) == [True]


def test_one_busy_moment_keeps_everybody_until_it_is_long_ago() -> None:
    surplus = Surplus()
    steps(surplus, *[1] * (STEPS - 1))
    assert steps(surplus, 0, *[1] * (STEPS - 1)) == [False] * STEPS
    assert steps(surplus, 1) == [True]


def test_as_many_go_as_were_idle_at_the_worst_moment_one_per_step() -> None:
    surplus = Surplus()
    assert steps(surplus, *[5] * (STEPS - 1), 2) == [False] * (STEPS - 1) + [True]
    # Two were idle then. The first has gone, so from now on there is one less everywhere.
    assert steps(surplus, 4) == [True]
    assert steps(surplus, *[3] * (STEPS - 2)) == [False] * (STEPS - 2)
    assert steps(surplus, 3) == [True], "the worst moment is forgotten"


def test_no_worker_is_removed_if_none_may_be() -> None:
    surplus = Surplus()
    assert steps(surplus, *[5] * (2 * STEPS), removable=0) == [False] * (2 * STEPS)
    assert steps(surplus, 5, removable=1) == [True]


def test_after_a_reset_everything_is_watched_anew() -> None:
    surplus = Surplus()
    steps(surplus, *[5] * (STEPS - 1))
    surplus.reset()
    assert steps(surplus, *[5] * (STEPS - 1)) == [False] * (STEPS - 1)

"""A request knows how much time it has left; what has none left is not even begun."""

from __future__ import annotations

import math
import threading
from concurrent.futures import wait
from typing import Any

import pytest

from bullpen import CallPolicy, DeadlineExceeded, Kind, Pool, PoolClosed, TelemetryEvent, remaining
from bullpen.testing import ManualClock, ScriptedRuntime
from tests.names import name_of

from .support import PATIENCE, Blocker

POOLS: list[dict[str, Any]] = [{}, {"max_queue": 10}, {"capacity": 3}, {"calls": CallPolicy(wrap=lambda call: call())}]


def test_outside_of_any_request_there_is_no_limit() -> None:
    assert remaining() is None


@pytest.mark.parametrize("options", POOLS, ids=name_of)
@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({}, None),
        ({"queue_timeout": 5}, None),
        ({"timeout": 10}, 7.0),
        ({"run_timeout": 4}, 4.0),
        ({"timeout": 10, "run_timeout": 4}, 4.0),
        ({"timeout": 6, "run_timeout": 4}, 3.0),
        ({"timeout": math.inf}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", ["submit", "serve", "map", "context"])
def test_a_request_knows_its_remaining_time(
    options: dict[str, Any], limits: dict[str, float], left: float | None, call: str
) -> None:
    clock, runtime, seen = ManualClock(), ScriptedRuntime(), list[float | None]()
    with Pool(1, runtime=runtime, clock=clock, **options) as pool:
        pool.pause()
        view = pool.using(context=call == "context", **limits)
        if call == "map":
            view.map(lambda _: seen.append(remaining()), [1])
        else:
            getattr(view, "serve" if call == "serve" else "submit")(lambda: seen.append(remaining()))
        clock.advance(3)
        pool.resume()
        runtime.run_all()
    assert seen == [left]


def test_it_runs_down_to_zero_and_stays_there() -> None:
    clock, runtime, seen = ManualClock(), ScriptedRuntime(), list[float | None]()

    def run() -> None:
        for _ in range(4):
            seen.append(remaining())
            clock.advance(1)

    with Pool(1, runtime=runtime, clock=clock, calls=CallPolicy(log_errors=False)) as pool:
        pool.using(timeout=2).submit(run)
        runtime.run_all()
    assert seen == [2.0, 1.0, 0.0, 0.0]


def test_each_request_on_a_worker_has_its_own_budget() -> None:
    together = threading.Barrier(3)

    def look() -> float | None:
        together.wait(PATIENCE)
        left = remaining()
        together.wait(PATIENCE)
        return left

    with Pool(1, capacity=3) as pool:
        futures = [pool.using(timeout=limit).submit(look) for limit in (100, 1000, None)]
        first, second, third = [future.result(PATIENCE) for future in futures]
    assert first is not None
    assert second is not None
    assert 50 < first <= 100
    assert 900 < second <= 1000
    assert third is None


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_budget_ends_with_its_request(capacity: int) -> None:
    with Pool(1, capacity=capacity) as pool:
        assert pool.using(timeout=100).submit(remaining).result(PATIENCE) is not None
        assert [pool.submit(remaining).result(PATIENCE) for _ in range(4)] == [None] * 4


@pytest.mark.parametrize("capacity", [1, 2])
def test_a_nested_request_has_its_own_budget_but_no_more_than_the_outer_one(capacity: int) -> None:
    with Pool(1, capacity=capacity) as pool:

        def outer() -> list[float | None]:
            held = [pool.submit(blocker) for _ in range(capacity - 1)]
            if held:
                blocker.wait_entered()
            own = remaining()
            seen = [
                pool.submit(remaining).result(),
                pool.using(run_timeout=1000).submit(remaining).result(),
                pool.using(run_timeout=10).submit(remaining).result(),
                remaining(),
            ]
            blocker.release()
            return [own, *seen]

        with Blocker() as blocker:
            seen = pool.using(timeout=100).submit(outer).result(PATIENCE)
    assert all(left is not None and 50 < left <= 100 for left in (seen[0], seen[1], seen[2], seen[4]))
    assert seen[3] is not None
    assert seen[3] <= 10


def test_a_helper_knows_the_remaining_time() -> None:
    with Pool(1) as pool:

        def outer() -> float | None:
            future = pool.using(timeout=100).submit(remaining)
            wait([future])
            return future.result()

        left = pool.submit(outer).result(PATIENCE)
    assert left is not None
    assert 50 < left <= 100


def test_the_remaining_time_can_be_passed_on() -> None:
    with Pool(2) as pool, Pool(1) as other:

        def outer() -> float | None:
            return other.using(timeout=remaining()).do(remaining)

        assert pool.do(outer) is None
        left = pool.using(timeout=100).do(outer)
    assert left is not None
    assert 50 < left <= 100


# No time at all.


@pytest.mark.parametrize("options", [{}, {"max_queue": 0}, {"max_queue": 0, "when_full": "block"}], ids=str)
@pytest.mark.parametrize("call", ["submit", "serve", "do", "map"])
@pytest.mark.parametrize("session", [None, "s"])
def test_a_call_without_any_time_is_rejected_at_once(options: dict[str, Any], call: str, session: str | None) -> None:
    events: list[TelemetryEvent] = []
    ran: list[int] = []
    runtime = ScriptedRuntime()
    with Pool(1, runtime=runtime, observer=events.append, **options) as pool:
        with pytest.raises(DeadlineExceeded) as caught:
            getattr(pool.using(timeout=0, session=session), call)(ran.append, [1])
        assert not caught.value.ran
        assert caught.value.seconds == 0
        assert runtime.workers == [], "nobody was started for it"
        stats = pool.stats()
        assert (stats.submitted, stats.queued, stats.timed_out) == (0, 0, 0)
    assert ran == []
    kinds = [event.kind for event in events if event.request is not None]
    assert kinds == ([] if call == "map" else [Kind.REQUEST_QUEUED, Kind.REQUEST_REJECTED])


def test_a_closed_pool_says_that_it_is_closed_first() -> None:
    pool = Pool(1)
    pool.close()
    with pytest.raises(PoolClosed):
        pool.using(timeout=0).submit(int)

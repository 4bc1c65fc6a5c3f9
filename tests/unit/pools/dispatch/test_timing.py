"""Three limits, each with its own error, never mixed."""

from __future__ import annotations

import math

import pytest

from bullpen.errors import DeadlineExceeded, QueueTimeout, RunTimeout, Timeout
from bullpen.pools.dispatch.request import NO_LIMITS, TimeLimits, Timing
from bullpen.pools.dispatch.states import RequestState
from tests.unit.pools.dispatch.support import new_request

QUEUED, RUNNING = RequestState.QUEUED, RequestState.RUNNING


def timing_of(limits: TimeLimits, submitted_at: float = 100.0, started_at: float | None = None) -> Timing:
    timing = Timing(new_request(), submitted_at, limits)
    if started_at is not None:
        timing.started_at = started_at
    return timing


VERDICTS: list[tuple[str, TimeLimits, RequestState, float | None, float, type[Timeout] | None]] = [
    # what, limits, state, started at, looked at, verdict; submitted at 100
    ("nothing limits it", NO_LIMITS, QUEUED, None, 1e9, None),
    ("nothing limits its run", NO_LIMITS, RUNNING, 101, 1e9, None),
    ("waits in time", TimeLimits(queue_timeout=5), QUEUED, None, 104.9, None),
    ("waited too long", TimeLimits(queue_timeout=5), QUEUED, None, 105, QueueTimeout),
    ("ran after a long wait", TimeLimits(queue_timeout=5), RUNNING, 104, 1e9, None),
    ("runs in time", TimeLimits(run_timeout=5), RUNNING, 150, 154.9, None),
    ("ran too long", TimeLimits(run_timeout=5), RUNNING, 150, 155, RunTimeout),
    ("a run's limit does not limit the wait", TimeLimits(run_timeout=5), QUEUED, None, 1e9, None),
    ("the budget is not spent", TimeLimits(timeout=5), QUEUED, None, 104.9, None),
    ("the budget is spent waiting", TimeLimits(timeout=5), QUEUED, None, 105, DeadlineExceeded),
    ("the budget is spent running", TimeLimits(timeout=5), RUNNING, 101, 105, DeadlineExceeded),
    ("the queue's limit comes first", TimeLimits(timeout=9, queue_timeout=5), QUEUED, None, 105, QueueTimeout),
    (
        "both have passed: the budget counts",
        TimeLimits(timeout=9, queue_timeout=5),
        QUEUED,
        None,
        109,
        DeadlineExceeded,
    ),
    ("the budget comes first", TimeLimits(timeout=3, queue_timeout=5), QUEUED, None, 103, DeadlineExceeded),
    ("the run's limit comes first", TimeLimits(timeout=9, run_timeout=1), RUNNING, 102, 103, RunTimeout),
    ("both have passed at once", TimeLimits(timeout=9, run_timeout=1), RUNNING, 108, 109, DeadlineExceeded),
    ("no time at all", TimeLimits(timeout=0), QUEUED, None, 100, DeadlineExceeded),
    ("no wait at all", TimeLimits(queue_timeout=0), QUEUED, None, 100, QueueTimeout),
]


@pytest.mark.parametrize(
    ("limits", "state", "started_at", "now", "expected"),
    [pytest.param(*verdict[1:], id=verdict[0]) for verdict in VERDICTS],
)
def test_the_verdict(
    limits: TimeLimits, state: RequestState, started_at: float | None, now: float, expected: type[Timeout] | None
) -> None:
    verdict = timing_of(limits, started_at=started_at).verdict(state, now)
    assert type(verdict) is (type(None) if expected is None else expected)


def test_a_verdict_says_which_limit_and_where_it_was() -> None:
    limits = TimeLimits(timeout=9, queue_timeout=5, run_timeout=2)
    waiting = timing_of(limits)
    assert getattr(waiting.verdict(QUEUED, 105), "seconds", None) == 5
    late = waiting.verdict(QUEUED, 109)
    assert isinstance(late, DeadlineExceeded)
    assert (late.seconds, late.ran) == (9, False)
    running = timing_of(limits, started_at=101)
    assert getattr(running.verdict(RUNNING, 103), "seconds", None) == 2
    late = running.verdict(RUNNING, 109)
    assert isinstance(late, DeadlineExceeded)
    assert (late.seconds, late.ran) == (9, True)


@pytest.mark.parametrize(
    ("limits", "state", "expected"),
    [
        (NO_LIMITS, QUEUED, math.inf),
        (NO_LIMITS, RUNNING, math.inf),
        (TimeLimits(timeout=9, queue_timeout=5), QUEUED, 105),
        (TimeLimits(timeout=3, queue_timeout=5), QUEUED, 103),
        (TimeLimits(timeout=9, run_timeout=2), RUNNING, 103),
        (TimeLimits(timeout=2, run_timeout=2), RUNNING, 102),
        (TimeLimits(run_timeout=2), RUNNING, 103),
        (TimeLimits(queue_timeout=5), RUNNING, math.inf),
    ],
)
def test_when_to_look_next(limits: TimeLimits, state: RequestState, expected: float) -> None:
    assert timing_of(limits, started_at=101).next_at(state) == expected


@pytest.mark.parametrize(
    "limits", [NO_LIMITS, TimeLimits(9), TimeLimits(9, 5), TimeLimits(9, 5, 2), TimeLimits(None, 5)]
)
def test_there_is_a_verdict_exactly_from_the_next_look_on(limits: TimeLimits) -> None:
    for state in (QUEUED, RUNNING):
        timing = timing_of(limits, started_at=101)
        at = timing.next_at(state)
        if at == math.inf:
            assert timing.verdict(state, 1e12) is None
        else:
            assert timing.verdict(state, math.nextafter(at, 0)) is None
            assert timing.verdict(state, at) is not None


def test_limits_know_whether_they_limit_anything() -> None:
    assert not NO_LIMITS.any
    assert all(limits.any for limits in (TimeLimits(0), TimeLimits(None, 0), TimeLimits(None, None, 1)))

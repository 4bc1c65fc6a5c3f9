"""Moves of schedules that are hard to see from outside."""

from __future__ import annotations

import pytest

from bullpen.tasks.model import task as moves
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import RUNNING, AttemptError, Task

HOURLY = Schedule(key="k", cron="0 * * * *")
HOUR = 3600.0


def running(**fields: object) -> Task:
    usual = {"status": RUNNING, "attempt": 1, "scheduled_at": 5 * HOUR, "eta": 5 * HOUR, "started_at": 5 * HOUR}
    return Task(id="t", func_path="f", payload=b"", schedule=HOURLY, **{**usual, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("now", [0.0, 5 * HOUR, 5.5 * HOUR])
def test_the_next_time_is_later_than_the_one_before_whatever_the_clock_says(now: float) -> None:
    done = moves.succeed(running(), b"", now=now)
    assert (done.eta, done.scheduled_at, done.next_run) == (6 * HOUR, 6 * HOUR, True)


def test_a_run_that_fails_for_good_goes_on_with_the_next_time() -> None:
    error = AttemptError(kind="exception", attempt=1, at=5.2 * HOUR)
    failed = moves.fail(running(on_failure="continue"), error, 0.0)
    assert (str(failed.status), failed.eta, failed.failures, failed.error) == ("pending", 6 * HOUR, 0, error)


def test_a_retry_is_for_the_same_time() -> None:
    error = AttemptError(kind="exception", attempt=1, at=5.2 * HOUR)
    again = moves.fail(running(max_retries=1), error, 0.0, after=7.0)
    assert (again.delay, again.scheduled_at, again.next_run) == (7.0, 5 * HOUR, False)


def test_a_worker_that_rescues_a_late_run_knows_its_time_too() -> None:
    """It is the latest that had passed when it was claimed: the same that the dead worker ran for."""
    late = running(started_at=8.5 * HOUR)
    error = AttemptError(kind="crash", attempt=1, at=8.6 * HOUR)
    assert moves.scheduled_time_of(late) == 8 * HOUR
    assert moves.crash(late, error).scheduled_at == 8 * HOUR

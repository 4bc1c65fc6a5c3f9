"""A task whose function nobody knows waits longer and longer, and fails in the end."""

from __future__ import annotations

import msgspec
import pytest

from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    LONGEST_POSTPONEMENT,
    PENDING,
    AttemptError,
    Task,
    claimed,
    postpone,
    redriven,
    settled,
)


def claim(task: Task, now: float) -> Task:
    return claimed(task, worker="w", claim_id="c", now=now, lease_until=now + 15)


def unknown(task: Task, now: float) -> AttemptError:
    return AttemptError(kind="unknown_function", attempt=task.attempt, at=now, message="no such function")


def postpone_at(task: Task, now: float) -> Task:
    running = claim(task, now)
    return settled(running, postpone(running, unknown(running, now), 0.0, give_up_after=3600.0), now)


def test_it_waits_twice_as_long_each_time_and_fails_after_an_hour() -> None:
    task, now, waits = Task(id="1", func_path="f", payload=b""), 1000.0, list[float]()
    while True:
        task = postpone_at(task, now)
        if task.status is not PENDING:
            break
        waits.append(task.eta - now)
        now = task.eta
    assert waits[:7] == [1, 1, 2, 4, 8, 16, 32]
    assert set(waits[7:]) == {LONGEST_POSTPONEMENT}
    assert (task.status, task.failures, task.crashes) == (FAILED, 0, 0)
    assert 3600 <= now - 1000.0 <= 3600 + LONGEST_POSTPONEMENT


def test_it_says_once_since_when_and_why() -> None:
    task = Task(id="1", func_path="f", payload=b"")
    for now in (1000.0, 1001.0, 1002.0):
        task = postpone_at(task, now)
    assert [(error.kind, error.at) for error in task.errors] == [("unknown_function", 1000.0)]


def test_jitter_adds_a_tenth_at_most() -> None:
    running = claim(Task(id="1", func_path="f", payload=b""), 1000.0)
    assert postpone(running, unknown(running, 1000.0), 1.0, give_up_after=60.0).delay == pytest.approx(1.1)


def test_one_that_is_run_again_by_hand_has_its_time_again() -> None:
    task = postpone_at(Task(id="1", func_path="f", payload=b""), 1000.0)
    task = postpone_at(task, 5000.0)
    assert task.status is FAILED
    again = redriven(task, 9000.0)
    assert again is not None
    assert postpone_at(again, 9000.0).status is PENDING


def test_one_that_is_to_be_cancelled_is() -> None:
    running = msgspec.structs.replace(claim(Task(id="1", func_path="f", payload=b""), 1000.0), cancel_requested=True)
    assert postpone(running, unknown(running, 1000.0), 0.0, give_up_after=60.0).status is CANCELLED

"""Every move of a task, and what it makes of one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bullpen.tasks.model import task as moves
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.task import (
    CANCELLED,
    ERRORS_KEPT,
    FAILED,
    FINAL,
    MAX_CRASHES,
    PENDING,
    RUNNING,
    SUCCESS,
    TASK_MOVES,
    AttemptError,
    ErrorKind,
    Settlement,
    Task,
    TaskStatus,
)

NOW = 1000.0
ERROR = AttemptError(kind="exception", attempt=4, at=NOW, type="ValueError", message="no")


def running(**fields: Any) -> Task:
    task = Task(id="t", func_path="f", payload=b"[]", backoff=Backoff(base=1.0), **fields)
    return msgspec.structs.replace(task, status=RUNNING, attempt=4, worker="w", claim_id="c", lease_until=NOW + 15)


# Each move that the holder of a running task can make, as (status, delay, failures, crashes, runs).
OUTCOMES = {
    "success": (moves.succeed(running(), b"1"), (SUCCESS, None, 0, 0, 1)),
    "success of an interval": (moves.succeed(running(interval=60.0, completed_runs=7), b"1"), (PENDING, 60.0, 0, 0, 8)),
    "success of an interval that is to stop": (
        moves.succeed(running(interval=60.0, completed_runs=7, cancel_requested=True), b"1"),
        (SUCCESS, None, 0, 0, 8),
    ),
    "failure with tries left": (moves.fail(running(max_retries=1, crashes=1), ERROR, 0.0), (PENDING, 2.0, 1, 1, 0)),
    "failure, the second, later": (
        moves.fail(running(max_retries=2, failures=1), ERROR, 0.0),
        (PENDING, 4.0, 2, 0, 0),
    ),
    "failure with a delay asked for": (
        moves.fail(running(max_retries=1), ERROR, 0.0, after=0.5),
        (PENDING, 0.5, 1, 0, 0),
    ),
    "failure with no tries left": (moves.fail(running(max_retries=1, failures=1), ERROR, 0.0), (FAILED, None, 2, 0, 0)),
    "failure that no try can mend": (
        moves.fail(running(max_retries=9), ERROR, 0.0, retry=False),
        (FAILED, None, 1, 0, 0),
    ),
    "failure of what may run once": (
        moves.fail(running(max_retries=9, at_most_once=True), ERROR, 0.0),
        (FAILED, None, 1, 0, 0),
    ),
    "failure of what is to stop": (
        moves.fail(running(max_retries=9, cancel_requested=True), ERROR, 0.0),
        (CANCELLED, None, 0, 0, 0),
    ),
    "failure of an interval": (
        moves.fail(running(interval=60.0, completed_runs=7), ERROR, 0.0),
        (FAILED, None, 1, 0, 7),
    ),
    "failure of an interval that goes on": (
        moves.fail(running(interval=60.0, completed_runs=7, failures=3, on_failure="continue"), ERROR, 0.0),
        (PENDING, 60.0, 0, 0, 7),
    ),
    "crash": (moves.crash(running(failures=2), ERROR), (PENDING, 0.0, 2, 1, 0)),
    "crash too many": (moves.crash(running(crashes=MAX_CRASHES - 1), ERROR), (FAILED, None, 0, MAX_CRASHES, 0)),
    "crash of what may run once": (moves.crash(running(at_most_once=True), ERROR), (FAILED, None, 0, 1, 0)),
    "crash of what is to stop": (moves.crash(running(cancel_requested=True), ERROR), (CANCELLED, None, 0, 0, 0)),
    "permanent failure": (
        moves.fail_permanently(running(completed_runs=7, failures=2, crashes=1), ERROR),
        (FAILED, None, 2, 1, 7),
    ),
    "release": (moves.release(running(failures=2, crashes=1, completed_runs=7), 3.0), (PENDING, 3.0, 2, 1, 7)),
    "release of what is to stop": (moves.release(running(cancel_requested=True)), (CANCELLED, None, 0, 0, 0)),
    "cancellation": (moves.cancel(running(failures=2, crashes=1, completed_runs=7)), (CANCELLED, None, 2, 1, 7)),
}


@pytest.mark.parametrize(("settlement", "expected"), OUTCOMES.values(), ids=OUTCOMES)
def test_what_a_move_says(settlement: Settlement, expected: tuple[TaskStatus, float | None, int, int, int]) -> None:
    said = (settlement.status, settlement.delay, settlement.failures, settlement.crashes, settlement.completed_runs)
    assert said == expected
    assert (settlement.id, settlement.attempt) == ("t", 4)
    assert settlement.status in TASK_MOVES[RUNNING]
    assert (settlement.delay is None) == settlement.is_final


def test_every_move_of_a_running_task_is_made_by_something() -> None:
    assert {settlement.status for settlement, _ in OUTCOMES.values()} == TASK_MOVES[RUNNING]


def test_what_may_run_once_is_lost_with_its_worker_and_too_many_crashes_are_poison() -> None:
    lost = moves.crash(running(at_most_once=True), ERROR).error
    poison = moves.crash(running(crashes=MAX_CRASHES - 1), ERROR).error
    assert lost is not None
    assert poison is not None
    assert (lost.kind, poison.kind) == ("lost", "poison")


def test_poison_names_the_attempts_that_have_no_error_of_their_own() -> None:
    def poison(*errors: tuple[ErrorKind, int]) -> str:
        kept = tuple(AttemptError(kind=kind, attempt=attempt, at=1.0) for kind, attempt in errors)
        task = msgspec.structs.replace(running(crashes=MAX_CRASHES - 1, errors=kept), attempt=7)
        error = moves.crash(task, msgspec.structs.replace(ERROR, message="died")).error
        assert error is not None
        return error.message

    assert poison(("crash", 5), ("crash", 6)) == "died"
    assert poison(("crash", 4), ("crash", 5)) == "died; released without an outcome: attempt 6"
    assert poison(("crash", 3), ("exception", 5), ("crash", 6)) == "died; released without an outcome: attempt 4"
    assert poison(("crash", 1), ("crash", 3), ("crash", 5)) == "died; released without an outcome: attempts 4, 6"
    assert poison() == "died"


def test_a_settled_task_is_nobodys_any_more() -> None:
    before = running(max_retries=1, cancel_requested=False)
    again = moves.settled(before, moves.fail(before, ERROR, 0.0), NOW)
    assert (again.status, again.eta, again.finished_at) == (PENDING, NOW + 2.0, None)
    assert (again.worker, again.claim_id, again.lease_until) == (None, None, None)
    assert again.errors == (ERROR,)
    done = moves.settled(before, moves.succeed(before, b"1"), NOW)
    assert (done.status, done.result, done.finished_at, done.worker) == (SUCCESS, b"1", NOW, "w")


def test_the_outcome_of_the_last_run_of_an_interval_is_kept_until_the_next() -> None:
    before = running(interval=60.0, result=b"0", completed_runs=1)
    failed = moves.settled(before, moves.fail(before, ERROR, 0.0, retry=False), NOW)
    assert failed.result == b"0"
    completed = moves.settled(before, moves.succeed(before, b"1"), NOW)
    assert (completed.result, completed.completed_runs, completed.eta, completed.finished_at) == (
        b"1",
        2,
        NOW + 60.0,
        NOW,
    )


def test_only_the_latest_errors_are_kept() -> None:
    task = running(errors=tuple(msgspec.structs.replace(ERROR, attempt=n) for n in range(ERRORS_KEPT)))
    kept = moves.settled(task, moves.fail(task, ERROR, 0.0), NOW).errors
    assert len(kept) == ERRORS_KEPT
    assert (kept[0].attempt, kept[-1]) == (1, ERROR)


@pytest.mark.parametrize(("status", "attempt", "fits"), [(RUNNING, 4, True), (RUNNING, 5, False), (PENDING, 4, False)])
def test_a_settlement_applies_to_its_attempt_alone(status: TaskStatus, attempt: int, fits: bool) -> None:
    task = msgspec.structs.replace(running(), status=status, attempt=attempt)
    assert moves.applies(task, moves.succeed(running(), None)) is fits


@pytest.mark.parametrize("status", TaskStatus)
def test_what_an_operator_can_do_in_each_state(status: TaskStatus) -> None:
    task = msgspec.structs.replace(running(failures=3, crashes=2), status=status)
    cancelled = moves.cancelled_by_operator(task, NOW)
    redriven = moves.redriven(task, NOW)
    if status is PENDING:
        assert cancelled is not None
        assert (cancelled.status, cancelled.finished_at) == (CANCELLED, NOW)
    elif status is RUNNING:
        assert cancelled is not None
        assert (cancelled.status, cancelled.cancel_requested) == (RUNNING, True)
    else:
        assert cancelled is None
    if status in FINAL:
        assert redriven is not None
        assert PENDING in TASK_MOVES[status]
        assert (redriven.status, redriven.eta, redriven.failures, redriven.crashes) == (PENDING, NOW, 0, 0)
        assert redriven.attempt == task.attempt
    else:
        assert redriven is None


def test_only_pending_tasks_expire_and_only_in_time() -> None:
    waiting = msgspec.structs.replace(running(expires=NOW), status=PENDING)
    late = moves.expired(waiting, NOW)
    assert late is not None
    assert late.error is not None
    assert (late.status, late.error.kind, late.finished_at) == (FAILED, "expired", NOW)
    assert moves.expired(waiting, NOW - 0.001) is None
    assert moves.expired(msgspec.structs.replace(waiting, status=RUNNING), NOW) is None
    assert moves.expired(msgspec.structs.replace(waiting, expires=None), NOW) is None


def test_a_claim_raises_the_attempt() -> None:
    waiting = msgspec.structs.replace(running(progress=moves.Progress(1)), status=PENDING)
    claimed = moves.claimed(waiting, worker="v", claim_id="d", now=NOW, lease_until=NOW + 15)
    assert (claimed.status, claimed.attempt, claimed.worker, claimed.claim_id) == (RUNNING, 5, "v", "d")
    assert (claimed.started_at, claimed.lease_until, claimed.progress) == (NOW, NOW + 15, moves.Progress(1))


def test_a_status_compares_with_its_word() -> None:
    assert TaskStatus("success") is SUCCESS
    assert SUCCESS == "success"
    assert f"{SUCCESS}" == "success"

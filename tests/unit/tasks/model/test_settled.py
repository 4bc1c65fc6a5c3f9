"""What a settlement makes of a task, whatever its worker knew."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    CANCELLED,
    PENDING,
    RUNNING,
    SUCCESS,
    AttemptError,
    Settlement,
    Task,
    TaskStatus,
    claimed,
    fail,
    redriven,
    release,
    settled,
    succeed,
)

ERROR = AttemptError(kind="exception", attempt=1, at=0.0)


def running(**fields: object) -> Task:
    task = Task(id="1", func_path="f", payload=b"{}", **fields)  # type: ignore[arg-type]
    return claimed(task, worker="w", claim_id="c", now=10.0, lease_until=25.0)


MOVES: dict[str, tuple[Task, Settlement, TaskStatus]] = {
    "a retry": (running(max_retries=3), fail(running(max_retries=3), ERROR, 0.0), CANCELLED),
    "a release": (running(), release(running()), CANCELLED),
    "a snooze": (running(), release(running(), 60.0), CANCELLED),
    "a completed run": (running(interval=60.0), succeed(running(interval=60.0), b"1"), SUCCESS),
}


@pytest.mark.parametrize(("task", "settlement", "status"), MOVES.values(), ids=MOVES)
def test_a_task_that_was_asked_to_stop_does_not_run_again(
    task: Task, settlement: Settlement, status: TaskStatus
) -> None:
    """Its worker did not know of the request when it wrote what became of the task."""
    assert task.status is RUNNING
    assert settled(task, settlement, 20.0).status is PENDING
    after = settled(replace(task, cancel_requested=True), settlement, 20.0)
    assert (after.status, after.finished_at, after.lease_until) == (status, 20.0, None)
    assert after.result == settlement.result
    again = redriven(after, 30.0)
    assert again is not None
    assert (again.status, again.cancel_requested) == (PENDING, False)

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bullpen.tasks.client.why import Surroundings, explain
from bullpen.tasks.model.store_move import HEADER, Mark, mark_of, marked, may_have_been_there, unmarked
from bullpen.tasks.model.task import CANCELLED, FAILED, NEVER, PENDING, RUNNING, SUCCESS, Task

TASK = Task(id="1", func_path="app.send", payload=b"", eta=7.25, expires=99.5, headers={"trace": "1"})


def test_a_task_that_is_marked_is_never_due_and_comes_back_as_it_was() -> None:
    there = marked(TASK, "redis://box", 3.5)
    assert there is not None
    assert (there.status, there.eta, there.expires) == (PENDING, NEVER, None)
    assert mark_of(there) == Mark(to="redis://box", at=3.5, eta=7.25, expires=99.5)
    assert unmarked(there) == TASK
    assert unmarked(TASK) == TASK


@pytest.mark.parametrize("status", [RUNNING, SUCCESS, FAILED, CANCELLED])
def test_only_pending_tasks_are_marked_and_only_once(status: object) -> None:
    assert marked(replace(TASK, status=status), "x", 0.0) is None
    assert marked(replace(TASK, headers={HEADER: "{}"}), "x", 0.0) is None


def test_a_task_that_was_cancelled_meanwhile_stays_cancelled() -> None:
    there = marked(TASK, "x", 0.0)
    assert there is not None
    assert unmarked(replace(there, status=CANCELLED)) == replace(TASK, status=CANCELLED)


def test_nothing_is_forgotten_before_its_time() -> None:
    there = marked(replace(TASK, result_ttl=10.0), "x", 100.0)
    assert there is not None
    assert not may_have_been_there(there, 109.9)
    assert may_have_been_there(there, 110.0)
    assert may_have_been_there(replace(there, failure_ttl=5.0), 105.0)
    assert not may_have_been_there(replace(there, result_ttl=None, failure_ttl=None), 1e12)


def test_why_says_where_it_goes() -> None:
    there = marked(TASK, "redis://box", 0.0)
    assert there is not None
    why = explain(there, Surroundings(now=0.0))
    assert why.causes[0].kind == "moving"
    assert "it is being moved to redis://box; if no `bullpen move` is running, run it again" in str(why)

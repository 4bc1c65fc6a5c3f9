"""What tasks become on a Redis server."""

from __future__ import annotations

import pytest

from bullpen.tasks.model.ids import schedule_id
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.task import Task
from bullpen.tasks.model.task_batch import TaskBatch
from bullpen.tasks.storage.redis.rows import body_of, ids_and_bodies, plain_state

PLAIN = Task(id="", func_path="app.send", payload=b"")
UNUSUAL = Task(
    id="",
    func_path="a." + "long" * 80,
    payload=b"",
    timeout=3.5,
    max_retries=7,
    backoff=Backoff(base=2.0),
    headers={"trace": "1"},
    priority=4,
    eta=123.0,
)


@pytest.mark.parametrize("same", [PLAIN, UNUSUAL])
def test_a_batch_has_the_bodies_of_its_tasks(same: Task) -> None:
    payloads = [b"", b"[]", b"x" * 255, b"y" * 256, b"z" * 70_000]
    batch = TaskBatch(same, [f"task-{number}" for number in range(len(payloads))], payloads)
    expected = [word for task in batch for word in (task.id, body_of(task))]
    assert ids_and_bodies(batch) == ids_and_bodies(list(batch)) == expected


@pytest.mark.parametrize("same", [PLAIN, UNUSUAL])
def test_a_batch_is_as_plain_as_each_of_its_tasks(same: Task) -> None:
    batch = TaskBatch(same, ["a", "b"], [b"1", b"2"])
    assert plain_state(batch) == plain_state(list(batch)) is not None
    with_schedule = TaskBatch(same, ["a", schedule_id("nightly")], [b"1", b"2"])
    assert plain_state(with_schedule) is plain_state(list(with_schedule)) is None

"""Tasks that differ in their ids and payloads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bullpen.tasks.model.task import Step, Task, new_as_kept
from bullpen.tasks.model.task_batch import RowReader, TaskBatch, batches_of, concatenate, join_batches, split_by_part

SAME = Task(id="", func_path="app.send", payload=b"", priority=3)
OTHER = Task(id="", func_path="app.receive", payload=b"")


def task(same: Task, task_id: str, payload: bytes) -> Task:
    return Task(id=task_id, func_path=same.func_path, payload=payload, priority=same.priority)


def test_they_are_a_sequence_of_tasks() -> None:
    batch = TaskBatch(SAME, ["a", "b"], [b"1", b"2"])
    expected = [task(SAME, "a", b"1"), task(SAME, "b", b"2")]
    assert list(batch) == expected
    assert [batch[0], batch[-1]] == expected
    assert batch[1:] == expected[1:]
    assert len(batch) == 2


def test_each_has_an_id_and_a_payload() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(TaskBatch(SAME, ["a", "b"], [b"1"]))


def test_they_are_kept_as_a_single_task_is() -> None:
    kept = TaskBatch(SAME, ["a"], [b"1"]).kept(now=5.0)
    assert (kept[0].created_at, kept[0].eta, kept[0].id) == (5.0, 5.0, "a")


def test_runs_of_tasks_keep_their_order() -> None:
    tasks = [task(SAME, "a", b"1"), task(SAME, "b", b"2"), task(OTHER, "c", b"3"), task(SAME, "d", b"4")]
    found = batches_of(tasks)
    assert [list(run.ids) for run in found] == [["a", "b"], ["c"], ["d"]]
    assert [one for run in found for one in run] == tasks
    assert batches_of([]) == []


def test_batches_with_one_template_are_joined_and_others_are_not() -> None:
    one, another = TaskBatch(SAME, ["a"], [b"1"]), TaskBatch(task(SAME, "", b""), ["b"], [b"2"])
    joined = join_batches([one, another])
    assert joined is not None
    assert list(joined) == [*one, *another]
    assert list(one.ids) == ["a"]
    assert join_batches([one, TaskBatch(OTHER, ["c"], [b"3"])]) is None


def test_what_is_added_together_is_shared_out_again() -> None:
    one, another, other = (
        TaskBatch(SAME, ["a", "b"], [b"1", b"2"]),
        TaskBatch(SAME, ["c"], [b"3"]),
        [task(OTHER, "d", b"4")],
    )
    assert concatenate([other]) is other
    for parts, is_batch in (([one, another], True), ([one, other, another], False)):
        whole = concatenate(parts)
        assert (type(whole) is TaskBatch) is is_batch
        assert list(whole) == [each for part in parts for each in part]
        kept = [new_as_kept(each, 5.0) for each in whole]
        for answer in (kept, TaskBatch(new_as_kept(SAME, 5.0), [each.id for each in whole], [b"?"] * len(whole))):
            if is_batch or answer is kept:
                shown = [list(share) for share in split_by_part(answer, parts)]
                assert shown == [[new_as_kept(each, 5.0) for each in part] for part in parts]


def test_a_slice_of_a_batch_is_a_batch() -> None:
    part = TaskBatch(SAME, ["a", "b", "c"], [b"1", b"2", b"3"]).part(1, 3)
    assert list(part) == [task(SAME, "b", b"2"), task(SAME, "c", b"3")]


# Rows of stored tasks.


def reader_of(read: list[str], **fields: object) -> RowReader:
    """A reader whose rows are `OWN` and a function's name. `read`: the ids of the rows that it has read whole."""

    def read_row(row: Sequence[Any]) -> Task:
        read.append(row[0])
        if type(row[1]) is not bytes or type(row[2]) is not float:
            return Task(id=row[0], func_path=row[4], payload=b"", unreadable="damaged")
        given: dict[str, Any] = {"eta": row[2], "created_at": row[3], **fields}
        return Task(id=row[0], func_path=row[4], payload=row[1], **given)

    return RowReader(read_row)


def test_rows_of_one_function_are_read_once_and_keep_their_own_values() -> None:
    read: list[str] = []
    reader = reader_of(read, max_retries=3)
    rows = [
        ("a", b"1", 1.0, 2.0, "f"),
        ("b", b"2", 3.0, 4.0, "f"),
        ("c", b"3", 5.0, 6.0, "g"),
        ("d", b"4", 7.0, 8.0, "g"),
    ]
    tasks = [reader.task_of(row) for row in rows]
    assert [(one.id, one.payload, one.eta, one.created_at, one.func_path) for one in tasks] == rows
    assert {one.max_retries for one in tasks} == {3}
    assert read == ["a", "c"]
    assert tasks[0].headers is not tasks[1].headers


@pytest.mark.parametrize(
    "damaged", [("b", "MQ==", 3.0, 4.0, "f"), ("b", b"2", "soon", 4.0, "f"), ("b", b"2", float("inf"), 4.0, "f")]
)
def test_a_damaged_row_among_others_is_read_by_itself_and_is_no_template(damaged: tuple[Any, ...]) -> None:
    read: list[str] = []
    reader = reader_of(read)
    for row in (("a", b"1", 1.0, 2.0, "f"), damaged, ("c", b"3", 5.0, 6.0, "f")):
        reader.task_of(row)
    assert "b" in read
    assert ("c" in read) == (type(damaged[1]) is not bytes or type(damaged[2]) is not float)


@pytest.mark.parametrize("fields", [{"headers": {"trace": "1"}}, {"steps": (Step(name="s", number=1, attempt=1),)}])
def test_a_task_with_headers_or_steps_is_no_template(fields: dict[str, object]) -> None:
    read: list[str] = []
    reader = reader_of(read, **fields)
    for row in (("a", b"1", 1.0, 2.0, "f"), ("b", b"2", 3.0, 4.0, "f")):
        reader.task_of(row)
    assert read == ["a", "b"]

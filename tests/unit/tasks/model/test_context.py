"""What a running task knows about itself, and says."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from bullpen.errors import Cancel, InvalidOption, NoCurrentTask
from bullpen.tasks.model.context import CurrentTask, current_task, enter, running
from bullpen.tasks.model.task import Progress, Task


def make(**parts: Any) -> CurrentTask:
    task = Task(id="id-1", func_path="shop.send", payload=b"", queue="mail", attempt=3, failures=1, headers={"a": "b"})
    return CurrentTask(task, **parts)


def test_a_task_knows_itself() -> None:
    deadline = datetime(2030, 1, 1, tzinfo=UTC)
    with running(make(deadline=deadline)):
        task = current_task()
        assert (task.id, task.name, task.queue, task.attempt, task.failures) == ("id-1", "shop.send", "mail", 3, 1)
        assert task.fencing_token == "id-1:3"
        assert task.deadline == deadline
        assert task.headers == {"a": "b"}
        assert task.max_retries == 0
        assert (task.info.id, task.info.attempt, task.info.priority) == ("id-1", 3, 0)
        assert not task.is_cancelled


def test_there_is_none_outside_a_task() -> None:
    with pytest.raises(NoCurrentTask):
        current_task()
    with running(make()):
        current_task()
    with pytest.raises(NoCurrentTask):
        current_task()


def test_progress_goes_to_the_report_function() -> None:
    reports: list[Progress] = []
    task = make(report=reports.append)
    task.progress(1)
    task.progress(2.5, 10, "half")
    assert reports == [Progress(1), Progress(2.5, 10, "half")]
    assert [type(report.done) for report in reports] == [int, float]
    assert [str(report) for report in reports] == ["1 done", "2.5 of 10 done (half)"]


def test_progress_is_a_number_that_every_store_can_keep() -> None:
    class Pages(int): ...

    reports: list[Progress] = []
    task = make(report=reports.append)
    for done in (1_000_000, Pages(7), 2**63 - 1, 2**63):
        task.progress(done, done)
    assert [type(report.done) for report in reports] == [int, int, int, float]
    assert str(reports[0]) == "1000000 of 1000000 done"
    for decode, encode in (
        (msgspec.json.decode, msgspec.json.encode),
        (msgspec.msgpack.decode, msgspec.msgpack.encode),
    ):
        assert [decode(encode(report), type=Progress) for report in reports] == reports
    with pytest.raises(InvalidOption):
        task.progress(10**400)


@pytest.mark.parametrize("bad", [{"done": -1}, {"done": float("nan")}, {"done": "1"}, {"done": 1, "total": True}])
def test_progress_is_checked(bad: dict[str, Any]) -> None:
    reports: list[Progress] = []
    with pytest.raises(InvalidOption):
        make(report=reports.append).progress(**bad)
    with pytest.raises(InvalidOption):
        make(report=reports.append).progress(1, note=5)  # type: ignore[arg-type]
    assert reports == []


def test_a_task_can_look_whether_it_is_to_stop() -> None:
    wanted = threading.Event()
    task = make(cancelled=wanted.is_set)
    task.stop_if_cancelled()
    wanted.set()
    assert task.is_cancelled
    with pytest.raises(Cancel):
        task.stop_if_cancelled()


def test_each_thread_has_its_own() -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            seen.append(current_task().id)
        except NoCurrentTask:
            seen.append("none")

    with running(make()):
        context = contextvars.copy_context()
        for target in (work, lambda: context.run(work)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen == ["none", "id-1"]


@pytest.mark.anyio
async def test_each_coroutine_has_its_own() -> None:
    async def work(task_id: str) -> str:
        enter(lambda: CurrentTask(Task(id=task_id, func_path="f", payload=b"")))
        await asyncio.sleep(0)
        return current_task().id

    ids = [str(number) for number in range(10)]
    tasks = [asyncio.create_task(work(task_id)) for task_id in ids]
    assert [await task for task in tasks] == ids
    with pytest.raises(NoCurrentTask):
        current_task()

"""What the observer of a queue is told: every change that is made through it, and what its workers do."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from bullpen import InvalidOptionType, Kind, TaskQueue, TelemetryEvent, WorkerPool
from tests.scenarios.support import eventually


class Told:
    """What an observer was told."""

    def __init__(self) -> None:
        self.events: list[TelemetryEvent] = []

    def __call__(self, event: TelemetryEvent) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(params=["memory://", "sqlite:///jobs.db"])
def queue(request: Any, told: Told, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    with TaskQueue(request.param, observer=told) as queue:
        yield queue


def test_every_change_that_people_make_is_told(queue: TaskQueue, told: Told) -> None:
    job = queue.enqueue("app.send", elsewhere=True, queue="mail")
    other = queue.enqueue("app.send", elsewhere=True)
    assert job.cancel()
    assert queue.retry(job.id) == 1
    assert queue.cancel(job.id, other.id, "nobody") == 2
    assert queue.cancel(job.id) == 0  # it is over: nothing changes
    assert other.retry()
    queue.pause("mail")
    queue.resume("mail")
    queue.set_limit("mail", max_running=3)
    assert queue.purge(all=True) == 1
    assert [(event.kind.value, event.task, event.queue, event.pool) for event in told.events] == [
        ("task.enqueued", job.id, "mail", "queue"),
        ("task.enqueued", other.id, "default", "queue"),
        ("task.cancelled", job.id, "mail", "queue"),
        ("task.redriven", job.id, "mail", "queue"),
        ("task.cancelled", job.id, "mail", "queue"),
        ("task.cancelled", other.id, "default", "queue"),
        ("task.redriven", other.id, "default", "queue"),
        ("queue.paused", None, "mail", "queue"),
        ("queue.resumed", None, "mail", "queue"),
        ("queue.limited", None, "mail", "queue"),
        ("tasks.forgotten", None, None, "queue"),
    ]
    assert told.events[-1].detail == 1
    assert told.events[-2].detail.max_running == 3
    times = [event.at for event in told.events]
    assert times == sorted(times)


def test_an_existing_task_is_not_enqueued_again(queue: TaskQueue, told: Told) -> None:
    first = queue.enqueue("app.send", elsewhere=True, unique_key="once")
    again = queue.enqueue("app.send", elsewhere=True, unique_key="once")
    assert again.id == first.id
    assert told.kinds() == ["task.enqueued"]


def test_workers_without_an_observer_tell_that_of_their_queue(queue: TaskQueue, told: Told) -> None:
    @queue.task(name="send")
    async def send(number: int) -> int:
        return number

    @queue.task(name="hang")
    async def hang() -> None:
        await asyncio.sleep(1000)

    own = Told()
    with WorkerPool(queue, lease=1.5, name="ours"):
        jobs = send.enqueue_many([(1,), (2,)])
        assert [job.result(10) for job in jobs] == [1, 2]
        stuck = hang.enqueue()
        assert eventually(lambda: stuck.status.value == "running")
        assert stuck.cancel()
        assert eventually(lambda: stuck.status.value == "cancelled")
    with WorkerPool(queue, observer=own):
        send.enqueue(3).result(10)
    of_one = [event.kind.value for event in told.events if event.task == jobs[0].id]
    assert sorted(of_one) == ["task.claimed", "task.ended", "task.enqueued", "task.started", "task.succeeded"]
    of_stuck = [event.kind.value for event in told.events if event.task == stuck.id]
    assert of_stuck.index("task.stopping") < of_stuck.index("task.cancelled")
    assert "task.succeeded" in own.kinds()
    assert told.kinds().count("task.succeeded") == 2


def test_the_end_of_an_attempt_says_what_ran_how_long_and_how_it_ended(queue: TaskQueue, told: Told) -> None:
    @queue.task(name="works")
    def works() -> None:
        began = time.monotonic()
        while time.monotonic() - began < 0.02:
            time.sleep(0.005)

    @queue.task(name="fails", max_retries=1, backoff=0.01)
    async def fails() -> None:
        raise ConnectionError("gone")

    worked, failed = works.enqueue(), fails.enqueue()
    expired = works.using(expires=0.01, queue="nobody").enqueue()
    with WorkerPool(queue, lanes="default:4") as pool:
        worked.result(10)
        assert eventually(lambda: failed.status.value == "failed")
        assert eventually(lambda: expired.status.value == "failed")
    ends = {
        (event.task, event.attempt): event
        for event in told.events
        if event.kind in (Kind.TASK_SUCCEEDED, Kind.TASK_RETRYING, Kind.TASK_FAILED, Kind.TASK_EXPIRED)
    }
    success = ends[worked.id, 1]
    assert (success.function, success.outcome, success.error) == ("works", "success", None)
    assert success.ran is not None
    assert 0.0199 <= success.ran < 10  # clocks round
    assert success.waited is not None
    assert 0 <= success.waited < 10
    assert success.worker == pool.id
    first, second = ends[failed.id, 1], ends[failed.id, 2]
    assert (first.function, first.outcome, first.error) == ("fails", "retried", "ConnectionError")
    assert (second.outcome, second.error) == ("failed", "ConnectionError")
    late = ends[expired.id, 0]
    assert (late.function, late.outcome, late.error, late.waited) == ("works", "expired", "expired", None)
    assert next(event.function for event in told.events if event.kind is Kind.TASK_ENQUEUED) == "works"


async def adds_and_cancels(queue: TaskQueue) -> None:
    async with queue:
        job = await queue.aenqueue("app.send", elsewhere=True)
        await job.acancel()


@pytest.mark.anyio
async def test_async_code_is_told_of_too(told: Told) -> None:
    await adds_and_cancels(TaskQueue("memory://", observer=told))
    assert told.kinds() == ["task.enqueued", "task.cancelled"]


def test_an_observer_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: TelemetryEvent) -> None:
        raise ZeroDivisionError

    with TaskQueue("memory://", observer=broken) as queue, caplog.at_level(logging.ERROR, "bullpen.queue"):
        job = queue.enqueue("app.send", elsewhere=True)
        assert queue.get(job.id).id == job.id
    assert Kind.TASK_ENQUEUED.value in caplog.text


def test_an_observer_that_cannot_be_called_is_rejected() -> None:
    with pytest.raises(InvalidOptionType, match="observer"):
        TaskQueue("memory://", observer="print")  # type: ignore[arg-type]

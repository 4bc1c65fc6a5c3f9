"""The history of a queue, as workers write it and people read it."""

from __future__ import annotations

import contextlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from bullpen import Cancel, InvalidOption, InvalidOptionType, TaskQueue, WorkerPool
from bullpen.tasks.model.history import HOUR, MINUTE, HistoryRow
from bullpen.tasks.model.task import FINAL
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.worker import heartbeat
from tests.postgres import new_schema
from tests.scenarios.support import eventually

PATIENCE = 60


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskQueue]:
    with contextlib.ExitStack() as stack:
        match request.param:
            case "memory":
                address = "memory://"
            case "sqlite":
                address = f"sqlite:///{tmp_path}/jobs.db"
            case "postgres":
                url = request.getfixturevalue("postgres_url")
                address = f"{url}?schema={stack.enter_context(new_schema(url))}"
            case _:
                url = request.getfixturevalue("redis_url")
                address = f"{url}?prefix={stack.enter_context(new_prefix(url))}"
        yield stack.enter_context(TaskQueue(address))


@contextlib.contextmanager
def new_prefix(url: str) -> Iterator[str]:
    prefix = f"bullpen-test-{secrets.token_hex(6)}"
    yield prefix
    with Redis.from_url(url) as client:
        for key in client.scan_iter(match=f"*{prefix}*"):
            client.delete(key)


def test_a_worker_writes_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "WRITE_EVERY", 0.01)
    with TaskQueue("memory://") as queue:
        echo = queue.task(name="echo")(str)
        with WorkerPool(queue):
            for number in range(2):  # the first write may be due at the start
                echo.enqueue(number).result(timeout=PATIENCE)
                assert eventually(lambda: sum(period.started for period in queue.history()) == number + 1)  # noqa: B023


def test_workers_write_what_they_have_done(queue: TaskQueue) -> None:
    @queue.task(name="works")
    async def works(number: int) -> int:
        return number

    @queue.task(name="fails", queue="mail", max_retries=1, backoff=0)
    def fails() -> None:
        raise ValueError("no")

    @queue.task(name="stops")
    def stops() -> None:
        raise Cancel("enough")

    jobs: list[Any] = [*works.enqueue_many((number,) for number in range(20)), fails.enqueue(), stops.enqueue()]
    late = works.using(expires=0.001).enqueue(1)
    assert eventually(lambda: time.time() > late.info().created_at.timestamp() + 0.01)
    with WorkerPool(queue, concurrency=5):
        for job in [*jobs, late]:
            assert eventually(lambda job=job: job.status in FINAL)  # type: ignore[misc]
    (total,) = queue.history(since=3600, step=7200)
    outcomes = (total.success, total.failed, total.retried, total.cancelled, total.expired, total.crashed)
    assert outcomes == (20, 1, 1, 1, 1, 0)
    assert (total.enqueued, total.started) == (23, 23)
    assert (total.wait.count, total.run.count) == (23, 23)
    assert total.run.p95 is not None
    by_function = {one.function: one for one in queue.history(step=7200, by="function")}
    assert {name: one.started for name, one in by_function.items()} == {"works": 20, "fails": 2, "stops": 1}
    assert (by_function["fails"].failed, by_function["fails"].retried) == (1, 1)
    assert [(one.queue, one.enqueued) for one in queue.history(step=7200, by="queue")] == [("default", 22), ("mail", 1)]
    assert sum(one.started for one in queue.history(queue="mail")) == 2
    assert sum(one.started for one in queue.history(function="works")) == 20
    assert sum(one.started for one in queue.history(since=7 * 86_400)) == 23  # from the hours


def test_a_running_worker_writes_every_few_seconds(queue: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bullpen.tasks.worker.heartbeat.WRITE_EVERY", 0.1)

    @queue.task(name="works")
    async def works() -> None: ...

    with WorkerPool(queue):
        works.enqueue().result(PATIENCE)
        assert eventually(lambda: sum(one.success for one in queue.history()) == 1)


def test_counts_survive_an_outage_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bullpen.tasks.worker.heartbeat.WRITE_EVERY", 0.1)
    rejected: list[int] = []

    class Broken(MemoryStorage):
        async def add_history(self, rows: Any, failures: Any = ()) -> None:
            if len(rejected) < 2:
                rejected.append(len(rows))
                raise ConnectionError("away")
            await super().add_history(rows, failures)

    with TaskQueue(Broken()) as queue:

        @queue.task(name="works")
        async def works() -> None: ...

        with WorkerPool(queue):
            works.enqueue().result(PATIENCE)
            assert eventually(lambda: len(rejected) == 2, PATIENCE)
        assert sum(one.success for one in queue.history()) == 1


PROGRAM = """
import os, signal
from bullpen import TaskQueue, WorkerPool
queue = TaskQueue({url!r})
@queue.task(name="kills")
def kills() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
kills.enqueue()
WorkerPool(queue).run()
"""


def test_a_worker_that_died_is_counted_by_another_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    dead = subprocess.run([sys.executable, "-c", PROGRAM.format(url=url)], timeout=PATIENCE, check=False)
    assert dead.returncode == -signal.SIGKILL
    with TaskQueue(url) as queue:

        @queue.task(name="kills")
        def kills() -> None: ...

        with WorkerPool(queue):
            assert eventually(lambda: queue.counts()["default"].get("success") == 1, PATIENCE)  # type: ignore[call-overload]
        (total,) = queue.history(step=7200)
        assert (total.crashed, total.success) == (1, 1)


@pytest.mark.anyio
async def test_async_code_reads_it_too() -> None:
    storage = MemoryStorage(now=lambda: 1_800_000_030.0)
    await storage.add_history([HistoryRow(MINUTE, 1_800_000_000, "q", "f", (1, 2, 3))])
    queue = TaskQueue(storage)
    before, now = await queue.ahistory(since=MINUTE)
    assert (before.started, now.started, now.success) == (0, 2, 3)
    assert now.at == datetime.fromtimestamp(1_800_000_000, UTC)
    since = datetime.fromtimestamp(1_800_000_000, UTC)
    assert [one.started for one in await queue.ahistory(since=since)] == [2]
    assert [one.started for one in await queue.ahistory(since=timedelta(minutes=2), until=since)] == [0, 0]
    assert len(await queue.ahistory(since=400 * 86_400)) == 30 * 24 + 1


@pytest.mark.anyio
async def test_a_long_time_in_steps_of_hours_is_read_by_the_hour() -> None:
    storage = MemoryStorage(now=lambda: 1_800_000_030.0)
    hour = 1_800_000_000 // HOUR * HOUR
    await storage.add_history(
        [HistoryRow(HOUR, hour - HOUR, "q", "f", (1, 2)), HistoryRow(MINUTE, hour, "q", "f", (9,))]
    )
    queue = TaskQueue(storage)
    assert sum(one.enqueued for one in await queue.ahistory(since=12 * HOUR, step=2 * HOUR)) == 1
    assert sum(one.enqueued for one in await queue.ahistory(since=12 * HOUR, step=30 * MINUTE)) == 9
    assert sum(one.enqueued for one in await queue.ahistory(since=3 * HOUR, step=HOUR)) == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": 90}, "step must be a whole number of minutes, got 90"),
        ({"since": 2 * 86_400, "step": 60}, "a whole number of hours, because minutes are kept for a day"),
        ({"since": 0}, "since must be"),
        ({"since": datetime(2030, 1, 1)}, "since must be a datetime with a time zone"),
        ({"since": datetime(2030, 1, 1, tzinfo=UTC)}, "until must be later than since"),
        ({"by": "worker"}, "by must be 'queue', 'function'"),
        ({"queue": "no way"}, "queue must be"),
        ({"function": 3}, "function must be the name of a function"),
        ({"since": "an hour"}, "since must be a datetime with a time zone, or a number of seconds before now"),
    ],
)
def test_wrong_questions_are_answered_clearly(options: dict[str, Any], words: str) -> None:
    with TaskQueue("memory://") as queue, pytest.raises((InvalidOption, InvalidOptionType), match=words):
        queue.history(**options)


def test_failures_are_grouped_by_their_cause(queue: TaskQueue) -> None:
    @queue.task(name="fails", max_retries=1, backoff=0)
    def fails(how: str) -> None:
        if how == "key":
            raise KeyError(how)
        raise ValueError(how)

    jobs = [fails.enqueue(how) for how in ("a", "b", "key")]
    late = fails.using(expires=0.001).enqueue("late")
    assert eventually(lambda: time.time() > late.info().created_at.timestamp() + 0.01)
    with WorkerPool(queue):
        for job in [*jobs, late]:
            assert eventually(lambda job=job: job.status in FINAL)  # type: ignore[misc]
    by_type = {group.type or group.kind: group for group in queue.failures()}
    assert {name: (group.function, group.count) for name, group in by_type.items()} == {
        "ValueError": ("fails", 4),
        "KeyError": ("fails", 2),
        "expired": ("fails", 1),
    }
    values = by_type["ValueError"]
    assert values.where.startswith("scenarios/test_history.py:")
    assert values.message in ("a", "b")
    assert values.example in {job.id for job in jobs[:2]}
    assert (sum(values.hours), values.queues, values.is_rising) == (4, ("default",), False)
    assert values.first <= values.last
    assert queue.get(jobs[0].id).error.fingerprint == values.fingerprint  # type: ignore[union-attr]
    assert queue.count(fingerprint=values.fingerprint) == 2
    assert queue.retry_all(fingerprint=values.fingerprint) == 2
    assert queue.purge(fingerprint=by_type["KeyError"].fingerprint) == 1
    assert queue.purge(fingerprint="expired") == 1
    queue.forget_failures(values.fingerprint)
    assert {group.type or group.kind for group in queue.failures(queue="default")} == {"KeyError", "expired"}
    assert queue.failures(function="another") == []

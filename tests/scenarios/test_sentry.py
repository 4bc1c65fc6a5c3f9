"""Errors of tasks and check-ins of schedules, as the SDK of Sentry hands them to its transport."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.scope import global_event_processors
from sentry_sdk.transport import Transport

from bullpen import Cancel, Retry, Snooze, TaskQueue, WorkerPool, current_task
from bullpen.integrations.sentry import instrument
from tests.scenarios.support import eventually


class Collected(Transport):
    """A transport that keeps what it is given."""

    fails = False

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if self.fails:
            raise OSError("no network")
        for item in envelope.items:
            self.items.append((item.type or "", item.payload.json or {}))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [payload for of, payload in self.items if of == kind]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.of("event")


@pytest.fixture
def collected() -> Iterator[Collected]:
    transport = Collected()
    before = list(global_event_processors)
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:1/1",  # nothing is sent there
        transport=transport,
        traces_sample_rate=1.0,
        auto_session_tracking=False,  # this and the next one: no threads that outlive a test
        enable_backpressure_handling=False,
    )
    yield transport
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.init()
    global_event_processors[:] = before


@pytest.fixture
def queue(collected: Collected) -> Iterator[TaskQueue]:
    with TaskQueue("memory://") as queue:
        yield queue


def has_failed(queue: TaskQueue, task_id: str) -> bool:
    return queue.get(task_id).status == "failed"


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_final_failure_is_reported_once_with_its_task(queue: TaskQueue, collected: Collected, kind: str) -> None:
    instrument(queue)

    def on_thread(password: str) -> None:
        sentry_sdk.set_tag("mine", "yes")
        raise ValueError("no luck")

    async def on_loop(password: str) -> None:
        await asyncio.sleep(0)
        on_thread(password)

    work = queue.task(name="shop.work", max_retries=2, backoff=0.001)(on_thread if kind == "thread" else on_loop)
    with WorkerPool(queue):
        job = work.enqueue("hunter2")
        assert eventually(lambda: queue.get(job.id).status == "failed")
    (event,) = collected.events
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert event["level"] == "error"
    assert event["transaction"] == "shop.work"
    assert event["tags"] == {
        "bullpen.task_id": job.id,
        "bullpen.attempt": "3",
        "bullpen.queue": "default",
        "bullpen.function": "shop.work",
        "mine": "yes",
    }
    assert event["contexts"]["bullpen"] == {
        "id": job.id,
        "function": "shop.work",
        "queue": "default",
        "attempt": 3,
        "failures": 2,
        "max_retries": 2,
    }
    assert "hunter2" not in str(event["contexts"])


def test_retries_are_warnings_on_request(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue, report_retries=True)

    @queue.task(name="work", max_retries=1, backoff=0.001)
    def work() -> None:
        raise ValueError("no luck")

    with WorkerPool(queue):
        job = work.enqueue()
        assert eventually(lambda: queue.get(job.id).status == "failed")
    assert [event["level"] for event in collected.events] == ["warning", "error"]


@pytest.mark.parametrize(
    ("error", "reported"), [(Snooze(3600), 0), (Cancel("enough"), 0), (Retry(after=3600), 0), (KeyError("x"), 1)]
)
def test_only_errors_that_end_the_task_are_reported(
    queue: TaskQueue, collected: Collected, error: Exception, reported: int
) -> None:
    instrument(queue)

    @queue.task(name="work", max_retries=3, retry_on=(ValueError,))
    def work() -> None:
        raise error

    with WorkerPool(queue):
        job = work.enqueue()
        assert eventually(lambda: queue.get(job.id).attempt == 1 and queue.get(job.id).status != "running")
    assert len(collected.events) == reported


def test_each_attempt_has_a_scope_of_its_own(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue)
    both = threading.Barrier(2)

    @queue.task(name="work")
    def work(name: str) -> None:
        sentry_sdk.set_tag(name, name)
        sentry_sdk.add_breadcrumb(message=f"crumb of {name}")
        both.wait(30)
        raise ValueError(name)

    with WorkerPool(queue, concurrency=2):
        jobs = [work.enqueue("a"), work.enqueue("b")]
        assert eventually(lambda: all(queue.get(job.id).status == "failed" for job in jobs))
    for event in collected.events:
        (name,) = {"a", "b"} & event["tags"].keys()
        crumbs = [crumb["message"] for crumb in event["breadcrumbs"]["values"]]
        assert f"crumb of {name}" in crumbs
        assert not any(f"crumb of {other}" in crumbs for other in {"a", "b"} - {name})
    assert len(collected.events) == 2
    assert "bullpen.task_id" not in (sentry_sdk.get_isolation_scope()._tags or {})


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_tags_of_a_task_do_not_reach_the_next_one(queue: TaskQueue, collected: Collected, kind: str) -> None:
    instrument(queue)

    def on_thread(name: str) -> None:
        sentry_sdk.set_tag(name, name)
        raise ValueError(name)

    async def on_loop(name: str) -> None:
        on_thread(name)

    work = queue.task(name="work")(on_thread if kind == "thread" else on_loop)
    with WorkerPool(queue, concurrency=1):
        for name in ("a", "b"):
            job = work.enqueue(name)
            assert eventually(partial(has_failed, queue, job.id))
    first, second = collected.events
    assert "a" in first["tags"]
    assert "b" in second["tags"]
    assert "a" not in second["tags"]


def test_a_timeout_is_reported_from_the_log_with_the_tags_of_its_task(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue)

    @queue.task(name="work", timeout=0.05)
    async def work() -> None:
        await asyncio.sleep(3600)

    with WorkerPool(queue):
        job = work.enqueue()
        assert eventually(lambda: queue.get(job.id).status == "failed")
    (event,) = collected.events
    assert "timeout" in str(event["logentry"])
    assert event["tags"]["bullpen.task_id"] == job.id
    assert event["tags"]["bullpen.attempt"] == "1"


def test_arguments_are_sent_on_request_without_secrets(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue, send_arguments=True)

    @queue.task(name="work", redact=("customer",))
    def work(number: int, customer: str, password: str) -> None:
        raise ValueError("no luck")

    with WorkerPool(queue):
        job = work.enqueue(7, "ada", "hunter2")
        assert eventually(lambda: queue.get(job.id).status == "failed")
    (event,) = collected.events
    shown = event["contexts"]["bullpen"]["arguments"]
    assert shown["number"] == "7"
    assert "ada" not in str(shown)
    assert "hunter2" not in str(shown)


def test_a_trace_goes_from_the_caller_to_the_task(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue)

    @queue.task(name="shop.child")
    def child() -> None: ...

    @queue.task(name="shop.work")
    def work() -> None:
        current_task().enqueue(child.call())

    with WorkerPool(queue):
        with sentry_sdk.start_transaction(name="request") as request:
            work.enqueue().result(timeout=30)
        assert eventually(lambda: len(collected.of("transaction")) == 3)
    traces = {item["transaction"]: item["contexts"]["trace"] for item in collected.of("transaction")}
    assert {trace["trace_id"] for trace in traces.values()} == {request.trace_id}
    assert traces["shop.work"]["op"] == "queue.process"


def test_without_tracing_an_error_still_belongs_to_the_trace_of_the_caller(
    queue: TaskQueue, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sentry_sdk.get_client().options, "traces_sample_rate", None)
    instrument(queue)

    @queue.task(name="work")
    def work() -> None:
        raise ValueError("no luck")

    with WorkerPool(queue):
        job = work.enqueue()
        assert eventually(partial(has_failed, queue, job.id))
    (event,) = collected.events
    assert event["contexts"]["trace"]["trace_id"] in queue.get(job.id).headers["sentry-trace"]
    assert not collected.of("transaction")


def test_schedules_check_in_once_for_each_run(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue)
    fails = True

    @queue.task(name="report", max_retries=1, backoff=0.001, timeout=300)
    def report() -> None:
        nonlocal fails
        if fails:
            fails = False
            raise ValueError("no luck")

    @queue.task(name="broken")
    def broken() -> None:
        raise ValueError("never")

    with WorkerPool(queue):
        report.using(interval=3600, schedule_key="hourly").enqueue()
        assert eventually(lambda: any(one["status"] == "ok" for one in collected.of("check_in")))
        broken.using(interval=7200, on_failure="continue").enqueue()
        assert eventually(lambda: any(one["status"] == "error" for one in collected.of("check_in")))
        report.using(interval=30).enqueue()  # Sentry knows no interval of seconds
        report.enqueue().result(timeout=30)
    hourly = [one for one in collected.of("check_in") if one["monitor_slug"] == "hourly"]
    assert [one["status"] for one in hourly] == ["in_progress", "in_progress", "ok"]  # two attempts, one run
    assert len({one["check_in_id"] for one in hourly}) == 1
    assert hourly[0]["monitor_config"] == {
        "schedule": {"type": "interval", "value": 60, "unit": "minute"},
        "timezone": "UTC",
        "max_runtime": 5,
    }
    assert {one["monitor_slug"] for one in collected.of("check_in")} == {"hourly", "broken"}


def test_a_cron_schedule_is_described_with_its_time_zone(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue)

    @queue.task(name="nightly", cron="30 2 * * *", timezone="Europe/Berlin")
    def nightly() -> None: ...

    with WorkerPool(queue):
        (schedule,) = queue.schedules.list()
        queue.schedules.run(schedule.key)
        assert eventually(lambda: any(one["status"] == "ok" for one in collected.of("check_in")))
    config = collected.of("check_in")[0]["monitor_config"]
    assert config["schedule"] == {"type": "crontab", "value": "30 2 * * *"}
    assert config["timezone"] == "Europe/Berlin"


def test_a_failing_transport_fails_no_task(queue: TaskQueue, collected: Collected) -> None:
    instrument(queue)
    collected.fails = True

    @queue.task(name="work", max_retries=1, backoff=0.001)
    def work() -> str:
        if current_task().attempt == 1:
            raise ValueError("no luck")
        return "done"

    with WorkerPool(queue):
        assert work.enqueue().result(timeout=30) == "done"


def test_an_sdk_that_raises_fails_no_task(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    instrument(queue)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a defect of the SDK")

    for name in ("isolation_scope", "capture_exception", "get_traceparent"):
        monkeypatch.setattr(sentry_sdk, name, broken)

    @queue.task(name="work")
    def work() -> str:
        return "done"

    with WorkerPool(queue):
        assert work.enqueue().result(timeout=30) == "done"
    assert "Sentry failed; the task is not affected" in caplog.text


def test_a_missing_package_is_named() -> None:
    code = "import sys; sys.modules['sentry_sdk'] = None; import bullpen.integrations.sentry"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert 'pip install "pybullpen[sentry]"' in done.stderr

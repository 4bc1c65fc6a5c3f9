"""The ready-made observers."""

from __future__ import annotations

import logging

import pytest

from bullpen import Fanout, Kind, LogObserver, Pool, PoolState, TelemetryEvent
from bullpen.telemetry import describe
from bullpen.testing import ScriptedRuntime


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (TelemetryEvent(Kind.POOL_STATE, 1.0, "web", detail=PoolState.RUNNING), "web: pool.state (running)"),
        (TelemetryEvent(Kind.WORKER_READY, 1.0, "web", "web_0", detail=4), "web: worker.ready web_0 (4)"),
        (TelemetryEvent(Kind.REQUEST_QUEUED, 1.0, "web", None, 0), "web: request.queued 0"),
        (
            TelemetryEvent(Kind.REQUEST_STARTED, 1.0, "web", "web_0", 7, "u42"),
            "web: request.started 7 on web_0 of session u42",
        ),
        (TelemetryEvent(Kind.REQUEST_DONE, 1.0, "web", "web_0", 7, detail=["secret"]), "web: request.done 7 on web_0"),
        (TelemetryEvent(Kind.REQUEST_DONE, 1.0, "web", "web_0", 7, detail="secret"), "web: request.done 7 on web_0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_line_says_what_happened_to_whom(event: TelemetryEvent, line: str) -> None:
    assert describe(event) == line


def test_every_event_is_logged_and_no_argument_ever(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    runtime = ScriptedRuntime()
    with Pool(1, runtime=runtime, name="press", observer=LogObserver()) as pool:
        pool.submit(print, "secret argument")
        runtime.finish_next("secret result")
    assert [record.getMessage() for record in caplog.records if record.name == "bullpen.events"] == [
        "press: pool.state (initializing)",
        "press: request.queued 0",
        "press: worker.starting press_0",
        "press: worker.ready press_0 (1)",
        "press: request.started 0 on press_0",
        "press: pool.state (running)",
        "press: request.done 0 on press_0",
        "press: pool.state (draining)",
        "press: worker.stopping press_0",
        "press: worker.exited press_0",
        "press: pool.state (closed)",
    ]
    assert "secret" not in caplog.text
    events = [getattr(record, "bullpen_event", None) for record in caplog.records if record.name == "bullpen.events"]
    assert all(isinstance(event, TelemetryEvent) for event in events)


def test_the_logger_and_the_level_can_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    own = logging.getLogger("own")
    event = TelemetryEvent(Kind.REQUEST_QUEUED, 1.0, "web", None, 0)
    with caplog.at_level(logging.INFO):
        LogObserver(own)(event)
        assert caplog.records == []
        LogObserver(own, logging.WARNING)(event)
    assert [(record.name, record.levelno) for record in caplog.records] == [("own", logging.WARNING)]


def test_one_observer_that_fails_does_not_keep_the_event_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    first: list[TelemetryEvent] = []
    last: list[TelemetryEvent] = []

    def fail(event: TelemetryEvent) -> None:
        raise LookupError(event.kind.value)

    event = TelemetryEvent(Kind.REQUEST_QUEUED, 1.0, "web", None, 0)
    Fanout(first.append, fail, last.append)(event)
    assert first == last == [event]
    assert "web: observer" in caplog.text
    assert "failed on request.queued" in caplog.text


def test_a_line_about_a_task_names_it_its_attempt_its_queue_and_its_worker() -> None:
    event = TelemetryEvent(
        Kind.TASK_RETRYING, 0.0, "worker-1", "host-7-ab", detail=2.1, task="0193", attempt=3, queue="mail"
    )
    assert describe(event) == "worker-1: task.retrying 0193, attempt 3, queue mail on host-7-ab (2.1)"

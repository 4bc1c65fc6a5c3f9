"""Traces and metrics of tasks, as the SDK of OpenTelemetry exports them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from bullpen import Cancel, Snooze, TaskFailed, TaskQueue, WorkerPool, chain, current_task, group
from bullpen.integrations.otel import instrument
from tests.scenarios.support import eventually

SENT = {"messaging.system": "bullpen", "messaging.operation.type": "send", "messaging.operation.name": "send"}
PROCESSED = {
    "messaging.system": "bullpen",
    "messaging.operation.type": "process",
    "messaging.operation.name": "process",
}


class Traced:
    """A queue with the SDK behind it."""

    def __init__(self, queue: TaskQueue) -> None:
        self.queue = queue
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider(metric_readers=[self.reader])
        self.tracer = self.provider.get_tracer("app")
        instrument(queue, tracer_provider=self.provider, meter_provider=self.meters)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def waited_for(self, name: str, count: int) -> list[ReadableSpan]:
        assert eventually(lambda: len(self.spans(name)) >= count), [one.name for one in self.spans(name)]
        return self.spans(name)

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def traced() -> Iterator[Traced]:
    with TaskQueue("memory://") as queue:
        traced = Traced(queue)
        yield traced
        traced.meters.shutdown()
        traced.provider.shutdown()


def trace_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def span_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_the_first_attempt_joins_the_trace_of_the_caller(traced: Traced, kind: str) -> None:
    def on_thread() -> int:
        with traced.tracer.start_as_current_span("inside"):
            return trace.get_current_span().get_span_context().trace_id

    async def on_loop() -> int:
        await asyncio.sleep(0)
        with traced.tracer.start_as_current_span("inside"):
            return trace.get_current_span().get_span_context().trace_id

    work = traced.queue.task(name="shop.work", queue="mail")(on_thread if kind == "thread" else on_loop)
    with WorkerPool(traced.queue, lanes="mail:1"):
        with traced.tracer.start_as_current_span("request"):
            job = work.enqueue()
        seen = job.result(timeout=30)
        (process,) = traced.waited_for("process mail", 1)
    (request,), (send,), (inside,) = traced.spans("request"), traced.spans("send mail"), traced.spans("inside")
    assert {trace_id(span) for span in (request, send, process, inside)} == {seen}
    assert [parent_id(span) for span in (send, process, inside)] == [span_id(span) for span in (request, send, process)]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    of_task = {"messaging.destination.name": "mail", "bullpen.function": "shop.work", "messaging.message.id": job.id}
    assert send.attributes == {**SENT, **of_task}
    assert process.attributes == {**PROCESSED, **of_task, "bullpen.attempt": 1}
    assert send.status.status_code is process.status.status_code is StatusCode.UNSET


def test_a_retry_begins_a_trace_with_a_link_to_the_caller(traced: Traced) -> None:
    @traced.queue.task(name="flaky", max_retries=1, backoff=0.001)
    def flaky() -> None:
        if current_task().attempt == 1:
            raise ValueError("no luck")

    with WorkerPool(traced.queue):
        flaky.enqueue().result(timeout=30)
        first, second = traced.waited_for("process default", 2)
    (send,) = traced.spans("send default")
    assert trace_id(first) == trace_id(send)
    assert not first.links
    assert first.status.status_code is StatusCode.ERROR
    assert first.status.description == "no luck"
    assert (first.attributes or {})["error.type"] == "ValueError"
    (event,) = first.events
    assert event.name == "exception"
    assert trace_id(second) != trace_id(send)
    assert second.parent is None
    assert [(link.context.trace_id, link.context.span_id) for link in second.links] == [(trace_id(send), span_id(send))]
    assert (second.attributes or {})["bullpen.attempt"] == 2


def test_a_trace_goes_through_chains_groups_and_children(traced: Traced) -> None:
    queue = traced.queue

    @queue.task(name="part")
    def part(number: int) -> int:
        return number

    @queue.task(name="last")
    def last(*_: Any) -> None: ...

    @queue.task(name="parent")
    def parent() -> None:
        current_task().enqueue(group([part.call(1), part.call(2)]).then(last.call()))

    with WorkerPool(queue), traced.tracer.start_as_current_span("request") as request:
        chain(part.call(1), last.call()).enqueue()
        parent.enqueue()
        processed = traced.waited_for("process default", 6)
    assert {trace_id(span) for span in processed} == {request.get_span_context().trace_id}
    (of_parent,) = [span for span in processed if (span.attributes or {})["bullpen.function"] == "parent"]
    children = [span for span in traced.spans("send default") if parent_id(span) == span_id(of_parent)]
    assert sorted(str((span.attributes or {})["bullpen.function"]) for span in children) == ["last", "part", "part"]


def test_a_caller_without_a_span_may_pass_a_trace_on(traced: Traced) -> None:
    @traced.queue.task(name="work")
    async def work() -> None: ...

    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with WorkerPool(traced.queue):
        work.using(headers={"traceparent": given}).enqueue().result(timeout=30)
        (process,) = traced.waited_for("process default", 1)
    assert f"{trace_id(process):032x}" in given


def test_a_batch_is_one_span_with_its_count(traced: Traced) -> None:
    @traced.queue.task(name="work")
    async def work(number: int) -> None: ...

    work.enqueue_many([(number,) for number in range(5)])
    (send,) = traced.spans("send default")
    assert (send.attributes or {})["messaging.batch.message_count"] == 5
    assert "messaging.message.id" not in (send.attributes or {})


@pytest.mark.parametrize("signal", [Snooze(3600), Cancel("enough")])
def test_a_signal_of_the_task_is_no_error(traced: Traced, signal: Exception) -> None:
    @traced.queue.task(name="work")
    def work() -> None:
        raise signal

    with WorkerPool(traced.queue):
        work.enqueue()
        (process,) = traced.waited_for("process default", 1)
    assert process.status.status_code is StatusCode.UNSET
    assert not process.events


def test_arguments_and_results_are_in_no_span(traced: Traced) -> None:
    @traced.queue.task(name="work")
    def work(password: str) -> str:
        return password

    with WorkerPool(traced.queue):
        work.enqueue("hunter2").result(timeout=30)
        traced.waited_for("process default", 1)
    assert "hunter2" not in "".join(span.to_json() for span in traced.exporter.get_finished_spans())


def test_metrics_follow_the_conventions(traced: Traced) -> None:
    @traced.queue.task(name="work")
    def work(fails: bool) -> None:
        if fails:
            raise ValueError("no luck")

    with WorkerPool(traced.queue):
        work.enqueue(False).result(timeout=30)
        with pytest.raises(TaskFailed):
            work.enqueue(True).result(timeout=30)
        traced.waited_for("process default", 2)
    by_error = {point.attributes.get("error.type"): point for point in traced.points("messaging.process.duration")}
    assert {error: point.count for error, point in by_error.items()} == {None: 1, "ValueError": 1}
    expected = {**PROCESSED, "messaging.destination.name": "default", "bullpen.function": "work"}
    assert by_error[None].attributes == expected
    assert by_error[None].explicit_bounds[0] == 0.005
    assert sum(point.value for point in traced.points("messaging.client.sent.messages")) == 2
    assert sum(point.value for point in traced.points("messaging.client.consumed.messages")) == 2
    (sending,) = traced.points("messaging.client.operation.duration")
    assert sending.count == 2


class Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("cannot start")

    def on_end(self, span: Any) -> None:
        raise RuntimeError("cannot export")


@pytest.mark.parametrize("when", ["on_start", "on_end"])
def test_a_failing_exporter_fails_no_task(
    traced: Traced, when: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Broken, "on_end" if when == "on_start" else "on_start")
    traced.provider.add_span_processor(Broken())

    @traced.queue.task(name="work")
    async def work() -> str:
        return "done"

    with WorkerPool(traced.queue):
        assert work.enqueue().result(timeout=30) == "done"
    assert "OpenTelemetry failed; the task is not affected" in caplog.text


def test_a_missing_package_is_named() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import bullpen.integrations.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert 'pip install "pybullpen[otel]"' in done.stderr

"""OpenTelemetry traces and metrics of tasks, by the semantic conventions for messaging.

    from bullpen.integrations.otel import instrument

    instrument(queue)

Each `enqueue` is a span `send QUEUE`, each attempt a span `process QUEUE`. The first attempt joins the trace of the
caller. A later attempt, or a later run of a schedule, may come hours or days after it: it begins a trace of its own,
with a link to the caller's span. The context travels in the headers of a task, so it goes on through chains, groups and
tasks that a task enqueues.

A span processor, exporter or meter that raises is logged. It never fails an `enqueue` or a task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from bullpen.errors import Cancel, MissingExtra, Snooze, Suspended
from bullpen.tasks.client.backend import NewTasks
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.context import CurrentTask
from bullpen.telemetry import SafeLogger

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
except ImportError:
    raise MissingExtra("bullpen.integrations.otel", "otel") from None

SYSTEM = "bullpen"
FUNCTION, ATTEMPT = "bullpen.function", "bullpen.attempt"
NO_ERRORS = (Cancel, Snooze, Suspended)  # a task raises them to end its attempt in another way
# The bounds that the conventions recommend, in seconds.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

Attributes = dict[str, str | int]

logger = SafeLogger("bullpen.otel")


def instrument(
    queue: TaskQueue, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Trace and measure every `enqueue` of a queue and every attempt at its tasks, with the providers of the app or
    with these. Call it once, before other middleware is added: the spans then contain what that does.
    """
    hooks = _TaskTracing(tracer_provider, meter_provider)
    queue.enqueue_middleware(hooks.send)
    queue.middleware(hooks.process)


class _TaskTracing:
    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self._tracer = trace.get_tracer("bullpen", tracer_provider=tracer_provider)
        meter = metrics.get_meter("bullpen", meter_provider=meter_provider)
        duration: dict[str, Any] = {"unit": "s", "explicit_bucket_boundaries_advisory": BOUNDS}
        self._sending = meter.create_histogram("messaging.client.operation.duration", **duration)
        self._processing = meter.create_histogram("messaging.process.duration", **duration)
        self._sent = meter.create_counter("messaging.client.sent.messages", unit="{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", unit="{message}")

    def send(self, new: NewTasks) -> Iterator[None]:
        """Middleware around `enqueue`."""
        attributes = _attributes("send", new.queue, new.name)
        began = time.perf_counter()
        span = _safely(self._begin_send, new, attributes)
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            if span is not None and len(new.ids) == 1:
                _safely(span.set_attribute, "messaging.message.id", new.ids[0])
            attributes.update(_error_attributes(error))
            _safely(self._sending.record, time.perf_counter() - began, attributes)
            _safely(self._sent.add, new.count, attributes)
            _safely(_end, span, error)

    def _begin_send(self, new: NewTasks, attributes: Attributes) -> Span:
        more: Attributes = {"messaging.batch.message_count": new.count} if new.count > 1 else {}
        parent = None
        if not trace.get_current_span().get_span_context().is_valid:
            parent = propagate.extract(new.headers)  # headers that the caller has passed on
        span = self._tracer.start_span(
            f"send {new.queue}", parent, SpanKind.PRODUCER, attributes={**attributes, **more}
        )
        carrier: MutableMapping[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span, parent))
        new.headers.update(carrier)
        return span

    def process(self, task: CurrentTask) -> Iterator[None]:
        """Middleware around an attempt."""
        attributes = _attributes("process", task.queue, task.name)
        began = time.perf_counter()
        span = _safely(self._begin_process, task, attributes)
        token = None if span is None else _safely(contexts.attach, trace.set_span_in_context(span))
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            attributes.update(_error_attributes(error))
            _safely(self._processing.record, time.perf_counter() - began, attributes)
            _safely(self._consumed.add, 1, attributes)
            _safely(_end, span, error)
            if token is not None:
                _safely(contexts.detach, token)

    def _begin_process(self, task: CurrentTask, attributes: Attributes) -> Span:
        caller = propagate.extract(task.headers)
        of_caller = trace.get_current_span(caller).get_span_context()
        joins = task.attempt == 1
        return self._tracer.start_span(
            f"process {task.queue}",
            caller if joins else trace.set_span_in_context(trace.INVALID_SPAN, caller),
            SpanKind.CONSUMER,
            attributes={**attributes, "messaging.message.id": task.id, ATTEMPT: task.attempt},
            links=[Link(of_caller)] if of_caller.is_valid and not joins else [],
        )


def _attributes(operation: str, queue: str, function: str) -> Attributes:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        FUNCTION: function,
    }


def _error_attributes(error: BaseException | None) -> Attributes:
    return {} if error is None or isinstance(error, NO_ERRORS) else {"error.type": type(error).__qualname__}


def _end(span: Span | None, error: BaseException | None) -> None:
    if span is None:
        return
    try:
        if error is not None and not isinstance(error, NO_ERRORS):
            span.set_attributes(_error_attributes(error))
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.record_exception(error)
    finally:
        span.end()


def _safely(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns; None if it raises, which is logged."""
    try:
        return function(*args)
    except Exception:
        logger.exception("OpenTelemetry failed; the task is not affected")
        return None

"""Errors of tasks in Sentry, with the task that raised them, and check-ins for schedules.

    import sentry_sdk
    from bullpen.integrations.sentry import instrument

    sentry_sdk.init(dsn=…)
    instrument(queue)

Each attempt has an isolation scope of its own: tags and breadcrumbs of one task never reach the events of another. A
failure is reported once, when it is final; attempts that are retried are not, unless `report_retries` says so. A
timeout, crash or lost task is reported from the worker's log line, with the same tags. Arguments are sent only on
request, because they may be secret.

An error of the SDK is logged. It never fails an `enqueue` or a task.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from bullpen.errors import Cancel, MissingExtra, Snooze, StepFailed
from bullpen.tasks.client.backend import NewTasks
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.arguments import shown_arguments
from bullpen.tasks.model.context import CurrentTask
from bullpen.tasks.model.registry import TaskDefinition
from bullpen.tasks.model.task import Task
from bullpen.telemetry import SafeLogger

try:
    import sentry_sdk
    from sentry_sdk.consts import SPANSTATUS
    from sentry_sdk.crons import MonitorStatus, capture_checkin
    from sentry_sdk.scope import add_global_event_processor
except ImportError:
    raise MissingExtra("bullpen.integrations.sentry", "sentry") from None

LOGGER = "bullpen.worker"  # logs the outcome of attempts
TRACE_HEADERS = ("sentry-trace", "baggage")
SHORTEST = 60.0  # seconds; Sentry knows no shorter interval

logger = SafeLogger("bullpen.sentry")


def instrument(
    queue: TaskQueue, *, report_retries: bool = False, send_arguments: bool = False, check_in: bool = True
) -> None:
    """Report the errors of a queue's tasks. Call it once, after `sentry_sdk.init` and before other middleware is added.

    `report_retries`: also report failures after which the task is retried, as warnings. `send_arguments`: add the
    arguments, without those that look like secrets or that the function redacts. `check_in`: send check-ins for tasks
    with `cron` or `interval`.
    """
    hooks = _ErrorReporting(queue, report_retries, send_arguments, check_in)
    queue.enqueue_middleware(hooks.send)
    queue.middleware(hooks.process)
    add_global_event_processor(_of_worker_log)


class _ErrorReporting:
    def __init__(self, queue: TaskQueue, report_retries: bool, send_arguments: bool, check_in: bool) -> None:
        self._registry = queue.registry
        self._report_retries = report_retries
        self._send_arguments = send_arguments
        self._check_in = check_in

    def send(self, new: NewTasks) -> None:
        """Middleware around `enqueue`: the trace goes on in the tasks."""
        for header, value in zip(TRACE_HEADERS, _safely(_trace_headers) or (None, None), strict=True):
            if value is not None:
                new.headers[header] = value

    def process(self, task: CurrentTask) -> Iterator[None]:
        """Middleware around an attempt."""
        stack = ExitStack()
        _safely(self._begin, stack, task)
        monitor = _safely(self._monitor_of, task) if self._check_in else None
        began = time.monotonic()
        if monitor is not None:
            _safely(monitor.tell, MonitorStatus.IN_PROGRESS, None)
        try:
            yield
        except BaseException as error:
            fails = isinstance(error, Exception) and not isinstance(error, Cancel | Snooze)
            is_final = fails and not self._is_retried(task, error)
            if fails:
                _safely(_mark_failed)
            if is_final or (fails and self._report_retries):
                _safely(_report, error, "error" if is_final else "warning")
            if monitor is not None and is_final:
                _safely(monitor.tell, MonitorStatus.ERROR, time.monotonic() - began)
            raise
        else:
            if monitor is not None:
                _safely(monitor.tell, MonitorStatus.OK, time.monotonic() - began)
        finally:
            _safely(stack.close)

    def _begin(self, stack: ExitStack, task: CurrentTask) -> None:
        scope = stack.enter_context(sentry_sdk.isolation_scope())
        scope.clear_breadcrumbs()
        scope.set_transaction_name(task.name, source="task")
        for name, value in _tags(task.id, task.attempt, task.queue).items():
            scope.set_tag(name, value)
        scope.set_tag("bullpen.function", task.name)
        facts = {"id": task.id, "function": task.name, "queue": task.queue, "attempt": task.attempt}
        facts |= {"failures": task.failures, "max_retries": task.max_retries}
        if self._send_arguments and (definition := self._registry.get(task.name)) is not None:
            facts["arguments"] = _arguments(definition, task._task)
        scope.set_context("bullpen", facts)
        transaction = sentry_sdk.continue_trace(dict(task.headers), op="queue.process", name=task.name, source="task")
        options = sentry_sdk.get_client().options
        if options.get("traces_sample_rate") is not None or options.get("traces_sampler") is not None:
            stack.enter_context(sentry_sdk.start_transaction(transaction))

    def _is_retried(self, task: CurrentTask, error: BaseException) -> bool:
        """As the worker decides."""
        definition = self._registry.get(task.name)
        may = definition is not None and definition.options.may_retry(error) and not isinstance(error, StepFailed)
        return may and not task._task.at_most_once and task.failures < task.max_retries

    def _monitor_of(self, task: CurrentTask) -> _Monitor | None:
        terms, interval, key, cron, timezone = task._task.schedule, task._task.interval, "", None, "UTC"
        definition = self._registry.get(task.name)
        if terms is not None:
            key, cron, timezone = terms.key, terms.cron, terms.timezone
        elif task._task.scheduled_at is not None and definition is not None:  # a run that may overlap with others
            options = definition.options
            key, cron, timezone = options.schedule_key or "", options.cron, options.timezone
        if cron is not None:
            schedule: dict[str, Any] = {"type": "crontab", "value": cron}
        elif interval is not None and interval >= SHORTEST:
            schedule = {"type": "interval", "value": round(interval / 60), "unit": "minute"}
        else:
            return None
        config: dict[str, Any] = {"schedule": schedule, "timezone": timezone}
        if task._task.timeout is not None:
            config["max_runtime"] = max(round(task._task.timeout / 60), 1)  # minutes
        slug = key or task.name
        run = uuid.uuid5(uuid.NAMESPACE_OID, f"{task.id}:{task._task.completed_runs}").hex  # the same in every attempt
        return _Monitor(slug, run, config)


class _Monitor:
    """The check-in of one run of a schedule."""

    def __init__(self, slug: str, run: str, config: dict[str, Any]) -> None:
        self._slug = slug
        self._run = run
        self._config: Any = config

    def tell(self, status: str, seconds: float | None) -> None:
        capture_checkin(self._slug, self._run, status, seconds, self._config)


def _trace_headers() -> tuple[str | None, str | None]:
    return sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()


def _tags(task_id: str, attempt: int, queue: str) -> dict[str, str]:
    return {"bullpen.task_id": task_id, "bullpen.attempt": str(attempt), "bullpen.queue": queue}


def _arguments(definition: TaskDefinition, task: Task) -> dict[str, str]:
    args, kwargs = definition.codec.decode_plain(task.payload)
    shown = shown_arguments(definition.function, args, kwargs, definition.options.redact)
    return {name: repr(value) for name, value in shown.items()}


def _mark_failed() -> None:
    transaction = sentry_sdk.get_current_span()
    if transaction is not None:
        transaction.set_status(SPANSTATUS.INTERNAL_ERROR)


def _report(error: BaseException, level: Any) -> None:
    sentry_sdk.capture_exception(error, level=level)


def _of_worker_log(event: Any, hint: Any) -> Any:
    """The worker logs failures, too. An exception was reported where it was raised; timeouts and crashes get tags."""
    record = hint.get("log_record")
    if record is None or record.name != LOGGER or not hasattr(record, "task_id"):
        return event
    if record.exc_info:
        return None
    event.setdefault("tags", {}).update(_tags(record.task_id, record.attempt, record.queue))
    return event


def _safely(function: Callable[..., Any], *args: Any) -> Any:
    """What the function returns; None if it raises, which is logged."""
    try:
        return function(*args)
    except Exception:
        logger.exception("Sentry failed; the task is not affected")
        return None

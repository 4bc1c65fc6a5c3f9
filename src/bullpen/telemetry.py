"""Every event that pools, queues and workers report, by name. A checker can rebuild a whole history from them.

Without an observer, reporting costs one comparison with None.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bullpen.escaping import escape

# Has another thread call a function that may block; False if this thread may call it. None: each thread may.
hand_over: Callable[[Callable[[], None]], bool] | None = None


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger of Bullpen. Its methods never raise, because the code that logs also serves other callers: if a handler
    or a filter of the app raises, the record is lost, and stderr shows the error.

    On a thread that serves several pools `hand_over` has another thread call the handlers: one that blocks must not
    hold up those pools.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: Any, exc_info: Any = None, extra: Any = None, **_: Any) -> None:
        if not self.isEnabledFor(level):
            return
        try:
            file, line, function = self.logger.findCaller(stacklevel=2)[:3]  # 2: this method is not the place that logs
            error = sys.exc_info()[1] if exc_info is True else exc_info
            raised = None if error is None else (type(error), error, error.__traceback__)
            record = self.logger.makeRecord(self.name, level, file, line, msg, args, raised, function, extra)
        except BaseException as error:
            self._failed(error)
            return
        if hand_over is None or not hand_over(functools.partial(self._handle, record)):
            self._handle(record)

    def _handle(self, record: logging.LogRecord) -> None:
        try:
            self.logger.handle(record)
        except BaseException as error:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error
        with contextlib.suppress(Exception):  # there may be no stderr
            sys.stderr.write(f"--- a handler of the logger {self.logger.name} failed ---\n")
            traceback.print_exc()


logger = SafeLogger("bullpen")


class Kind(enum.Enum):
    """The kind of an event. Values are stable names for exporters."""

    REQUEST_QUEUED = "request.queued"
    REQUEST_STARTED = "request.started"
    REQUEST_DONE = "request.done"
    REQUEST_FAILED = "request.failed"
    REQUEST_CANCELLED = "request.cancelled"
    REQUEST_EXPIRED = "request.expired"
    REQUEST_LOST = "request.lost"
    REQUEST_ABANDONED = "request.abandoned"
    REQUEST_REJECTED = "request.rejected"
    REQUEST_RETURNED = "request.returned"
    REQUEST_REQUEUED = "request.requeued"
    WORKER_STARTING = "worker.starting"
    WORKER_READY = "worker.ready"
    WORKER_STOPPING = "worker.stopping"
    WORKER_EXITED = "worker.exited"
    WORKER_DEAD = "worker.dead"
    WORKER_ABANDONED = "worker.abandoned"
    WORKER_TAINTED = "worker.tainted"
    WORKER_RECOVERED = "worker.recovered"
    SESSION_BOUND = "session.bound"
    SESSION_ENDED = "session.ended"
    POOL_STATE = "pool.state"
    POOL_DEGRADED = "pool.degraded"
    POOL_RECOVERED = "pool.recovered"
    TASK_ENQUEUED = "task.enqueued"
    TASK_STOPPING = "task.stopping"
    TASK_REDRIVEN = "task.redriven"
    TASKS_FORGOTTEN = "tasks.forgotten"
    QUEUE_PAUSED = "queue.paused"
    QUEUE_RESUMED = "queue.resumed"
    QUEUE_LIMITED = "queue.limited"
    TASK_CLAIMED = "task.claimed"
    TASK_STARTED = "task.started"
    TASK_ENDED = "task.ended"
    TASK_SUCCEEDED = "task.succeeded"
    TASK_RETRYING = "task.retrying"
    TASK_FAILED = "task.failed"
    TASK_CANCELLED = "task.cancelled"
    TASK_RELEASED = "task.released"
    TASK_LOST = "task.lost"
    TASK_ABANDONED = "task.abandoned"
    TASK_RETURNED = "task.returned"
    TASK_RESCUED = "task.rescued"
    TASK_EXPIRED = "task.expired"
    TASK_WORKER_STATE = "task_worker.state"
    TASK_WORKER_STUCK = "task_worker.stuck"
    TASK_WORKER_RECOVERED = "task_worker.recovered"
    STORE_LOST = "store.lost"
    STORE_FOUND = "store.found"

    @classmethod
    def of(cls, state: enum.Enum) -> Kind:
        """The event of a request that ended in `state`."""
        return cls(f"request.{state.value}")


@dataclass(frozen=True, slots=True)
class TelemetryEvent:
    """One change of state."""

    kind: Kind
    at: float  # monotonic seconds
    pool: str
    worker: str | None = None
    request: int | None = None  # its number within the pool
    session: str | None = None  # of the request
    detail: Any = None  # the new state of a pool, the capacity of a worker that is ready, the delay of a task
    task: str | None = None  # its id
    attempt: int | None = None  # of the task
    queue: str | None = None  # of the task
    function: str | None = None  # the name of the task's function
    waited: float | None = None  # seconds from the instant at which the task was due to its claim
    ran: float | None = None  # seconds that its function has run in this attempt
    outcome: str | None = None  # of the attempt: a `TaskOutcome`
    error: str | None = None  # the type of the attempt's error; its kind if it has no type


class LogObserver:
    """Logs one line per event. The arguments and results of calls are never logged.

    Each record has the event as `bullpen_event`, so that formatters can use its fields.
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.DEBUG) -> None:
        self._logger = logging.getLogger("bullpen.events") if logger is None else logger
        self._level = level

    def __call__(self, event: TelemetryEvent) -> None:
        if self._logger.isEnabledFor(self._level):
            self._logger.log(self._level, "%s", describe(event), extra={"bullpen_event": event})


def describe(event: TelemetryEvent) -> str:
    """One line: the pool, the kind of event, and its subject. A detail that may be user data is left out."""
    words = [f"{event.pool}: {event.kind.value}"]
    if event.request is not None:
        words.append(str(event.request))
    if event.task is not None:
        of = "" if event.function is None else f"{event.function} "
        words.append(f"{of}{event.task}, attempt {event.attempt}, queue {event.queue}")
    if event.worker is not None:
        words.append(event.worker if event.request is None and event.task is None else f"on {event.worker}")
    if event.session is not None:
        words.append(f"of session {event.session}")
    if isinstance(event.detail, enum.Enum | int | float):
        words.append(f"({event.detail})")
    times = [
        f"{word} {value:.3f} s" for word, value in (("waited", event.waited), ("ran", event.ran)) if value is not None
    ]
    words += [f"[{', '.join(times)}]"] if times else []
    return escape(" ".join(words))


class Fanout:
    """Calls several observers. If one raises, this is logged, and the others still get the event."""

    def __init__(self, *observers: Callable[[TelemetryEvent], object]) -> None:
        self._observers = observers

    def __call__(self, event: TelemetryEvent) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                logger.exception("%s: observer %r failed on %s", event.pool, observer, event.kind.value)

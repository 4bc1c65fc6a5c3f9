"""The log lines and telemetry events of a worker: one of each for every change of a task.

Every line has the task's id, its attempt and its queue, also as fields of the record. No line has arguments or results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.errors import NotABullpenFile, SchemaTooNew, StorageCorrupt, StorageGone
from bullpen.escaping import escape
from bullpen.tasks.model.task import CANCELLED, FAILED, SUCCESS, AttemptError, Settlement, Task, TaskOutcome, outcome_of
from bullpen.tasks.storage.port import WorkerRecord
from bullpen.telemetry import Kind, SafeLogger, TelemetryEvent

logger = SafeLogger("bullpen.worker")

SHORTEST_PAUSE = 0.05  # seconds before the next try


def seconds_text(delay: float) -> str:
    """Three digits, and never an exponent: `0.0512 s`, `63.7 s`, `3600 s`."""
    return f"{delay:.3g} s" if delay < 999.5 else f"{delay:.0f} s"


def log_message(
    level: int, message: str, *values: object, error: BaseException | None = None, **fields: object
) -> None:
    """Log a line. An error of a log handler does not end the worker."""
    if logger.isEnabledFor(level):
        try:
            logger.log(level, message, *map(_printable, values), exc_info=error, extra=fields)
        except Exception:  # a filter or a handler that raises
            pass


def _printable(value: object) -> object:
    """Names, keys and errors come from callers that enqueue: they must not write a second line."""
    return escape(str(value)) if isinstance(value, str | BaseException) else value


Observer = Callable[[TelemetryEvent], object]


class Reports:
    """Writes the log and calls the observer, on any thread. An error of the observer is logged."""

    def __init__(self, name: str, worker: str, observer: Observer | None, clock: Callable[[], float]) -> None:
        self.name = name
        self.worker = worker
        self.watched = observer is not None
        self._observer = observer
        self._clock = clock

    def event(
        self,
        kind: Kind,
        task: Task | None = None,
        detail: Any = None,
        *,
        ran: float | None = None,
        outcome: TaskOutcome | None = None,
        error: AttemptError | None = None,
    ) -> None:
        if self._observer is None:
            return
        if task is None:
            event = TelemetryEvent(kind, self._clock(), self.name, self.worker, detail=detail)
        else:
            event = TelemetryEvent(
                kind,
                self._clock(),
                self.name,
                self.worker,
                detail=detail,
                task=task.id,
                attempt=task.attempt,
                queue=task.queue,
                function=task.func_path,
                waited=task.waited,
                ran=ran,
                outcome=outcome,
                error=None if error is None else error.type or error.kind,
            )
        try:
            self._observer(event)
        except Exception as broken:
            log_message(
                logging.ERROR, "%s: observer %r failed on %s", self.name, self._observer, kind.value, error=broken
            )

    def log(self, level: int, task: Task, message: str, *values: object, error: BaseException | None = None) -> None:
        log_message(
            level,
            "%s (task %s, attempt %d, queue %s): " + message,
            task.func_path,
            task.id,
            task.attempt,
            task.queue,
            *values,
            error=error,
            task_id=task.id,
            attempt=task.attempt,
            queue=task.queue,
        )

    def tells_all(self) -> bool:
        """Whether successful tasks are reported at all."""
        return self.watched or logger.isEnabledFor(logging.DEBUG)

    def settled(self, task: Task, settlement: Settlement, ran: float | None) -> None:
        """The store has applied the settlement of a task. `ran`: seconds that its function has run."""
        if logger.isEnabledFor(logging.DEBUG):
            self.log(logging.DEBUG, task, "settled as %s", settlement.status)
        if self.watched:
            kind, outcome = _kind(task, settlement), outcome_of(task, settlement)
            self.event(kind, task, settlement.delay, ran=ran, outcome=outcome, error=settlement.error)

    def lost(self, task: Task, why: str) -> None:
        self.log(logging.WARNING, task, "lost: %s", why)
        self.event(Kind.TASK_LOST, task)

    def rescued(self, task: Task, owner: str | None, record: WorkerRecord | None, outcome: TaskOutcome) -> None:
        """The worker has taken `task` back from `owner`. `task.attempt` is the lost attempt."""
        where = f" on {record.host}" if record is not None else ""
        self.log(logging.WARNING, task, "taken back from worker %s%s, now %s", owner, where, task.status)
        error = task.error if outcome == "crashed" else None
        self.event(Kind.TASK_RESCUED, task, str(task.status), outcome=outcome, error=error)

    def expired(self, task: Task) -> None:
        """The task was not started in time."""
        self.event(Kind.TASK_EXPIRED, task, outcome="expired", error=task.error)


def _kind(task: Task, settlement: Settlement) -> Kind:
    if settlement.status is SUCCESS or settlement.completed_runs > task.completed_runs:
        return Kind.TASK_SUCCEEDED
    if settlement.status is FAILED:
        return Kind.TASK_FAILED
    if settlement.status is CANCELLED:
        return Kind.TASK_CANCELLED
    return Kind.TASK_RELEASED if settlement.error is None else Kind.TASK_RETRYING


UNUSABLE = (StorageGone, StorageCorrupt, NotABullpenFile, SchemaTooNew)  # errors that a later try does not mend


class Outage:
    """Failing calls of one user of the store: logs the first failure and the recovery, and sets the pauses between.

    `can_wait`: the worker goes on although the calls fail for as long as the store is damaged.
    """

    def __init__(self, reports: Reports, user: str, longest: float, *, can_wait: bool = False) -> None:
        self._fatal = StorageGone if can_wait else UNUSABLE
        self._reports = reports
        self._user = user
        self._longest = longest
        self.failures = 0

    def failed(self, what: str, error: BaseException) -> float:
        """A call has failed. Returns the seconds to wait before the next try; they grow, with jitter.

        Raises the error if no later try can succeed.
        """
        if isinstance(error, self._fatal):
            raise error
        self.failures += 1
        longest = min(SHORTEST_PAUSE * 2.0 ** min(self.failures, 30), self._longest)
        pause = longest * (0.5 + primitives.random.random() / 2)
        level = logging.WARNING if self.failures == 1 else logging.DEBUG
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        message = "%s: %s: %s failed (%s); retrying in %s"
        log_message(level, message, self._reports.name, self._user, what, why, seconds_text(pause))
        if self.failures == 1:
            self._reports.event(Kind.STORE_LOST, detail=self._user)
        return pause

    def over(self) -> None:
        """The store has answered."""
        if self.failures:
            message = "%s: %s: the store answers again after %d failures"
            log_message(logging.WARNING, message, self._reports.name, self._user, self.failures)
            self.failures = 0
            self._reports.event(Kind.STORE_FOUND, detail=self._user)

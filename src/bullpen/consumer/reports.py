"""What a worker says: one log line and one event for everything that happens to a task.

Every line has the task's id, its attempt and its queue, also as fields of the record. Arguments and results are never
logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from bullpen.storage.port import WorkerRecord
from bullpen.tasks.task import CANCELLED, FAILED, SUCCESS, Settlement, Task
from bullpen.telemetry.catalogue import Event, Kind

logger = logging.getLogger("bullpen.worker")


def say(level: int, message: str, *values: object, error: BaseException | None = None, **fields: object) -> None:
    """Log a line. A log that is broken ends no worker."""
    if logger.isEnabledFor(level):
        try:
            logger.log(level, message, *values, exc_info=error, extra=fields)
        except Exception:  # a filter or a handler that raises
            pass


Observer = Callable[[Event], object]


class Reports:
    """Tells the log and the observer. Safe to call on any thread; an observer that raises is logged, never fatal."""

    def __init__(self, name: str, worker: str, observer: Observer | None, clock: Callable[[], float]) -> None:
        self.name = name
        self.worker = worker
        self.watched = observer is not None
        self._observer = observer
        self._clock = clock

    def event(self, kind: Kind, task: Task | None = None, detail: Any = None) -> None:
        if self._observer is None:
            return
        if task is None:
            event = Event(kind, self._clock(), self.name, self.worker, detail=detail)
        else:
            event = Event(
                kind,
                self._clock(),
                self.name,
                self.worker,
                detail=detail,
                task=task.id,
                attempt=task.attempt,
                queue=task.queue,
            )
        try:
            self._observer(event)
        except Exception as broken:
            say(logging.ERROR, "%s: observer %r failed on %s", self.name, self._observer, kind.value, error=broken)

    def log(self, level: int, task: Task, message: str, *values: object, error: BaseException | None = None) -> None:
        say(
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
        """Whether anybody hears of tasks that end well."""
        return self.watched or logger.isEnabledFor(logging.DEBUG)

    def settled(self, task: Task, settlement: Settlement) -> None:
        """The store has what became of a task."""
        if logger.isEnabledFor(logging.DEBUG):
            self.log(logging.DEBUG, task, "settled as %s", settlement.status)
        if self.watched:
            self.event(_kind(task, settlement), task, settlement.delay)

    def lost(self, task: Task, why: str) -> None:
        self.log(logging.WARNING, task, "lost: %s", why)
        self.event(Kind.TASK_LOST, task)

    def rescued(self, task: Task, owner: str | None, record: WorkerRecord | None) -> None:
        """`task` was taken back from `owner`; the attempt is the one that was lost."""
        where = f" on {record.host}" if record is not None else ""
        self.log(logging.WARNING, task, "taken back from worker %s%s, now %s", owner, where, task.status)
        self.event(Kind.TASK_RESCUED, task, str(task.status))


def _kind(task: Task, settlement: Settlement) -> Kind:
    if settlement.status is SUCCESS or settlement.runs > task.runs:
        return Kind.TASK_SUCCEEDED
    if settlement.status is FAILED:
        return Kind.TASK_FAILED
    if settlement.status is CANCELLED:
        return Kind.TASK_CANCELLED
    return Kind.TASK_RELEASED if settlement.error is None else Kind.TASK_RETRYING

"""What a queue tells its observer: every change that is made through it. What workers do, they report themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bullpen import primitives
from bullpen.errors import InvalidOptionType
from bullpen.tasks.model.task import CANCELLED, Task
from bullpen.tasks.storage.port import ChangedTask
from bullpen.telemetry import Kind, SafeLogger, TelemetryEvent

logger = SafeLogger("bullpen.queue")

Observer = Callable[[TelemetryEvent], object]
NAME = "queue"  # of the pool, in its events


class Watch:
    """Calls the observer of a queue after the store has a change, on the thread that made the change.

    An error of the observer is logged and not raised, because the change is already stored.
    """

    def __init__(self, observer: Observer | None) -> None:
        if observer is not None and not callable(observer):
            raise InvalidOptionType("observer", observer, "a function of one event, or None")
        self.observer = observer

    def enqueued(self, task: Task) -> None:
        self._tell_of(Kind.TASK_ENQUEUED, [task])

    def cancelled(self, tasks: Iterable[Task | ChangedTask]) -> None:
        """By people: those that waited are over, those that run are asked to stop."""
        if self.observer is not None:
            for task in tasks:
                self._tell_of(Kind.TASK_CANCELLED if task.status is CANCELLED else Kind.TASK_STOPPING, [task])

    def redriven(self, tasks: Iterable[Task | ChangedTask]) -> None:
        self._tell_of(Kind.TASK_REDRIVEN, tasks)

    def forgotten(self, count: int) -> None:
        if count:
            self._tell(Kind.TASKS_FORGOTTEN, detail=count)

    def changed(self, kind: Kind, queue: str, detail: Any = None) -> None:
        """A queue was paused, resumed or limited."""
        self._tell(kind, queue=queue, detail=detail)

    def _tell_of(self, kind: Kind, tasks: Iterable[Task | ChangedTask]) -> None:
        if self.observer is not None:
            for task in tasks:
                function = task.func_path if isinstance(task, Task) else None
                self._tell(kind, task=task.id, attempt=task.attempt, queue=task.queue, function=function)

    def _tell(self, kind: Kind, **fields: Any) -> None:
        if self.observer is None:
            return
        try:
            self.observer(TelemetryEvent(kind, primitives.system_clock.monotonic(), NAME, **fields))
        except Exception:
            logger.exception("observer %r failed on %s", self.observer, kind.value)

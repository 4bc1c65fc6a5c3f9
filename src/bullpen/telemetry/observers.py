"""Ready-made observers: `Pool(observer=LogObserver())`."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from bullpen.telemetry.catalogue import Event

logger = logging.getLogger("bullpen")


class LogObserver:
    """Logs one line per event. The arguments and results of calls are never logged.

    The event itself is with each record, as `bullpen_event`, for formatters that want its fields.
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.DEBUG) -> None:
        self._logger = logging.getLogger("bullpen.events") if logger is None else logger
        self._level = level

    def __call__(self, event: Event) -> None:
        if self._logger.isEnabledFor(self._level):
            self._logger.log(self._level, "%s", describe(event), extra={"bullpen_event": event})


def describe(event: Event) -> str:
    """One line: pool, what happened, and to whom. A detail that could be anybody's data is left out."""
    words = [f"{event.pool}: {event.kind.value}"]
    if event.request is not None:
        words.append(str(event.request))
    if event.task is not None:
        words.append(f"{event.task}, attempt {event.attempt}, queue {event.queue}")
    if event.worker is not None:
        words.append(event.worker if event.request is None and event.task is None else f"on {event.worker}")
    if event.session is not None:
        words.append(f"of session {event.session}")
    if isinstance(event.detail, enum.Enum | int | float):
        words.append(f"({event.detail})")
    return " ".join(words)


class Fanout:
    """Calls several observers. One that raises is logged, and does not keep the event from the others."""

    def __init__(self, *observers: Callable[[Event], object]) -> None:
        self._observers = observers

    def __call__(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                logger.exception("%s: observer %r failed on %s", event.pool, observer, event.kind.value)

"""SIGTERM and SIGINT: the first stops gracefully, the second at once, the third ends the process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from bullpen import primitives
from bullpen.consumer.reports import say

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Counts the signals that come while it is entered, and calls `stop(count)` on the event loop for each.

    The handlers are plain ones, not the loop's: the third signal has to end the process also while a task blocks the
    loop. Off the main thread, where there are no signals, it does nothing.
    """

    def __init__(self, stop: Callable[[int], object]) -> None:
        self._stop = stop
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._loop = asyncio.get_running_loop()
        if primitives.on_main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._count += 1
        if self._count > 2:
            os._exit(128 + number)
        self._loop.call_soon_threadsafe(self._call, number, self._count)

    def _call(self, number: int, count: int) -> None:
        then = "stops when its tasks have ended" if count == 1 else "releases its tasks and stops"
        say(logging.WARNING, "%s: the worker %s", signal.Signals(number).name, then)
        self._stop(count)

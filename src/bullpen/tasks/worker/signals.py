"""SIGTERM and SIGINT. 1st signal: finish the tasks. 2nd: release the tasks and exit. 3rd: exit now."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from bullpen import primitives
from bullpen.tasks.worker.reports import log_message

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Counts signals inside the context, and calls `stop(count)` on the event loop for each.

    The handlers are Python's, not the loop's: the third signal ends the process even while a task blocks the loop.
    A signal may reach any thread of the process, so a byte in a socket wakes the loop's thread to run the handler.
    Outside the main thread Python delivers no signals, and this class does nothing.
    """

    def __init__(self, stop: Callable[[int], object]) -> None:
        self._stop = stop
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._loop = loop = asyncio.get_running_loop()
        if primitives.on_main_thread():
            self._wakes, self._waker = socket.socketpair()
            self._wakes.setblocking(False)
            self._waker.setblocking(False)
            loop.add_reader(self._wakes, self._woken)
            self._fd_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakes.recv(4096)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._loop.remove_reader(self._wakes)
        self._wakes.close()
        self._waker.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._count += 1
        if self._count > 2:
            os._exit(128 + number)
        self._loop.call_soon_threadsafe(self._call, number, self._count)

    def _call(self, number: int, count: int) -> None:
        name = signal.Signals(number).name
        if count == 1:
            log_message(logging.INFO, "%s: the worker finishes its tasks and exits", name)
        else:
            log_message(logging.WARNING, "%s: the worker releases its tasks and exits", name)
        self._stop(count)

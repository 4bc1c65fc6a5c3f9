"""The one thread of a pool that looks at the clock.

It sleeps until the next instant that matters, or until it is woken for an earlier one. It starts when it is first
needed and ends when nothing is left to watch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from bullpen import primitives

logger = logging.getLogger("bullpen")


class Supervisor:
    """Calls `tick(now)`, which returns the next instant at which to be called, again and again; infinity ends it."""

    def __init__(
        self, tick: Callable[[float], float], clock: primitives.Clock, name: str, missing: Callable[[], None]
    ) -> None:
        self._tick = tick
        self._missing = missing  # told if the thread could not be started: `wake` has to be called once more
        self._clock = clock
        self._name = name
        self._lock = primitives.deadlines_lock()
        self._gate = primitives.gate()  # open only while `_called` and not yet noticed
        self._gate.acquire()
        self._called = False
        self._running = False
        self._thread: Any = None

    def wake(self, *, start: bool = True) -> bool:
        """Something new, or earlier than expected, has to be watched. Without `start`, only a running thread is
        woken. False if there is no thread, and none could be started.
        """
        with self._lock:
            if self._called or not (self._running or start):
                return True
            self._called = True
            starting = not self._running
            if starting:
                self._running = True
            else:
                self._gate.release()
        return not starting or self._start()

    def _start(self) -> bool:
        try:
            self._thread = primitives.start_thread(self._run, self._name)
            return True
        except BaseException as error:
            with self._lock:
                self._running = self._called = False
            self._missing()
            if not isinstance(error, Exception):  # an interrupt
                raise
            message = "%s could not start, so no limit in time is kept; it will be tried again: %r"
            logger.error(message, self._name, error)
            return False

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._called:
                    self._called = False
                    self._gate.acquire(False)
            now = self._clock.monotonic()
            try:
                until = self._tick(now)
            except BaseException:  # a defect here must not stop all deadlines
                logger.exception("%s: the supervisor failed and goes on", self._name)
                until = now + 1.0
            if until == math.inf:
                with self._lock:
                    if not self._called:
                        self._running = False
                        return
            self._clock.wait(self._gate, None if until == math.inf else until - self._clock.monotonic())

    def forget(self) -> None:
        """This is a forked child, where the thread is not. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.deadlines_lock()
        self._running = self._called = False
        self._thread = None

    def join(self, timeout: float | None) -> bool:
        """Wait until the thread has ended; the caller has seen to it that nothing is left to watch."""
        self.wake(start=False)
        thread = self._thread
        if thread is None or thread.ident == primitives.current_thread_id():
            return True
        thread.join(timeout)
        return not thread.is_alive()

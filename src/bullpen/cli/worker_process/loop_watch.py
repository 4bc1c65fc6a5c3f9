"""Logs when a task blocks the event loop of a worker, because this delays every async task.

A thread calls into the loop. If the loop does not answer in time, the thread logs the stack of the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import TracebackType

PATIENCE = 2.0  # seconds
SAID_EVERY = 60.0
FRAMES = 10

logger = logging.getLogger("bullpen.worker")


class LoopWatch:
    """Watches the running loop inside the context. Logs at most once a minute."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._home = threading.get_ident()
        self._answered = threading.Event()
        self._left = threading.Event()
        self._said_at = float("-inf")
        self._thread = threading.Thread(target=self._watch, name="bullpen-loop-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._answered.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._answered.clear()
            if self._left.is_set():
                return
            asked = time.monotonic()
            self._loop.call_soon_threadsafe(self._answered.set)
            if not self._has_answer():
                self._say(time.monotonic() - asked)
                self._answered.wait()
            self._left.wait(self._patience / 4)

    def _has_answer(self) -> bool:
        """The second wait covers a process that was suspended: its loop had no time to answer either."""
        return self._answered.wait(self._patience) or self._answered.wait(self._patience / 10)

    def _say(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._home)  # noqa: SLF001 — the only way to see another thread
        now = time.monotonic()
        if frame is None or now - self._said_at < SAID_EVERY:
            return
        self._said_at = now
        logger.warning(
            "the event loop has been blocked for %.1f s, and every async task waits. Move the blocking call into "
            "a task with `def`, which runs on a thread, or into `await asyncio.to_thread(…)`. The loop is at:\n"
            "%s",
            seconds,
            _shown(traceback.extract_stack(frame)),
        )


def _shown(stack: traceback.StackSummary) -> str:
    """The frames from the loop's call on, at most `FRAMES`: the first frames belong to the task."""
    callers = {("_run", asyncio.events.__file__), ("run", asyncio.runners.__file__)}  # uvloop has no frame of its own
    steps = [at for at, frame in enumerate(stack, 1) if (frame.name, frame.filename) in callers]
    return "".join(traceback.format_list(stack[steps[-1] if steps else 0 :][:FRAMES])).rstrip()

"""The threads of a lane: they run plain functions, on as few threads as finish them soon.

**The problem.** To wake a thread costs more than many functions take. A lane that claims ten tasks and wakes ten
threads, each of which wakes the loop at its end, spends most of its time on wake-ups.

**Runners.** An attempt waits in `_waiting`, first in, first out. A *runner* is a request of the lane's pool: it takes
attempts until none waits. One runner starts for all attempts of one turn of the loop. While attempts wait, the loop
looks every `LOOK_AGAIN` seconds and doubles the runners, so functions that block soon have a thread each, and short
functions share one.

**Ends.** A thread appends its end to `_ended`. It wakes the loop if no attempt waits; otherwise the next look takes the
end. No end is overlooked: a runner appends an end before it takes the next attempt, and a look reads `_waiting` before
`_ended`. So a look that finds no attempt finds all ends for which no thread has woken the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from bullpen.errors import PoolFailed
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.pool import Pool
from bullpen.tasks.model.task import Settlement
from bullpen.tasks.worker.attempt import TaskAttempt

LOOK_AGAIN = 0.001  # seconds
CLOSE_GRACE = 0.2  # seconds for threads to exit after their functions


def import_pool() -> None:
    """Import the parts that the first pool of a process imports: else the first plain task would wait for that, and
    with it the event loop.
    """
    from bullpen.pools import options, view  # noqa: F401
    from bullpen.pools.runtimes import open, thread  # noqa: F401
    from bullpen.pools.supervision import at_exit, engine  # noqa: F401


class LaneThreads:
    """Runs attempts on threads. Methods run on the loop's thread unless they say otherwise."""

    def __init__(
        self,
        new_pool: Callable[[], Pool],
        settle: Callable[[TaskAttempt, Settlement | None], None],
        release: Callable[[TaskAttempt, BaseException], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = RenewedPool(new_pool)
        self._settle = settle
        self._release = release  # an attempt for which there is no thread
        self._waiting: deque[TaskAttempt] = deque()
        self._ended: deque[tuple[TaskAttempt, Settlement | None]] = deque()
        self._is_woken = False  # a thread has called for a look
        self._next_look: asyncio.Handle | None = None
        self._unbegun: deque[None] = deque()  # one entry for each runner that no thread has taken yet
        self._last_runner: PoolFuture[None] | None = None

    def run(self, attempt: TaskAttempt) -> None:
        self._waiting.append(attempt)
        if self._next_look is None:
            self._start_runners(1)
            self._next_look = self._loop.call_soon(self._look, 0)

    def end(self, attempt: TaskAttempt, settlement: Settlement | None) -> None:
        """On any thread: an attempt has ended."""
        self._ended.append((attempt, settlement))
        if not (self._waiting or self._is_woken):  # read after the append
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._look_for_thread)
            except RuntimeError:  # the worker has stopped and has logged the task as lost
                pass

    def release_unstarted(self) -> None:
        """Release the attempts that wait if the pool could not start a thread.

        A runner never raises, and the pool fails a request only if it has no thread at all.
        """
        runner = self._last_runner
        if runner is None or not runner.done() or runner.cancelled():
            return
        if (error := runner.exception()) is not None:
            self._release_waiting(error)

    def close(self) -> None:
        self._pool.close()

    # Runners.

    def _start_runners(self, count: int) -> None:
        try:
            for _ in range(min(count, len(self._waiting) - len(self._unbegun))):
                self._unbegun.append(None)
                self._last_runner = self._pool.submit(self._run_waiting)
        except Exception as error:
            self._release_waiting(error)

    def _run_waiting(self) -> None:
        """A runner, on a thread of the pool."""
        with contextlib.suppress(IndexError):  # cleared
            self._unbegun.pop()
        while True:
            try:
                attempt = self._waiting.popleft()
            except IndexError:
                return
            try:
                attempt.run_on_thread()
            except BaseException as error:  # of a log handler or an observer: the function's own errors are settled
                self._loop.call_soon_threadsafe(self._release, attempt, error)

    def _release_waiting(self, error: BaseException) -> None:
        self._unbegun.clear()
        while self._waiting:
            self._release(self._waiting.popleft(), error)

    # Looks.

    def _look(self, more: int) -> None:
        """Settle the ended attempts. If attempts still wait, start so many more runners and look again."""
        waits = bool(self._waiting)
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        while self._ended:
            self._settle(*self._ended.popleft())
        if waits:
            self._start_runners(more)
            self._next_look = self._loop.call_later(LOOK_AGAIN, self._look, 2 * more or 1)

    def _look_for_thread(self) -> None:
        """A thread has found no attempt. Its runner has ended, so attempts that wait by now need another one."""
        self._is_woken = False
        self._look(1)


class RenewedPool:
    """A pool that starts on first use, and again after it has failed."""

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make
        self._pool: Pool | None = None

    def submit(self, fn: Any, /, *args: Any) -> PoolFuture[Any]:
        if self._pool is not None:
            try:
                return self._pool.submit(fn, *args)
            except PoolFailed:
                self.close()
        self._pool = self._make()
        return self._pool.submit(fn, *args)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close(grace=CLOSE_GRACE)
            self._pool = None

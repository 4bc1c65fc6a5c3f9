"""The one thread of a pool that looks at the clock, and what it does.

Three things are due at some instant. Deadlines of requests are in `pools/dispatch/deadlines.py`, because there may be
millions of them. Everything else (the next batch of workers, a retry, an idle worker) is an action in the
`TimerQueue`. Workers that wait for queued requests of their own pool get helpers, which only this thread starts.

The thread sleeps until the next instant that matters, or until it is woken for an earlier one. It starts when it is
first needed and ends when nothing is left to watch.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any, Protocol

from bullpen import primitives
from bullpen.pools.dispatch.deadlines import Deadlines
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.request import Request
from bullpen.telemetry import logger


class Timer(Protocol):
    """Calls a `tick(now)` again and again, each time at the instant that the last call returned. See `TimerThread`."""

    def wake(self, *, start: bool = True) -> bool: ...
    def forget(self) -> None: ...
    def release(self) -> None: ...
    def join(self, timeout: float | None) -> bool: ...


class PoolTimer:
    """Watches the deadlines of requests and runs the pool's timer queue.

    `expire(request, now)` applies the limits of a request and returns False if none has passed. `help_waiting()`
    starts the helpers that workers wait for.
    """

    def __init__(
        self,
        clock: primitives.Clock,
        name: str,
        status: PoolStatus,
        *,
        expire: Callable[[Request, float], bool],
        help_waiting: Callable[[], None],
        new_timer: Callable[[Callable[[float], float]], Timer] | None = None,
    ) -> None:
        self._now = clock.monotonic
        self._status = status
        self._expire = expire
        self._help_waiting = help_waiting
        self.deadlines = Deadlines()
        self.queue = TimerQueue()
        self._unseen = False  # the queue may have an action of which the timer thread does not know
        self._thread: Timer
        if new_timer is None:
            self._thread = TimerThread(self.tick, clock, f"{name}-timer", self._unwatched)
        else:
            self._thread = new_timer(self.tick)
        self.wake = self._thread.wake

    def tick(self, now: float) -> float:
        """Do everything that is due at `now`; the next instant at which something is."""
        for request in self.deadlines.due(now):
            timing = request.timing
            if timing is not None and not self._expire(request, now) and not request.ended:
                self.deadlines.arm_again(timing, timing.next_at(request.state))
        self._help_waiting()
        if not self._status.ended:
            self.queue.run_due(now)
        if self._status.ended:
            self.queue.clear()
            return math.inf
        return min(self.deadlines.next_at, self.queue.next_at)

    def call_later(self, seconds: float, action: Action) -> None:
        """Do `action` on the timer thread, in `seconds` from now."""
        self.queue.add(self._now() + seconds, action)
        self.wake()

    def call_later_once(self, seconds: float, action: Action) -> None:
        """The same, unless the action is in the queue already."""
        if self.queue.add_once(self._now() + seconds, action) or self._unseen:
            self._unseen = False
            self.wake()

    def _unwatched(self) -> None:
        """No thread looks at the clock: the next caller with something to watch has to wake one."""
        self.deadlines.unwatched()
        self._unseen = True

    def watch(self, request: Request) -> None:
        """A request starts that has a `run_timeout`."""
        assert request.timing is not None
        if self.deadlines.arm_started(request.timing):
            self.wake()

    def forget(self) -> None:
        """This is a forked child: nothing is watched here."""
        self.deadlines.forget()
        self._thread.forget()
        self.queue.forget()

    def release(self) -> None:
        """The pool has ended: nothing is left to do."""
        self._thread.release()
        self.queue.clear()

    def join(self) -> None:
        """Wait until the timer thread has ended; nothing is left to watch."""
        self._thread.join(None)


Action = Callable[[], object]


class TimerQueue:
    """Actions by the instant at which they are due. All methods may be called from any thread.

    A due action runs once, without any lock, on the thread that calls `run_due`. It cannot be removed, so an action
    checks itself whether there is still something to do.
    """

    def __init__(self) -> None:
        self._lock = primitives.deadlines_lock()
        self._entries: list[tuple[float, int, Action]] = []
        self._waiting: set[Action] = set()  # those entered by `add_once`
        self._numbers = itertools.count()

    def add(self, when: float, action: Action) -> None:
        """Run `action` at `when`. Actions for the same instant run in the order in which they were added."""
        with self._lock:
            heapq.heappush(self._entries, (when, next(self._numbers), action))

    def add_once(self, when: float, action: Action) -> bool:
        """Run `action` at `when`, unless it is already waiting here; whether it was added."""
        with self._lock:
            if action in self._waiting:
                return False
            self._waiting.add(action)
            heapq.heappush(self._entries, (when, next(self._numbers), action))
            return True

    @property
    def next_at(self) -> float:
        """When the next action is due; infinity if there is none."""
        with self._lock:
            return self._entries[0][0] if self._entries else math.inf

    def run_due(self, now: float) -> None:
        """Run all actions due at `now`, the earliest first, also those added meanwhile. Errors are logged."""
        while (action := self._take_due(now)) is not None:
            try:
                action()
            except Exception:  # the other actions still run
                logger.exception("the timer action %r failed; the timer goes on", action)

    def _take_due(self, now: float) -> Action | None:
        with self._lock:
            if not self._entries or self._entries[0][0] > now:
                return None
            action = heapq.heappop(self._entries)[2]
            self._waiting.discard(action)
            return action

    def clear(self) -> None:
        """The pool has ended: nothing is left to do."""
        with self._lock:
            self._entries.clear()
            self._waiting.clear()

    def forget(self) -> None:
        """This is a forked child. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.deadlines_lock()
        self.clear()

    def __len__(self) -> int:
        return len(self._entries)


class TimerThread:
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
            message = "the thread %s could not start, so no time limit is enforced; the pool tries again: %r"
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
                logger.exception("%s: the timer failed and goes on", self._name)
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

    def release(self) -> None:
        """Call `tick` no more: the thread ends when it is woken."""
        self._tick, self._missing = _ends, _ignore

    def join(self, timeout: float | None) -> bool:
        """Wait until the thread has ended; the caller has seen to it that nothing is left to watch."""
        self.wake(start=False)
        thread = self._thread
        if thread is None or thread.ident == primitives.current_thread_id():
            return True
        thread.join(timeout)
        return not thread.is_alive()


def _ends(_: float) -> float:
    """A `tick` with nothing left to watch."""
    return math.inf


def _ignore() -> None:
    pass

"""Time that stands still until a test moves it.

    clock = ManualClock()
    with Pool(1, clock=clock) as pool:
        late = pool.using(timeout=5).submit(release.wait)
        clock.wait_for_waiters(1)  # the pool's timer sleeps until then
        clock.advance(5)
        with pytest.raises(DeadlineExceeded):
            late.result()

Promises:

- `wait` returns True if and only if it went through the gate, which then is closed again. A gate that was open before
  `advance` was called counts as opened in time.
- `advance` returns when every waiter whose time has come has left `wait`, the earliest first; each reads its own
  instant, or a later one, on the clock.
- The clock never opens a gate, not even to wake a waiter: a gate is a plain lock, which cannot be opened twice, and
  its owner may open it at any moment, also while the waiter is about to wake.

Nothing but its opening wakes a thread that is blocked at a plain lock. So a waiter with a time limit looks up every two
milliseconds of real time; that decides how soon it notices that its time has come, never what it returns.
"""

from __future__ import annotations

import math
import threading

from bullpen import primitives

_LOOK_UP_SECONDS = 0.002


class ManualClock:
    """A `primitives.Clock` that moves only by `advance`. Any thread may call anything."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._advancing = threading.Lock()
        self._waiters: list[_Waiter] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._now:g} s, {self.waiters()} waiting>"

    def monotonic(self) -> float:
        return self._now

    def wait(self, gate: primitives.Lock, timeout: float | None) -> bool:
        """Wait until `gate` opens; False when the clock was moved by `timeout` seconds first."""
        if timeout is None or timeout == math.inf:
            return gate.acquire()
        if timeout <= 0:
            return gate.acquire(False)
        with self._changed:
            waiter = _Waiter(self._now + timeout)
            self._waiters.append(waiter)
            self._changed.notify_all()
        try:
            while not waiter.due:
                if gate.acquire(True, _LOOK_UP_SECONDS):
                    return True
            return gate.acquire(False)  # it may have opened before its time came, just after the last look
        finally:
            with self._changed:
                self._waiters.remove(waiter)
                self._changed.notify_all()

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, from one waiter's instant to the next, and wait until each of them has noticed."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds must be ≥ 0 and finite, got {seconds!r}")
        with self._advancing:
            target = self._now + seconds
            with self._changed:
                while waiter := self._first_due(target):
                    self._now = max(self._now, waiter.until)
                    waiter.due = True
                    while waiter in self._waiters:
                        self._changed.wait()
                self._now = target

    def _first_due(self, now: float) -> _Waiter | None:
        due = [waiter for waiter in self._waiters if waiter.until <= now]
        return min(due, key=lambda waiter: waiter.until, default=None)

    def waiters(self) -> int:
        """How many threads wait with a time limit."""
        return len(self._waiters)

    def wait_for_waiters(self, count: int = 1, timeout: float = 10.0) -> bool:
        """Until at least `count` threads wait with a time limit; False when `timeout` real seconds passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._waiters) >= count, timeout)


class _Waiter:
    """A thread inside `wait`."""

    __slots__ = ("due", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.due = False  # its time has come

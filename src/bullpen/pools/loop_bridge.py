"""The event loop that an `AsyncPool` lives on, and how other threads reach it.

Requests that end on a thread are posted here. However many requests end meanwhile, the loop is woken once and delivers
all of them. Waking a loop costs more than all other steps of a small request.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from asyncio import _get_running_loop
from collections.abc import Callable
from typing import Any, Protocol

from bullpen import primitives
from bullpen.errors import WrongLoop
from bullpen.pools.dispatch.backlog import Ticket
from bullpen.telemetry import logger

running_loop = _get_running_loop  # None instead of an error when no loop runs on this thread


class Delivery(Protocol):
    """An outcome that has to be delivered on the loop."""

    def deliver(self, at_once: bool = False) -> None:
        """`at_once`: no task is running, so a waiting task may be resumed without another pass of the loop."""


class LoopBridge:
    """The loop, once it is known."""

    __slots__ = ("awake", "deliveries", "loop", "name", "sides")

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop: Any = None
        self.sides: object = None  # keeps both sides alive
        self.deliveries = primitives.new_deque()
        self.awake = False  # the loop will deliver, and need not be woken

    def bind_to(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Belong to `loop` from now on; an error if there is none, or another one already."""
        if loop is None:
            raise WrongLoop(pool=self.name, owner=self.loop, caller=None)
        if self.loop is not None and self.loop is not loop:
            raise WrongLoop(pool=self.name, owner=self.loop, caller=loop)
        self.loop = loop

    def post(self, delivery: Delivery) -> None:
        """Have `delivery` delivered. From any thread; a worker may hold its own lock, and the loop takes none here."""
        self.deliveries.append(delivery)
        if not self.awake:
            self.wake()

    def wake(self) -> None:
        """Schedule the delivery on the loop."""
        self.awake = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed: no task waits there
            self.deliveries.clear()

    def _deliver(self, at_once: bool = True) -> None:
        self.awake = False  # before delivering: a later post wakes the loop again
        deliveries = self.deliveries
        try:
            for _ in range(len(deliveries)):
                deliveries.popleft().deliver(at_once)
        finally:
            if deliveries and not self.awake:  # interrupted
                self.wake()

    def catch_up(self) -> None:
        """Deliver all posted outcomes now. On the loop's thread, in a task."""
        self._deliver(at_once=False)

    def call(self, function: Callable[[], object]) -> None:
        """Call `function` on the loop's thread: at once if this is it."""
        if running_loop() is self.loop:
            function()
            return
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(function)


class LoopGate:
    """A gate at which a coroutine waits, to be opened from any thread. To an engine it is a gate like others."""

    __slots__ = ("_bridge", "_opened")

    def __init__(self, bridge: LoopBridge) -> None:
        self._bridge = bridge
        self._opened: asyncio.Future[None] = bridge.loop.create_future()

    def release(self) -> None:
        self._bridge.call(self._open)

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002 — as a lock has it
        """Close it again, if it was open."""
        if self._opened.done():
            self._opened = self._bridge.loop.create_future()
            return True
        return False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is open; False when `timeout` seconds passed first."""
        if not self._opened.done():
            await asyncio.wait([self._opened], timeout=timeout)
        return self._opened.done()


class LoopTicket(Ticket):
    """The ticket of a coroutine that waits for room in the backlog."""

    __slots__ = ()

    gate: LoopGate

    def __init__(self, bridge: LoopBridge) -> None:
        self.gate = LoopGate(bridge)
        self.called = False


class LoopClock:
    """The machine's clock, for a pool on a loop. No code may block on it, because that would stop the loop."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wait(gate: primitives.Lock, timeout: float | None) -> bool:  # noqa: ARG004 — as a clock has it
        raise AssertionError("a pool on an event loop never blocks")


class LoopTimer:
    """Calls `tick(now)` on the loop when a deadline is due: one timer for all deadlines of a pool.

    Does what `TimerThread` does, without its thread.
    """

    def __init__(self, bridge: LoopBridge, tick: Callable[[float], float]) -> None:
        self._bridge = bridge
        self._tick = tick
        self._called = False
        self._timer: asyncio.TimerHandle | None = None

    def wake(self, *, start: bool = True) -> bool:  # noqa: ARG002 — there is no thread to be started
        """A new deadline, or an earlier one, has to be watched. From any thread."""
        if not self._called and self._bridge.loop is not None:
            self._called = True
            with contextlib.suppress(RuntimeError):  # it is closed
                self._bridge.loop.call_soon_threadsafe(self._run)
        return True

    def _run(self) -> None:
        self._called = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = self._bridge.loop
        try:
            until = self._tick(time.monotonic())
        except Exception:  # a defect here must not stop all deadlines
            logger.exception("%s: the timer failed and goes on", self._bridge.name)
            until = time.monotonic() + 1.0
        if until != math.inf:
            self._timer = loop.call_at(loop.time() + max(0.0, until - time.monotonic()), self._run)

    def forget(self) -> None:
        """This is a forked child: nothing is watched here."""
        self._called = True

    def release(self) -> None:
        """Call `tick` no more."""
        self._tick = _ends

    def join(self, timeout: float | None) -> bool:  # noqa: ARG002 — there is nothing to wait for
        if self._timer is not None:
            self._bridge.call(self._timer.cancel)
        return True


def _ends(_: float) -> float:
    """A `tick` with nothing left to watch."""
    return math.inf

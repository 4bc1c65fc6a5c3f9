"""Notifications from a server: one connection listens for all waiting callers of an event loop.

Notifications are hints, and anyone who may publish can forge one: a woken caller asks the store. While the connection
is down, the callers poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from bullpen import primitives
from bullpen.telemetry import SafeLogger

log = SafeLogger("bullpen.storage")

WORK, RESULT, EVENT = "w", "r", "e"  # prefixes: a queue, the id of a task or the name of an event follows
POLL = 0.5  # seconds between two polls while the connection is down
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds between attempts to listen again

# Listens until the connection is lost. Calls the first function when it has subscribed, and the second with each
# notification.
Hear = Callable[[str], None]
Listen = Callable[[Callable[[], None], Hear], Awaitable[None]]


class Subscription(asyncio.Event):
    """Is set by a notification."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = tuple(names)


class NotificationListener:
    """Wakes callers that wait for queues in which a task may be due, or for tasks that may have ended."""

    def __init__(self, listen: Listen, storage: str) -> None:
        self._listen_once = listen
        self._storage = storage
        self._listening: asyncio.Task[None] | None = None
        self._is_listening = False
        self._tried = asyncio.Event()
        self._expected: dict[str, set[Subscription]] = {}  # by notification

    async def listen(self) -> None:
        """Start to listen, and wait for the first attempt to connect. Raises nothing."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(
                self._listen(), name="bullpen notification listener"
            )
        await self._tried.wait()

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])

    async def wait(
        self, timeout: float, subscription: Subscription, seconds_until: Callable[[], Awaitable[float | None]]
    ) -> None:
        """Wait for a notification, or until `seconds_until` says that the time has come, or for `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            due_in = await seconds_until()
            left = deadline - loop.time()
            if due_in == 0.0 or left <= 0:
                return
            is_listening = self._is_listening
            wait = left if due_in is None else min(left, due_in)
            try:
                async with asyncio.timeout(wait if is_listening else min(wait, POLL)):
                    await subscription.wait()
            except TimeoutError:
                pass
            if is_listening:
                return
            subscription.clear()

    def expect(self, notifications: Iterable[str]) -> Subscription:
        """A subscription that any of `notifications` sets, until `forget`."""
        subscription = Subscription(notifications)
        for name in subscription.names:
            self._expected.setdefault(name, set()).add(subscription)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        for name in subscription.names:
            expecting = self._expected[name]
            expecting.discard(subscription)
            if not expecting:
                del self._expected[name]

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._listen_once(self._begin, self._hear)
            except Exception as error:
                log.warning("%s: notifications are off (%s); polling every %g s", self._storage, error, POLL)
            else:
                log.warning("%s: the connection for notifications was lost; reconnecting", self._storage)
                pause = _FIRST_PAUSE
            finally:
                self._is_listening = False
                self._tried.set()
                self._wake_all()
            await asyncio.sleep(pause * (0.5 + primitives.random.random()))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _begin(self) -> None:
        self._is_listening = True
        self._tried.set()
        self._wake_all()  # notifications may have been missed

    def _hear(self, notification: str) -> None:
        for subscription in self._expected.get(notification, ()):
            subscription.set()

    def _wake_all(self) -> None:
        for expecting in self._expected.values():
            for subscription in expecting:
                subscription.set()

"""Who waits is told: one connection that listens, for everybody who waits on one event loop. Only hints.

For stores on a server. While it cannot listen, those who wait are told so, and look for themselves every now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from bullpen import primitives

log = logging.getLogger("bullpen.storage")

WORK, RESULT, CLAIM = "w", "r", "c"  # what a notification begins with; a queue, or the id of a task or a claim, follows
POLL = 0.5  # seconds between looks of somebody who waits and cannot hear
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0  # seconds between attempts to listen again

# Listens until the connection is lost: calls the first once it does, and the second with each notification, and with
# what came with it.
Hear = Callable[[str, bytes], None]
Listen = Callable[[Callable[[], None], Hear], Awaitable[None]]


class Heard(asyncio.Event):
    """Set by a notification, with what came with it: nothing, most of the time."""

    news = b""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = tuple(names)


class Ear:
    """Hears of queues in which something may be due, and of tasks that may have ended."""

    def __init__(self, listen: Listen, storage: str) -> None:
        self._listen_once = listen
        self._storage = storage
        self._listening: asyncio.Task[None] | None = None
        self._hears = False
        self._tried = asyncio.Event()
        self._expected: dict[str, set[Heard]] = {}  # by notification

    async def listen(self) -> None:
        """Begin to listen, if that has not happened yet; raises nothing."""
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen(), name="bullpen listens")
        await self._tried.wait()

    async def close(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])

    async def wait(
        self,
        timeout: float,
        heard: Heard,
        seconds_until: Callable[[], Awaitable[float | None]],
        *,
        look_first: bool = True,
    ) -> bytes:
        """Until what is expected comes, or what is waited for is due, which is looked at first; or `timeout` seconds.
        What came with the notification.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            due_in = await seconds_until() if look_first else None
            look_first = True
            left = deadline - loop.time()
            if due_in == 0.0 or left <= 0:
                return b""
            hears = self._hears
            wait = left if due_in is None else min(left, due_in)
            try:
                async with asyncio.timeout(wait if hears else min(wait, POLL)):
                    await heard.wait()
            except TimeoutError:
                pass
            if hears:
                return heard.news
            heard.clear()

    @property
    def hears(self) -> bool:
        """Whether it listens now; if that ends, all who expect something are told."""
        return self._hears

    def expect(self, notifications: Iterable[str]) -> Heard:
        """An event that is set by any of `notifications`, until it is forgotten."""
        heard = Heard(notifications)
        for name in heard.names:
            self._expected.setdefault(name, set()).add(heard)
        return heard

    def forget(self, heard: Heard) -> None:
        for name in heard.names:
            expecting = self._expected[name]
            expecting.discard(heard)
            if not expecting:
                del self._expected[name]

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._listen_once(self._begin, self._hear)
            except Exception as error:
                log.warning("%s: cannot listen (%s); who waits looks every now and then", self._storage, error)
            else:
                log.warning("%s: the connection that listens is lost; it is made again", self._storage)
                pause = _FIRST_PAUSE
            finally:
                self._hears = False
                self._tried.set()
                self._tell_all()
            await asyncio.sleep(pause * (0.5 + primitives.random.random()))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _begin(self) -> None:
        self._hears = True
        self._tried.set()
        self._tell_all()  # nobody knows what was said meanwhile

    def _hear(self, notification: str, news: bytes) -> None:
        for heard in self._expected.get(notification, ()):
            heard.news = news
            heard.set()

    def _tell_all(self) -> None:
        for expecting in self._expected.values():
            for heard in expecting:
                heard.set()

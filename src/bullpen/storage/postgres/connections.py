"""Connections to one server: made when they are needed, given back, and used again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

UNUSED = 300.0  # seconds, and it is closed


class Connections:
    """At most `most`, which `connect` makes, for the tasks of one event loop. Where the server allows fewer, those that
    are there have to do, and go from one to the next.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, most: int, timeout: float) -> None:
        self._connect = connect
        self._most = most
        self._timeout = timeout
        self._there: set[Any] = set()
        self._coming = 0
        self._idle: list[Any] = []  # the one that was used last is the next
        self._unused = 0  # of those that are idle, from the first on: not taken since the last look
        self._looks: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._is_closed = False

    async def take(self) -> Any:
        """One that nobody else has. Raises what `connect` raises, and TimeoutError after `timeout` seconds."""
        return self._idle_one() or await self._next()

    def give_back(self, connection: Any) -> None:
        """As it was taken, or closed."""
        if connection.is_closed():
            self._there.discard(connection)
            self._hand_on(None)
        elif not self._hand_on(connection):
            self._idle.append(connection)

    async def close(self, within: float) -> None:
        """Those in use are waited for, but only so many seconds."""
        self._is_closed = True
        if self._looks is not None:
            self._looks.cancel()
        try:
            async with asyncio.timeout(within):
                while self._there:
                    connection = await self.take()
                    await connection.close()
                    self._there.discard(connection)
        except Exception:  # the server is silent, or gone: nothing is left to say
            pass
        finally:
            for connection in self._there:
                connection.terminate()

    def _idle_one(self) -> Any | None:
        while self._idle:
            connection = self._idle.pop()
            self._unused = min(self._unused, len(self._idle))
            if not connection.is_closed():
                return connection
            self._there.discard(connection)
        return None

    async def _next(self) -> Any:
        may_make = True
        async with asyncio.timeout(self._timeout):
            while True:
                if (connection := self._idle_one()) is not None:
                    return connection
                if self._is_closed and not self._there:
                    raise ConnectionError("the connections are closed")
                if self._has_room() and (may_make or not self._there):
                    if (connection := await self._another()) is not None:
                        return connection
                    may_make = False
                elif (connection := await self._handed()) is not None:
                    return connection
                else:
                    may_make = True

    def _has_room(self) -> bool:
        return not self._is_closed and len(self._there) + self._coming < self._most

    async def _another(self) -> Any | None:
        """None if the server allows no more than there are."""
        import asyncpg

        self._coming += 1
        try:
            connection = await self._connect()
        except asyncpg.TooManyConnectionsError:
            if not self._there:
                raise
            return None
        except BaseException:
            self._hand_on(None)  # who is next may try
            raise
        finally:
            self._coming -= 1
        if self._is_closed:
            connection.terminate()
            raise ConnectionError("the connections are closed")
        self._there.add(connection)
        if self._looks is None:
            self._look()
        return connection

    async def _handed(self) -> Any | None:
        """What another gives back; None if there is room for one more instead."""
        handed = asyncio.get_running_loop().create_future()
        self._waiting.append(handed)
        try:
            return await handed
        except asyncio.CancelledError:
            if not handed.cancelled():  # both at once
                connection = handed.result()
                self._hand_on(None) if connection is None else self.give_back(connection)
            raise

    def _hand_on(self, connection: Any | None) -> bool:
        while self._waiting:
            handed = self._waiting.popleft()
            if not handed.done():  # else whoever waited has given up
                handed.set_result(connection)
                return True
        return False

    def _look(self) -> None:
        """Every now and then, close what nobody has needed."""
        unused, self._idle = self._idle[: self._unused], self._idle[self._unused :]
        for connection in unused:
            self._there.discard(connection)
            connection.terminate()
        self._unused = len(self._idle)
        if self._there:
            self._looks = asyncio.get_running_loop().call_later(UNUSED, self._look)
        else:
            self._looks = None

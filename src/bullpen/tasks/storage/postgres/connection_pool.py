"""A pool of connections to one server: made on demand, released and used again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

IDLE_SECONDS = 300.0  # a connection that stays idle for so long is closed


class ConnectionPool:
    """At most `most` connections, made by `connect`, for one event loop. If the server allows fewer, the pool makes do
    with those that it has. Waiting callers are served in order.
    """

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, most: int, timeout: float) -> None:
        self._connect = connect
        self._most = most
        self._timeout = timeout
        self._open: set[Any] = set()
        self._connecting = 0
        self._idle: list[Any] = []  # a stack: the last one released is the next one acquired
        self._unused = 0  # how many of the first idle ones have not been acquired since the last check
        self._next_check: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._is_closed = False

    async def acquire(self) -> Any:
        """A connection for this caller alone. Raises errors of `connect`, or TimeoutError after `timeout` seconds."""
        return self._pop_idle() or await self._next()

    def release(self, connection: Any) -> None:
        """Return a connection, open or closed."""
        if connection.is_closed():
            self._open.discard(connection)
            self._hand_over(None)
        elif not self._hand_over(connection):
            self._idle.append(connection)

    async def close(self, within: float) -> None:
        """Close all connections. Wait at most `within` seconds for those in use, then cut them."""
        self._is_closed = True
        if self._next_check is not None:
            self._next_check.cancel()
        try:
            async with asyncio.timeout(within):
                while self._open:
                    connection = await self.acquire()
                    await connection.close()
                    self._open.discard(connection)
        except Exception:  # the server does not answer: cut the remaining connections
            pass
        finally:
            for connection in self._open:
                connection.terminate()

    def _pop_idle(self) -> Any | None:
        while self._idle:
            connection = self._idle.pop()
            self._unused = min(self._unused, len(self._idle))
            if not connection.is_closed():
                return connection
            self._open.discard(connection)
        return None

    async def _next(self) -> Any:
        may_make = True
        async with asyncio.timeout(self._timeout):
            while True:
                if (connection := self._pop_idle()) is not None:
                    return connection
                if self._is_closed and not self._open:
                    raise ConnectionError("the connection pool is closed")
                if self._has_room() and (may_make or not self._open):
                    if (connection := await self._connect_one()) is not None:
                        return connection
                    may_make = False
                elif (connection := await self._wait_for_release()) is not None:
                    return connection
                else:
                    may_make = True

    def _has_room(self) -> bool:
        return not self._is_closed and len(self._open) + self._connecting < self._most

    async def _connect_one(self) -> Any | None:
        """A new connection; None if the server allows no more than the pool has."""
        import asyncpg

        self._connecting += 1
        try:
            connection = await self._connect()
        except asyncpg.TooManyConnectionsError:
            if not self._open:
                raise
            return None
        except BaseException:
            self._hand_over(None)  # let the next caller try
            raise
        finally:
            self._connecting -= 1
        if self._is_closed:
            connection.terminate()
            raise ConnectionError("the connection pool is closed")
        self._open.add(connection)
        if self._next_check is None:
            self._close_unused()
        return connection

    async def _wait_for_release(self) -> Any | None:
        """The next released connection; None if the caller may make a new one instead."""
        handed = asyncio.get_running_loop().create_future()
        self._waiting.append(handed)
        try:
            return await handed
        except asyncio.CancelledError:
            if not handed.cancelled():  # it was cancelled just after it got one
                connection = handed.result()
                self._hand_over(None) if connection is None else self.release(connection)
            raise

    def _hand_over(self, connection: Any | None) -> bool:
        while self._waiting:
            handed = self._waiting.popleft()
            if not handed.done():  # else the caller was cancelled or timed out
                handed.set_result(connection)
                return True
        return False

    def _close_unused(self) -> None:
        """Close the connections that were idle since the last check, and schedule the next check."""
        unused, self._idle = self._idle[: self._unused], self._idle[self._unused :]
        for connection in unused:
            self._open.discard(connection)
            connection.terminate()
        self._unused = len(self._idle)
        if self._open:
            self._next_check = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_unused)
        else:
            self._next_check = None

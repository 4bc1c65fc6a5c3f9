"""A connection on an event loop, as redis-py makes it, without what redis-py does around each command.

redis-py connects, for it knows about TLS, sockets, logins and databases. From then on, what comes from the socket goes
to the parser, and what that makes of it to whoever waits, within one step of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

_hiredis: Any
try:
    import hiredis as _hiredis
except ImportError:  # it comes with the extra, but redis-py does without it too
    _hiredis = None

HEALTH_CHECK = 30.0  # seconds that a connection may be idle before it is asked whether it still works
_PING = b"*1\r\n$4\r\nPING\r\n"
_NOTHING = object()


class Wire(asyncio.Protocol):
    """For one caller at a time, who closes it if anything is raised."""

    def __init__(self, connection: Any, transport: asyncio.Transport, errors: Any) -> None:
        self.loss: BaseException | None = None
        self._connection = connection
        self._transport = transport
        self._errors = errors
        self._loop = asyncio.get_running_loop()
        self._before: Any = transport.get_protocol()  # redis-py's, which has to know of the end
        self._push = getattr(_hiredis, "PushNotification", ())
        self._parser = _hiredis.Reader(
            protocolError=errors.InvalidResponse,
            replyError=connection._parser.parse_error,  # noqa: SLF001 — an error of redis-py, by what the server says
            notEnoughData=_NOTHING,
        )
        self._answer: asyncio.Future[Any] | None = None
        self._hear: Callable[[Any], None] | None = None
        self._used_at = self._loop.time()
        transport.set_protocol(self)

    async def say(self, packed: bytes, patience: float) -> Any:
        """The answer to a command. Raises what redis-py does, also if none comes within `patience` seconds."""
        now = self._loop.time()
        if now - self._used_at > HEALTH_CHECK:
            await self._say(_PING, patience)
        self._used_at = now
        return await self._say(packed, patience)

    async def _say(self, packed: bytes, patience: float) -> Any:
        if self.loss is not None:
            raise self.loss
        answer = self._answer = self._loop.create_future()
        timer = self._loop.call_later(patience, self._give_up, patience)
        self._transport.write(packed)
        try:
            return await answer
        finally:
            timer.cancel()
            self._answer = None

    def _give_up(self, patience: float) -> None:
        self._lose(self._errors.TimeoutError(f"no answer within {patience:g} seconds"))

    async def listen(self, packed: bytes, hear: Callable[[Any], None], patience: float) -> None:
        """Say something that is answered again and again, for the first time within `patience` seconds. Raises that the
        connection is lost.
        """
        timer = self._loop.call_later(patience, self._give_up, patience)

        def hear_first(answer: Any) -> None:
            timer.cancel()
            self._hear = hear
            hear(answer)

        self._hear = hear_first
        lost = self._answer = self._loop.create_future()
        self._transport.write(packed)
        try:
            await lost
        finally:
            timer.cancel()

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)

    # What the event loop says.

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        try:
            while (answer := self._parser.gets()) is not _NOTHING:
                self._take(answer)
        except self._errors.InvalidResponse as error:
            self._lose(error)

    def _take(self, answer: Any) -> None:
        if self._hear is not None:
            self._hear(answer)
        elif isinstance(answer, self._errors.ConnectionError):  # such as: the server is loading
            self._lose(answer)
        elif self._answer is not None and not self._answer.done() and not isinstance(answer, self._push):
            if isinstance(answer, Exception):
                self._answer.set_exception(answer)
            else:
                self._answer.set_result(answer)

    def eof_received(self) -> None:
        self._lose(self._errors.ConnectionError("Connection closed by server."))

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(self._errors.ConnectionError(f"Connection lost: {error}" if error else "Connection closed."))
        self._before.connection_lost(error)

    def _lose(self, error: BaseException) -> None:
        self.loss = self.loss or error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


class PlainWire:
    """The same by redis-py's own means, where there is no parser to be had."""

    loss = None

    def __init__(self, connection: Any, errors: Any) -> None:
        self._connection = connection
        self._errors = errors

    async def say(self, packed: bytes, patience: float) -> Any:
        try:
            async with asyncio.timeout(patience):
                await self._connection.send_packed_command([packed])
                return await self._connection.read_response()
        except TimeoutError as error:
            raise self._errors.TimeoutError(f"no answer within {patience:g} seconds") from error

    async def listen(self, packed: bytes, hear: Callable[[Any], None], patience: float) -> None:
        async with asyncio.timeout(patience):
            await self._connection.send_packed_command([packed])
            hear(await self._connection.read_response(push_request=True))
        while True:
            hear(await self._connection.read_response(push_request=True))

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


def wire_of(connection: Any, errors: Any) -> Wire | PlainWire:
    """Of a connection that was made."""
    transport = getattr(getattr(connection, "_writer", None), "transport", None)
    if _hiredis is None or transport is None or not hasattr(getattr(connection, "_parser", None), "parse_error"):
        return PlainWire(connection, errors)
    return Wire(connection, transport, errors)

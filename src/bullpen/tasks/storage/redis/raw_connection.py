"""One connection to a server.

redis-py opens it, with TLS, login and database. On an event loop, `Wire` then replaces the protocol of its transport
and feeds hiredis itself, because redis-py adds its own time to every command. That needs private fields of redis-py;
without them, `PlainWire` uses public methods. benchmarks/FAST_PATHS.md has the figures.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

_hiredis: Any
try:
    import hiredis as _hiredis
except ImportError:  # the extra installs hiredis, but redis-py works without it
    _hiredis = None

BYTES_PER_SECOND = 1e6  # a reply may take longer if the command was long
PIECE = 2**20  # bytes of a command that a blocking connection sends within one socket timeout
HEALTH_CHECK = 30.0  # seconds of idleness after which a connection is checked with a PING
SPIN = 2e-4  # seconds for which a blocking caller polls for its reply before it sleeps
MOST_SKIPPED = 63  # replies without a spin after spins in vain
PING = b"*1\r\n$4\r\nPING\r\n"
# With one CPU the server would have to wait for us. Systems without these two functions do not spin either.
_CAN_SPIN = hasattr(os, "sched_yield") and hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
_NOTHING = object()
_PUSH: Any = getattr(_hiredis, "PushNotification", ())  # a message that is no reply


class Wire(asyncio.Protocol):
    """A connection on an event loop, for one caller at a time. After any error but a ResponseError it is closed."""

    def __init__(self, connection: Any, transport: asyncio.Transport, errors: Any) -> None:
        self.loss: BaseException | None = None
        self._connection = connection
        self._transport = transport
        self._errors = errors
        self._loop = asyncio.get_running_loop()
        self._before: Any = transport.get_protocol()  # redis-py's own, which needs to know of the end
        self._parser = _new_parser(connection, errors)
        self._answer: asyncio.Future[Any] | None = None
        self._several: list[Any] | None = None  # the replies so far, if several are expected
        self._count = 0  # how many are expected
        self._hear: Callable[[Any], None] | None = None
        self._used_at = self._loop.time()
        transport.set_protocol(self)

    async def execute(self, packed: bytes, timeout: float) -> Any:
        """Send a command and return the reply. Raises errors of redis-py: after `timeout` seconds, TimeoutError."""
        if self._is_stale():
            await self._execute(PING, timeout)
        return await self._execute(packed, timeout)

    async def execute_many(self, packed: Sequence[bytes], timeout: float) -> list[Any]:
        """Send several commands at once and return their replies. Error replies are returned, not raised."""
        if self._is_stale():
            await self._execute(PING, timeout)
        self._several, self._count = [], len(packed)
        try:
            answers: list[Any] = await self._execute(b"".join(packed), timeout)
        finally:
            self._several = None
        return answers

    def _is_stale(self) -> bool:
        """Whether the connection was idle for so long that it may be dead. Notes that it is used now."""
        before, self._used_at = self._used_at, self._loop.time()
        return self._used_at - before > HEALTH_CHECK

    async def _execute(self, packed: bytes, timeout: float) -> Any:
        if self.loss is not None:
            raise self.loss
        timeout += len(packed) / BYTES_PER_SECOND
        answer = self._answer = self._loop.create_future()
        timer = self._loop.call_later(timeout, self._give_up, timeout)
        self._transport.write(packed)
        try:
            return await answer
        finally:
            timer.cancel()
            self._answer = None

    def _give_up(self, timeout: float) -> None:
        self._lose(self._errors.TimeoutError(f"no reply within {timeout:g} seconds"))

    async def listen(self, packed: bytes, hear: Callable[[Any], None], timeout: float) -> None:
        """Send a command with any number of replies, the first within `timeout` seconds. Ends by an error, when the
        connection is lost.
        """
        timer = self._loop.call_later(timeout, self._give_up, timeout)

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

    # Callbacks of the event loop.

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
        elif isinstance(answer, self._errors.ConnectionError):  # such as LOADING
            self._lose(answer)
        elif self._answer is not None and not self._answer.done() and not isinstance(answer, _PUSH):
            if self._several is not None:
                self._several.append(answer)
                if len(self._several) == self._count:
                    self._answer.set_result(self._several)
            elif isinstance(answer, Exception):
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
    """The same with public methods of redis-py, if hiredis or the private fields are missing."""

    loss = None

    def __init__(self, connection: Any, errors: Any) -> None:
        self._connection = connection
        self._errors = errors

    async def execute(self, packed: bytes, timeout: float) -> Any:
        timeout += len(packed) / BYTES_PER_SECOND
        try:
            async with asyncio.timeout(timeout):
                await self._connection.send_packed_command([packed])
                return await self._connection.read_response()
        except TimeoutError as error:
            raise self._errors.TimeoutError(f"no reply within {timeout:g} seconds") from error

    async def execute_many(self, packed: Sequence[bytes], timeout: float) -> list[Any]:
        timeout += sum(map(len, packed)) / BYTES_PER_SECOND
        answers: list[Any] = []
        try:
            async with asyncio.timeout(timeout):
                await self._connection.send_packed_command(packed)
                while len(answers) < len(packed):
                    try:
                        answers.append(await self._connection.read_response())
                    except self._errors.ResponseError as error:
                        answers.append(error)
        except TimeoutError as error:
            raise self._errors.TimeoutError(f"no reply within {timeout:g} seconds") from error
        return answers

    async def listen(self, packed: bytes, hear: Callable[[Any], None], timeout: float) -> None:
        async with asyncio.timeout(timeout):
            await self._connection.send_packed_command([packed])
            hear(await self._connection.read_response(push_request=True))
        while True:
            hear(await self._connection.read_response(push_request=True))

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


class BlockingWire:
    """A connection for one thread at a time, which blocks while it waits. The caller closes it after any error but a
    ResponseError.
    """

    def __init__(self, connection: Any, errors: Any) -> None:
        self._connection = connection
        self._errors = errors
        self._skipped = 0  # replies to skip after the last spin in vain
        self._to_skip = 0 if _CAN_SPIN else -1

    def execute(self, packed: bytes) -> Any:
        self._send(packed)
        if self._to_skip:
            self._to_skip -= self._to_skip > 0
        else:
            self._spin()
        return self._connection.read_response()

    def _spin(self) -> None:
        """Poll for a reply: from a server on this machine it arrives sooner than a sleeping thread wakes.

        After a spin in vain the next 1, 3, 7 … 63 replies get none, so a remote server costs little CPU time.
        """
        until = monotonic() + SPIN
        while not self._connection.can_read(timeout=0):
            if monotonic() > until:
                self._to_skip = self._skipped = min(2 * self._skipped + 1, MOST_SKIPPED)
                return
            os.sched_yield()
        self._skipped = 0

    def execute_many(self, packed: Sequence[bytes]) -> list[Any]:
        """Send several commands at once and return their replies. Error replies are returned, not raised."""
        replies: list[Any] = []
        self._send(b"".join(packed))
        while len(replies) < len(packed):
            try:
                replies.append(self._connection.read_response())
            except self._errors.ResponseError as error:
                replies.append(error)
        return replies

    def _send(self, packed: bytes) -> None:
        """Send a command. After a long one, wait longer for the reply than redis-py would."""
        self._connection.send_packed_command(_pieces(packed))
        if len(packed) > BYTES_PER_SECOND:
            self._connection.can_read(timeout=self._connection.socket_timeout + len(packed) / BYTES_PER_SECOND)

    def close(self) -> None:
        self._connection.disconnect()


def _pieces(packed: bytes) -> list[bytes]:
    """Cut a large command, because redis-py gives each piece the whole socket timeout."""
    if len(packed) <= PIECE:
        return [packed]
    return [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]


AnyWire = Wire | PlainWire


def wire_of(connection: Any, errors: Any) -> AnyWire:
    """Wrap a connection that redis-py has opened on the running event loop."""
    transport = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is None or not _has_parser(connection):
        return PlainWire(connection, errors)
    return Wire(connection, transport, errors)


def _has_parser(connection: Any) -> bool:
    return _hiredis is not None and hasattr(getattr(connection, "_parser", None), "parse_error")


def _new_parser(connection: Any, errors: Any) -> Any:
    return _hiredis.Reader(
        protocolError=errors.InvalidResponse,
        replyError=connection._parser.parse_error,  # noqa: SLF001 — maps the text of an error to a class of redis-py
        notEnoughData=_NOTHING,
    )

"""A connection as redis-py makes it, without what redis-py does around each command, which takes longer than to say it.

redis-py connects, for it knows about TLS, sockets, logins and databases. From then on, what comes from the socket goes
to the parser, and what that makes of it to whoever waits; on an event loop, within one step of it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from bullpen.storage.redis.alertness import LONGEST, Alertness

_hiredis: Any
try:
    import hiredis as _hiredis
except ImportError:  # it comes with the extra, but redis-py does without it too
    _hiredis = None

BYTES_PER_SECOND = 1e6  # an answer may take longer if more was said
HEALTH_CHECK = 30.0  # seconds that a connection may be idle before it is asked whether it still works
PING = b"*1\r\n$4\r\nPING\r\n"
_NOTHING = object()
_PUSH: Any = getattr(_hiredis, "PushNotification", ())  # what nobody has asked for


class Wire(asyncio.Protocol):
    """On an event loop. For one caller at a time, who closes it if anything but a ResponseError is raised."""

    def __init__(self, connection: Any, transport: asyncio.Transport, errors: Any, alertness: Alertness) -> None:
        self.loss: BaseException | None = None
        self._connection = connection
        self._transport = transport
        self._errors = errors
        self._loop = asyncio.get_running_loop()
        self._before: Any = transport.get_protocol()  # redis-py's, which has to know of the end
        self._parser = _new_parser(connection, errors)
        self._answer: asyncio.Future[Any] | None = None
        self._several: list[Any] | None = None  # where more than one answer is wanted: those that have come
        self._count = 0  # … and how many are
        self._hear: Callable[[Any], None] | None = None
        self._used_at = self._loop.time()
        self._alertness = alertness
        self._awake_until = 0.0
        transport.set_protocol(self)

    async def say(self, packed: bytes, patience: float) -> Any:
        """The answer to a command. Raises what redis-py does, also if none comes within `patience` seconds."""
        if self._is_stale():
            await self._say(PING, patience)
        if self._alertness.is_worth_it(len(packed)):
            self._awake_until = monotonic() + LONGEST
            self._loop.call_soon(self._stay_awake)
        return await self._say(packed, patience)

    def _stay_awake(self) -> None:
        """An event loop that has something to do looks what has come, and what else there is to do, and sleeps not."""
        is_here = self._answer is None or self._answer.done()
        if not is_here and monotonic() < self._awake_until:
            self._loop.call_soon(self._stay_awake)
        else:
            self._alertness.ended(in_vain=not is_here)

    async def say_each(self, packed: Sequence[bytes], patience: float) -> list[Any]:
        """The answers to several commands, all said at once. Those that are errors are not raised."""
        if self._is_stale():
            await self._say(PING, patience)
        self._several, self._count = [], len(packed)
        try:
            answers: list[Any] = await self._say(b"".join(packed), patience)
        finally:
            self._several = None
        return answers

    def _is_stale(self) -> bool:
        """Whether it was idle for so long that it may not work any more, before something is said now."""
        before, self._used_at = self._used_at, self._loop.time()
        return self._used_at - before > HEALTH_CHECK

    async def _say(self, packed: bytes, patience: float) -> Any:
        if self.loss is not None:
            raise self.loss
        patience += len(packed) / BYTES_PER_SECOND
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
    """The same by redis-py's own means, where there is no parser to be had."""

    loss = None

    def __init__(self, connection: Any, errors: Any) -> None:
        self._connection = connection
        self._errors = errors

    async def say(self, packed: bytes, patience: float) -> Any:
        patience += len(packed) / BYTES_PER_SECOND
        try:
            async with asyncio.timeout(patience):
                await self._connection.send_packed_command([packed])
                return await self._connection.read_response()
        except TimeoutError as error:
            raise self._errors.TimeoutError(f"no answer within {patience:g} seconds") from error

    async def say_each(self, packed: Sequence[bytes], patience: float) -> list[Any]:
        patience += sum(map(len, packed)) / BYTES_PER_SECOND
        answers: list[Any] = []
        try:
            async with asyncio.timeout(patience):
                await self._connection.send_packed_command(packed)
                while len(answers) < len(packed):
                    try:
                        answers.append(await self._connection.read_response())
                    except self._errors.ResponseError as error:
                        answers.append(error)
        except TimeoutError as error:
            raise self._errors.TimeoutError(f"no answer within {patience:g} seconds") from error
        return answers

    async def listen(self, packed: bytes, hear: Callable[[Any], None], patience: float) -> None:
        async with asyncio.timeout(patience):
            await self._connection.send_packed_command([packed])
            hear(await self._connection.read_response(push_request=True))
        while True:
            hear(await self._connection.read_response(push_request=True))

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


class BlockingWire:
    """On a thread, which is blocked meanwhile. For one caller at a time, as the other one."""

    def __init__(self, connection: Any, errors: Any, alertness: Alertness) -> None:
        self._connection = connection
        self._socket: socket.socket = connection._sock  # noqa: SLF001 — there is no other way
        self._errors = errors
        self._parser = _new_parser(connection, errors)
        self._patience = self._socket.gettimeout()
        self._used_at = monotonic()
        self._alertness = alertness
        self._is_plain = type(self._socket) is socket.socket and self._patience is not None  # so read never blocks

    def say(self, packed: bytes) -> Any:
        """The answer to a command. Raises what redis-py does."""
        if self._is_stale():
            self._say(PING)
        return self._say(packed)

    def say_each(self, packed: Sequence[bytes]) -> list[Any]:
        """The answers to several commands, all said at once. Those that are errors are not raised."""
        if self._is_stale():
            self._say(PING)
        return self._answers(b"".join(packed), len(packed))

    def _is_stale(self) -> bool:
        before, self._used_at = self._used_at, monotonic()
        return self._used_at - before > HEALTH_CHECK

    def _say(self, packed: bytes) -> Any:
        (answer,) = self._answers(packed, 1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answers(self, packed: bytes, count: int) -> list[Any]:
        parser = self._parser
        answers: list[Any] = []
        if len(packed) > BYTES_PER_SECOND and self._patience is not None:
            self._socket.settimeout(self._patience + len(packed) / BYTES_PER_SECOND)
        self._alertness.waiting.add(self)
        try:
            self._socket.sendall(packed)
            is_awake = self._is_plain and self._alertness.is_worth_it(len(packed))
            while len(answers) < count:
                if (answer := parser.gets()) is _NOTHING:
                    data = (self._read_awake() if is_awake else None) or self._socket.recv(65536)
                    is_awake = False
                    if not data:
                        raise self._errors.ConnectionError("Connection closed by server.")
                    parser.feed(data)
                elif not isinstance(answer, _PUSH):
                    answers.append(answer)
        except TimeoutError as error:
            raise self._errors.TimeoutError(f"no answer within {self._socket.gettimeout()} seconds") from error
        except OSError as error:
            raise self._errors.ConnectionError(f"Connection lost: {error}") from error
        finally:
            self._alertness.waiting.discard(self)
        if len(packed) > BYTES_PER_SECOND:
            self._socket.settimeout(self._patience)
        return answers

    def _read_awake(self) -> bytes:
        """What comes soon, if something does. Whoever else has something to do on this CPU goes first."""
        descriptor, until = self._socket.fileno(), monotonic() + LONGEST
        while self._alertness.is_alone:
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:
                if monotonic() > until:
                    self._alertness.ended(in_vain=True)
                    break
                os.sched_yield()
            else:
                self._alertness.ended(in_vain=False)
                return data
        return b""

    def close(self) -> None:
        self._connection.disconnect()


class PlainBlockingWire:
    """The same by redis-py's own means."""

    def __init__(self, connection: Any, errors: Any) -> None:
        self._connection = connection
        self._errors = errors

    def say(self, packed: bytes) -> Any:
        self._connection.send_packed_command([packed])
        return self._connection.read_response()

    def say_each(self, packed: Sequence[bytes]) -> list[Any]:
        answers: list[Any] = []
        self._connection.send_packed_command(packed)
        while len(answers) < len(packed):
            try:
                answers.append(self._connection.read_response())
            except self._errors.ResponseError as error:
                answers.append(error)
        return answers

    def close(self) -> None:
        self._connection.disconnect()


AnyWire = Wire | PlainWire
AnyBlockingWire = BlockingWire | PlainBlockingWire


def wire_of(connection: Any, errors: Any, alertness: Alertness) -> AnyWire:
    """Of a connection that was made on the running event loop."""
    transport = getattr(getattr(connection, "_writer", None), "transport", None)
    if transport is None or not _has_parser(connection):
        return PlainWire(connection, errors)
    return Wire(connection, transport, errors, alertness)


def blocking_wire_of(connection: Any, errors: Any, alertness: Alertness) -> AnyBlockingWire:
    """… and of one for threads."""
    if getattr(connection, "_sock", None) is None or not _has_parser(connection):
        return PlainBlockingWire(connection, errors)
    return BlockingWire(connection, errors, alertness)


def _has_parser(connection: Any) -> bool:
    return _hiredis is not None and hasattr(getattr(connection, "_parser", None), "parse_error")


def _new_parser(connection: Any, errors: Any) -> Any:
    return _hiredis.Reader(
        protocolError=errors.InvalidResponse,
        replyError=connection._parser.parse_error,  # noqa: SLF001 — an error of redis-py, by what the server says
        notEnoughData=_NOTHING,
    )

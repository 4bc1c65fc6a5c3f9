"""Connections on an event loop."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable, Sequence
from typing import Any

from bullpen.tasks.storage.notifications import Hear
from bullpen.tasks.storage.redis.address import split_timeout
from bullpen.tasks.storage.redis.connection import RedisConnection, new_client, new_connection, pack_command
from bullpen.tasks.storage.redis.raw_connection import AnyWire, wire_of

MAX_CONNECTIONS = 10  # on one event loop, besides those that listen


class LoopConnection(RedisConnection):
    """Connections of one event loop, at most `MAX_CONNECTIONS` at once."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry

        super().__init__()
        # redis-py would start an asyncio task for each command if it had a timeout.
        url, self._timeout = split_timeout(url)
        self._client: Any = new_client(Redis, Retry, url, socket_timeout=None)
        self._count = 0  # connections that are idle or in use
        self._waiting: collections.deque[asyncio.Future[AnyWire | None]] = collections.deque()

    async def close(self) -> None:
        for wire in self._idle:
            await wire.close()
        self._idle.clear()
        await self._client.aclose()

    async def _execute(self, *words: Any) -> Any:
        wire = await self._wire()
        try:
            answer = await wire.execute(pack_command(words), self._timeout)
        except self._errors.ResponseError as error:
            await self._put_away(wire, [error])
            raise
        except BaseException as error:  # a late reply must not be taken for the next one
            await self._drop(wire, error)
            raise
        self._give_back(wire)
        return answer

    async def _execute_packed(self, packed: Sequence[bytes]) -> list[Any]:
        wire = await self._wire()
        try:
            answers = await wire.execute_many(packed, self._timeout)
        except BaseException as error:
            await self._drop(wire, error)
            raise
        await self._put_away(wire, answers)
        return answers

    async def _wire(self) -> AnyWire:
        """Take an idle connection or open one. If all are in use, wait for one."""
        while self._idle:
            idle: AnyWire = self._idle.pop()
            if idle.loss is None:
                return idle
            self._count -= 1
            await idle.close()
        if self._count < MAX_CONNECTIONS:
            self._count += 1
            return await self._connect_in_turn()
        turn: asyncio.Future[AnyWire | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            wire = await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on(turn.result())
            raise
        return await self._connect_in_turn() if wire is None else wire

    async def _connect_in_turn(self) -> AnyWire:
        try:
            return await self._connect()
        except BaseException as error:
            self._let_go(error)
            raise

    async def _put_away(self, wire: AnyWire, answers: Sequence[Any]) -> None:
        error = next(filter(self._is_of_replica, answers), None)
        if error is None:
            self._give_back(wire)
            return
        idle, self._idle = self._idle, []  # they lead to the same server
        self._count -= len(idle)
        await self._drop(wire, error)
        for one in idle:
            await one.close()

    def _give_back(self, wire: AnyWire) -> None:
        if self._waiting:
            self._pass_on(wire)
        else:
            self._idle.append(wire)

    async def _drop(self, wire: AnyWire, error: BaseException) -> None:
        self._let_go(error)
        await wire.close()

    def _let_go(self, error: BaseException) -> None:
        """Count a lost connection. After a timeout, all callers that wait for a connection fail too."""
        if isinstance(error, self._errors.TimeoutError):
            for turn in self._waiting:
                if not turn.done():
                    turn.set_exception(self._errors.TimeoutError(str(error)))
            self._waiting.clear()
        self._pass_on(None)

    def _pass_on(self, wire: AnyWire | None) -> None:
        """Give a connection to the next waiting caller; None allows that caller to open one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(wire)
                return
        if wire is None:
            self._count -= 1
        else:
            self._idle.append(wire)

    async def _connect(self) -> AnyWire:
        connection = new_connection(self._client)
        try:
            async with asyncio.timeout(self._timeout):
                await connection.connect()
        except TimeoutError as error:
            await connection.disconnect(nowait=True)
            raise self._errors.TimeoutError(f"no connection within {self._timeout:g} seconds") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return wire_of(connection, self._errors)

    async def listen(self, channels: Sequence[str], begin: Callable[[], None], hear: Hear) -> None:
        wire = await self._connect()
        left = len(channels)

        def take(message: Any) -> None:
            nonlocal left
            if message[0] == b"message":
                hear(message[2].decode(errors="replace"))  # anyone may publish anything
            elif message[0] == b"subscribe":
                left -= 1
                if left == 0:
                    begin()

        try:
            await wire.listen(pack_command(("SUBSCRIBE", *channels)), take, self._timeout)
        finally:
            await wire.close()

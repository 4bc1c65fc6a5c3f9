"""Connections of threads without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bullpen.tasks.storage.redis.address import split_timeout
from bullpen.tasks.storage.redis.connection import RedisConnection, new_client, new_connection, pack_command
from bullpen.tasks.storage.redis.raw_connection import BlockingWire

MAX_IDLE = 32  # connections that are kept; in use are as many as threads that send at the same time


class BlockingConnection(RedisConnection):
    """Connections of any number of threads without an event loop. Its coroutines block, and never suspend."""

    def __init__(self, url: str) -> None:
        from redis import Redis
        from redis.retry import Retry

        super().__init__()
        url, timeout = split_timeout(url)
        self._client: Any = new_client(Redis, Retry, url, socket_timeout=timeout)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._client.close()

    async def _execute(self, *words: Any) -> Any:
        wire = self._wire()
        try:
            answer = wire.execute(pack_command(words))
        except self._errors.ResponseError as error:
            self._put_away(wire, [error])
            raise
        except BaseException:
            wire.close()
            raise
        self._give_back(wire)
        return answer

    async def _execute_packed(self, packed: Sequence[bytes]) -> list[Any]:
        wire = self._wire()
        try:
            answers = wire.execute_many(packed)
        except BaseException:
            wire.close()
            raise
        self._put_away(wire, answers)
        return answers

    def _wire(self) -> BlockingWire:
        """Take an idle connection or open one. There are as many as threads that send at the same time."""
        try:
            wire: BlockingWire = self._idle.pop()
        except IndexError:
            connection = new_connection(self._client)
            try:
                connection.connect()
            except BaseException:
                connection.disconnect()
                raise
            return BlockingWire(connection, self._errors)
        return wire

    def _put_away(self, wire: BlockingWire, answers: Sequence[Any]) -> None:
        if not any(map(self._is_of_replica, answers)):
            self._give_back(wire)
            return
        idle, self._idle = self._idle, []  # they lead to the same server
        for one in [wire, *idle]:
            one.close()

    def _give_back(self, wire: BlockingWire) -> None:
        if len(self._idle) < MAX_IDLE:
            self._idle.append(wire)
        else:
            wire.close()

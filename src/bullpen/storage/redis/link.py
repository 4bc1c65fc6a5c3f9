"""The way to a server: scripts are run here, and nothing is said twice that must not be."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from bullpen.errors import InvalidOption
from bullpen.storage.redis import scripts

_HEALTH_CHECK = 30  # seconds that a connection may be idle before it is asked whether it still works
_DIGESTS = {script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest() for script in scripts.ALL}


class Link:
    """A client of redis-py, which is told never to repeat by itself what may have been done."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        try:
            self.client: Any = Redis.from_url(url, health_check_interval=_HEALTH_CHECK, retry=Retry(NoBackoff(), 0))
            connections: Any = self.client.connection_pool
            connections.make_connection()  # not connected yet, but it has looked at its options
        except (TypeError, ValueError) as error:
            names = ", ".join(name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))
            allowed = f"redis://host/number, with ?prefix= and what redis-py knows; it says: {error}"
            raise InvalidOption("url", f"?{names}", allowed) from error
        self._idle: list[Any] = []  # connections for scripts, which go around what the client does for each command

    async def close(self) -> None:
        for connection in self._idle:
            await connection.disconnect()
        self._idle.clear()
        await self.client.aclose()

    async def run(self, script: str, keys: Sequence[str], words: Sequence[Any], *, once: bool = False) -> Any:
        """`once`: it is not safe to repeat; else it is, if the connection turns out to be lost."""
        from redis import exceptions

        try:
            return await self._run(script, keys, words)
        except exceptions.ConnectionError:
            if once:
                raise
            return await self._run(script, keys, words)

    async def _run(self, script: str, keys: Sequence[str], words: Sequence[Any]) -> Any:
        from redis import exceptions

        try:
            return await self._say("EVALSHA", _DIGESTS[script], len(keys), *keys, *words)
        except exceptions.NoScriptError:
            return await self._say("EVAL", script, len(keys), *keys, *words)

    async def _say(self, *words: Any) -> Any:
        from redis import exceptions

        connection = self._idle.pop() if self._idle else self.client.connection_pool.make_connection()
        try:
            await connection.connect()  # nothing, if it is
            await connection.send_command(*words)
            answer = await connection.read_response()
        except exceptions.ResponseError:
            self._idle.append(connection)
            raise
        except BaseException:  # an answer may be on its way that nobody waits for
            await connection.disconnect(nowait=True)
            raise
        self._idle.append(connection)
        return answer

    async def run_each(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """A script that is safe to repeat, with one key each."""
        if len(calls) == 1:
            return [await self.run(script, [calls[0][0]], calls[0][1])]
        return await asyncio.gather(*(self.run(script, [key], words) for key, words in calls))

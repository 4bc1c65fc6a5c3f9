"""Running commands and scripts on a server.

A lost connection never repeats a command that is not safe to repeat. The three kinds of connection are in
`loop_connection.py`, `blocking_connection.py` and `cluster_connection.py`.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from bullpen.errors import InvalidOption, UnknownOption
from bullpen.tasks.storage.notifications import Hear
from bullpen.tasks.storage.redis.raw_connection import HEALTH_CHECK
from bullpen.tasks.storage.redis.scripts import REPAIR, Script

_pack_command: Callable[[tuple[Any, ...]], bytes] | None
try:
    from hiredis import pack_command as _pack_command
except ImportError:  # the extra installs hiredis, but redis-py works without it
    _pack_command = None

REPAIR_PAUSE, REPAIR_SHARE = 1.0, 0.05  # seconds between two repairs, and the most of the time that they take
_DAMAGE = ("is not an integer", "is not a valid float", "attempt to ", "WRONGTYPE", "DAMAGED")
_TYPES = {"HDEL": "hash", "HEXISTS": "hash", "HGET": "hash", "HGETALL": "hash", "HMGET": "hash", "HVALS": "hash"} | {
    "SADD": "set",
    "SMEMBERS": "set",
    "SREM": "set",
}

log = logging.getLogger("bullpen.storage")

BATCH = 100  # commands that are sent before their replies are read


class RedisConnection:
    """The common part. redis-py is configured never to repeat a command by itself."""

    def __init__(self) -> None:
        from redis import exceptions

        self._errors = exceptions
        self._idle: list[Any] = []  # connections
        self._repair_after: dict[str, float] = {}  # tags and keys that were repaired, and when they may be again

    async def execute(self, *words: Any) -> Any:
        """Run one command and return the reply of the server. A server that has become a replica rejects the command,
        so it runs again, on a new connection.
        """
        try:
            return await self._execute(*words)
        except self._errors.ResponseError as error:
            kind = _TYPES.get(words[0], "")
            if not self._is_of_replica(error) and not (kind and await self._is_repaired(error, kind, words[1:2])):
                raise
        return await self._execute(*words)

    async def _execute(self, *words: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def run(self, script: Script, keys: Sequence[str], words: Sequence[Any], *, once: bool = False) -> Any:
        """Run a script. If the connection is lost, it runs again, unless `once` says that this is not safe. If keys are
        damaged, they are repaired.
        """
        try:
            return await self._run(script, keys, words)
        except self._errors.ConnectionError:
            if once:
                raise
        except self._errors.ResponseError as error:
            if not await self._is_repaired(error, script.key, keys) or not script.again:
                raise
        return await self._run(script, keys, words)

    async def _run(self, script: Script, keys: Sequence[str], words: Sequence[Any]) -> Any:
        try:
            return await self.execute("EVALSHA", script.digest, len(keys), *keys, *words)
        except self._errors.NoScriptError:
            return await self.execute("EVAL", script.text, len(keys), *keys, *words)

    async def run_each(self, script: Script, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Run a script that is safe to repeat, once for each key."""
        if len(calls) == 1:
            ((key, words),) = calls
            return [await self.run(script, [key], words)]
        answers = await self._answers([("EVALSHA", script.digest, 1, key, *words) for key, words in calls])
        for number, (key, words) in enumerate(calls):
            if isinstance(answers[number], self._errors.NoScriptError) or _is_damage(answers[number]):
                answers[number] = await self.run(script, [key], words)
        return _unless_error(answers)

    async def execute_many(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Run several commands that are safe to repeat."""
        answers = await self._answers(commands)
        for number, words in enumerate(commands):
            if _is_damage(answers[number]):
                answers[number] = await self.execute(*words)
        return _unless_error(answers)

    async def _is_repaired(self, error: Exception, kind: str, keys: Sequence[str]) -> bool:
        """Whether the error was that of damaged keys, which were repaired. Repairing a large queue takes the server a
        while, so one that does not help is not done again soon.
        """
        begun = time.monotonic()
        if not _is_damage(error) or any(begun < self._repair_after.get(key, 0.0) for key in keys):
            return False
        self._repair_after.update(dict.fromkeys(keys, math.inf))  # not by several callers at once
        log.warning("a key of %s has unusable contents, which another program has written: %s", ", ".join(keys), error)
        try:
            for key in keys:
                await self._run(REPAIR, [key], [kind])
        finally:
            now = time.monotonic()
            self._repair_after.update(dict.fromkeys(keys, now + max(REPAIR_PAUSE, (now - begun) / REPAIR_SHARE)))
        return True

    async def _answers(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(commands), BATCH):
            some = [pack_command(words) for words in commands[start : start + BATCH]]
            try:
                replies = await self._execute_packed(some)
            except self._errors.ConnectionError:
                replies = await self._execute_packed(some)
            if any(map(self._is_of_replica, replies)):
                replies = await self._execute_packed(some)
            answers += replies
        return answers

    async def _execute_packed(self, packed: Sequence[bytes]) -> list[Any]:
        """Send packed commands at once. Error replies are returned, not raised."""
        raise NotImplementedError

    def _is_of_replica(self, answer: Any) -> bool:
        """Whether a reply is the error of a server that has become a replica. A new connection may find the primary."""
        return isinstance(answer, self._errors.ResponseError) and (
            isinstance(answer, self._errors.ReadOnlyError | self._errors.MasterDownError)
            or "-READONLY" in str(answer)  # the error of a script, up to Redis 6
        )

    async def execute_on_all_nodes(self, *words: Any) -> list[Any]:
        """Run one command on each server of a cluster, or on the only one."""
        return [await self.execute(*words)]

    async def scan(self, pattern: str) -> list[bytes]:
        """The keys that match a pattern; none if the user may not scan."""
        cursor, keys = b"0", []
        while True:
            try:
                cursor, some = await self.execute("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            except self._errors.NoPermissionError:
                return []
            keys += some
            if int(cursor) == 0:
                return keys

    async def now(self) -> float:
        seconds, microseconds = await self.execute("TIME")
        return float(seconds) + float(microseconds) / 1e6

    async def listen(self, channels: Sequence[str], begin: Callable[[], None], hear: Hear) -> None:
        """Subscribe to channels until the connection is lost, as `notifications.Listen` says."""
        raise NotImplementedError


def _is_damage(answer: Any) -> bool:
    """Whether a script or a command has failed because of what a key holds."""
    return isinstance(answer, Exception) and any(word in str(answer) for word in _DAMAGE)


def _unless_error(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def new_client(kind: Any, retry: Any, url: str, **options: Any) -> Any:
    """A client of redis-py that has checked its options, but is not connected."""
    from redis.backoff import NoBackoff

    try:
        client = kind.from_url(url, health_check_interval=HEALTH_CHECK, retry=retry(NoBackoff(), 0), **options)
        if hasattr(client, "connection_pool"):  # a cluster client makes one for each node later
            new_connection(client)
    except (TypeError, ValueError) as error:
        names = [name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)]
        unknown = [name for name in names if f"'{name}'" in str(error)]
        if unknown:
            raise UnknownOption("redis://", unknown[0], ["prefix", *inspect.signature(kind).parameters]) from error
        allowed = f"redis://host/number, with ?prefix= and options of redis-py, which says: {error}"
        raise InvalidOption("url", f"?{', '.join(names)}", allowed) from error
    return client


def new_connection(client: Any) -> Any:
    """A connection that the pool of redis-py does not count, because the pool would not learn of its end."""
    pool = client.connection_pool
    return pool.connection_class(**pool.connection_kwargs)


def pack_command(words: tuple[Any, ...]) -> bytes:
    """Encode a command."""
    if _pack_command is not None:
        return _pack_command(words)
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)

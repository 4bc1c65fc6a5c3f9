"""The way to a server: scripts are run here, and nothing is said twice that must not be.

There is one way on an event loop, one for threads that have none, which are blocked meanwhile, and one to a cluster.
The first two go around what a client of redis-py does for each command: see `wire`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from bullpen.errors import InvalidOption
from bullpen.storage.ear import Hear
from bullpen.storage.redis.wire import (
    HEALTH_CHECK,
    BlockingWire,
    PlainBlockingWire,
    PlainWire,
    Wire,
    blocking_wire_of,
    wire_of,
)

_pack_command: Callable[[tuple[Any, ...]], bytes] | None
try:
    from hiredis import pack_command as _pack_command
except ImportError:  # it comes with the extra, but redis-py does without it too
    _pack_command = None

NEWS = b"\0"  # between a notification and what comes with it
_PATIENCE = 5.0  # seconds that an answer may take, unless the address says another `socket_timeout`
_CLUSTER_SINCE = 6  # of redis-py


class Link:
    """What all have in common. The client is told never to repeat by itself what may have been done."""

    def __init__(self) -> None:
        from redis import exceptions

        self._errors = exceptions
        self._idle: list[Any] = []  # connections

    async def say(self, *words: Any) -> Any:
        """One command; the answer as the server gives it."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def run(self, script: str, keys: Sequence[str], words: Sequence[Any], *, once: bool = False) -> Any:
        """`once`: it is not safe to repeat; else it is, if the connection turns out to be lost."""
        try:
            return await self._run(script, keys, words)
        except self._errors.ConnectionError:
            if once:
                raise
            return await self._run(script, keys, words)

    async def _run(self, script: str, keys: Sequence[str], words: Sequence[Any]) -> Any:
        try:
            return await self.say("EVALSHA", _digest(script), len(keys), *keys, *words)
        except self._errors.NoScriptError:
            return await self.say("EVAL", script, len(keys), *keys, *words)

    async def run_each(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """A script that is safe to repeat, with one key each."""
        return [await self.run(script, [key], words) for key, words in calls]

    async def say_to_each(self, *words: Any) -> list[Any]:
        """One command, to each of the servers behind this."""
        return [await self.say(*words)]

    async def now(self) -> float:
        seconds, microseconds = await self.say("TIME")
        return float(seconds) + float(microseconds) / 1e6

    async def listen(self, channels: Sequence[str], begin: Callable[[], None], hear: Hear) -> None:
        """As `ear.Listen` says."""
        raise NotImplementedError


class LoopLink(Link):
    """On the event loop that opened it."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry

        super().__init__()
        # With a timeout of its own, the driver starts a task for each command.
        url, self._patience = _without_timeout(url)
        self._client: Any = _client_of(Redis, Retry, url, socket_timeout=None)

    async def close(self) -> None:
        for wire in self._idle:
            await wire.close()
        self._idle.clear()
        await self._client.aclose()

    async def say(self, *words: Any) -> Any:
        wire = await self._wire()
        try:
            answer = await wire.say(_packed(words), self._patience)
        except self._errors.ResponseError:
            self._idle.append(wire)
            raise
        except BaseException:  # an answer may be on its way that nobody waits for
            await wire.close()
            raise
        self._idle.append(wire)
        return answer

    async def _wire(self) -> Wire | PlainWire:
        """One that is idle, or a new one."""
        while self._idle:
            wire: Wire | PlainWire = self._idle.pop()
            if wire.loss is None:
                return wire
            await wire.close()
        connection = self._client.connection_pool.make_connection()
        try:
            async with asyncio.timeout(self._patience):
                await connection.connect()
        except TimeoutError as error:
            await connection.disconnect(nowait=True)
            raise self._errors.TimeoutError(f"no connection within {self._patience:g} seconds") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return wire_of(connection, self._errors)

    async def run_each(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        if len(calls) == 1:
            return await super().run_each(script, calls)
        return await asyncio.gather(*(self.run(script, [key], words) for key, words in calls))

    async def listen(self, channels: Sequence[str], begin: Callable[[], None], hear: Hear) -> None:
        wire = await self._wire()
        left = len(channels)

        def take(message: Any) -> None:
            nonlocal left
            if message[0] == b"message":
                notification, _, news = message[2].partition(NEWS)
                hear(notification.decode(), news)
            elif message[0] == b"subscribe":
                left -= 1
                if left == 0:
                    begin()

        try:
            await wire.listen(_packed(("SUBSCRIBE", *channels)), take, self._patience)
        finally:
            await wire.close()


class BlockingLink(Link):
    """For any number of threads without an event loop. Its coroutines never wait for one."""

    def __init__(self, url: str) -> None:
        from redis import Redis
        from redis.retry import Retry

        super().__init__()
        url, patience = _without_timeout(url)
        self._client: Any = _client_of(Redis, Retry, url, socket_timeout=patience)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._client.close()

    async def say(self, *words: Any) -> Any:
        try:
            wire = self._idle.pop()
        except IndexError:
            wire = self._new_wire()
        try:
            answer = wire.say(_packed(words))
        except self._errors.ResponseError:
            self._idle.append(wire)
            raise
        except BaseException:
            wire.close()
            raise
        self._idle.append(wire)
        return answer

    def _new_wire(self) -> BlockingWire | PlainBlockingWire:
        connection = self._client.connection_pool.make_connection()
        try:
            connection.connect()
        except BaseException:
            connection.disconnect()
            raise
        return blocking_wire_of(connection, self._errors)


class ClusterLink(Link):
    """To all nodes of a cluster, on the event loop that opened it. redis-py knows which node has which key."""

    def __init__(self, url: str) -> None:
        from redis import __version__
        from redis.asyncio.cluster import ClusterNode, RedisCluster
        from redis.asyncio.retry import Retry

        super().__init__()
        if int(__version__.partition(".")[0]) < _CLUSTER_SINCE:  # older ones repeat by themselves
            raise InvalidOption("url", "redis+cluster://", "given to redis-py 6 or later: pip install -U redis")
        addresses = _addresses(url)
        nodes = [ClusterNode(*_host_and_port(address)) for address in addresses]
        self._client: Any = _client_of(RedisCluster, Retry, addresses[0], startup_nodes=nodes)
        self._url = addresses[0]

    async def close(self) -> None:
        await self._client.aclose()

    async def say(self, *words: Any) -> Any:
        return await self._client.execute_command(*words)

    async def run_each(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        return await asyncio.gather(*(self.run(script, [key], words) for key, words in calls))

    async def say_to_each(self, *words: Any) -> list[Any]:
        await self._client.initialize()
        return [await self._client.execute_command(*words, target_nodes=node) for node in self._client.get_primaries()]

    async def now(self) -> float:
        """That of one node: theirs have to agree."""
        await self._client.initialize()
        seconds, microseconds = await self._client.execute_command("TIME", target_nodes=self._client.get_default_node())
        return float(seconds) + float(microseconds) / 1e6

    async def listen(self, channels: Sequence[str], begin: Callable[[], None], hear: Hear) -> None:
        """At one node, which is told what is said to any other."""
        await self._client.initialize()
        node = self._client.get_random_node()
        link = LoopLink(_with_host(self._url, f"{node.host}:{node.port}"))
        try:
            await link.listen(channels, begin, hear)
        finally:
            await link.close()


def by_slot(tags: Sequence[str]) -> list[list[str]]:
    """Tags, by what one script may touch on a cluster."""
    from redis.crc import key_slot

    slots: dict[int, list[str]] = {}
    for tag in tags:
        slots.setdefault(key_slot(tag.encode()), []).append(tag)
    return list(slots.values())


def _without_timeout(url: str) -> tuple[str, float]:
    """How long an answer may take, as the address says or else we do; and the rest of the address."""
    parts = urlsplit(url)
    words = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(words).get("socket_timeout")
    try:
        patience = _PATIENCE if given is None else float(given)
    except ValueError:
        raise InvalidOption("socket_timeout", given, "a number of seconds") from None
    others = urlencode([(name, value) for name, value in words if name != "socket_timeout"])
    return urlunsplit(parts._replace(query=others)), patience


def _client_of(kind: Any, retry: Any, url: str, **options: Any) -> Any:
    """A client that is not connected yet, but has looked at its options."""
    from redis.backoff import NoBackoff

    try:
        client = kind.from_url(url, health_check_interval=HEALTH_CHECK, retry=retry(NoBackoff(), 0), **options)
        if hasattr(client, "connection_pool"):  # a client of a cluster has one for each node, later
            client.connection_pool.make_connection()
    except (TypeError, ValueError) as error:
        names = ", ".join(name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))
        allowed = f"redis://host/number, with ?prefix= and what redis-py knows; it says: {error}"
        raise InvalidOption("url", f"?{names}", allowed) from error
    return client


def _addresses(url: str) -> list[str]:
    """An address for each of the nodes that are named, by which the others are found."""
    hosts = urlsplit(url).netloc.rpartition("@")[2].split(",")
    return [_with_host(url, host) for host in hosts]


def _with_host(url: str, host: str) -> str:
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{credentials}{at}{host}"))


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or 6379


def _packed(words: tuple[Any, ...]) -> bytes:
    """A command as it is sent."""
    if _pack_command is not None:
        return _pack_command(words)
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


@cache
def _digest(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()

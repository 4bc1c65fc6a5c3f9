"""The way to a server: scripts are run here, and nothing is said twice that must not be.

There is one way on an event loop, one for threads that have none, which are blocked meanwhile, and one to a cluster.
The first two go around what a client of redis-py does for each command: see `wire`.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from bullpen.errors import InvalidOption
from bullpen.storage.ear import Hear
from bullpen.storage.redis.alertness import Alertness
from bullpen.storage.redis.wire import HEALTH_CHECK, PING, AnyBlockingWire, AnyWire, blocking_wire_of, wire_of

_pack_command: Callable[[tuple[Any, ...]], bytes] | None
try:
    from hiredis import pack_command as _pack_command
except ImportError:  # it comes with the extra, but redis-py does without it too
    _pack_command = None

NEWS = b"\0"  # between a notification and what comes with it
_PATIENCE = 5.0  # seconds that an answer may take, unless the address says another `socket_timeout`
_MOST = 10  # connections of a link on an event loop, besides those that listen
_MOST_IDLE = 32  # … of one for threads, which has as many as threads talk at the same time
_AT_ONCE = 100  # commands that are said before their answers are waited for
_NOT_YOURS = frozenset({"decode_responses", "max_connections"})  # options of redis-py
_CLUSTER_SINCE = 6  # of redis-py
_REDIRECTIONS = 3  # by nodes that have not what they are asked for, before one gives up


class Link:
    """What all have in common. The client is told never to repeat by itself what may have been done."""

    def __init__(self) -> None:
        from redis import exceptions

        self._errors = exceptions
        self._idle: list[Any] = []  # connections
        self._alertness = Alertness()

    async def say(self, *words: Any) -> Any:
        """One command; the answer as the server gives it."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def say_last(self, *words: Any) -> Any:
        """The same, but whoever is told something by it is told before it is answered, if that can be had."""
        return await self.say(*words)

    async def run(
        self, script: str, keys: Sequence[str], words: Sequence[Any], *, once: bool = False, others_first: bool = False
    ) -> Any:
        """`once`: it is not safe to repeat; else it is, if the connection turns out to be lost. `others_first`: whoever
        waits for what it publishes is in more of a hurry than the caller.
        """
        say = self.say_last if others_first else self.say
        try:
            return await self._run(say, script, keys, words)
        except self._errors.ConnectionError:
            if once:
                raise
            return await self._run(say, script, keys, words)

    async def _run(
        self, say: Callable[..., Awaitable[Any]], script: str, keys: Sequence[str], words: Sequence[Any]
    ) -> Any:
        try:
            return await say("EVALSHA", _digest(script), len(keys), *keys, *words)
        except self._errors.NoScriptError:
            return await say("EVAL", script, len(keys), *keys, *words)

    async def run_each(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """A script that is safe to repeat, with one key each."""
        if len(calls) == 1:
            ((key, words),) = calls
            return [await self.run(script, [key], words)]
        answers = await self._answers([("EVALSHA", _digest(script), 1, key, *words) for key, words in calls])
        for number, (key, words) in enumerate(calls):
            if isinstance(answers[number], self._errors.NoScriptError):
                answers[number] = await self.run(script, [key], words)
        return _unless_error(answers)

    async def say_each(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Several commands that are safe to repeat."""
        return _unless_error(await self._answers(commands))

    async def _answers(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers: list[Any] = []
        for start in range(0, len(commands), _AT_ONCE):
            some = [_packed(words) for words in commands[start : start + _AT_ONCE]]
            try:
                answers += await self._say_at_once(some)
            except self._errors.ConnectionError:
                answers += await self._say_at_once(some)
        return answers

    async def _say_at_once(self, packed: Sequence[bytes]) -> list[Any]:
        """Answers that are errors are not raised."""
        raise NotImplementedError

    def _resignation(self, answers: Sequence[Any]) -> Exception | None:
        """The answer of a server that is a replica now. It stays one, but a new connection may lead to the primary."""
        for answer in answers:
            if isinstance(answer, self._errors.ResponseError) and (
                isinstance(answer, self._errors.ReadOnlyError | self._errors.MasterDownError)
                or "-READONLY" in str(answer)  # a script's, up to Redis 6
            ):
                return answer
        return None

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
        self._count = 0  # of connections that are idle or in use
        self._waiting: collections.deque[asyncio.Future[AnyWire | None]] = collections.deque()

    async def close(self) -> None:
        for wire in self._idle:
            await wire.close()
        self._idle.clear()
        await self._client.aclose()

    async def say(self, *words: Any) -> Any:
        wire = await self._wire()
        try:
            answer = await wire.say(_packed(words), self._patience)
        except self._errors.ResponseError as error:
            await self._put_away(wire, [error])
            raise
        except BaseException as error:  # an answer may be on its way that nobody waits for
            await self._drop(wire, error)
            raise
        self._give_back(wire)
        return answer

    async def say_last(self, *words: Any) -> Any:
        """A server writes first to whom it had to say something last. So it gets something to answer before."""
        _, answer = await self._say_at_once([PING, _packed(words)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _say_at_once(self, packed: Sequence[bytes]) -> list[Any]:
        wire = await self._wire()
        try:
            answers = await wire.say_each(packed, self._patience)
        except BaseException as error:
            await self._drop(wire, error)
            raise
        await self._put_away(wire, answers)
        return answers

    async def _wire(self) -> AnyWire:
        """A connection that is idle or new, as soon as there may be one."""
        while self._idle:
            idle: AnyWire = self._idle.pop()
            if idle.loss is None:
                return idle
            self._count -= 1
            await idle.close()
        if self._count < _MOST:
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
        error = self._resignation(answers)
        if error is None:
            self._give_back(wire)
            return
        idle, self._idle = self._idle, []  # they lead there too
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
        """There is one connection less. If the server is silent, nobody else waits for that to come out again."""
        if isinstance(error, self._errors.TimeoutError):
            for turn in self._waiting:
                if not turn.done():
                    turn.set_exception(self._errors.TimeoutError(str(error)))
            self._waiting.clear()
        self._pass_on(None)

    def _pass_on(self, wire: AnyWire | None) -> None:
        """To whoever waits; without a connection, it is the right to make one."""
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
        connection = _new_connection(self._client)
        try:
            async with asyncio.timeout(self._patience):
                await connection.connect()
        except TimeoutError as error:
            await connection.disconnect(nowait=True)
            raise self._errors.TimeoutError(f"no connection within {self._patience:g} seconds") from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return wire_of(connection, self._errors, self._alertness)

    async def listen(self, channels: Sequence[str], begin: Callable[[], None], hear: Hear) -> None:
        wire = await self._connect()
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
        wire = self._wire()
        try:
            answer = wire.say(_packed(words))
        except self._errors.ResponseError as error:
            self._put_away(wire, [error])
            raise
        except BaseException:
            wire.close()
            raise
        self._give_back(wire)
        return answer

    async def _say_at_once(self, packed: Sequence[bytes]) -> list[Any]:
        wire = self._wire()
        try:
            answers = wire.say_each(packed)
        except BaseException:
            wire.close()
            raise
        self._put_away(wire, answers)
        return answers

    def _wire(self) -> AnyBlockingWire:
        """One that is idle or new: there are as many as threads that talk at the same time."""
        try:
            wire: AnyBlockingWire = self._idle.pop()
        except IndexError:
            connection = _new_connection(self._client)
            try:
                connection.connect()
            except BaseException:
                connection.disconnect()
                raise
            return blocking_wire_of(connection, self._errors, self._alertness)
        return wire

    def _put_away(self, wire: AnyBlockingWire, answers: Sequence[Any]) -> None:
        if self._resignation(answers) is None:
            self._give_back(wire)
            return
        idle, self._idle = self._idle, []  # they lead there too
        for one in [wire, *idle]:
            one.close()

    def _give_back(self, wire: AnyBlockingWire) -> None:
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(wire)
        else:
            wire.close()


class ClusterLink(Link):
    """To all nodes of a cluster, on the event loop that opened it. redis-py knows which node has which key."""

    def __init__(self, url: str) -> None:
        from redis import __version__
        from redis.asyncio.cluster import ClusterNode, RedisCluster
        from redis.asyncio.retry import Retry

        super().__init__()
        if int(__version__.partition(".")[0]) < _CLUSTER_SINCE:  # older ones repeat by themselves
            raise InvalidOption("url", "redis+cluster://", "given to redis-py 6 or later: pip install -U redis")
        self._url = url
        url, patience = _without_timeout(url)
        addresses = _addresses(url)
        nodes = [ClusterNode(*_host_and_port(address)) for address in addresses]
        options = {"startup_nodes": nodes, "socket_timeout": patience}
        self._client: Any = _client_of(RedisCluster, Retry, addresses[0], **options)
        self._client.RedisClusterRequestTTL = 1  # it is for us to follow, or not, if it is sent elsewhere
        self._turns = asyncio.Semaphore(_MOST)

    async def close(self) -> None:
        await self._client.aclose()

    async def say(self, *words: Any) -> Any:
        """What is about to move to another node is not asked for there: the keys of a queue move one by one, and who
        touches them meanwhile would find some of them here and some there.
        """
        async with self._turns:
            for _ in range(_REDIRECTIONS):
                try:
                    return await self._client.execute_command(*words)
                except self._errors.ClusterError as error:
                    if type(error) is not self._errors.ClusterError:  # it says more than to ask elsewhere
                        raise
        raise self._errors.ConnectionError("the keys are being moved to another node of the cluster")

    async def run_each(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        return await asyncio.gather(*(self.run(script, [key], words) for key, words in calls))

    async def say_each(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return await asyncio.gather(*(self.say(*words) for words in commands))

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


def _unless_error(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def by_slot(tags: Sequence[str]) -> list[list[str]]:
    """Tags, by what one script may touch on a cluster."""
    from redis.crc import key_slot

    slots: dict[int, list[str]] = {}
    for tag in tags:
        slots.setdefault(key_slot(tag.encode()), []).append(tag)
    return list(slots.values())


def split_address(url: str) -> SplitResult:
    """Raises InvalidOption, and says nothing of what may be a part of a password."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        are_ports = all(urlsplit(f"//{host}").port != 0 for host in hosts)
    except ValueError:
        are_ports = False
    if not are_ports or parts.fragment or not re.fullmatch(r"/?|/\d+", parts.path):
        allowed = (
            "redis://user:password@host:port/number (in a password, write %23 for #, %2F for /, %3F for ?, %5B for [)"
        )
        raise InvalidOption("url", f"{url.partition('://')[0]}://…", allowed) from None
    return parts


def _without_timeout(url: str) -> tuple[str, float]:
    """How long an answer may take, as the address says or else we do; and the rest of the address."""
    parts = split_address(url)
    words = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in _NOT_YOURS.intersection(words):
        raise InvalidOption("url", f"?{name}", "an address without it: Bullpen has its own way to do this")
    patience = _seconds(words.pop("socket_timeout", None))
    return urlunsplit(parts._replace(query=urlencode(words))), patience


def _seconds(given: str | None) -> float:
    try:
        patience = _PATIENCE if given is None else float(given)
    except ValueError:
        patience = 0.0
    if not 0.0 < patience < 1e6:
        raise InvalidOption("socket_timeout", given, "a number of seconds above 0")
    return patience


def _client_of(kind: Any, retry: Any, url: str, **options: Any) -> Any:
    """A client that is not connected yet, but has looked at its options."""
    from redis.backoff import NoBackoff

    try:
        client = kind.from_url(url, health_check_interval=HEALTH_CHECK, retry=retry(NoBackoff(), 0), **options)
        if hasattr(client, "connection_pool"):  # a client of a cluster has one for each node, later
            _new_connection(client)
    except (TypeError, ValueError) as error:
        names = ", ".join(name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))
        allowed = f"redis://host/number, with ?prefix= and what redis-py knows; it says: {error}"
        raise InvalidOption("url", f"?{names}", allowed) from error
    return client


def _new_connection(client: Any) -> Any:
    """One that its pool does not count: it would never learn that it is gone, and allow no more after a hundred."""
    pool = client.connection_pool
    return pool.connection_class(**pool.connection_kwargs)


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

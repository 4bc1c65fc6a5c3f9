"""Connections to the nodes of a cluster, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bullpen.errors import InvalidOption
from bullpen.tasks.storage.notifications import Hear
from bullpen.tasks.storage.redis.address import host_and_port, node_addresses, split_timeout, with_host
from bullpen.tasks.storage.redis.connection import RedisConnection, new_client
from bullpen.tasks.storage.redis.loop_connection import MAX_CONNECTIONS, LoopConnection
from bullpen.tasks.storage.redis.scripts import Script

_OLDEST_DRIVER = 6  # major version of redis-py; older ones repeat commands by themselves
_REDIRECTIONS = 3  # that a command follows before it fails


class ClusterConnection(RedisConnection):
    """Connections to all nodes of a cluster, on one event loop. redis-py knows which node has which key."""

    def __init__(self, url: str) -> None:
        from redis import __version__
        from redis.asyncio.cluster import ClusterNode, RedisCluster
        from redis.asyncio.retry import Retry

        super().__init__()
        if int(__version__.partition(".")[0]) < _OLDEST_DRIVER:
            raise InvalidOption("url", "redis+cluster://", "given to redis-py 6 or later: pip install -U redis")
        self._url = url
        url, timeout = split_timeout(url)
        addresses = node_addresses(url)
        nodes = [ClusterNode(*host_and_port(address)) for address in addresses]
        options = {"startup_nodes": nodes, "socket_timeout": timeout}
        self._client: Any = new_client(RedisCluster, Retry, addresses[0], **options)
        self._client.RedisClusterRequestTTL = 1  # `_execute` follows redirections itself
        self._turns = asyncio.Semaphore(MAX_CONNECTIONS)

    async def close(self) -> None:
        await self._client.aclose()

    async def _execute(self, *words: Any) -> Any:
        """Follow redirections to another node, but not to one that is importing the keys. The keys of a queue move one
        by one, and a script on either node would find only some of them.
        """
        async with self._turns:
            for _ in range(_REDIRECTIONS):
                try:
                    return await self._client.execute_command(*words)
                except self._errors.ClusterError as error:
                    if type(error) is not self._errors.ClusterError:  # a subclass is an error, not a redirection
                        raise
        raise self._errors.ConnectionError("the keys are being moved to another node of the cluster")

    async def run_each(self, script: Script, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        return await asyncio.gather(*(self.run(script, [key], words) for key, words in calls))

    async def execute_many(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        return await asyncio.gather(*(self.execute(*words) for words in commands))

    async def execute_on_all_nodes(self, *words: Any) -> list[Any]:
        await self._client.initialize()
        return [await self._client.execute_command(*words, target_nodes=node) for node in self._client.get_primaries()]

    async def scan(self, pattern: str) -> list[bytes]:
        await self._client.initialize()
        keys = []
        for node in self._client.get_primaries():
            link = LoopConnection(with_host(self._url, f"{node.host}:{node.port}"))
            try:
                keys += await link.scan(pattern)
            finally:
                await link.close()
        return keys

    async def now(self) -> float:
        """The clock of one node. The clocks of all nodes have to agree."""
        await self._client.initialize()
        seconds, microseconds = await self._client.execute_command("TIME", target_nodes=self._client.get_default_node())
        return float(seconds) + float(microseconds) / 1e6

    async def listen(self, channels: Sequence[str], begin: Callable[[], None], hear: Hear) -> None:
        """Subscribe at one node. Cluster nodes forward every published message to all others."""
        await self._client.initialize()
        node = self._client.get_random_node()
        link = LoopConnection(with_host(self._url, f"{node.host}:{node.port}"))
        try:
            await link.listen(channels, begin, hear)
        finally:
            await link.close()


def by_slot(tags: Sequence[str]) -> list[list[str]]:
    """Group tags by hash slot: one script may touch the tags of one group."""
    from redis.crc import key_slot

    slots: dict[int, list[str]] = {}
    for tag in tags:
        slots.setdefault(key_slot(tag.encode()), []).append(tag)
    return list(slots.values())

"""The part that all stores on a server share: one client per process, batched adds, and waiting for notifications."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from bullpen.errors import StorageClosed
from bullpen.tasks.model.task import Task
from bullpen.tasks.model.task_batch import concatenate, split_by_part
from bullpen.tasks.storage.batcher import Answer, Batcher, Given, Send
from bullpen.tasks.storage.notifications import Listen, NotificationListener
from bullpen.tasks.storage.port import HealthFinding
from bullpen.tasks.storage.single_flight import SingleFlight

C = TypeVar("C")


class ServerStorage(Generic[C]):
    """Owns the client that `_connect` makes and `_disconnect` closes, its listeners and its batchers.

    The first call connects. A forked process connects again, because it must not use the connections of its parent.
    """

    durable = True
    notify = True

    def __init__(self, name: str) -> None:
        self.name = name  # for errors and logs; without a password
        self._client: C | None = None
        self._opening = SingleFlight()
        self._listeners: dict[Listen, NotificationListener] = {}
        self._batchers: dict[str, Batcher[Any, Any]] = {}  # by the name of the function that sends
        self._pid = 0
        self._closed = False

    async def _connect(self) -> C:
        raise NotImplementedError

    async def _disconnect(self, client: C) -> None:
        raise NotImplementedError

    async def _add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Add the tasks of one or more callers in one step."""
        raise NotImplementedError

    async def open(self) -> None:
        """Connect and check the store. Without it, the first call does so."""
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """Wait for batches that have begun, then disconnect."""
        self._closed = True
        is_own = self._pid == os.getpid()
        if is_own:
            for batcher in self._batchers.values():
                await batcher.close()
        client, self._client = self._client, None
        listeners, self._listeners, self._batchers = self._listeners, {}, {}
        if is_own:
            for listener in listeners.values():
                await listener.close()
        if client is not None and is_own:
            await self._disconnect(client)

    async def _connected(self) -> C:
        client = self._client
        if client is not None and self._pid == os.getpid():
            return client
        if self._closed:
            raise StorageClosed("the store was closed", storage=self.name)
        await self._opening.run(self._open_client)
        assert self._client is not None
        return self._client

    async def _open_client(self) -> None:
        if self._client is None or self._pid != os.getpid():
            self._client = await self._connect()
            self._pid = os.getpid()
            self._listeners, self._batchers = {}, {}

    async def add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Add tasks, in one batch with concurrent callers."""
        return await self._send_together(self._add_parts, tasks)

    async def _add_parts(self, parts: Sequence[Sequence[Task]]) -> Sequence[Sequence[Task]]:
        return list(split_by_part(await self._add(concatenate(parts)), parts))

    async def _send_together(self, send: Send[Given, Answer], items: Sequence[Given]) -> Sequence[Answer]:
        """`send` items, in one batch with the concurrent callers of the same function."""
        batcher: Batcher[Given, Answer] | None = self._batchers.get(send.__name__)
        if batcher is None or self._pid != os.getpid():
            await self._connected()
            batcher = self._batchers.setdefault(send.__name__, Batcher(send))
        return await batcher.send(items)

    async def _wait(
        self,
        listen: Listen,
        timeout: float,
        notifications: Iterable[str],
        seconds_until: Callable[[], Awaitable[float | None]],
    ) -> None:
        """`NotificationListener.wait`. All callers with the same `listen` share one connection."""
        listener = await self._listening(listen)
        subscription = listener.expect(notifications)
        try:
            await listener.wait(timeout, subscription, seconds_until)
        finally:
            listener.forget(subscription)

    async def _listening(self, listen: Listen) -> NotificationListener:
        await self._connected()
        listener = self._listeners.get(listen)
        if listener is None:
            listener = self._listeners[listen] = NotificationListener(listen, self.name)
        if self.notify:
            await listener.listen()
        return listener


def in_the_clear(url: str) -> list[HealthFinding]:
    """The finding for a connection without TLS to another machine."""
    if all(is_local(urlsplit(f"//{unquote(host)}").hostname) for host in server_hosts(url)):
        return []
    message = "the connection is not encrypted: arguments and results cross the network in the clear"
    advice = "use TLS: sslmode=verify-full for PostgreSQL, rediss:// for Redis, unless the network is yours alone"
    return [HealthFinding(kind="no_tls", level="warning", message=message, advice=advice)]


def server_hosts(url: str) -> list[str]:
    """The hosts in an address, with their ports; empty if it has none."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "")
    return hosts.split(",") if hosts else []


def is_local(host: str | None) -> bool:
    """Whether the host is this machine. No host means a Unix socket."""
    if not host or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

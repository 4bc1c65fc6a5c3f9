"""What stores on a server have in common: one client for each process, callers who go together, and who waits."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from bullpen.errors import StorageClosed
from bullpen.storage.ear import Ear, Listen
from bullpen.storage.gathering import Gathering
from bullpen.storage.port import Concern
from bullpen.storage.shared_attempt import SharedAttempt
from bullpen.tasks.task import Task

C = TypeVar("C")


class ServerStorage(Generic[C]):
    """The life of a client, which `_connect` makes and `_disconnect` ends, and what comes with it.

    It is made by whatever is called first, and again in a process that was forked: connections of a parent are the
    parent's.
    """

    durable = True
    notify = True

    def __init__(self, name: str) -> None:
        self.name = name  # for errors and logs: never with a password
        self._client: C | None = None
        self._opening = SharedAttempt()
        self._ears: dict[Listen, Ear] = {}
        self._gathering: Gathering | None = None
        self._pid = 0
        self._closed = False

    async def _connect(self) -> C:
        raise NotImplementedError

    async def _disconnect(self, client: C) -> None:
        raise NotImplementedError

    async def _add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Add tasks of one caller or of several."""
        raise NotImplementedError

    async def open(self) -> None:
        """Connect, and see that all is ready. Also done by whatever is called first."""
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """Wait for what was begun, and let go of the server."""
        self._closed = True
        is_own = self._pid == os.getpid()
        if self._gathering is not None and is_own:
            await self._gathering.close()
        client, self._client = self._client, None
        ears, self._ears, self._gathering = self._ears, {}, None
        if is_own:
            for ear in ears.values():
                await ear.close()
        if client is not None and is_own:
            await self._disconnect(client)

    async def _connected(self) -> C:
        client = self._client
        if client is not None and self._pid == os.getpid():
            return client
        if self._closed:
            raise StorageClosed("it was closed", storage=self.name)
        await self._opening.make(self._open_client)
        assert self._client is not None
        return self._client

    async def _open_client(self) -> None:
        if self._client is None or self._pid != os.getpid():
            self._client = await self._connect()
            self._pid = os.getpid()
            self._ears, self._gathering = {}, None

    async def add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Together with whoever adds at the same time."""
        gathering = self._gathering
        if gathering is None or self._pid != os.getpid():
            await self._connected()
            gathering = self._gathering = self._gathering or Gathering(self._add)
        return await gathering.add(tasks)

    async def _wait(
        self,
        listen: Listen,
        timeout: float,
        notifications: Iterable[str],
        seconds_until: Callable[[], Awaitable[float | None]],
    ) -> bytes:
        """As `Ear.wait`: all who `listen` in the same way share one connection."""
        ear = await self._listening(listen)
        heard = ear.expect(notifications)
        try:
            return await ear.wait(timeout, heard, seconds_until)
        finally:
            ear.forget(heard)

    async def _listening(self, listen: Listen) -> Ear:
        await self._connected()
        ear = self._ears.get(listen)
        if ear is None:
            ear = self._ears[listen] = Ear(listen, self.name)
        if self.notify:
            await ear.listen()
        return ear


def in_the_clear(url: str) -> list[Concern]:
    """Of a server that is reached without TLS."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2] or dict(parse_qsl(parts.query)).get("host", "")
    if all(is_local(urlsplit(f"//{unquote(host)}").hostname) for host in hosts.split(",")):
        return []
    words = "what goes to the server and back, arguments of tasks among it, is not encrypted"
    advice = "use TLS: sslmode=verify-full for PostgreSQL, rediss:// for Redis, unless the network is yours alone"
    return [Concern(kind="no_tls", level="warning", words=words, advice=advice)]


def is_local(host: str | None) -> bool:
    """Whether nothing goes over a network; without a host it is a socket of this machine."""
    if not host or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Clients of the store: one per event loop, for a client belongs to the loop that opened it.

Storage objects that are given directly are used as they are. So is a store in memory, which any loop may use.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from bullpen.errors import InvalidOptionType
from bullpen.queue.portal import portal
from bullpen.storage.open import open_storage
from bullpen.storage.port import Storage

T = TypeVar("T")


class Clients:
    """The clients of one queue."""

    def __init__(self, source: str | Storage) -> None:
        if isinstance(source, str):
            self.root = open_storage(source)  # a wrong address is refused here; nothing is connected yet
            self._is_shared = self.root.another() is self.root
        elif callable(getattr(source, "add", None)) and callable(getattr(source, "exchange", None)):
            self.root = source
            self._is_shared = True
        else:
            raise InvalidOptionType("url_or_storage", source, "an address such as sqlite:///jobs.db, or a Storage")
        self._needs_no_loop = self._is_shared and getattr(self.root, "needs_no_loop", False) is True
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Client] = weakref.WeakKeyDictionary()
        self._uses_portal = False

    def after_fork(self) -> None:
        """The connections are the parent's: neither used nor closed here, which would disturb them."""
        _of_parents.append(list(self._by_loop.values()))
        self._begin()

    async def get(self) -> Storage:
        """The client of the running loop, open."""
        if self._is_shared:
            return self.root
        loop = asyncio.get_running_loop()
        client = self._by_loop.get(loop)
        if client is None:
            storage = self.root.another()
            assert storage is not None
            with self._lock:
                client = self._by_loop[loop] = _Client(storage)
        if not client.is_open:
            await client.open()
        return client.storage

    def run(self, coroutine: Coroutine[Any, Any, T], *, waits: bool = False) -> T:
        """Run something for a sync method. `waits`: it may wait for somebody else, so it needs an event loop."""
        if self._needs_no_loop and not waits:
            return _finish(coroutine)
        if not self._uses_portal:
            self._enter_portal()
        return portal.run(coroutine)

    def _enter_portal(self) -> None:
        with self._lock:
            if not self._uses_portal:
                portal.enter()
                self._uses_portal = True

    async def aclose(self) -> None:
        """Close the client of the running loop. What was given directly is its owner's to close."""
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.storage.close()

    def close(self) -> None:
        """Close what the sync methods used."""
        if self._uses_portal:
            portal.run(self.aclose())
            with self._lock:
                leaves, self._uses_portal = self._uses_portal, False
            if leaves:
                portal.leave()


class _Client:
    """A storage object, and whether it is open. Whoever comes while it is being opened waits for that."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.is_open = False
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        async with self._opening:
            if not self.is_open:
                await self.storage.open()
                self.is_open = True


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a store that needs no loop had to wait: this is a defect, please report it")


_all: weakref.WeakSet[Clients] = weakref.WeakSet()
_of_parents: list[object] = []  # kept, for to be collected is to be closed


def _after_fork() -> None:
    for clients in _all:
        clients.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

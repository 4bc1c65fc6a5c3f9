"""Clients of the store: one per event loop, for a client belongs to the loop that opened it.

A client is closed with its loop (`asyncio.run` sees to that), or by `aclose`. Storage objects that are given directly
are used as they are. So is a store in memory, which any loop may use.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from bullpen.errors import InvalidOptionType, QueueError
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
        self._calls: set[Future[Any]] = set()  # of sync methods, that are not done

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
        call = self._start_call(coroutine)
        try:
            return call.result()
        except CancelledError:
            raise QueueError("the queue was closed by another thread meanwhile") from None
        finally:
            call.cancel()  # if the caller was interrupted; else it is done
            self._calls.discard(call)

    def _start_call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if not self._uses_portal:
                portal.enter()
                self._uses_portal = True
            call = portal.start(coroutine)
            self._calls.add(call)
            return call

    async def aclose(self) -> None:
        """Close the client of the running loop. What was given directly is its owner's to close."""
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def close(self) -> None:
        """Close what the sync methods used. Calls of other threads that still wait are ended."""
        with self._lock:
            if not self._uses_portal:
                return
            calls, self._calls = self._calls, set()
            self._uses_portal = False
        for call in calls:
            call.cancel()
        try:
            portal.start(self.aclose()).result()
        finally:
            portal.leave()


class _Client:
    """A storage object that is closed with its loop, if not before."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.is_open = False
        self._opening = asyncio.Lock()
        self._life = self._live()

    async def open(self) -> None:
        """Whoever comes while it is being opened waits for that."""
        async with self._opening:
            if not self.is_open:
                await self.storage.open()
                await anext(self._life)
                self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        await self._life.aclose()

    async def _live(self) -> AsyncGenerator[None, None]:
        """A loop that ends closes the async generators that were begun on it, and this one its storage."""
        try:
            yield
        finally:
            await self.storage.close()


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

"""Clients of the store: one per event loop, because a client belongs to the loop that opened it.

A client is closed with its loop (`asyncio.run` sees to that), or by `aclose`. The queue uses a storage object that it
was given as it is. Any loop may use a store in memory.

Blocking methods have two ways to the store:

- `blocking` is a client whose calls block the calling thread: `add` and `get` of SQLite, Redis and memory take this
  way. All threads share the one client.
- `run()` runs a coroutine on the portal's event loop, with that loop's client, while the calling thread waits.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from asyncio import _get_running_loop
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from bullpen.errors import InvalidOptionType, QueueError
from bullpen.tasks.client.portal import portal
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Storage, SupportsBlockingCalls
from bullpen.tasks.storage.single_flight import SingleFlight

T = TypeVar("T")


class Clients:
    """The clients of one queue."""

    def __init__(self, source: str | Storage) -> None:
        if isinstance(source, str):
            self.root = open_storage(source)  # a wrong address is rejected here; nothing is connected yet
            self._is_shared = self.root.another() is self.root
        elif callable(getattr(source, "add", None)) and callable(getattr(source, "exchange", None)):
            self.root = source
            self._is_shared = True
        else:
            raise InvalidOptionType("url_or_storage", source, "an address such as sqlite:///jobs.db, or a Storage")
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _StorageClient] = (
            weakref.WeakKeyDictionary()
        )
        self._latest: tuple[Callable[[], asyncio.AbstractEventLoop | None], Storage] = (lambda: None, self.root)
        self._opening = threading.Lock()
        self.blocking: SupportsBlockingCalls | None = None  # the client that blocks the calling thread, open
        self._uses_portal = False
        self._calls: set[Future[Any]] = set()  # of sync methods, that are not done

    def after_fork(self) -> None:
        """The connections are the parent's: neither used nor closed here, which would disturb them."""
        _of_parents.append((list(self._by_loop.values()), self.blocking))
        self._begin()

    def at_hand(self) -> Storage | None:
        """As `get`, if nothing has to be opened or waited for: the usual case, and the quicker way."""
        if self._is_shared:
            return self.root
        loop, storage = self._latest
        return storage if loop() is _get_running_loop() else None

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
                client = self._by_loop[loop] = _StorageClient(storage)
        if not client.is_open:
            await client.open()
        self._latest = (weakref.ref(loop), client.storage)
        return client.storage

    def open_blocking(self) -> SupportsBlockingCalls | None:
        """Open `blocking`, if the store has such a client."""
        root = self.root
        if not isinstance(root, SupportsBlockingCalls) or not issubclass(type(root), SupportsBlockingCalls):
            return None  # of a wrapper that has every attribute, only the type tells
        with self._opening:
            if self.blocking is None:
                client = root.another_blocking()
                if client is None:
                    return None
                try:
                    client.open_blocking()
                except BaseException:
                    client.close_blocking()  # it may have begun, with a thread
                    raise
                self.blocking = client
            return self.blocking

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the portal's event loop, and wait for it on this thread."""
        if self.blocking is not None:
            try:
                self.blocking.check_reentry()
            except BaseException:
                coroutine.close()
                raise
        call = self._start_call(coroutine)
        try:
            return call.result()
        except CancelledError:
            raise QueueError("another thread closed the queue during this call") from None
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
        """Close the client of the running loop. A storage object that the user passed is the user's to close."""
        with self._lock:
            self._latest = (lambda: None, self.root)
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def close(self) -> None:
        """Close the client of the blocking methods. Calls of other threads that still wait raise QueueError."""
        with self._opening:
            blocking, self.blocking = self.blocking, None
        if blocking is not None:
            blocking.close_blocking()
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


class _StorageClient:
    """A storage object that is closed with its loop, if not before."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.is_open = False
        self._opening = SingleFlight()
        self._life = self._live()

    async def open(self) -> None:
        """Open it once; callers that arrive meanwhile wait for the same attempt."""
        await self._opening.run(self._open)

    async def _open(self) -> None:
        if not self.is_open:
            try:
                await self.storage.open()
            except BaseException:
                await self.storage.close()  # it may have begun, with a thread or a connection
                raise
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


_all: weakref.WeakSet[Clients] = weakref.WeakSet()
_of_parents: list[object] = []  # kept, for to be collected is to be closed


def _after_fork() -> None:
    for clients in _all:
        clients.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

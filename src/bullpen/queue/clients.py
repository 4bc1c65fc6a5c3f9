"""Clients of the store: one per event loop, for a client belongs to the loop that opened it.

A client is closed with its loop (`asyncio.run` sees to that), or by `aclose`. Storage objects that are given directly
are used as they are. So is a store in memory, which any loop may use.

Sync methods run on the portal's loop, with its client. Where the store can do without a loop, they run right there, on
the thread of the caller, unless they wait for somebody else: with a store in memory, and with one that blocks its
caller where no loop runs, which saves two changes of threads for each call. All such threads share one client.
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
from bullpen.queue.portal import portal
from bullpen.storage.open import open_storage
from bullpen.storage.port import Storage
from bullpen.storage.shared_attempt import SharedAttempt

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
        self._may_block = getattr(self.root, "blocks_without_loop", False) is True
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Client] = weakref.WeakKeyDictionary()
        self._latest: tuple[Callable[[], asyncio.AbstractEventLoop | None], Storage] = (lambda: None, self.root)
        self._opening = threading.Lock()
        self._without_loop: Storage | None = None
        self._uses_portal = False
        self._calls: set[Future[Any]] = set()  # of sync methods, that are not done

    def after_fork(self) -> None:
        """The connections are the parent's: neither used nor closed here, which would disturb them."""
        _of_parents.append((list(self._by_loop.values()), self._without_loop))
        self._begin()

    def at_hand(self) -> Storage | None:
        """As `get`, if nothing has to be opened or waited for: the usual case, and the quicker way."""
        if self._is_shared:
            return self.root
        running = _get_running_loop()
        if running is None:
            return self._without_loop
        loop, storage = self._latest
        return storage if loop() is running else None

    async def get(self) -> Storage:
        """The client of the running loop, or of those threads that have none; open."""
        if self._is_shared:
            return self.root
        loop = _get_running_loop()
        if loop is None:
            return self._without_loop or self._open_without_loop()
        client = self._by_loop.get(loop)
        if client is None:
            storage = self.root.another()
            assert storage is not None
            with self._lock:
                client = self._by_loop[loop] = _Client(storage)
        if not client.is_open:
            await client.open()
        self._latest = (weakref.ref(loop), client.storage)
        return client.storage

    def _open_without_loop(self) -> Storage:
        with self._opening:
            if self._without_loop is None:
                storage = self.root.another()
                assert storage is not None
                try:
                    _finish(storage.open())
                except BaseException:
                    _finish(storage.close())  # it may have begun, with a thread
                    raise
                self._without_loop = storage
            return self._without_loop

    def runs_here(self) -> bool:
        """Whether what waits for nobody runs on the thread of the caller."""
        return self._needs_no_loop or (self._may_block and _get_running_loop() is None)

    def run(self, coroutine: Coroutine[Any, Any, T], *, waits: bool = False) -> T:
        """Run something for a sync method. `waits`: it may wait for somebody else, so it needs an event loop."""
        if not waits and self.runs_here():
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
            self._latest = (lambda: None, self.root)
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def close(self) -> None:
        """Close what the sync methods used. Calls of other threads that still wait are ended."""
        with self._opening:
            without_loop, self._without_loop = self._without_loop, None
        if without_loop is not None:
            self.run(without_loop.close())
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
        self._opening = SharedAttempt()
        self._life = self._live()

    async def open(self) -> None:
        """Whoever comes while it is being opened waits for that."""
        await self._opening.make(self._open)

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


def _finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never has to wait for an event loop."""
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

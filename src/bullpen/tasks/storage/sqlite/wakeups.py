"""How processes wake each other: a datagram to a socket beside the file. A lost datagram costs only a delay.

An event loop on which callers wait has one `WakeupListener`: a socket in the folder beside the file, read only while
callers wait. A `Waker` tells all listeners, those of this process directly, what a commit may have changed: in which
queues something may be due, and which tasks may have a result.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from bullpen.tasks.storage.sqlite.file import let_group_in
from bullpen.telemetry import SafeLogger

log = SafeLogger("bullpen.storage")

_ENDING = ".wakeup"
_LONGEST_PATH = 100  # bytes; the address of a socket holds little more
_MOST_IDS = 200  # a message about more tasks says "any"

Message = tuple[list[str], list[str] | None]  # queues, and tasks or any
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Message).decode


class Waker:
    """Wakes the listeners of all processes that use the file. Any thread may use it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = str(folder)  # made once: `_listed` runs after every commit
        self._listeners: set[WakeupListener] = set()
        self._socket: socket.socket | None = None
        self._listing: tuple[int, list[str]] = (0, [])  # the folder's time of change, and its sockets at that time
        self._opening = threading.Lock()
        self._is_closed = False

    def wake_all(self, queues: Set[str], tasks: Set[str]) -> None:
        listeners = list(self._listeners)
        for listener in listeners:
            listener.tell(queues, tasks)
        listed = self._listed()
        if not listed:
            return
        own = {listener.name for listener in listeners}
        message = b""
        for name in listed:
            if name not in own:
                message = message or _encode((list(queues), list(tasks) if len(tasks) <= _MOST_IDS else None))
                self._send(message, name)

    def _listed(self) -> list[str]:
        """The sockets in the folder, which is read again only after a change."""
        listed_at, listed = self._listing
        try:
            changed_at = os.stat(self._name).st_mtime_ns
            if changed_at != listed_at:
                listed = [name for name in os.listdir(self._name) if name.endswith(_ENDING)]
                self._listing = (changed_at, listed)
        except OSError:
            return []
        return listed

    def _send(self, message: bytes, name: str) -> None:
        if not hasattr(socket, "AF_UNIX"):
            return
        path = self._folder / name
        try:
            with _address(path) as address:
                self._send_to(address, message)
        except ConnectionRefusedError:  # its process was killed
            _remove(path)
        except OSError:  # the socket is gone, or it is full and wakes its process anyway
            pass

    def _send_to(self, address: str, message: bytes) -> None:
        with self._opening:
            if self._socket is None and not self._is_closed:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            if self._socket is not None:
                self._socket.sendto(message, address)

    def forget(self) -> None:
        """This is a forked child: the listeners are the parent's, so only the copies of their sockets are closed."""
        self._opening = threading.Lock()
        for listener in self._listeners:
            listener.drop()
        self.close()

    def close(self) -> None:
        with self._opening:
            self._is_closed = True
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def add(self, listener: WakeupListener) -> None:
        self._listeners.add(listener)

    def remove(self, listener: WakeupListener) -> None:
        self._listeners.discard(listener)


class WakeupListener:
    """The socket of one event loop, and the callers that wait there. Only `tell` may be called from other threads."""

    def __init__(self, waker: Waker, folder: Path) -> None:
        self.name = f"{os.urandom(8).hex()}{_ENDING}"  # a pid would not be unique: containers have their own
        self._waker = waker
        self._path = folder / self.name
        self.loop = asyncio.get_running_loop()
        self._waiting: set[Waiting] = set()
        self._socket = self._open()
        waker.add(self)

    def _open(self) -> socket.socket | None:
        """A bound socket; None where that is impossible, and then the callers poll."""
        if not hasattr(socket, "AF_UNIX"):
            return None
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            with _address(self._path) as address:
                opened.bind(address)
            os.chmod(self._path, 0o600)
            let_group_in(self._path)
        except OSError as error:
            opened.close()
            log.debug("%s: cannot bind the wake-up socket (%s); polling instead", self._path, error)
            return None
        return opened

    @contextmanager
    def listening(self, *, queues: Set[str] = frozenset(), task: str | None = None) -> Iterator[Waiting]:
        """Subscribe a caller. From here on it misses no wake-up."""
        waiting = Waiting(queues, task)
        if not self._waiting:
            self._listen()
        self._waiting.add(waiting)
        try:
            yield waiting
        finally:
            self._waiting.discard(waiting)
            if not self._waiting and self._socket is not None:
                self.loop.remove_reader(self._socket.fileno())

    def _listen(self) -> None:
        if self._socket is not None:
            try:
                self._read()  # discard datagrams from before
                self.loop.add_reader(self._socket.fileno(), self._read)  # the number: a lookup by socket uses its repr
            except NotImplementedError:  # an event loop without readers
                self._socket.close()
                self._socket = None

    def _read(self) -> None:
        while self._socket is not None:
            try:
                news = decoded(self._socket.recv(1 << 16))
            except OSError:
                return
            if news is not None:
                self._hear(*news)

    def tell(self, queues: Set[str], tasks: Set[str]) -> None:
        """Wake the callers that wait for one of these. Any thread may call it."""
        if self._waiting:
            try:
                self.loop.call_soon_threadsafe(self._hear, frozenset(queues), frozenset(tasks))
            except RuntimeError:  # that loop is closed
                pass

    def _hear(self, queues: Set[str], tasks: Set[str] | None) -> None:
        for waiting in self._waiting:
            if tasks is None or waiting.task in tasks or not waiting.queues.isdisjoint(queues):
                waiting.tell()

    def close(self) -> None:
        self._waker.remove(self)
        if self._socket is not None:
            if self._waiting and not self.loop.is_closed():
                self.loop.remove_reader(self._socket.fileno())
            _remove(self._path)
            self.drop()

    def drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Waiting:
    """One waiting caller: the queues or the task that it waits for."""

    def __init__(self, queues: Set[str], task: str | None) -> None:
        self.queues = queues
        self.task = task
        self.is_news = False
        self._future: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """Wake the caller."""
        self.is_news = True
        _end(self._future)

    async def heard(self, timeout: float) -> bool:
        """Wait for a wake-up, at most `timeout` seconds; whether there was one."""
        if not self.is_news:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(timeout, _end, self._future)
            try:
                await self._future
            finally:
                timer.cancel()
        is_news, self.is_news = self.is_news, False
        return is_news


def _remove(path: Path) -> None:
    with suppress(OSError):  # the folder may be gone, or another file may be in its place
        path.unlink()


def _end(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def decoded(datagram: bytes) -> tuple[Set[str], Set[str] | None] | None:
    """The queues and tasks of a wake-up; None if it is none: any process of the user can send to the socket."""
    try:
        queues, tasks = _decode(datagram)
    except Exception:  # whatever the decoder makes of arbitrary bytes
        return None
    return frozenset(queues), None if tasks is None else frozenset(tasks)


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """An address for `path`, by a descriptor of its folder if the path is too long for an address."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

"""One thread that waits for everything the processes of an app say: results, output, deaths; and for instants.

There is one in an app, whatever the number of pools. It starts with the first thing to wait for and ends with the last.
All that is heard is handled on this thread, one thing after the other; what other threads want done here they post.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import itertools
import logging
import os
import select
import selectors
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from bullpen import primitives
from bullpen.runtimes import port
from bullpen.runtimes.process import wire

logger = logging.getLogger("bullpen")

Action = Callable[[], object]
Timer = tuple[float, int, Action]
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
LENDS = hasattr(select, "epoll")  # others cannot be told to look for nothing


class Switchboard:
    """Calls back when something can be read, or a time has come."""

    def __init__(self) -> None:
        self._lock = primitives.backlog_lock()
        self._posted: deque[Action] = deque()
        self._timers: list[Timer] = []  # a heap; only its thread looks at it
        self._numbers = itertools.count()
        self._watched: dict[int, Action] = {}  # by file descriptor; only this thread changes it
        self._written: dict[int, Action] = {}  # what to call when something can be written to some of them
        self._lent: dict[int, int] = {}  # threads, by the file descriptor at which they listen instead of this one
        self._arming = primitives.gate()  # closed while somebody changes what the selector looks for
        self._selector: selectors.BaseSelector | None = None  # there while the thread runs
        self._wake = -1
        self._woken = False  # a byte is on its way
        self._thread = 0

    # From any thread.

    def post(self, action: Action) -> None:
        """Do `action` on the switchboard's thread, soon."""
        self._posted.append(action)
        if self._woken:
            return
        with self._lock:
            if self._selector is None:
                try:
                    self._begin()
                except BaseException:
                    self._posted.remove(action)
                    raise
            elif not self._woken:
                self._woken = True
                os.write(self._wake, b"x")

    def later(self, seconds: float, action: Action) -> Timer:
        """Do `action` there in `seconds` from now."""
        timer = (time.monotonic() + seconds, next(self._numbers), action)
        if self.is_here():
            heapq.heappush(self._timers, timer)
        else:
            self.post(lambda: heapq.heappush(self._timers, timer))
        return timer

    def never_mind(self, timer: Timer) -> None:
        """What `later` has returned is not to be done any more, if it was not done already."""
        if not self.is_here():
            self.post(lambda: self.never_mind(timer))
        elif timer in self._timers:
            self._timers.remove(timer)
            heapq.heapify(self._timers)

    def is_here(self) -> bool:
        """Whether this is the switchboard's thread."""
        return self._thread == _thread.get_ident()

    def reports_here(self) -> bool:
        """Whether what workers say is handled on this thread, now."""
        here = _thread.get_ident()
        return here == self._thread or here in self._lent.values()

    def lend(self, fd: int) -> bool:
        """Let the calling thread listen at `fd`, which is watched, until it gives it back; False if it cannot."""
        with self._arming:
            if fd in self._lent or fd not in self._watched or not LENDS:
                return False
            self._lent[fd] = _thread.get_ident()
            self._arm(fd)
        return True

    def give_back(self, fd: int) -> None:
        with self._arming:
            if self._lent.pop(fd, None) is not None:
                self._arm(fd)

    def _arm(self, fd: int) -> None:
        """Have the selector look for what is wanted of `fd` now."""
        assert self._selector is not None
        heard, written = self._watched[fd], self._written.get(fd)
        events = (0 if fd in self._lent else READ) | (0 if written is None else WRITE)
        self._selector.modify(fd, events, heard if written is None else (heard, written))

    def _begin(self) -> None:
        woken, wake = os.pipe()
        try:
            self._selector = selectors.DefaultSelector()
        except BaseException:
            os.close(woken)
            os.close(wake)
            raise
        self._wake = wake
        os.set_blocking(woken, False)
        self._woken = True  # it looks at what was posted before it waits
        try:
            primitives.start_thread(lambda: self._run(woken), "bullpen-switchboard")
        except BaseException:
            self._close(woken)
            raise

    # On its thread.

    def watch(self, fd: int, heard: Action, events: int = READ) -> None:
        """Call `heard` whenever something can be read from `fd`, or written to it."""
        assert self._selector is not None
        self._watched[fd] = heard
        self._selector.register(fd, events, heard)

    def watch_writing(self, fd: int, written: Action | None) -> None:
        """Call `written` too whenever something can be written to `fd`, which is watched; None: no more."""
        with self._arming:
            if fd not in self._watched:
                return
            if written is None:
                self._written.pop(fd, None)
            else:
                self._written[fd] = written
            self._arm(fd)

    def forget(self, fd: int) -> None:
        """`fd` is about to be closed."""
        with self._arming:
            self._written.pop(fd, None)
            self._lent.pop(fd, None)
            if self._watched.pop(fd, None) is not None and self._selector is not None:
                self._selector.unregister(fd)

    def _run(self, woken: int) -> None:
        selector = self._selector
        assert selector is not None
        self._thread = _thread.get_ident()
        selector.register(woken, READ, None)
        while self._do_posted(woken):
            timeout = None
            if self._timers:
                timeout = max(0.0, self._timers[0][0] - time.monotonic())
            for key, events in selector.select(timeout):
                if key.data is None:
                    continue
                if type(key.data) is tuple:
                    heard, written = key.data
                    if events & WRITE:
                        _call(written)
                    if events & READ:
                        _call(heard)
                elif key.fd in self._watched:
                    _call(key.data)
            while self._timers and self._timers[0][0] <= time.monotonic():
                _call(heapq.heappop(self._timers)[2])

    def _do_posted(self, woken: int) -> bool:
        """Do what others have posted; False if there is nothing more to wait for, and this is over."""
        while True:
            if self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 64)
                self._woken = False
            while self._posted:
                _call(self._posted.popleft())
            if self._watched or self._timers:
                return True
            with self._lock:
                if not self._posted:
                    self._close(woken)
                    return False

    def _close(self, woken: int) -> None:
        assert self._selector is not None
        self._selector.close()
        self._selector = None
        self._woken = False
        self._thread = 0
        os.close(woken)
        os.close(self._wake)

    def forked(self) -> None:
        """This is a forked child: close everything, for whoever waits at the other ends must see the parent's end."""
        for end in list(_ends):
            end.forked()
        if self._selector is not None:
            self._selector.close()
            with contextlib.suppress(OSError):
                os.close(self._wake)
        self.__init__()  # type: ignore[misc]


def _call(action: Action) -> None:
    try:
        action()
    except BaseException:  # a defect; others shall not suffer
        logger.exception("something went wrong while a worker process was served")


switchboard = Switchboard()
port.reporters.append(switchboard.reports_here)
_ends: weakref.WeakSet[End] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=switchboard.forked)


class End(Protocol):
    """This side of something that leads to another process."""

    def forked(self) -> None:
        """Close it: this is a forked child. Somebody who does not exist here may hold its lock."""


def only_here(end: End) -> None:
    """Have `end` closed in forked children."""
    _ends.add(end)


class Channel:
    """One socket: frames are sent from any thread, and received on the switchboard's."""

    __slots__ = ("__weakref__", "_closed", "_lock", "_out", "_reader", "sock")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._reader = wire.Reader()
        self._lock = primitives.backlog_lock()
        self._out: list[Any] = []  # what the socket has no room for
        self._closed = False
        only_here(self)

    def send(self, pieces: list[Any]) -> None:
        """Send a frame, or as much as there is room for; the rest follows by itself. Never waits, never fails."""
        with primitives.Uninterrupted():
            if self._send(pieces):
                switchboard.post(self._want_room)

    def _send(self, pieces: list[Any]) -> bool:
        """Whether room has to be waited for, which nobody does yet."""
        with self._lock:
            if self._out or self._closed:
                self._out += pieces
                return False
            try:
                sent = self.sock.send(pieces[0]) if len(pieces) == 1 else self.sock.sendmsg(pieces)
            except BlockingIOError:
                sent = 0
            except OSError:  # it is gone, which will be heard of
                return False
            self._out = wire.without(pieces, sent) if len(pieces) > 1 or sent < len(pieces[0]) else []
            return bool(self._out)

    @property
    def waits(self) -> bool:
        """Whether something was not sent yet."""
        return bool(self._out)

    def _want_room(self) -> None:
        if not self._closed:
            switchboard.watch_writing(self.sock.fileno(), self._flush)

    def _flush(self) -> None:
        with self._lock:
            try:
                self._out = wire.without(self._out, self.sock.sendmsg(self._out[: wire.MOST_BUFFERS]))
            except BlockingIOError:
                pass
            except OSError:
                self._out = []
            empty = not self._out
        if empty:
            switchboard.watch_writing(self.sock.fileno(), None)

    def receive(self) -> list[wire.Frame]:
        """The frames that have come. `EOFError` or `ConnectionError` if there will be no more."""
        try:
            return self._reader.read(self.sock)
        except (BlockingIOError, InterruptedError):
            return []

    def rest(self) -> list[wire.Frame]:
        """All frames that have come, of somebody who is gone. One that is large takes several reads."""
        frames: list[wire.Frame] = []
        try:
            while True:
                frames += self._reader.read(self.sock)
        except (EOFError, OSError):  # also if somebody else still has the other end, and says nothing
            return frames

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._out = []
            switchboard.forget(self.sock.fileno())
            self.sock.close()

    def forked(self) -> None:
        self.sock.close()

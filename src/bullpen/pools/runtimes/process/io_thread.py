"""The io thread: it reads what all worker processes of the app send (results, output, their end), and runs timers.

An app has one io thread for all its pools. It starts with the first descriptor, timer or posted action, and ends with
the last one. It handles one event after the other. Other threads post actions to it.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import heapq
import itertools
import os
import selectors
import socket
import struct
import termios
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from bullpen import primitives, telemetry
from bullpen.pools.runtimes import port
from bullpen.pools.runtimes.process import wire
from bullpen.telemetry import logger

Action = Callable[[], object]
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
MOST_WAITING = 64  # actions of the log thread; with more, the output of workers is not read, so those that print wait


class TimerHandle:
    """One action that is due at an instant."""

    __slots__ = ("action", "cancelled", "due")

    def __init__(self, at: float, number: int, action: Action) -> None:
        self.due = (at, number)
        self.action = action
        self.cancelled = False


class IOThread:
    """Calls actions when a descriptor can be read or written, when a timer is due, or when they are posted."""

    def __init__(self) -> None:
        self._lock = primitives.leaf_lock()
        self._posted: deque[Action] = deque()
        self._timers: list[tuple[tuple[float, int], TimerHandle]] = []  # a heap; only the io thread uses it
        self._numbers = itertools.count()
        self._watched: dict[int, Action] = {}  # by file descriptor
        self._selector: selectors.BaseSelector | None = None  # while the thread runs
        self._wake = -1
        self._woken = False  # a byte is in the wake-up pipe
        self.ident = 0

    # From any thread.

    def post(self, action: Action) -> None:
        """Call `action` on the io thread, soon."""
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

    def call_later(self, seconds: float, action: Action) -> TimerHandle:
        """Call `action` on the io thread in `seconds` from now."""
        timer = TimerHandle(time.monotonic() + seconds, next(self._numbers), action)
        if self.is_here():
            heapq.heappush(self._timers, (timer.due, timer))
        else:
            self.post(lambda: self._push(timer))
        return timer

    def _push(self, timer: TimerHandle) -> None:
        if not timer.cancelled:
            heapq.heappush(self._timers, (timer.due, timer))

    def cancel_timer(self, timer: TimerHandle) -> None:
        """Cancel what `call_later` has returned, if it has not run."""
        timer.cancelled = True  # another thread may have posted it a moment ago
        if not self.is_here():
            self.post(lambda: self.cancel_timer(timer))
        elif (timer.due, timer) in self._timers:
            self._timers.remove((timer.due, timer))
            heapq.heapify(self._timers)

    def is_here(self) -> bool:
        """Whether this is the io thread."""
        return self.ident == _thread.get_ident()

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
        self._woken = True  # the thread runs posted actions before it waits
        try:
            primitives.start_thread(lambda: self._run(woken), "bullpen-process-io")
        except BaseException:
            self._close(woken)
            raise

    # On the io thread.

    def watch(self, fd: int, heard: Action, events: int = READ) -> None:
        """Call `heard` whenever `fd` can be read, or written if `events` says so."""
        assert self._selector is not None
        self._watched[fd] = heard
        self._selector.register(fd, events, heard)

    def watch_writing(self, fd: int, written: Action | None) -> None:
        """Call `written` too whenever the watched `fd` can be written; None: no longer."""
        heard = self._watched.get(fd)
        if heard is None:
            return
        assert self._selector is not None
        if written is None:
            self._selector.modify(fd, READ, heard)
        else:
            self._selector.modify(fd, READ | WRITE, (heard, written))

    def forget(self, fd: int) -> None:
        """Stop watching `fd`, which is about to be closed."""
        if self._watched.pop(fd, None) is not None and self._selector is not None:
            self._selector.unregister(fd)

    def _run(self, woken: int) -> None:
        selector = self._selector
        assert selector is not None
        self.ident = _thread.get_ident()
        selector.register(woken, READ, None)
        while self._do_posted(woken):
            timeout = None
            if self._timers:
                timeout = max(0.0, self._timers[0][0][0] - time.monotonic())
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
            while self._timers and self._timers[0][0][0] <= time.monotonic():
                _call(heapq.heappop(self._timers)[1].action)

    def _do_posted(self, woken: int) -> bool:
        """Run the posted actions. False if there is nothing left to wait for: then the thread ends."""
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
        self.ident = 0
        os.close(woken)
        os.close(self._wake)

    def forked(self) -> None:
        """In a forked child, close everything: the processes at the other ends have to notice the end of the parent."""
        for end in list(_endpoints):
            end.forked()
        if self._selector is not None:
            self._selector.close()
            with contextlib.suppress(OSError):
                os.close(self._wake)
        self.__init__()  # type: ignore[misc]
        log_thread.__init__()  # type: ignore[misc]


def _call(action: Action) -> None:
    try:
        action()
    except BaseException:  # a defect, which must not stop the thread of all pools
        logger.exception("the I/O thread of the worker processes caught an error and goes on")


class LogThread:
    """Calls the app's log handlers in place of the io thread, one after the other: one that blocks holds up no call.

    The thread starts with the first action, and ends with the last one.
    """

    def __init__(self) -> None:
        self._lock = primitives.leaf_lock()
        self._waiting: deque[Action] = deque()
        self._runs = False
        self.ident = 0

    def post(self, action: Action) -> None:
        """Run `action` soon, on this thread. It may block."""
        self._waiting.append(action)
        with self._lock:
            if self._runs:
                return
            self._runs = True
        try:
            primitives.start_thread(self._run, "bullpen-process-log")
        except RuntimeError:  # the interpreter exits, or the system has no threads left
            self._run()

    def run_after(self, action: Action) -> None:
        """Run `action`, which does not block, when all actions before it have ended; here if there are none."""
        with self._lock:
            if self._runs:
                self._waiting.append(action)
                return
        action()

    @property
    def is_behind(self) -> bool:
        """Whether a handler blocks, or is slower than the workers print."""
        return len(self._waiting) > MOST_WAITING

    def _run(self) -> None:
        self.ident = _thread.get_ident()
        while True:
            while self._waiting:
                _call(self._waiting.popleft())
            with self._lock:
                if not self._waiting:
                    self.ident = 0
                    self._runs = False
                    return


def _log_elsewhere(handle: Action) -> bool:
    if io_thread.is_here():
        log_thread.post(handle)
        return True
    return False


io_thread = IOThread()
log_thread = LogThread()
port.reporters.append(io_thread.is_here)
telemetry.hand_over = _log_elsewhere
_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=io_thread.forked)


class Endpoint(Protocol):
    """The app's end of a socket or a pipe to another process."""

    def forked(self) -> None:
        """Close it in a forked child. Take no lock: a thread that does not exist here may hold it."""


def close_in_forked_children(end: Endpoint) -> None:
    """Close `end` in forked children."""
    _endpoints.add(end)


class Channel:
    """One socket. Any thread sends frames; the io thread receives them."""

    __slots__ = ("__weakref__", "_closed", "_lock", "_out", "reader", "sock")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.reader = wire.FrameReader()
        self._lock = primitives.leaf_lock()
        self._out: list[Any] = []  # pieces for which the socket had no room
        self._closed = False
        close_in_forked_children(self)

    def send(self, pieces: list[Any]) -> None:
        """Send a frame, or the part for which the socket has room. The io thread sends the rest.

        It never waits and never fails. The caller is inside `primitives.Uninterrupted` or on the io thread, because
        Ctrl-C must not tear a frame in two.
        """
        with self._lock:
            if self._out or self._closed:
                self._out += pieces
                return
            try:
                sent = self.sock.send(pieces[0]) if len(pieces) == 1 else self.sock.sendmsg(pieces)
            except BlockingIOError:
                sent = 0
            except OSError:  # the other process has ended; the forkserver reports it
                return
            if len(pieces) == 1 and sent == len(pieces[0]):
                return
            self._out = wire.without(pieces, sent)
            if not self._out:
                return
        io_thread.post(self._want_room)

    @property
    def waits(self) -> bool:
        """Whether a part of a frame was not sent yet."""
        return bool(self._out)

    def _want_room(self) -> None:
        if not self._closed:
            io_thread.watch_writing(self.sock.fileno(), self._flush)

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
            io_thread.watch_writing(self.sock.fileno(), None)

    def receive(self) -> list[wire.Frame]:
        """The frames that have arrived. `EOFError` or `ConnectionError` if there will be no more."""
        try:
            return self.reader.read(self.sock)
        except (BlockingIOError, InterruptedError):
            return []

    def rest(self) -> list[wire.Frame]:
        """The frames that a process sent before it ended. Another process may hold the other end open and send more,
        so this reads only what is there now.
        """
        frames: list[wire.Frame] = []
        try:
            (left,) = struct.unpack("i", fcntl.ioctl(self.sock, termios.FIONREAD, bytes(4)))
            while left > 0:
                data = self.sock.recv(min(left, wire.JOIN_BELOW))
                frames += self.reader.feed(data)
                left -= len(data) or left
        except (OSError, wire.NoFrame):  # there are no more
            pass
        return frames

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._out = []
            io_thread.forget(self.sock.fileno())
            self.sock.close()

    def forked(self) -> None:
        self.sock.close()

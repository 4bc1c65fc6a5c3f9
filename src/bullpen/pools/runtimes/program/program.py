"""One program, as the app sees it: the messages in both directions, and which of them count as a crash."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import math
import os
import selectors
import struct
import termios
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from bullpen import primitives
from bullpen.errors import InvalidOption, NoSuchMethod
from bullpen.pools.dispatch.request import DONE, FAILED, Request
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import ProducesItems, WorkerEvents
from bullpen.pools.runtimes.process import forkserver_client, wire
from bullpen.pools.runtimes.process.calls import RequestCancelled
from bullpen.pools.runtimes.process.io_thread import TimerHandle, close_in_forked_children, io_thread
from bullpen.pools.runtimes.process.items import raise_
from bullpen.pools.runtimes.process.output import LARGEST_PIPE, Output
from bullpen.pools.runtimes.process.supervised import Supervised, pipe_from_it
from bullpen.pools.runtimes.program import messages
from bullpen.telemetry import logger

CHUNK = 16 * 1024  # bytes of one turn: all programs share the thread
LARGE = 64 * 1024  # bytes; a larger message is decoded on another thread
SHOWN = 200  # bytes of a line that is no message
MUCH_HELD_BACK = 64  # waiting items after which the app stops reading from a program
CANCELLED = "Cancelled"  # the name of the error of a cancelled call


@dataclass(frozen=True)
class CallProgress:
    """Progress that a program reports of a running call."""

    worker: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any


class ProgramOptions(Protocol):
    """The options that all programs of one runtime share, and the translation between Python and the protocol."""

    command: list[str]
    env: dict[str, str]
    cwd: str | None
    start_timeout: float | None
    cancel_grace: float
    stop_grace: float | None
    ping_interval: float | None
    ping_timeout: float
    max_message: int
    max_rss: int | None
    on_progress: Callable[[CallProgress], object] | None

    def describe(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[str, tuple[Any, ...], dict[str, Any] | None]:
        """The method that a program calls for `fn`, and its arguments."""

    def value(self, value: Any) -> Any:
        """The Python value of a result or an item."""

    def error(self, said: messages.ErrorMessage) -> BaseException:
        """The exception for an error message."""


class Program(Supervised):
    """One program that answers calls."""

    __slots__ = (
        "_capacity",
        "_decoding",
        "_end",
        "_input",
        "_lines",
        "_listens",
        "_methods",
        "_misbehaves",
        "_name",
        "_offsets",
        "_options",
        "_output",
        "_ping",
        "_read_to",
        "_timer",
        "_unread",
    )

    def __init__(self, worker: Worker, events: WorkerEvents, options: ProgramOptions) -> None:
        super().__init__(worker, events, options.cancel_grace, options.stop_grace, options.max_rss)
        self._options = options
        self._lines = messages.Lines(options.max_message)
        self._name = os.path.basename(options.command[0])
        self._methods: frozenset[str] | None = None  # that it has; None if it does not list them
        self._capacity = 0  # 0: it is not ready
        self._listens = False  # the io thread reads its stdout
        self._decoding = False  # a large message is decoded; the messages after it wait
        self._end: tuple[int | None, str] | None = None  # how it has ended meanwhile
        self._unread: set[int] = set()  # streams whose readers have left
        self._misbehaves = False  # it broke the protocol: its messages are ignored
        self._offsets: dict[int, int] = {}  # of calls, in all that was written to its stdin
        self._read_to: float = math.inf  # once it has ended: it has read nothing behind that
        self._ping = 0  # the id of the ping without an answer
        self._timer: TimerHandle | None = None  # for its start or its ping

    # Start.

    def _open(self, opened: contextlib.ExitStack, its_own: list[int]) -> None:
        its_in, into = os.pipe()
        opened.callback(os.close, into)
        its_own.append(its_in)
        self._input = Input(into, functools.partial(self._closed, "stdin"))
        self._output = pipe_from_it(opened, its_own)
        os.set_blocking(self._output, False)
        self._stderr = Output(pipe_from_it(opened, its_own), self._worker.name, "stderr")

    def _greet(self) -> None:
        worker = self._worker
        hello = messages.write("hello", protocol=messages.PROTOCOL, worker=worker.name, capacity=worker.capacity)
        self._input.write(hello)

    def _orders(self) -> tuple[forkserver_client.Preloaded, dict[str, Any]]:
        options = self._options
        folder = {} if options.cwd is None else {"folder": options.cwd}
        return ((), None), {"start": "program", "command": options.command, "environment": options.env, **folder}

    def _listen(self) -> None:
        self._listen_again()
        self._stderr.watch()
        if self._options.start_timeout is not None:
            self._timer = io_thread.call_later(self._options.start_timeout, self._start_too_slow)

    def _listen_again(self) -> None:
        if not (self._listens or self._over or self._decoding or self._misbehaves):
            self._listens = True
            io_thread.watch(self._output, self._heard)

    def _stop_listening(self) -> None:
        if self._listens:
            self._listens = False
            io_thread.forget(self._output)

    def _start_too_slow(self) -> None:
        self._timer = None
        self._punish(f"it was not ready after {self._options.start_timeout:g} s")

    def _is_acquainted(self, ready: messages.ReadyMessage) -> None:
        if self._capacity:
            self._misbehaved("it says 'ready' twice")
            return
        if ready.protocol != messages.PROTOCOL:
            spoken = f"it speaks version {ready.protocol} of the protocol, the app speaks version {messages.PROTOCOL}"
            self._misbehaved(spoken)
            return
        if ready.capacity < 1:
            self._misbehaved(f"its capacity must be ≥ 1, got {ready.capacity}")
            return
        self._capacity = ready.capacity
        self._name = ready.name or self._name
        self._methods = None if ready.methods is None else frozenset(ready.methods)
        self._cancel_timer()
        self._is_ready(self._name, ready.capacity)

    def _can_work(self) -> None:
        if self._worker.capacity > self._capacity:
            raise InvalidOption(
                "capacity",
                self._worker.capacity,
                f"at most {self._capacity}, the capacity of {self._name}; "
                "capacity.strategy='hybrid' uses the capacity of each worker",
            )
        self._ping_later()

    # Work. From any thread.

    def _encode(self, request: Request) -> tuple[bytes, bool]:
        fn, args, kwargs = request.fn, request.args, request.kwargs
        if request.ended:
            raise RequestCancelled
        stream = isinstance(fn, ProducesItems) or isinstance(request.function, ProducesItems)
        method, args, kwargs = self._options.describe(fn.fn if isinstance(fn, ProducesItems) else fn, args, kwargs)
        if self._methods is not None and method not in self._methods:
            raise NoSuchMethod(method, "is none of its methods", owner=self._name, methods=tuple(sorted(self._methods)))
        return messages.write_call(method, args, kwargs, stream), stream

    def _call(self, number: int, encoded: tuple[bytes, bool]) -> None:
        self._offsets[number] = self._input.write(messages.numbered(number, encoded[0]))

    def _say_stop(self) -> None:
        self._input.write(messages.write("stop"))
        self._input.end()
        io_thread.post(self._cancel_timer)

    def _say_cancel(self, number: int, _first: bool, /) -> None:
        self._input.write(messages.write("cancel", id=number))

    def credit(self, number: int, count: int) -> None:
        if self._over:
            return
        if count:
            self._input.allow(number, count)
        else:
            self._unread.add(number)
            self._input.write(messages.write("cancel", id=number))
            io_thread.call_later(self._cancel_grace, functools.partial(self._insist, number))
        self._listen_again()

    # Messages from the program. On the io thread.

    def _heard(self) -> None:
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._stop_listening()
            self._closed("stdout")
            return
        self._understand(data)

    def _understand(self, data: bytes) -> None:
        try:
            lines = self._lines.feed(data)
        except OverflowError:
            self._misbehaved(f"it wrote a line that is longer than max_message={self._options.max_message} bytes")
            return
        self._read(deque(lines))

    def _read(self, lines: deque[bytes]) -> None:
        while lines and not self._misbehaves:
            line = lines.popleft()
            if len(line) <= LARGE or not self._decode_elsewhere(line, lines):
                self._take_decoded(line, _decoded(line))

    def _decode_elsewhere(self, line: bytes, behind: deque[bytes]) -> bool:
        """Decode a large message on another thread, because all pools share this one. The messages `behind` it wait
        until then, and so does the program once its pipe is full. False if there is no thread for it.
        """
        if self._over:
            return False

        waiting = behind.copy()

        def decode() -> None:
            said = _decoded(line)
            io_thread.post(lambda: self._go_on(line, said, waiting))

        self._decoding = True
        self._stop_listening()
        try:
            primitives.start_thread(decode, f"{self._worker.name}-decode")
        except RuntimeError:  # the interpreter exits, or the system has no threads left
            self._decoding = False
            self._listen_again()
            return False
        behind.clear()
        return True

    def _go_on(self, line: bytes, said: messages.AnyMessage | BaseException, behind: deque[bytes]) -> None:
        """A large message is decoded."""
        self._decoding = False
        self._take_decoded(line, said)
        self._read(behind)
        if self._end is not None and not self._decoding:
            super().ended(*self._end)
        self._listen_again()

    def ended(self, code: int | None, why: str) -> None:
        if self._decoding and not self._over:  # what it has written comes before its end
            self._end = (code, why)
        else:
            super().ended(code, why)

    def _take_decoded(self, line: bytes, said: messages.AnyMessage | BaseException) -> None:
        if isinstance(said, BaseException):
            shown = line[:SHOWN].decode(errors="backslashreplace")
            self._misbehaved(f"it wrote a line that is no message ({said}): {shown}")
        elif not self._misbehaves:
            self._take(said)

    def _take(self, said: messages.AnyMessage) -> None:
        """Handle one message. It never fails, because the messages after it concern other calls."""
        try:
            self._handle(said)
        except BaseException as error:
            if isinstance(said, messages.ResultMessage | messages.ErrorMessage) and said.id in self._requests:
                self.finished(said.id, FAILED, error)
            elif isinstance(said, messages.ItemMessage) and said.id in self._streams:
                self._streams[said.id].came(functools.partial(raise_, error))
            elif isinstance(said, messages.ReadyMessage):
                self._cannot_go_on(error)
            else:
                logger.exception("a message of worker %s could not be handled", self._worker.name)

    def _handle(self, said: messages.AnyMessage) -> None:
        match said:
            case messages.ReadyMessage():
                self._is_acquainted(said)
            case messages.PongMessage():
                if said.id != self._ping:
                    self._misbehaved(f"it answers ping {said.id}, which the app has not sent")
                else:
                    self._ping = 0
                    self._ping_later()
            case messages.ErrorMessage() if not self._capacity:
                self._fail(self._options.error(said))
            case _ if said.id not in self._requests:
                self._misbehaved(f"its {said.__struct_config__.tag} is for call {said.id}, which it does not have")
            case messages.ResultMessage():
                self.finished(said.id, DONE, self._options.value(said.value))
            case messages.ErrorMessage():
                self._failed(said)
            case messages.ItemMessage():
                self._item_came(said)
            case messages.ProgressMessage():
                self._get_on(said)

    def _failed(self, said: messages.ErrorMessage) -> None:
        error: BaseException = self._options.error(said)
        if said.broken:
            self._broke(said.id, error)
        elif said.id in self._unread:
            self.finished(said.id, DONE, None)
        elif said.id in self._told and said.name == CANCELLED:
            self.finished(said.id, FAILED, RequestCancelled())
        else:
            self.finished(said.id, FAILED, error)

    def _item_came(self, said: messages.ItemMessage) -> None:
        stream = self._streams.get(said.id)
        if stream is None:
            self._misbehaved(f"it sends items of call {said.id}, which is no stream")
            return
        if said.id in self._unread:
            return
        stream.came(lambda: self._options.value(said.value))
        if stream.held_back > MUCH_HELD_BACK:
            if not self._single:
                self._misbehaved(f"it sends more items of call {said.id} than it has credit for")
            else:  # until the reader has caught up: the pipe fills, and the program waits
                self._stop_listening()

    def _get_on(self, said: messages.ProgressMessage) -> None:
        on_progress = self._options.on_progress
        if on_progress is None:
            return
        request = self._requests[said.id]
        fn, args, kwargs = request.fn, request.args, request.kwargs
        if request.ended:
            return
        try:
            method, args, kwargs = self._options.describe(fn.fn if isinstance(fn, ProducesItems) else fn, args, kwargs)
            on_progress(CallProgress(self._worker.name, method, args, kwargs or {}, said.value))
        except Exception:
            logger.exception("on_progress failed for worker %s", self._worker.name)

    def finished(self, number: int, state: Any, value: Any) -> None:
        super().finished(number, state, value)
        if number not in self._requests:
            self._unread.discard(number)
            self._offsets.pop(number, None)

    def never_began(self, request: Request) -> bool:
        number = self._ids.get(request)
        return number is None or self._offsets.get(number, 0) >= self._read_to

    # Pings.

    def _ping_later(self) -> None:
        self._cancel_timer()
        if self._options.ping_interval is not None and not (self._over or self._stopping):
            self._timer = io_thread.call_later(self._options.ping_interval, self._send_ping)

    def _send_ping(self) -> None:
        self._timer = None
        if self._requests:  # a busy program need not read its stdin; timeouts limit its calls
            self._ping_later()
            return
        self._ping = next(self._numbers)
        self._input.write(messages.write("ping", id=self._ping))
        self._timer = io_thread.call_later(self._options.ping_timeout, self._no_pong)

    def _no_pong(self) -> None:
        self._timer = None
        self._punish(f"it did not answer a ping within {self._options.ping_timeout:g} s")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            io_thread.cancel_timer(self._timer)
            self._timer = None

    # The end.

    def _misbehaved(self, why: str) -> None:
        self._misbehaves = True
        self._punish(why)
        self._stop_listening()

    def _hear_the_rest(self) -> bool:
        """Read what the program has written. Anything after that is from other processes that hold the pipe open."""
        self._read_to = self._input.read_to()
        for _ in range(LARGEST_PIPE // CHUNK):
            if self._misbehaves:
                break
            try:
                data = os.read(self._output, CHUNK)
            except OSError:
                break
            if not data:
                break
            self._understand(data)
        return self._stderr.drain()

    def _close(self) -> None:
        self._cancel_timer()
        self._input.close()
        self._stop_listening()
        os.close(self._output)
        self._stderr.close()


def _decoded(line: bytes) -> messages.AnyMessage | BaseException:
    """The message in a line, or the error: that it is none, or that there is no memory for it."""
    try:
        return messages.read(line)
    except BaseException as error:
        return error


class Input:
    """The stdin of a program. Any thread writes to it without waiting. If the program closes it, it calls `unread`."""

    __slots__ = ("__weakref__", "_allowed", "_ends", "_fd", "_lock", "_out", "_size", "_unread", "_written")

    def __init__(self, fd: int, unread: Callable[[], object]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._unread = unread
        self._lock = primitives.leaf_lock()
        self._size = 0  # bytes of all data
        self._written = 0  # bytes that are in the pipe, or were read
        self._out: list[Any] = []  # data for which the pipe had no room
        self._allowed: dict[int, int] = {}  # credit by stream, which is sent when the pipe has room again
        self._ends = False  # close it when all is written
        close_in_forked_children(self)

    def write(self, data: bytes) -> int:
        """Write `data`, or the part for which the pipe has room; the io thread writes the rest. It never waits. Returns
        the number of bytes before `data`.
        """
        with primitives.Uninterrupted():
            offset, waits = self._write(data)
            if waits:
                io_thread.post(self._want_room)
        return offset

    def _write(self, data: bytes) -> tuple[int, bool]:
        """Write; where, and whether the io thread has to start waiting for room."""
        with self._lock:
            offset = self._size
            self._size += len(data)
            waits = bool(self._out)
            self._out.append(data)
            if waits or self._fd < 0:
                return offset, False
            self._push()
            return offset, bool(self._out)

    def read_to(self) -> float:
        """How many bytes the program has read, which has ended; infinity if that is not known."""
        with self._lock:
            if self._fd < 0:
                return math.inf
            (unread,) = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))
            return self._written - int(unread)

    def allow(self, number: int, count: int) -> None:
        """Give a stream credit. While the pipe is full, the credit adds up and is sent later in one message."""
        with self._lock:
            full = bool(self._out)
            if full:
                self._allowed[number] = self._allowed.get(number, 0) + count
        if not full:
            self.write(messages.write("more", id=number, count=count))

    def _push(self) -> None:
        try:
            written = os.writev(self._fd, self._out[: wire.MOST_BUFFERS])
            self._written += written
            self._out = wire.without(self._out, written)
        except BlockingIOError:
            pass
        except OSError:
            self._out = []
            self._unread()

    def _want_room(self) -> None:
        if self._fd >= 0:
            io_thread.watch(self._fd, self._flush, selectors.EVENT_WRITE)

    def _flush(self) -> None:
        with self._lock:
            self._push()
            if not self._out and self._allowed:
                allowed, self._allowed = self._allowed, {}
                self._out = [messages.write("more", id=id, count=count) for id, count in allowed.items()]
                self._size += sum(map(len, self._out))
            if not self._out:
                io_thread.forget(self._fd)
                if self._ends:
                    self._shut()

    def end(self) -> None:
        """Close it when all is written."""
        with self._lock:
            self._ends = True
            if not self._out:
                self._shut()

    def close(self) -> None:
        """Close it now. On the io thread."""
        with self._lock:
            if self._fd >= 0:
                io_thread.forget(self._fd)
                self._shut()

    def _shut(self) -> None:
        fd, self._fd = self._fd, -1  # first: a child that is forked now must not close another file
        if fd >= 0:
            os.close(fd)

    def forked(self) -> None:
        self._shut()

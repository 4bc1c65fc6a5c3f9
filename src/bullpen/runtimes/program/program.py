"""One program, from the app's side: what it is told, what it says, and what of that is a crash."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bullpen import primitives
from bullpen.core.request import DONE, FAILED, Request
from bullpen.core.worker import Worker
from bullpen.errors import InvalidOption, NoSuchMethod
from bullpen.runtimes.port import ProducesItems, WorkerEvents
from bullpen.runtimes.process import nursery, wire
from bullpen.runtimes.process.calls import RequestCancelled
from bullpen.runtimes.process.items import raise_
from bullpen.runtimes.process.output import Output
from bullpen.runtimes.process.supervised import TERM_GRACE, Supervised, pipe_from_it
from bullpen.runtimes.process.switchboard import Timer, only_here, switchboard
from bullpen.runtimes.program import messages

if TYPE_CHECKING:
    from bullpen.runtimes.program.runtime import ProgramRuntime

logger = logging.getLogger("bullpen")

CHUNK = 64 * 1024
LARGEST_PIPE = 1024 * 1024  # bytes, as a system allows by default
SHOWN = 200  # bytes of a line that nobody understands
MUCH_HELD_BACK = 64  # items for which there is no room, after which a program is not listened to
CANCELLED = "Cancelled"  # the name of the error of a request that was told to stop


@dataclass(frozen=True)
class CallProgress:
    """What a program says of a call that it is at."""

    worker: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any


class Program(Supervised):
    """One program that answers calls."""

    __slots__ = (
        "_capacity",
        "_input",
        "_lines",
        "_listens",
        "_methods",
        "_misbehaves",
        "_name",
        "_output",
        "_ping",
        "_runtime",
        "_timer",
        "_unread",
    )

    def __init__(self, worker: Worker, events: WorkerEvents, runtime: ProgramRuntime) -> None:
        super().__init__(worker, events, runtime.cancel_grace, runtime.max_rss)
        self._runtime = runtime
        self._lines = messages.Lines(runtime.max_message)
        self._name = os.path.basename(runtime.command[0])
        self._methods: frozenset[str] | None = None  # that it has, if it says so
        self._capacity = 0  # that it has; 0: it is not ready
        self._listens = False  # somebody reads what it says
        self._unread: set[int] = set()  # streams that nobody reads any more
        self._misbehaves = False  # it broke the protocol: nothing that it says counts any more
        self._ping = 0  # the number of one that was not answered
        self._timer: Timer | None = None  # what it has to do by then

    # Start.

    def _open(self, opened: contextlib.ExitStack, its_own: list[int]) -> None:
        its_in, into = os.pipe()
        opened.callback(os.close, into)
        its_own.append(its_in)
        self._input = Input(into, self._does_not_listen)
        self._output = pipe_from_it(opened, its_own)
        os.set_blocking(self._output, False)
        self._stderr = Output(pipe_from_it(opened, its_own), self._worker.name, "stderr")

    def _greet(self) -> None:
        worker = self._worker
        hello = messages.write("hello", protocol=messages.PROTOCOL, worker=worker.name, capacity=worker.capacity)
        self._input.write(hello)

    def _orders(self) -> tuple[nursery.Foundation, dict[str, Any]]:
        return ((), None), self._runtime.orders()

    def _listen(self) -> None:
        self._listen_again()
        self._stderr.watch()
        if self._runtime.start_timeout is not None:
            self._timer = switchboard.later(self._runtime.start_timeout, self._start_too_slow)

    def _listen_again(self) -> None:
        if not self._listens and not self._over:
            self._listens = True
            switchboard.watch(self._output, self._heard)

    def _start_too_slow(self) -> None:
        self._timer = None
        self._punish(f"it was not ready after {self._runtime.start_timeout:g} s")

    def _is_acquainted(self, ready: messages.Ready) -> None:
        if self._capacity:
            self._misbehaved("it says 'ready' twice")
            return
        if ready.protocol != messages.PROTOCOL:
            spoken = f"it speaks version {ready.protocol} of the protocol, and this is version {messages.PROTOCOL}"
            self._misbehaved(spoken)
            return
        if ready.capacity < 1:
            self._misbehaved(f"its capacity must be ≥ 1, got {ready.capacity}")
            return
        self._capacity = ready.capacity
        self._name = ready.name or self._name
        self._methods = None if ready.methods is None else frozenset(ready.methods)
        self._never_mind()
        self._is_ready(self._name, ready.capacity)

    def _can_work(self) -> None:
        if self._worker.capacity > self._capacity:
            raise InvalidOption(
                "capacity",
                self._worker.capacity,
                f"at most {self._capacity}, for {self._name} runs no more at once; "
                "capacity_strategy='hybrid' takes what there is",
            )
        self._ping_later()

    # Work. From any thread.

    def _encode(self, request: Request) -> tuple[bytes, bool]:
        fn, args, kwargs = request.fn, request.args, request.kwargs
        if request.ended:
            raise RequestCancelled
        stream = isinstance(fn, ProducesItems) or isinstance(request.function, ProducesItems)
        method, args, kwargs = self._runtime.describe(fn.fn if isinstance(fn, ProducesItems) else fn, args, kwargs)
        if self._methods is not None and method not in self._methods:
            raise NoSuchMethod(method, "is none of its methods", owner=self._name, methods=tuple(sorted(self._methods)))
        return messages.write_call(method, args, kwargs, stream), stream

    def _call(self, number: int, encoded: tuple[bytes, bool]) -> None:
        self._input.write(messages.numbered(number, encoded[0]))

    def _say_stop(self) -> None:
        self._input.write(messages.write("stop"))
        self._input.end()
        switchboard.post(self._expect_end)

    def _expect_end(self) -> None:
        self._never_mind()
        if self._runtime.stop_grace is not None and not self._over:
            self._timer = switchboard.later(self._runtime.stop_grace, self._stop_too_slow)

    def _stop_too_slow(self) -> None:
        self._timer = None
        self._punish(f"it did not end within {self._runtime.stop_grace:g} s after it was told to")

    def _say_cancel(self, number: int, _first: bool, /) -> None:
        self._input.write(messages.write("cancel", id=number))

    def credit(self, number: int, count: int) -> None:
        if count:
            self._input.allow(number, count)
        else:
            self._unread.add(number)
            self._input.write(messages.write("cancel", id=number))
            switchboard.later(self._cancel_grace, functools.partial(self._insist, number))
        self._listen_again()

    # What it says. On the switchboard's thread.

    def _heard(self) -> None:
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._listens = False
            switchboard.forget(self._output)
            if not self._over:
                switchboard.later(TERM_GRACE, self._fell_silent)  # if it has ended, its keeper will say so before
            return
        self._understand(data)

    def _does_not_listen(self) -> None:
        switchboard.later(TERM_GRACE, self._turned_deaf)  # if it has ended, its keeper will say so before

    def _turned_deaf(self) -> None:
        if not self._stopping:
            self._punish("it closed its stdin")

    def _fell_silent(self) -> None:
        if not self._stopping:
            self._punish("it closed its stdout")

    def _understand(self, data: bytes) -> None:
        try:
            lines = self._lines.feed(data)
        except OverflowError:
            self._misbehaved(f"it wrote a line of more than {self._runtime.max_message} bytes")
            return
        for line in lines:
            if self._misbehaves:
                return
            try:
                said = messages.read(line)
            except messages.NoMessage as error:
                shown = line[:SHOWN].decode(errors="backslashreplace")
                self._misbehaved(f"it wrote a line that is no message ({error}): {shown}")
                return
            self._take(said)

    def _take(self, said: messages.Said) -> None:
        """Handle one thing that it has said. Never fails: what comes after it concerns others."""
        try:
            self._handle(said)
        except BaseException as error:
            if isinstance(said, messages.Result | messages.Error) and said.id in self._requests:
                self.finished(said.id, FAILED, error)
            elif isinstance(said, messages.Item) and said.id in self._streams:
                self._streams[said.id].came(functools.partial(raise_, error))
            elif isinstance(said, messages.Ready):
                self._cannot_go_on(error)
            else:
                logger.exception("what worker %s has said could not be handled", self._worker.name)

    def _handle(self, said: messages.Said) -> None:
        match said:
            case messages.Ready():
                self._is_acquainted(said)
            case messages.Pong():
                if said.id != self._ping:
                    self._misbehaved(f"it answers ping {said.id}, which nobody has sent")
                else:
                    self._ping = 0
                    self._ping_later()
            case messages.Error() if not self._capacity:
                self._fail(self._runtime.error(said))
            case _ if said.id not in self._requests:
                self._misbehaved(f"its {type(said).__name__.lower()} is for call {said.id}, which is none of its own")
            case messages.Result():
                self.finished(said.id, DONE, self._runtime.value(said.value))
            case messages.Error():
                self._failed(said)
            case messages.Item():
                self._item_came(said)
            case messages.Progress():
                self._get_on(said)

    def _failed(self, said: messages.Error) -> None:
        error: BaseException = self._runtime.error(said)
        if said.broken:
            self._broke(said.id, error)
        elif said.id in self._unread:
            self.finished(said.id, DONE, None)
        elif said.id in self._told and said.name == CANCELLED:
            self.finished(said.id, FAILED, RequestCancelled())
        else:
            self.finished(said.id, FAILED, error)

    def _item_came(self, said: messages.Item) -> None:
        stream = self._streams.get(said.id)
        if stream is None:
            self._misbehaved(f"call {said.id} wants one result, and it sends items")
            return
        if said.id in self._unread:
            return
        stream.came(lambda: self._runtime.value(said.value))
        if stream.held_back > MUCH_HELD_BACK:
            if self._worker.capacity > 1:
                self._misbehaved(f"it sends more items of call {said.id} than it was asked for")
            elif self._listens:  # until the reader has caught up; the pipe is full then, and it has to wait
                self._listens = False
                switchboard.forget(self._output)

    def _get_on(self, said: messages.Progress) -> None:
        on_progress = self._runtime.on_progress
        if on_progress is None:
            return
        request = self._requests[said.id]
        fn, args, kwargs = request.fn, request.args, request.kwargs
        if request.ended:
            return
        try:
            method, args, kwargs = self._runtime.describe(fn.fn if isinstance(fn, ProducesItems) else fn, args, kwargs)
            on_progress(CallProgress(self._worker.name, method, args, kwargs or {}, said.value))
        except Exception:
            logger.exception("on_progress failed, for worker %s", self._worker.name)

    def finished(self, number: int, state: Any, value: Any) -> None:
        super().finished(number, state, value)
        if number not in self._requests:
            self._unread.discard(number)

    # Is it alive?

    def _ping_later(self) -> None:
        self._never_mind()
        if self._runtime.ping_interval is not None and not (self._over or self._stopping):
            self._timer = switchboard.later(self._runtime.ping_interval, self._send_ping)

    def _send_ping(self) -> None:
        self._timer = None
        if self._requests:  # it need not listen while it works: there are limits in time for that
            self._ping_later()
            return
        self._ping = next(self._numbers)
        self._input.write(messages.write("ping", id=self._ping))
        self._timer = switchboard.later(self._runtime.ping_timeout, self._no_pong)

    def _no_pong(self) -> None:
        self._timer = None
        self._punish(f"it did not answer a ping within {self._runtime.ping_timeout:g} s")

    def _never_mind(self) -> None:
        if self._timer is not None:
            switchboard.never_mind(self._timer)
            self._timer = None

    # The end.

    def _misbehaved(self, why: str) -> None:
        self._misbehaves = True
        self._punish(why)
        if self._listens:
            self._listens = False
            switchboard.forget(self._output)

    def _punish(self, why: str) -> None:
        if not self._over:
            self._why = self._why or why
            self.kill()

    def _hear_the_rest(self) -> None:
        """What it had written is in the pipe; what comes after that is from others, who still have it open."""
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
        self._stderr.drain()

    def _close(self) -> None:
        self._never_mind()
        self._input.close()
        if self._listens:
            switchboard.forget(self._output)
        os.close(self._output)
        self._stderr.close()


class Input:
    """The stdin of a program: written from any thread, without waiting. `unread` is called if nobody reads it."""

    __slots__ = ("__weakref__", "_allowed", "_ends", "_fd", "_lock", "_out", "_unread")

    def __init__(self, fd: int, unread: Callable[[], object]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._unread = unread
        self._lock = primitives.backlog_lock()
        self._out: list[Any] = []  # what the pipe has no room for
        self._allowed: dict[int, int] = {}  # how many items, by stream: told when there is room again
        self._ends = False  # it is closed when all is written
        only_here(self)

    def write(self, data: bytes) -> None:
        """Write this, or as much as there is room for; the rest follows by itself. Never waits, never fails."""
        with primitives.Uninterrupted():
            if self._write(data):
                switchboard.post(self._want_room)

    def _write(self, data: bytes) -> bool:
        """Whether room has to be waited for, which nobody does yet."""
        with self._lock:
            waits = bool(self._out)
            self._out.append(data)
            if waits or self._fd < 0:
                return False
            self._push()
            return bool(self._out)

    def allow(self, number: int, count: int) -> None:
        """Let a stream go on. A program that does not listen while it sends is told all at once."""
        with self._lock:
            full = bool(self._out)
            if full:
                self._allowed[number] = self._allowed.get(number, 0) + count
        if not full:
            self.write(messages.write("more", id=number, count=count))

    def _push(self) -> None:
        try:
            self._out = wire.without(self._out, os.writev(self._fd, self._out[: wire.MOST_BUFFERS]))
        except BlockingIOError:
            pass
        except OSError:
            self._out = []
            self._unread()

    def _want_room(self) -> None:
        if self._fd >= 0:
            switchboard.watch(self._fd, self._flush, selectors.EVENT_WRITE)

    def _flush(self) -> None:
        with self._lock:
            self._push()
            if not self._out and self._allowed:
                allowed, self._allowed = self._allowed, {}
                self._out = [messages.write("more", id=id, count=count) for id, count in allowed.items()]
            if not self._out:
                switchboard.forget(self._fd)
                if self._ends:
                    self._shut()

    def end(self) -> None:
        """Close it when all is written."""
        with self._lock:
            self._ends = True
            if not self._out:
                self._shut()

    def close(self) -> None:
        """Close it now. On the switchboard's thread."""
        with self._lock:
            if self._fd >= 0:
                switchboard.forget(self._fd)
                self._shut()

    def _shut(self) -> None:
        fd, self._fd = (
            self._fd,
            -1,
        )  # in this order: a child forked meanwhile must not close another file
        if fd >= 0:
            os.close(fd)

    def forked(self) -> None:
        self._shut()

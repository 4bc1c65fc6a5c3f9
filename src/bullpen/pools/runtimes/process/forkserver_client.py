"""The app's side of the forkserver: it starts the forkserver, orders workers, and gets the reports of their ends.

There is one forkserver for each set of preloaded modules, with the app's script or without it. All runtimes that need
the same set share it. It ends when it has had no workers for `LINGER` seconds, and at once when the app ends.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from bullpen import primitives
from bullpen.pools.runtimes.process import orphans, wire
from bullpen.pools.runtimes.process.bootstrap import BOOT
from bullpen.pools.runtimes.process.io_thread import Channel, TimerHandle, io_thread

LINGER = 2.0  # seconds that a forkserver without workers waits for the next one
RETRY = 0.01  # seconds between two attempts
LAST_WAIT = 5.0  # seconds that a forkserver has to end
LOOK_EVERY = 0.5  # seconds between two looks at a forkserver that owes an answer
MOST_LOOKS = 20  # looks, not seconds: a machine that sleeps, or an app that was stopped, wakes up to one look
HUNG = "its forkserver did not answer"


class StartingWorker(Protocol):
    """A worker process, as the forkserver's client needs it. All methods are called on the io thread."""

    peak_memory: int | None  # bytes; set before `ended` is called, if the forkserver knows it

    def started(self, pid: int, pidfd: int | None) -> None:
        """It runs. `pidfd` is its descriptor, where the system has these."""

    def orphaned(self) -> None:
        """Its forkserver has ended, and so cannot kill its process group. The worker may still run."""

    def ended(self, code: int | None, why: str) -> None:
        """It has ended with this exit code (below 0: a signal). None: it did not start, or the code is unknown."""

    @property
    def unwanted(self) -> bool:
        """It was killed before it has started."""

    @property
    def overdue(self) -> bool:
        """The forkserver has not reported its start, or its end, and that is the next thing to happen."""

    @property
    def is_over(self) -> bool:
        """It has ended, or was given up."""


Script = tuple[str | None, str | None]  # the name or the file of the app's main module
Preloaded = tuple[tuple[str, ...], Script | None]  # what workers have from the start: modules, and the script


def start(preloaded: Preloaded, starting: StartingWorker, wanted: dict[str, Any], fds: list[int]) -> ForkserverClient:
    """Order a worker. `wanted` is the orders, `fds` are its channel (of a program: its stdin), stdout, stderr, and the
    files that it shares with the app. They are closed in the app.
    """
    with _lock:
        try:
            client = _clients.get(preloaded)
            if client is None:
                client = _clients[preloaded] = ForkserverClient(preloaded)
            client.expect(starting, wanted, fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
    client.order()
    return client


class ForkserverClient:
    """One forkserver process, as the app sees it."""

    def __init__(self, preloaded: Preloaded) -> None:
        self._preloaded = preloaded
        self._orders_ever = 0
        self._workers: dict[int, StartingWorker] = {}
        self._orders: deque[tuple[bytes, list[int]]] = deque()  # not sent yet, with their descriptors
        self._ordering = primitives.gate()  # closed while a thread sends orders
        self._why = "its forkserver ended"
        self._heard_of = False  # it has sent something: its imports are done
        self._over = False
        self._looking: TimerHandle | None = None  # a timer that looks whether it answers
        self._looks = 0  # in a row at which it owed an answer
        self._environment = dict(os.environ)
        self._reader = wire.FrameReader()
        preload, script = preloaded
        named = [] if script is None else [script[0] or "", script[1] or "", *sys.argv]
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as its_own:
            mine, theirs = socket.socketpair()
            opened.enter_context(mine)
            its_own.enter_context(theirs)
            # No other process has the write end, so it closes when this process ends, for whatever reason.
            death, self._alive = os.pipe()
            opened.callback(os.close, self._alive)
            its_own.callback(os.close, death)
            passed = []
            for fd in (theirs.fileno(), death):  # an app without standard streams may have got their numbers
                passed.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
                its_own.callback(os.close, passed[-1])
            self._forkserver = subprocess.Popen(
                [*_program("forkserver"), *map(str, passed), " ".join(preload), *named],
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
                process_group=0,  # so that Ctrl-C goes past it
                env={**self._environment, orphans.VARIABLE: orphans.mark()},
            )
            self._channel = Channel(mine)
            io_thread.post(self._listen)
            opened.pop_all()
        _running.add(self)

    def _listen(self) -> None:
        if self._channel.sock.fileno() >= 0:
            io_thread.watch(self._channel.sock.fileno(), self._heard)

    # Start. From any thread.

    def expect(self, starting: StartingWorker, wanted: dict[str, Any], fds: list[int]) -> None:
        """Queue the order for a worker. The lock is held."""
        orders = {
            "path": _path(),
            "argv": sys.argv,
            "folder": _folder(),
            "interpreter": _interpreter(),
            **wanted,
            "environment": _changes(self._environment, os.environ) | wanted.get("environment", {}),
        }
        data = pickle.dumps(orders)
        self._orders_ever = number = self._orders_ever + 1
        self._workers[number] = starting
        self._orders.append((b"".join(wire.pack(wire.START, number, data)), fds))

    def order(self) -> None:
        """Send the queued orders. If the socket is full, a timer sends the rest."""
        while self._orders and self._ordering.acquire(False):
            try:
                done = self._send_orders()
            finally:
                self._ordering.release()
            if not done:
                io_thread.call_later(RETRY, self.order)
                break
        self.expect_answer()

    def _send_orders(self) -> bool:
        while self._orders:
            data, fds = self._orders[0]
            try:
                sent = socket.send_fds(self._channel.sock, [data], fds)
            except BlockingIOError:
                return False
            except OSError:  # the forkserver has ended; `_heard` notices it
                sent = len(data)
            if sent < len(data):
                self._orders[0] = (data[sent:], [])
            else:
                self._orders.popleft()
            for fd in fds:  # they belong to the worker now
                os.close(fd)
        return True

    def give_up_unwanted(self) -> None:
        """Do not wait for the start of killed workers, because the imports of the forkserver may hang. If no other
        worker is ordered, kill the forkserver.
        """
        io_thread.post(self._give_up_unwanted)

    def _give_up_unwanted(self) -> None:
        if self._heard_of or self._over:
            return
        with _lock:
            unwanted = [starting for starting in self._workers.values() if starting.unwanted]
            wanted = len(unwanted) < len(self._workers)
        if wanted:
            for starting in unwanted:  # it is called again when they start and end later, and then does nothing
                starting.ended(None, "its forkserver has not started it yet")
        else:
            self._why = "its forkserver was killed while it imported the preloaded modules"
            self._forkserver.kill()

    def expect_answer(self) -> None:
        """An order was sent, or a worker has ended: give up what the forkserver does not report in time."""
        if self._looking is None and not self._over:
            self._looking = io_thread.call_later(LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looking = None
        if self._over:
            return
        self._heard()  # it may have answered while this thread was busy
        overdue = [starting for starting in self._workers.values() if starting.overdue] if self._heard_of else []
        self._looks = self._looks + 1 if overdue else 0
        if not overdue:
            return
        if self._looks >= MOST_LOOKS:
            self._give_up(overdue)
        self.expect_answer()

    def _stop_looking(self) -> None:
        if self._looking is not None:
            io_thread.cancel_timer(self._looking)
            self._looking = None

    def _give_up(self, overdue: list[StartingWorker]) -> None:
        """The forkserver hangs, or was stopped. Its other workers go on, and another forkserver starts further ones.
        Without workers it is killed.
        """
        with _lock:
            self._leave()
        for starting in overdue:  # it is called again when they start and end later, and then does nothing
            starting.ended(None, HUNG)
        if all(starting.is_over for starting in self._workers.values()):
            self._forkserver.kill()

    # Reports of the forkserver. On the io thread.

    def _heard(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._channel.sock, wire.JOIN_BELOW, 64)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._heard_of = True
        if not data:
            self._end(self._why)
        try:
            frames = self._reader.feed(data)
        except wire.NoFrame as error:
            self._why = f"its forkserver broke the protocol: {error}"
            self._forkserver.kill()
            frames = []
        started = [number for kind, number, *_ in frames if kind == wire.STARTED]
        # One read brings the descriptor of at most one message, and nothing after that. It brings none if this process
        # has too many open files.
        pidfds = dict(zip(started[-1:], fds, strict=False))
        for kind, number, payload, _ in frames:
            text = bytes(payload)
            if kind == wire.STARTED:
                self._workers[number].started(int.from_bytes(text, "little"), pidfds.get(number))
            elif kind == wire.EXITED:
                code, memory = struct.unpack("<qQ", text)
                self._workers[number].peak_memory = memory
                self._workers.pop(number).ended(code, "")
            elif number:
                self._workers.pop(number).ended(None, f"its forkserver could not fork: {text.decode()}")
            else:  # the forkserver itself failed
                self._why = f"its forkserver could not start:\n{text.decode()}"
        if not self._workers:
            self._stop_looking()
            io_thread.call_later(LINGER, functools.partial(self._end_if_unused_since, self._orders_ever))

    def _end_if_unused_since(self, orders: int) -> None:
        with _lock:
            unused = self._orders_ever == orders and not self._over
            if unused:
                self._leave()
        if unused:
            self._end("")

    def _leave(self) -> None:
        if _clients.get(self._preloaded) is self:
            del _clients[self._preloaded]

    def _end(self, why: str) -> None:
        """The forkserver has ended or ends now. The kernel kills all its workers."""
        if self._over:
            return
        self._over = True
        self._stop_looking()
        _running.discard(self)
        with _lock:
            self._leave()
            workers, self._workers = self._workers, {}
        for starting in workers.values():  # while their pids are still their own
            starting.orphaned()
        self._let_go()
        for starting in workers.values():
            starting.ended(None, why)
        self._reap(time.monotonic() + LAST_WAIT)

    def _let_go(self) -> None:
        with self._ordering:  # a thread that sends an order closes its descriptors itself
            self._channel.close()
            orders = list(self._orders)
            self._orders.clear()
        for fd in [self._alive, *(fd for _, fds in orders for fd in fds)]:
            os.close(fd)

    def _reap(self, until: float) -> None:
        if self._forkserver.poll() is None:
            if time.monotonic() > until:
                self._forkserver.kill()
            io_thread.call_later(RETRY, functools.partial(self._reap, until))

    # The end of the app.

    def end_now(self) -> None:
        """End the forkserver: the interpreter exits."""
        self._over = True
        self._let_go()
        try:
            self._forkserver.wait(LAST_WAIT)
        except subprocess.TimeoutExpired:  # it was stopped
            self._forkserver.kill()
            self._forkserver.wait()

    def forked(self) -> None:
        """In a forked child, close the pipe that stands for the app."""
        os.close(self._alive)
        self._forkserver.returncode = 0  # not a child of this process


_lock = primitives.leaf_lock()
_clients: dict[Preloaded, ForkserverClient] = {}
_running: set[ForkserverClient] = set()  # also those that start no more workers


def _end_all() -> None:
    while _running:
        _running.pop().end_now()


def _forked() -> None:
    global _lock  # noqa: PLW0603 — its holder may not exist here
    _lock = primitives.leaf_lock()
    _clients.clear()
    while _running:
        _running.pop().forked()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _program(module: str) -> list[str]:
    return [*_interpreter(), "-c", BOOT.format(module), "\n".join(_path())]


def _interpreter() -> list[str]:
    """This interpreter, with the options that it was started with."""
    return [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]  # noqa: SLF001


def _path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return os.sep


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """The changes from one environment to the other; None: the variable is deleted."""
    changed: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - now.keys())

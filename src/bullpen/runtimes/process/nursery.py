"""The app's side of the keeper: who starts it, tells it to start workers, and hears from it how they ended.

There is one keeper for each set of preloaded modules, with the app's script or without it, shared by all runtimes that
want the same. It ends when it had no workers for a while, and at once when the app does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from bullpen import primitives
from bullpen.runtimes.process import orphans, wire
from bullpen.runtimes.process.birth import BOOT
from bullpen.runtimes.process.switchboard import Channel, switchboard

LINGER = 2.0  # seconds that a keeper without workers waits for the next one
RETRY = 0.01  # seconds between two looks at something that will not take long
LAST_WAIT = 5.0  # seconds that an app which exits waits for a keeper


class Newborn(Protocol):
    """A worker process as its nursery knows it. All of it happens on the switchboard's thread."""

    def started(self, pid: int, pidfd: int | None) -> None:
        """It runs; `pidfd` stands for it, if there are such things here."""

    def orphaned(self) -> None:
        """Its keeper is gone, which would have ended what it has started. It may still run."""

    def ended(self, code: int | None, why: str) -> None:
        """It has ended, with this exit code, or less than 0 by a signal; or None: it never was, or nobody knows."""

    @property
    def unwanted(self) -> bool:
        """It is to end as soon as it has started."""


Script = tuple[str | None, str | None]  # the name or the file of the app's main module
Foundation = tuple[tuple[str, ...], Script | None]  # what workers have from the beginning: modules, and the script


def start(foundation: Foundation, newborn: Newborn, wanted: dict[str, Any], fds: list[int]) -> Nursery:
    """Have a worker started as is `wanted`, with these descriptors: its channel, or its stdin if it is a program,
    stdout, stderr, and what it shares with the app. They are closed here.
    """
    with _lock:
        try:
            nursery = _nurseries.get(foundation)
            if nursery is None:
                nursery = _nurseries[foundation] = Nursery(foundation)
            nursery.expect(newborn, wanted, fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
    nursery.order()
    return nursery


class Nursery:
    """One keeper process."""

    def __init__(self, foundation: Foundation) -> None:
        self._foundation = foundation
        self._orders_ever = 0
        self._workers: dict[int, Newborn] = {}
        self._orders: deque[tuple[bytes, list[int]]] = deque()  # that were not sent yet
        self._ordering = primitives.gate()  # open while nobody sends
        self._why = "its keeper ended"
        self._heard_of = False  # the keeper has begun: it has imported what it should
        self._over = False
        self._environment = dict(os.environ)
        self._reader = wire.Reader()
        preload, script = foundation
        named = [] if script is None else [script[0] or "", script[1] or "", *sys.argv]
        mine, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as opened:
            opened.enter_context(mine)
            # Nobody else has that end of it, so it closes when this process ends, however it does.
            death, self._alive = os.pipe()
            opened.callback(os.close, self._alive)
            try:
                self._keeper = subprocess.Popen(
                    [*_program("zygote"), str(theirs.fileno()), str(death), " ".join(preload), *named],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), death),
                    process_group=0,  # so that Ctrl-C goes past it
                    env={**self._environment, orphans.VARIABLE: orphans.mark()},
                )
            finally:
                os.close(death)
            self._channel = Channel(mine)
            switchboard.post(self._listen)
            opened.pop_all()

    def _listen(self) -> None:
        if self._channel.sock.fileno() >= 0:
            switchboard.watch(self._channel.sock.fileno(), self._heard)

    # Start. From any thread.

    def expect(self, newborn: Newborn, wanted: dict[str, Any], fds: list[int]) -> None:
        """Note that a worker is to be started. The lock is held."""
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
        self._workers[number] = newborn
        self._orders.append((b"".join(wire.pack(wire.START, number, data)), fds))

    def order(self) -> None:
        """Send what is to be sent; if the keeper is not quick enough, the rest later."""
        while self._orders and self._ordering.acquire(False):
            try:
                done = self._send_orders()
            finally:
                self._ordering.release()
            if not done:
                switchboard.later(RETRY, self.order)
                return

    def _send_orders(self) -> bool:
        while self._orders:
            data, fds = self._orders[0]
            try:
                sent = socket.send_fds(self._channel.sock, [data], fds)
            except BlockingIOError:
                return False
            except OSError:  # the keeper is gone, which will be heard of
                sent = len(data)
            if sent < len(data):
                self._orders[0] = (data[sent:], [])
            else:
                self._orders.popleft()
            for fd in fds:  # which are nobody's any more, whatever comes between
                os.close(fd)
        return True

    def give_up_unwanted(self) -> None:
        """Whoever does not want what the keeper has been told to start need not wait for its imports, which may hang.
        If nobody does, it need not finish them.
        """
        switchboard.post(self._give_up_unwanted)

    def _give_up_unwanted(self) -> None:
        if self._heard_of or self._over:
            return
        with _lock:
            unwanted = [newborn for newborn in self._workers.values() if newborn.unwanted]
            wanted = len(unwanted) < len(self._workers)
        if wanted:
            for newborn in unwanted:  # and once more when they start after all, and end, which they do not mind
                newborn.ended(None, "its keeper has not started it yet")
        else:
            self._why = "its keeper was ended while it imported what was asked for"
            self._keeper.kill()

    # What the keeper says. On the switchboard's thread.

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
        frames = self._reader.feed(data)
        started = [number for kind, number, *_ in frames if kind == wire.STARTED]
        # One read brings the descriptor of one message at most, and nothing that came after it. There may be none: who
        # has too many open files gets no more.
        pidfds = dict(zip(started[-1:], fds, strict=False))
        for kind, number, payload, _ in frames:
            text = bytes(payload)
            if kind == wire.STARTED:
                self._workers[number].started(int.from_bytes(text, "little"), pidfds.get(number))
            elif kind == wire.EXITED:
                self._workers.pop(number).ended(int.from_bytes(text, "little", signed=True), "")
            elif number:
                self._workers.pop(number).ended(None, f"its keeper could not fork: {text.decode()}")
            else:  # it could not even begin
                self._why = f"its keeper could not start:\n{text.decode()}"
        if not self._workers:
            switchboard.later(LINGER, functools.partial(self._end_if_unused_since, self._orders_ever))

    def _end_if_unused_since(self, orders: int) -> None:
        with _lock:
            unused = self._orders_ever == orders and not self._over
            if unused:
                self._leave()
        if unused:
            self._end("")

    def _leave(self) -> None:
        if _nurseries.get(self._foundation) is self:
            del _nurseries[self._foundation]

    def _end(self, why: str) -> None:
        """The keeper has ended, or ends now; all workers do so with it, the kernel sees to that."""
        if self._over:
            return
        self._over = True
        with _lock:
            self._leave()
            workers, self._workers = self._workers, {}
        for newborn in workers.values():  # while their numbers are still their own
            newborn.orphaned()
        self._let_go()
        for newborn in workers.values():
            newborn.ended(None, why)
        self._reap()

    def _let_go(self) -> None:
        with self._ordering:  # who sends an order closes what went with it
            self._channel.close()
            orders = list(self._orders)
            self._orders.clear()
        for fd in [self._alive, *(fd for _, fds in orders for fd in fds)]:
            os.close(fd)

    def _reap(self) -> None:
        if self._keeper.poll() is None:
            switchboard.later(RETRY, self._reap)

    # The end of the app.

    def end_now(self) -> None:
        """The interpreter exits."""
        self._over = True
        self._let_go()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(LAST_WAIT)

    def forked(self) -> None:
        """This is a forked child, which must not seem to be the app."""
        os.close(self._alive)
        self._keeper.returncode = 0  # not a child of this process


_lock = primitives.backlog_lock()
_nurseries: dict[Foundation, Nursery] = {}


def _end_all() -> None:
    while _nurseries:
        _nurseries.popitem()[1].end_now()


def _forked() -> None:
    global _lock  # noqa: PLW0603 — its holder may not exist here
    _lock = primitives.backlog_lock()
    while _nurseries:
        _nurseries.popitem()[1].forked()


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
    """What makes the one environment into the other."""
    changed: dict[str, str | None] = {name: value for name, value in now.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - now.keys())

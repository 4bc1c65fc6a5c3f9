"""Primitives that tests can replace: locks, deques, threads, time and randomness.

Code reads these through the module (`primitives.worker_lock()`), never by `from … import`, so that every object that is
made after a replacement uses it. In production every lock factory is the interpreter's own, at no added cost.

Each kind of lock has its own factory because each has its own rank. A thread may only take a lock of a higher
rank than those it holds, and never two of one rank:

    pool  <  registry  <  worker  <  session  <  leaf  <  request  <  state  <  deadlines

The one exception is `request`, the lock of a future's condition: `concurrent.futures.wait` holds several, in the
order of their ids. A `gate` blocks a waiting thread and is not a mutex: one thread closes it and another opens it,
so it has no owner and no rank.
"""

from __future__ import annotations

import _thread
import collections
import functools
import random as _random
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol


class Lock(Protocol):
    """The common methods of the interpreter's locks."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> None: ...


class Clock(Protocol):
    """Time as the pool sees it: a monotonic reading and a way to wait at a gate."""

    def monotonic(self) -> float: ...
    def wait(self, gate: Lock, timeout: float | None) -> bool: ...


class Joinable(Protocol):
    """A thread, or the replacement of one, that can be joined."""

    def join(self) -> None: ...


class SystemClock:
    """The machine's monotonic clock."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def wait(gate: Lock, timeout: float | None) -> bool:
        """Wait until `gate` opens; False when `timeout` seconds passed first."""
        if timeout is None:
            return gate.acquire()
        return gate.acquire(True, min(max(timeout, 0.0), threading.TIMEOUT_MAX))


class _DaemonThread(threading.Thread):
    """A daemon thread. It drops its reference to `target`, and threads that it starts are not daemons."""

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = target

    def run(self) -> None:
        self._daemonic = False  # inherited by threads that this one starts; the interpreter does not wait for this one
        self._take_work()()

    def _take_work(self) -> Callable[[], None]:
        work = self._work
        del self._work
        return work


def on_main_thread() -> bool:
    """Whether this is the main thread, which runs signal handlers."""
    return _thread.get_ident() == threading.main_thread().ident


def interrupt_later() -> None:
    """Raise a KeyboardInterrupt in the main thread again a moment later: it could not stop at the first one."""
    _thread.start_new_thread(_interrupt_main, ())


class Uninterrupted:
    """Delays a Ctrl-C that comes inside the context until its end.

    A `KeyboardInterrupt` may still be raised while the context is entered or left; the code outside has to handle it.
    """

    __slots__ = ("_came", "_waits")

    def __enter__(self) -> None:
        self._came = self._waits = False
        if on_main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._waits = True

    def __exit__(self, kind: Any, error: Any, traceback: Any, /) -> None:
        if self._waits:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._came:
                interrupt_later()

    def _note(self, *_: Any) -> None:
        self._came = True


def _interrupt_main() -> None:
    if hasattr(signal, "pthread_kill"):  # a real signal also interrupts a blocking wait
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = _DaemonThread(target, name)
    try:
        thread.start()
    except KeyboardInterrupt:
        if thread.ident is None:
            raise
        interrupt_later()  # the thread runs: return it first
    return thread


def _start_soon(target: Callable[..., None], *args: Any) -> None:
    _thread.start_new_thread(target, args)


def _start_loop(main: Callable[[], Coroutine[Any, Any, None]], name: str) -> threading.Thread:
    import asyncio  # imported late: pools need no event loop, and the import is slow

    return start_thread(lambda: asyncio.run(main()), name)


@functools.cache
def machine_boot() -> str:
    """Identifies the boot of this machine; "" where the system does not say. A pid and a time since the boot are
    unique only within one boot.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # pathlib takes 2 ms to import
            return file.read().strip()
    except OSError:
        return ""


def renew_lock(lock: Lock) -> None:
    """In a forked child: release a lock. The thread that holds it may not exist here."""
    renew = getattr(lock, "_at_fork_reinit", None)  # the standard library does so with its own locks
    if renew is not None:
        renew()


def _pass(name: str) -> None:
    """The failpoint of production: does nothing."""


RANKS = ("pool", "registry", "worker", "session", "leaf", "request", "state", "deadlines")

pool_lock: Callable[[], Lock] = _thread.allocate_lock
registry_lock: Callable[[], Lock] = _thread.allocate_lock
worker_lock: Callable[[], Lock] = _thread.allocate_lock
session_lock: Callable[[], Lock] = _thread.allocate_lock
leaf_lock: Callable[[], Lock] = _thread.allocate_lock
request_lock: Callable[[], Lock] = _thread.RLock  # reentrant, as the standard future's condition is
state_lock: Callable[[], Lock] = _thread.RLock  # reentrant: a signal handler may use a future at any time
deadlines_lock: Callable[[], Lock] = _thread.allocate_lock
gate: Callable[[], Lock] = _thread.allocate_lock
new_deque: Callable[..., collections.deque[Any]] = collections.deque
start_thread: Callable[[Callable[[], None], str], threading.Thread] = _start_thread
start_loop: Callable[[Callable[[], Coroutine[Any, Any, None]], str], Joinable] = _start_loop  # on a thread of its own
start_soon: Callable[..., None] = _start_soon  # for finalizers: it takes no lock; the function must be short
failpoint: Callable[[str], None] = _pass  # called with a name at the most vulnerable points; tests crash or delay there
current_thread_id: Callable[[], int] = _thread.get_ident
system_clock: Clock = SystemClock()
random: _random.Random = _random.Random()

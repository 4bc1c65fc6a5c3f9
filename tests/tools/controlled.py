"""Locks, gates, deques, threads and time that stop at every step, where the scheduler picks the actor that runs next.

`replaced()` puts them in the place of `bullpen.primitives`' factories, and of what `threading` and `time` hand out,
since standard futures wait on conditions and events. Only the exploring thread and the actors get controlled
objects; other threads, and modules that are imported meanwhile, get real ones.

Points are placed so that a plain attribute read or written next to an operation can be told apart from it: before
and after a deque operation and the opening of a gate, before a lock is taken and after it is released.
"""

from __future__ import annotations

import _thread
import collections
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from bullpen import primitives
from tests.tools import lock_order
from tests.tools.actors import Actor
from tests.tools.scheduler import Scheduler


class _Active:
    """The schedule that new objects belong to."""

    scheduler: Scheduler | None = None


def activate(scheduler: Scheduler | None) -> None:
    _Active.scheduler = scheduler
    primitives.random.seed(0)


def _scheduler() -> Scheduler:
    scheduler = _Active.scheduler
    if scheduler is None:
        raise RuntimeError("made outside a schedule")
    return scheduler


_OUTSIDE = Actor(-1, "setup or check", int, daemon=False)


class Mutex:
    """A lock without an owner, as the interpreter's: any actor may release it."""

    __slots__ = ("_kind", "_serial", "holder", "scheduler", "waiters")

    def __init__(self, kind: str) -> None:
        self.scheduler = scheduler = _scheduler()
        self.holder: Actor | None = None
        self.waiters: list[Actor] = []
        self._kind = kind
        self._serial = scheduler.made = scheduler.made + 1

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        _check_timeout(blocking, timeout)
        scheduler = self.scheduler
        scheduler.point("acquire", self)
        if self.holder is not None and (not blocking or timeout == 0 or not scheduler.block(self, timeout)):
            return False
        self.holder = scheduler.current or _OUTSIDE
        if self.waiters:
            self._bar_waiters()
        return True

    def release(self) -> None:
        scheduler = self.scheduler
        if self.holder is None:
            if scheduler.over:
                return
            raise RuntimeError("release unlocked lock")
        self.holder = None
        if self.waiters:
            scheduler.runnable.extend(self.waiters)
        scheduler.point("release", self)

    def locked(self) -> bool:
        self.scheduler.point("locked", self)
        return self.holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def describe(self) -> str:
        held = (
            f" held by {self.holder.name!r}" if self.holder is not None and self._kind.lower().endswith("lock") else ""
        )
        return f"{self._kind} #{self._serial}{held}"

    def _bar_waiters(self) -> None:
        for waiter in self.waiters:
            self.scheduler.runnable.remove(waiter)


class Gate(Mutex):
    """A lock whose release wakes an actor, and may follow a plain write: the release is a switch point, too."""

    __slots__ = ()

    def release(self) -> None:
        self.scheduler.point("open", self)
        super().release()


class ReentrantMutex(Mutex):
    """A lock with an owner, as `threading.RLock`, on which a condition can be built."""

    __slots__ = ("_depth",)

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_owned():
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._depth = 1
        return True

    def release(self) -> None:
        if not self._is_owned():
            if self.scheduler.over:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            super().release()

    def _is_owned(self) -> bool:
        return self.holder is (self.scheduler.current or _OUTSIDE)

    def _release_save(self) -> int:
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        if self.scheduler.over:
            # A condition puts its lock back on every way out, and its user then releases it.
            self.holder = _OUTSIDE
        else:
            self.acquire()
        self._depth = depth


def _check_timeout(blocking: bool, timeout: float) -> None:
    if timeout == -1:
        return
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > threading.TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")


class Deque(collections.deque[Any]):
    """A deque each of whose operations is one atomic step. Iterating is one step too: it stops at its start only."""

    __slots__ = ("_scheduler",)

    def __init__(self, iterable: Iterable[Any] = (), maxlen: int | None = None) -> None:
        self._scheduler: Scheduler | None = None
        super().__init__(iterable, maxlen)
        self._scheduler = _scheduler()

    def describe(self) -> str:
        return f"deque of {collections.deque.__len__(self)}"


def _stepping(name: str) -> Callable[..., Any]:
    plain = getattr(collections.deque, name)
    label = {"__len__": "len", "__iter__": "iterate"}.get(name, name)

    def operation(self: Deque, *args: Any) -> Any:
        scheduler = self._scheduler
        if scheduler is None:
            return plain(self, *args)
        scheduler.point(label, self)
        try:
            return plain(self, *args)
        finally:
            scheduler.point("after " + label, self)

    operation.__name__ = name
    return operation


for _name in (
    "append", "appendleft", "pop", "popleft", "extend", "extendleft", "insert", "remove", "rotate", "clear", "reverse",
    "count", "index", "copy", "__copy__", "__len__", "__iter__", "__reversed__", "__contains__", "__getitem__",
    "__setitem__", "__delitem__", "__iadd__",
):  # fmt: skip
    setattr(Deque, _name, _stepping(_name))


class ControlledThread:
    """What `primitives.start_thread` returns: enough of a `threading.Thread` to name it and wait for it."""

    __slots__ = ("_actor", "_scheduler", "daemon", "name")

    def __init__(self, target: Callable[[], None], name: str) -> None:
        self._scheduler = _scheduler()
        self.name = name
        self.daemon = True
        self._actor = self._scheduler.add_actor(target, name, daemon=True)
        self._scheduler.point(f"start {name!r}", None)

    @property
    def ident(self) -> int:
        return self._scheduler.start(self._actor)

    def is_alive(self) -> bool:
        self._scheduler.point(f"is_alive {self.name!r}", None)
        return not self._actor.finished

    def join(self, timeout: float | None = None) -> None:
        scheduler, actor = self._scheduler, self._actor
        if scheduler.current is actor:
            raise RuntimeError("cannot join current thread")
        scheduler.point(f"join {self.name!r}", None)
        if not actor.finished and (timeout is None or timeout > 0):
            scheduler.block(actor, -1 if timeout is None else timeout)


class VirtualClock:
    """Time that passes only when no actor can run, or, with a racing clock, whenever the strategy says so."""

    def monotonic(self) -> float:
        return _scheduler().now

    def wait(self, gate: primitives.Lock, timeout: float | None) -> bool:
        if timeout is None:
            return gate.acquire()
        return gate.acquire(True, min(max(timeout, 0.0), threading.TIMEOUT_MAX))

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass for the actor that calls this."""
        forever = Mutex("sleep")
        forever.holder = _OUTSIDE
        forever.acquire(True, seconds)


@contextmanager
def replaced() -> Iterator[None]:
    """Controlled primitives inside the `with` block. Lock order is checked inside if it was checked outside."""
    clock = VirtualClock()
    seams: dict[str, Any] = {f"{rank}_lock": _making(Mutex, f"{rank} lock") for rank in primitives.RANKS}
    seams["request_lock"] = _making(ReentrantMutex, "request lock")
    seams["gate"] = _making(Gate, "gate")
    if lock_order.is_installed():
        seams = {name: lock_order.checking(name, factory) for name, factory in seams.items()}
    seams |= {
        "new_deque": Deque,
        "start_thread": ControlledThread,
        "start_soon": lambda target, *args: ControlledThread(partial(target, *args), "soon"),
        "system_clock": clock,
        "random": random.Random(0),
    }
    standard: list[tuple[Any, str, Any]] = [
        (threading, "Lock", _controlled_if_ours("Lock", lambda: Gate("threading.Lock"))),
        (threading, "RLock", _controlled_if_ours("RLock", lambda: ReentrantMutex("threading.RLock"))),
        (threading, "_allocate_lock", _controlled_if_ours("_allocate_lock", lambda: Gate("wake-up"))),
        (threading, "_time", _reading_if_ours(time.monotonic)),
        (time, "monotonic", _reading_if_ours(time.monotonic)),
        (time, "sleep", _sleeping_if_ours(time.sleep, clock)),
    ]
    places = [(primitives, name, value) for name, value in seams.items()] + standard
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    try:
        for module, name, value in places:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _making(kind: Callable[[str], Any], label: str) -> Callable[[], Any]:
    return lambda: kind(label)


def _ours() -> Scheduler | None:
    """The active schedule, if the calling thread is its actor or the exploring thread."""
    scheduler = _Active.scheduler
    if scheduler is None or scheduler.over:
        return None
    expected = scheduler.controller if scheduler.current is None else scheduler.current.ident
    return scheduler if _thread.get_ident() == expected else None


def _controlled_if_ours(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
    real = getattr(threading, name)

    def factory() -> Any:
        return make() if _ours() is not None and not _importing() else real()

    return factory


def _importing() -> bool:
    """Whether a module is being imported by the code under test: its locks outlive the exploration."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__")
        if module in ("importlib._bootstrap", "_frozen_importlib"):
            return True
        if module == "tests.tools.explore":
            return False
        frame = frame.f_back
    return False


def _reading_if_ours(real: Callable[[], float]) -> Callable[[], float]:
    def monotonic() -> float:
        scheduler = _ours()
        if scheduler is None:
            return real()
        # The standard library gives up only *past* a deadline, so time may not stand exactly on it for ever.
        scheduler.readings += 1
        return scheduler.now + scheduler.readings * 1e-9

    return monotonic


def _sleeping_if_ours(real: Callable[[float], None], clock: VirtualClock) -> Callable[[float], None]:
    def sleep(seconds: float) -> None:
        scheduler = _ours()
        if scheduler is None or scheduler.current is None:
            real(seconds)
        else:
            clock.sleep(seconds)

    return sleep

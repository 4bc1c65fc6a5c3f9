"""Raise on a lock taken out of order, before it can deadlock.

`install()` makes every lock factory of `bullpen.primitives` hand out locks that know their rank. What was made
before stays unchecked. Violations:

- taking a ranked lock while holding one of an equal or a higher rank (several `request` locks are fine),
- waiting at a gate, or on a request's condition, while holding any other ranked lock,
- releasing a ranked lock that this thread does not hold.

Each raises `LockOrderViolation` in the thread that did it and is kept in `violations`, so that a test fails even when
a worker swallowed the exception:

    @pytest.fixture(autouse=True)
    def lock_order_holds():
        with lock_order.checked():
            yield
        assert lock_order.drain_violations() == []
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from bullpen import primitives

_RANK = {name: rank for rank, name in enumerate(primitives.RANKS)}
_REQUEST = _RANK["request"]


class LockOrderViolation(AssertionError):
    """A thread broke the order in which locks may be taken."""


violations: list[LockOrderViolation] = []


def drain_violations() -> list[LockOrderViolation]:
    """Every violation since the last call, on whatever thread."""
    drained = violations[:]
    del violations[: len(drained)]
    return drained


_unchecked: dict[str, Callable[[], Any]] = {}


def is_installed() -> bool:
    return bool(_unchecked)


def install() -> None:
    """Check every ranked lock and gate made from now on. A second call changes nothing."""
    if _unchecked:
        return
    factories = {f"{rank}_lock": getattr(primitives, f"{rank}_lock") for rank in primitives.RANKS}
    factories["gate"] = primitives.gate
    _unchecked.update(factories)
    for name, factory in factories.items():
        setattr(primitives, name, checking(name, factory))


def uninstall() -> None:
    """Put the factories back. Locks made meanwhile stay checked."""
    for name, factory in _unchecked.items():
        setattr(primitives, name, factory)
    _unchecked.clear()


@contextmanager
def checked() -> Iterator[None]:
    """Check inside the `with` block. Inside an outer `install()` it changes nothing."""
    already = is_installed()
    install()
    try:
        yield
    finally:
        if not already:
            uninstall()


def checking(factory_name: str, factory: Callable[[], Any]) -> Callable[[], Any]:
    """`factory` of `primitives.<factory_name>`, with what it makes wrapped in a check."""
    if factory_name == "gate":
        return lambda: CheckedGate(factory())
    rank = _RANK[factory_name.removesuffix("_lock")]
    if rank == _REQUEST:
        return lambda: CheckedRequestLock(factory(), rank)
    return lambda: CheckedLock(factory(), rank)


class _Held(threading.local):
    """The ranked locks of one thread, in the order taken.

    Ranks never fall along the list, whatever order locks are released in, so its last entry is the only one to
    compare with.
    """

    def __init__(self) -> None:
        self.locks: list[CheckedLock] = []


_held = _Held()


class CheckedLock:
    """A ranked lock that refuses to be taken out of order.

    It remembers the instruction that took it, not a stack: two attribute reads instead of a walk, as tests push
    millions of operations through here.
    """

    __slots__ = ("_code", "_instruction", "_lock", "_rank")

    def __init__(self, lock: Any, rank: int) -> None:
        self._lock = lock
        self._rank = rank
        self._code: CodeType | None = None
        self._instruction = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        held = _held.locks
        if held and held[-1]._rank >= self._rank:
            self._check_order(held)
        taken: bool = self._lock.acquire(blocking, timeout)
        if taken:
            held.append(self)
            caller = sys._getframe(1)
            self._code = caller.f_code
            self._instruction = caller.f_lasti
        return taken

    def __enter__(self) -> bool:
        held = _held.locks
        if held and held[-1]._rank >= self._rank:
            self._check_order(held)
        self._lock.acquire()
        held.append(self)
        caller = sys._getframe(1)
        self._code = caller.f_code
        self._instruction = caller.f_lasti
        return True

    def release(self) -> None:
        held = _held.locks
        if held and held[-1] is self:
            held.pop()
        else:
            self._forget(held)
        self._lock.release()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def locked(self) -> bool:
        """Whether another thread could not take it now. The interpreter's reentrant lock cannot tell before 3.14."""
        if hasattr(self._lock, "locked"):
            return bool(self._lock.locked())
        if self._lock._is_owned():
            return True
        if self._lock.acquire(False):
            self._lock.release()
            return False
        return True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._describe()}>"

    def _check_order(self, held: list[CheckedLock]) -> None:
        """Called when the last lock held is of an equal or a higher rank."""
        raise _violation(f"took the {self._name} lock while holding the {held[-1]._describe()}")

    def _forget(self, held: list[CheckedLock]) -> None:
        for position in range(len(held) - 1, -1, -1):
            if held[position] is self:
                del held[position]
                return
        raise _violation(f"released the {self._describe()} without holding it")

    @property
    def _name(self) -> str:
        return primitives.RANKS[self._rank]

    def _describe(self) -> str:
        if self._code is None:
            return f"{self._name} lock"
        return f"{self._name} lock taken in {_position(self._code, self._instruction)}"


class CheckedRequestLock(CheckedLock):
    """Reentrant, several may be held, and a `threading.Condition` can be built on it."""

    __slots__ = ()

    def _check_order(self, held: list[CheckedLock]) -> None:
        """Equals are allowed."""
        if held[-1]._rank > self._rank:
            super()._check_order(held)

    def _is_owned(self) -> bool:
        owned: bool = self._lock._is_owned()
        return owned

    def _release_save(self) -> tuple[int, Any]:
        held = _held.locks
        for other in held:
            if other is not self:
                raise _violation(f"waited on a {self._name}'s condition while holding the {other._describe()}")
        depth = len(held)
        held.clear()
        return depth, self._lock._release_save()

    def _acquire_restore(self, saved: tuple[int, Any]) -> None:
        depth, state = saved
        self._lock._acquire_restore(state)
        _held.locks.extend([self] * depth)


class CheckedGate:
    """A gate at which no thread may wait while it holds a ranked lock. Anyone may open it."""

    __slots__ = ("_gate", "locked", "release")

    def __init__(self, gate: Any) -> None:
        self._gate = gate
        self.locked: Callable[[], bool] = gate.locked
        self.release: Callable[[], None] = gate.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking and _held.locks:
            raise _violation(f"waited at a gate while holding the {_held.locks[-1]._describe()}")
        taken: bool = self._gate.acquire(blocking, timeout)
        return taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


def _violation(what: str) -> LockOrderViolation:
    caller = sys._getframe(1)
    while caller.f_back is not None and caller.f_code.co_filename in (__file__, threading.__file__):
        caller = caller.f_back
    name = threading.current_thread().name
    violation = LockOrderViolation(f"thread {name!r} {what}, in {_position(caller.f_code, caller.f_lasti)}")
    violations.append(violation)
    return violation


def _position(code: CodeType, instruction: int) -> str:
    line: int | None = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end:
            line = number
    return f"{code.co_qualname} ({code.co_filename}:{line})"

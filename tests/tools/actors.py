"""The actors of a schedule, the things that they can wait for, the strategies that pick them, and the failures."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Protocol

START = 1000.0
"""The virtual clock's first reading: not zero, so that code which confuses 0.0 with "none" behaves as it would."""


class DeadlockFound(AssertionError):
    """No actor can go on, and a main actor has not ended."""


class LivelockFound(AssertionError):
    """The actors took more steps than `max_steps`, the second half of them in fair turns."""


class Stalled(RuntimeError):
    """An actor waits for something that the exploration does not control, or computes for very long."""


class BlockedOutsideActors(RuntimeError):
    """The scenario's setup or check would have to wait. Waiting is for actors."""


class Unwound(BaseException):
    """Raised in an actor that is still blocked when its schedule is over."""


class Waitable(Protocol):
    """Something an actor can wait for."""

    waiters: list[Actor]

    def describe(self) -> str: ...


class Strategy(Protocol):
    """Picks the actor that runs next. A strategy that `replays` is never overruled for the sake of fairness."""

    replays: bool

    def choose(self, current: Actor | None, runnable: list[Actor]) -> Actor:
        """One of `runnable`, which has two or more. `current` is the actor that ran last, if it can go on."""
        ...


class Actor:
    """One thread of control. Its OS thread starts when it is first picked, so it has no thread-locals of others."""

    __slots__ = ("baton", "daemon", "deadline", "finished", "ident", "name", "number", "target", "timed_out", "waiters",
                 "waiting_for")  # fmt: skip

    def __init__(self, number: int, name: str, target: Callable[[], object], daemon: bool) -> None:
        self.number = number
        self.name = name
        self.target = target
        self.daemon = daemon
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.ident: int | None = None
        self.finished = False
        self.waiters: list[Actor] = []
        self.waiting_for: Waitable | None = None
        self.deadline: float | None = None
        self.timed_out = False

    def describe(self) -> str:
        return f"the end of {self.name!r}"

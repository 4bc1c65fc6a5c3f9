"""What happens to open pools when the interpreter exits or the process forks.

At exit every open pool drains, as the standard executors do, before the interpreter tears threads down; after Ctrl-C,
one whose workers can be killed ends at once. In a forked child the parent's workers do not exist, so its pools are
closed there and say so.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import sys
import threading
import weakref
from typing import Any, Protocol

from bullpen import primitives


class OpenPool(Protocol):
    """A pool, as far as the end of the process concerns it."""

    @property
    def ended(self) -> bool: ...
    def close(self, grace: float | None, drain: bool, wait: bool = True) -> None: ...
    def reject_new_work(self, because: str, drain: bool = True) -> object: ...
    def cut_short(self) -> None: ...
    def go_on_at_exit(self) -> None: ...
    def drain_at_exit(self) -> None: ...
    def forget_workers(self, because: str) -> None: ...


_pools: weakref.WeakSet[Any] = weakref.WeakSet()  # of `OpenPool`
_exiting = False

AT_EXIT = "the interpreter is shutting down"
AFTER_FORK = "it belongs to the process that this one was forked from; make a new pool after the fork"


def watch(pool: OpenPool, clock: primitives.Clock) -> None:
    """Close `pool` at interpreter exit, and in forked children."""
    if not isinstance(clock, primitives.SystemClock):
        return  # a test moves its time, and has to close it
    _pools.add(pool)
    if _exiting:
        pool.reject_new_work(AT_EXIT)


def close_in_background(pool: OpenPool) -> None:
    """The pool was garbage-collected: let it drain.

    This may run inside the garbage collector, on any thread and inside any critical section, so it takes no lock here.
    """
    if pool.ended:
        return
    with contextlib.suppress(RuntimeError):  # no new threads at interpreter exit, where every pool drains anyway
        _thread.start_new_thread(pool.close, (None, True, False))


def _drain_all() -> None:
    global _exiting  # noqa: PLW0603 — one interpreter, one exit
    _exiting = True
    pools: list[OpenPool] = list(_pools)
    for pool in pools if _was_interrupted() else ():
        pool.cut_short()
    for pool in pools:
        pool.go_on_at_exit()
    for pool in pools:
        pool.drain_at_exit()


def _was_interrupted() -> bool:
    """Whether Ctrl-C is what ends this script. Where people type, they may have pressed it long ago."""
    last = getattr(sys, "last_type", None)
    return last is not None and issubclass(last, KeyboardInterrupt) and not hasattr(sys, "ps1")


def _forked() -> None:
    for pool in list(_pools):
        pool.forget_workers(AFTER_FORK)
    _pools.clear()


# Before the interpreter joins threads and forbids new ones: the standard executors use the same hook.
try:
    getattr(threading, "_register_atexit", atexit.register)(_drain_all)
except RuntimeError:  # imported for the first time while the interpreter exits
    _exiting = True
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

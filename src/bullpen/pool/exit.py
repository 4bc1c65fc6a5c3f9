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
from typing import TYPE_CHECKING

from bullpen import primitives
from bullpen.core.lifecycle import PoolState

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_exiting = False

AT_EXIT = "the interpreter is shutting down"
AFTER_FORK = "it belongs to the process that this one was forked from; make a new pool after the fork"


def watch(engine: Engine) -> None:
    """Close `engine` at interpreter exit, and in forked children."""
    if not isinstance(engine.clock, primitives.SystemClock):
        return  # a test moves its time, and has to close it
    _engines.add(engine)
    if _exiting:
        engine.refuse_work(AT_EXIT)


def close_in_background(engine: Engine) -> None:
    """Nobody refers to the pool any more: let it drain.

    This may run inside the garbage collector, on any thread and inside any critical section, so it takes no lock here.
    """
    if engine.state in (PoolState.CLOSED, PoolState.FAILED):
        return
    with contextlib.suppress(RuntimeError):  # no new threads at interpreter exit, where every pool drains anyway
        _thread.start_new_thread(engine.close, (None, True, False))


def _drain_all() -> None:
    global _exiting  # noqa: PLW0603 — one interpreter, one exit
    _exiting = True
    engines = list(_engines)
    for engine in engines if _was_interrupted() else ():
        engine.cut_short()
    for engine in engines:
        engine.go_on_at_exit()
    for engine in engines:
        engine.drain_at_exit()


def _was_interrupted() -> bool:
    """Whether Ctrl-C is what ends this script. Where people type, they may have pressed it long ago."""
    last = getattr(sys, "last_type", None)
    return last is not None and issubclass(last, KeyboardInterrupt) and not hasattr(sys, "ps1")


def _forked() -> None:
    for engine in list(_engines):
        engine.forget_workers(AFTER_FORK)
    _engines.clear()


# Before the interpreter joins threads and forbids new ones: the standard executors use the same hook.
try:
    getattr(threading, "_register_atexit", atexit.register)(_drain_all)
except RuntimeError:  # imported for the first time while the interpreter exits
    _exiting = True
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

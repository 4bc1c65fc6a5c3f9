"""A thread that waits for an answer may listen for it itself, for a moment, instead of being woken by the switchboard's
thread: a quick answer costs two changes of threads less.

On the main thread signal handlers run, and may raise an error anywhere, also in the middle of what is done with an
answer, which would then be lost. So that thread listens only if nothing but Python's own handler of Ctrl-C is
installed, and puts that off meanwhile. In a worker process that runs several requests at once, their threads never
listen: each may be told by an error, raised in it anywhere, that its own request shall end.
"""

from __future__ import annotations

import contextlib
import importlib
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from bullpen import primitives
from bullpen.core.request import Request
from bullpen.runtimes.process.calls import is_lane
from bullpen.runtimes.process.switchboard import switchboard

_signal = importlib.import_module("_signal")  # `signal` makes enumerations of numbers, which takes long
LISTEN_SECONDS = 0.005  # who waits longer is woken
SIGNALS = tuple(map(int, signal.valid_signals()))


def listen(fd: int, hear: Callable[[], bool], request: Request) -> None:
    """Call `hear` when something can be read from `fd`, until `request` has ended, `hear` returns False, or the moment
    is over. Does nothing where that cannot be done.
    """
    with _undisturbed() as calm:
        if calm and switchboard.lend(fd):
            try:
                _listen(fd, hear, request)
            finally:
                switchboard.give_back(fd)


def _listen(fd: int, hear: Callable[[], bool], request: Request) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    end = time.monotonic() + LISTEN_SECONDS
    while not request.ended:
        left = end - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000) or not hear():
            break


@contextlib.contextmanager
def _undisturbed() -> Iterator[bool]:
    """Inside, no signal handler raises an error on this thread; False if that cannot be had."""
    if not primitives.on_main_thread():
        yield not is_lane()
        return
    handlers = _handlers()
    if any(handler is not signal.default_int_handler for handler in handlers):
        yield False
        return
    if not handlers:
        yield True
        return
    came: list[Any] = []
    _signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield True
    finally:
        _signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


_seen: tuple[list[Any], list[Any]] = ([], [])


def _handlers() -> list[Any]:
    """The functions that handle signals in this process."""
    global _seen  # noqa: PLW0603 — what there is seldom changes
    found = list(map(_signal.getsignal, SIGNALS))
    if found != _seen[0]:
        _seen = (found, [handler for handler in found if callable(handler)])
    return _seen[1]

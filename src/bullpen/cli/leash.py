"""Between `bullpen worker --processes N` and each of its processes: a socket that is closed when either side dies.

A process says over it that it works. Its supervisor says over it how to stop, rather than by a signal: a signal may
reach both, from a terminal or from systemd, and must not count twice. If the supervisor is gone, also by SIGKILL, its
processes stop as at the first signal, and in time.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

VARIABLE = "BULLPEN_LEASH"  # descriptor, number of the process, whether it is the first one
READY = b"r"
LEVELS = (b"1", b"2")  # let tasks end; release them
MARGIN = 30.0  # seconds after the grace, for the store to be told


def tie(number: int, *, is_first: bool) -> tuple[socket.socket, socket.socket, dict[str, str]]:
    """Both ends of a new leash, the second one for the process, and what its environment has to say about it."""
    ours, theirs = socket.socketpair()
    return ours, theirs, {VARIABLE: f"{theirs.fileno()}:{number}:{int(is_first)}"}


class Leash:
    """The end that a worker process holds."""

    def __init__(self, line: socket.socket, number: int, *, is_first: bool) -> None:
        self._line = line
        self.name = f"worker-{number}"
        self.is_first = is_first  # to start: it is the one that introduces them all

    @classmethod
    def held(cls) -> Leash | None:
        """The leash of this process, if it has one. Its own children do not inherit it."""
        written = os.environ.pop(VARIABLE, None)
        if written is None:
            return None
        descriptor, number, is_first = map(int, written.split(":"))
        os.set_inheritable(descriptor, False)
        return cls(socket.socket(fileno=descriptor), number, is_first=bool(is_first))

    def say_ready(self) -> None:
        try:
            self._line.send(READY)
        except OSError:  # there is nobody any more; `follow` will notice
            pass

    def follow(self, stop: Callable[[int], object], grace: float) -> None:
        """Call `stop(1)` or `stop(2)` when the supervisor says so, `stop(1)` when it is gone. On a thread."""
        threading.Thread(target=self._follow, args=(stop, grace), name="bullpen-leash", daemon=True).start()

    def _follow(self, stop: Callable[[int], object], grace: float) -> None:
        while (word := self._receive()) in LEVELS:
            stop(LEVELS.index(word) + 1)
        stop(1)
        late = threading.Event()
        late.wait(grace + MARGIN)  # the process ends before, unless something holds it
        os._exit(1)

    def _receive(self) -> bytes:
        try:
            return self._line.recv(1)
        except OSError:
            return b""

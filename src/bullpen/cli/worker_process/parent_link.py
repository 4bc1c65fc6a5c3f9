"""A socket between `bullpen worker --processes N` and each of its processes. It closes when either side dies.

A process reports over it that it is ready. The supervisor tells it over the socket to stop, not by a signal: a signal
from a terminal or from systemd may reach both, and must not count twice. If the supervisor dies, even by SIGKILL, its
processes stop as after the first signal.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

VARIABLE = "BULLPEN_PARENT_LINK"  # descriptor, number of the process, whether it is the first one, metrics socket
READY = b"r"
LEVELS = (b"1", b"2")  # finish the tasks; release the tasks
MARGIN = 30.0  # seconds after the grace, to write the settlements


def open_pair(
    number: int, *, is_first: bool, metrics: socket.socket | None = None
) -> tuple[socket.socket, socket.socket, dict[str, str]]:
    """Both ends of a new link, the second for the process, and the variable for its environment. `metrics`: the socket
    on which the process serves its metrics.
    """
    ours, theirs = socket.socketpair()
    descriptor = -1 if metrics is None else metrics.fileno()
    return ours, theirs, {VARIABLE: f"{theirs.fileno()}:{number}:{int(is_first)}:{descriptor}"}


class ParentLink:
    """The end that a worker process holds."""

    def __init__(
        self, line: socket.socket, number: int, *, is_first: bool, metrics: socket.socket | None = None
    ) -> None:
        self._line = line
        self.metrics = metrics  # it listens
        self.name = f"worker-{number}"
        self.is_first = is_first  # it prints the start-up message for all of them

    @classmethod
    def held(cls) -> ParentLink | None:
        """The link of this process, if it has one. Children of this process do not inherit it."""
        written = os.environ.pop(VARIABLE, None)
        if written is None:
            return None
        descriptor, number, is_first, metrics = map(int, written.split(":"))
        line, listening = (None if one < 0 else _taken(one) for one in (descriptor, metrics))
        assert line is not None
        return cls(line, number, is_first=bool(is_first), metrics=listening)

    def say_ready(self) -> None:
        try:
            self._line.send(READY)
        except OSError:  # the supervisor is gone; `follow` notices
            pass

    def follow(self, stop: Callable[[int], object], grace: float) -> None:
        """Call `stop(1)` or `stop(2)` when the supervisor asks for it, and `stop(1)` when it is gone. On a thread."""
        threading.Thread(target=self._follow, args=(stop, grace), name="bullpen-parent-link", daemon=True).start()

    def _follow(self, stop: Callable[[int], object], grace: float) -> None:
        while (word := self._receive()) in LEVELS:
            stop(LEVELS.index(word) + 1)
        stop(1)
        late = threading.Event()
        late.wait(grace + MARGIN)  # normally the process ends before
        os._exit(1)

    def _receive(self) -> bytes:
        try:
            return self._line.recv(1)
        except OSError:
            return b""


def _taken(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)

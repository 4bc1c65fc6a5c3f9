"""What workers print: to the logger `bullpen.output`, line by line, or to the app's own streams if nobody listens."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Literal

from bullpen.runtimes.process.switchboard import switchboard

logger = logging.getLogger("bullpen.output")

CHUNK = 64 * 1024
LONGEST = 8 * 1024  # of a line; a longer one comes in parts
KEPT = 16 * 1024  # bytes of what was written last


class Output:
    """One stream of one worker."""

    __slots__ = ("_fd", "_name", "_rest", "_which", "tail")

    def __init__(self, fd: int, name: str, which: Literal["stdout", "stderr"]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._name = name
        self._which = which
        self._rest = b""  # a line that has not ended
        self.tail = b""

    def watch(self) -> None:
        switchboard.watch(self._fd, self.read)

    def read(self) -> None:
        """Pass on what is there."""
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            switchboard.forget(self._fd)
            return
        self.tail = (self.tail + data)[-KEPT:]
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._pass_on(line)
        while len(self._rest) > LONGEST:
            self._pass_on(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]

    def drain(self) -> None:
        """Pass on all that has come, but wait for nothing: somebody else may still have the stream open."""
        for _ in range(16):
            before = self.tail
            self.read()
            if self.tail is before:
                break

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").rstrip("\r")
        level = logging.INFO if self._which == "stdout" else logging.WARNING
        if logger.hasHandlers() and logger.isEnabledFor(level):
            logger.log(level, "%s: %s", self._name, text)
            return
        stream = getattr(sys, self._which)
        with contextlib.suppress(Exception):  # there may be none, or it is closed
            stream.write(text + "\n")
            stream.flush()

    def close(self) -> None:
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""
        switchboard.forget(self._fd)
        os.close(self._fd)

"""The output of workers: each line goes to the logger `bullpen.output`, or to the app's own streams if that is off."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Literal

from bullpen.escaping import escape_lines
from bullpen.pools.runtimes.process.io_thread import io_thread
from bullpen.telemetry import SafeLogger

logger = SafeLogger("bullpen.output")

CHUNK = 4 * 1024  # bytes of one turn: all workers share the thread, and each byte may be a line
LARGEST_PIPE = 1024 * 1024  # bytes, the default limit of Linux
LONGEST = 8 * 1024  # bytes; a longer line is split
KEPT = 16 * 1024  # bytes of the end of the output


class Output:
    """The stdout or the stderr of one worker."""

    __slots__ = ("_fd", "_name", "_rest", "_which", "tail")

    def __init__(self, fd: int, name: str, which: Literal["stdout", "stderr"]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._name = name
        self._which = which
        self._rest = b""  # the start of a line that has not ended
        self.tail = b""

    def watch(self) -> None:
        io_thread.watch(self._fd, self.read)

    def read(self) -> None:
        """Pass on the output that has arrived."""
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.tail = (self.tail + data)[-KEPT:]
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._pass_on(line)
        while len(self._rest) > LONGEST:
            self._pass_on(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]

    def drain(self) -> bool:
        """Pass on one turn of the output that has arrived, without waiting; whether there may be more. Another process
        may still hold the stream open.
        """
        before = self.tail
        if self._fd >= 0:
            self.read()
        return self.tail is not before

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").rstrip("\r")
        level = logging.INFO if self._which == "stdout" else logging.WARNING
        if logger.hasHandlers() and logger.isEnabledFor(level):
            logger.log(level, "%s: %s", self._name, escape_lines(text))
            return
        stream = getattr(sys, self._which)  # as if the worker had written to it: colours stay
        with contextlib.suppress(Exception):  # the app may have no such stream, or has closed it
            stream.write(text + "\n")
            stream.flush()

    def close(self) -> None:
        """On the io thread. At the end of the stream it closes itself."""
        if self._fd < 0:
            return
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""
        io_thread.forget(self._fd)
        os.close(self._fd)
        self._fd = -1

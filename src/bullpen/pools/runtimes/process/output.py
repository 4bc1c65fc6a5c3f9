"""The output of workers: each line goes to the logger `bullpen.output`, or to the app's own streams if that is off."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
from typing import Any, Literal

from bullpen.escaping import escape_lines
from bullpen.pools.runtimes.process.io_thread import io_thread
from bullpen.telemetry import SafeLogger

logger = SafeLogger("bullpen.output")

CHUNK = 4 * 1024  # bytes of one turn: all workers share the thread, and each byte may be a line
LARGEST_PIPE = 1024 * 1024  # bytes, the default limit of Linux
LONGEST = 8 * 1024  # bytes; a longer line is split
KEPT = 16 * 1024  # bytes of the end of the output
PIECE = 1024  # characters, which fit into a pipe that has room
RETRY, LONGEST_RETRY = 0.0005, 0.05  # seconds between two looks at a stream of the app that has no room


class Output:
    """The stdout or the stderr of one worker."""

    __slots__ = ("_fd", "_name", "_rest", "_unwritten", "_waits", "_which", "tail")

    def __init__(self, fd: int, name: str, which: Literal["stdout", "stderr"]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._name = name
        self._which = which
        self._rest = b""  # the start of a line that has not ended
        self._unwritten = ""  # lines for which the app's stream had no room
        self._waits = 0.0  # seconds until it looks for room again; 0: there was some
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
        if self._unwritten and not self._waits:
            self._write_some()

    def _write_some(self) -> None:
        """Write lines to the app's stream. While that has no room, as under a paused pager, this worker waits, and no
        other does.
        """
        self._write()
        if self._fd < 0:
            return
        if self._unwritten:
            io_thread.forget(self._fd)
            self._waits = min(2 * self._waits, LONGEST_RETRY) or RETRY
            io_thread.call_later(self._waits, self._write_some)
        elif self._waits:
            self._waits = 0.0
            self.watch()

    def drain(self) -> bool:
        """Pass on one turn of the output that has arrived, without waiting for more; whether there may be more. Another
        process may still hold the stream open.
        """
        before = self.tail
        if self._fd >= 0:
            self.read()
        if self._unwritten:
            self._write(waits=True)
        return self.tail is not before

    def _pass_on(self, line: bytes) -> None:
        text = line.decode(errors="backslashreplace").rstrip("\r")
        level = logging.INFO if self._which == "stdout" else logging.WARNING
        if logger.hasHandlers() and logger.isEnabledFor(level):
            logger.log(level, "%s: %s", self._name, escape_lines(text))
            return
        self._unwritten += text + "\n"

    def _write(self, waits: bool = False) -> None:
        """Write lines to the app's stream as if the worker had done so: colours stay. Unless it `waits`, it writes no
        more than there is room for.
        """
        stream = getattr(sys, self._which)
        while self._unwritten and (waits or _has_room(stream)):
            end = self._unwritten.rfind("\n", 0, PIECE) + 1 or PIECE  # whole lines: the app may write between pieces
            text, self._unwritten = self._unwritten[:end], self._unwritten[end:]
            with contextlib.suppress(Exception):  # the app may have no such stream, or has closed it
                stream.write(text)
                stream.flush()

    def close(self) -> None:
        """On the io thread. At the end of the stream it closes itself."""
        if self._fd < 0:
            return
        if self._rest:
            self._pass_on(self._rest)
            self._rest = b""
        if self._unwritten:
            self._write(waits=True)
        io_thread.forget(self._fd)
        os.close(self._fd)
        self._fd = -1


def _has_room(stream: Any) -> bool:
    """Whether a stream takes some text without waiting. True if that is not known."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError):  # it has no file, or is closed
        return True

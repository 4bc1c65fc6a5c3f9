"""The output of workers: each line goes to the logger `bullpen.output`, or to the app's own streams if that is off."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import sys
from typing import Any, Literal

from bullpen.escaping import escape_lines
from bullpen.pools.runtimes.process.io_thread import io_thread, log_thread
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
        while len(self._rest) > LONGEST:
            lines.append(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]
        self._pass_on(lines)
        if (self._unwritten or log_thread.is_behind) and not self._waits:
            self._write_some()

    def _write_some(self) -> None:
        """Write lines to the app's stream. While that has no room, as under a paused pager, or a log handler blocks,
        this worker waits if it prints, and no other does.
        """
        self._write()
        if self._fd < 0:
            return
        if self._unwritten or log_thread.is_behind:
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
            self._write()
        return self.tail is not before

    def _pass_on(self, lines: list[bytes]) -> None:
        level = logging.INFO if self._which == "stdout" else logging.WARNING
        if logger.hasHandlers() and logger.isEnabledFor(level):
            log_thread.post(functools.partial(_log, level, self._name, lines))
        else:
            self._unwritten += "".join(_text(line) + "\n" for line in lines)

    def _write(self) -> None:
        """Write lines to the app's stream as if the worker had done so: colours stay. Write no more than there is room
        for.
        """
        stream = getattr(sys, self._which)
        while self._unwritten and _has_room(stream):
            end = self._unwritten.rfind("\n", 0, PIECE) + 1 or PIECE  # whole lines: the app may write between pieces
            text, self._unwritten = self._unwritten[:end], self._unwritten[end:]
            _write(stream, text)

    def close(self) -> None:
        """On the io thread. At the end of the stream it closes itself."""
        if self._fd < 0:
            return
        if self._rest:
            self._pass_on([self._rest])
            self._rest = b""
        if self._unwritten:  # the stream may have no room for a long time
            log_thread.post(functools.partial(_write, getattr(sys, self._which), self._unwritten))
            self._unwritten = ""
        io_thread.forget(self._fd)
        os.close(self._fd)
        self._fd = -1


def _text(line: bytes) -> str:
    return line.decode(errors="backslashreplace").rstrip("\r")


def _log(level: int, name: str, lines: list[bytes]) -> None:
    for line in lines:
        logger.log(level, "%s: %s", name, escape_lines(_text(line)))


def _write(stream: Any, text: str) -> None:
    with contextlib.suppress(Exception):  # the app may have no such stream, or has closed it
        stream.write(text)
        stream.flush()


def _has_room(stream: Any) -> bool:
    """Whether a stream takes some text without waiting. True if that is not known."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(0))
    except (AttributeError, OSError, ValueError):  # it has no file, or is closed
        return True

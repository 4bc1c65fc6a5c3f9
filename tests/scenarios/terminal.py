"""Commands in a pseudo-terminal: what they draw, and keys that become signals."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.scenarios.cli_support import heeding_ctrl_c

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def terminal_environment(**changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    return inherited | {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | changes


@dataclass
class Session:
    """A command in a pseudo-terminal."""

    process: subprocess.Popen[bytes]
    master: int
    slave: int
    shown: str = ""

    def read_until(self, done: Callable[[str], bool], timeout: float = 30.0) -> None:
        until = time.monotonic() + timeout
        raw = b""
        before = self.shown
        while not done(self.shown):
            assert time.monotonic() < until, f"not seen in {timeout} s; shown:\n{self.shown[-2000:]}"
            if select.select([self.master], [], [], 0.05)[0]:
                raw += os.read(self.master, 65536)
                self.shown = before + raw.decode(errors="ignore")

    def ends(self) -> int:
        """The exit code, once everything it wrote has been read."""
        self.read_until(lambda _: self.process.poll() is not None)
        self.read_until(lambda _: not select.select([self.master], [], [], 0)[0])
        return self.process.wait()

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.slave)[3] & termios.ECHO)


@contextmanager
def terminal(command: Sequence[str], **changes: str) -> Iterator[Session]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    with heeding_ctrl_c():
        process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=terminal_environment(**changes),
            start_new_session=True,
        )
    try:
        yield Session(process, master, slave)
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


# A new session has no terminal until it asks for one; only then do keys become signals.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

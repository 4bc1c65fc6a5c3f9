"""Ends every process that a benchmark starts when the benchmark ends, also if it is killed. Linux only.

A guarded program is the child of a guard, ``python guard.py DESCRIPTOR PROGRAM …``. The guard waits for the end of the
program, and for the end of the benchmark, which closes a pipe. After either it kills the whole session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

AVAILABLE = sys.platform == "linux"


class Guarded(subprocess.Popen[Any]):
    """A program that leads a session of its own, with its guard. Its exit code is the program's."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._alive = -1
        if not AVAILABLE:
            super().__init__(command, **options)
            return
        death, self._alive = os.pipe()
        try:
            guard = [sys.executable, "-S", "-E", __file__, str(death)]
            super().__init__([*guard, *command], pass_fds=(death,), start_new_session=True, **options)
        except BaseException:
            os.close(self._alive)
            raise
        finally:
            os.close(death)

    def end(self) -> None:
        """Kill the program and its session. May be called again."""
        if self.returncode is None:
            if AVAILABLE:
                _kill_session(self.pid)
            else:
                self.kill()
            self.wait()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1


def _kill_session(leader: int) -> None:
    """All processes of a session but this one."""
    while members := _session(leader):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _session(leader: int) -> list[int]:
    """The processes of a session that live; some of them may be in groups of their own."""
    found = []
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        with suppress(OSError, IndexError):
            state, *fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader and state != "Z" and pid != os.getpid():
                found.append(pid)
    return found


def _end_with(death: int) -> None:
    os.read(death, 1)  # nothing is ever written: it returns when the pipe closes
    _kill_session(os.getpid())
    os._exit(1)


def main(death: int, command: list[str]) -> int:
    os.set_inheritable(death, False)
    try:
        program = subprocess.Popen(command)
    except OSError as error:
        sys.exit(str(error))
    threading.Thread(target=_end_with, args=(death,), daemon=True).start()
    code = program.wait()
    _kill_session(os.getpid())
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

"""Orphans: processes that an earlier app has left behind. They are found by a mark in their environment, and killed.

Every worker, and every process that it starts, has a mark that identifies its app: the pid, the start time, the boot,
and the pid namespace. Normally no process survives its app. If an app and its forkserver are killed together,
processes that workers have started may survive. The next forkserver that starts kills those whose app has ended, and
no others.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator

VARIABLE = "BULLPEN_APP_PROCESS"  # BULLPEN_APP is the setting of the command line


def mark() -> str:
    """The mark of this process's children; "" where there is no /proc."""
    try:
        return f"{_namespace('self')}/{_boot()}/{os.getpid()}/{_started_at(os.getpid())}/{os.urandom(8).hex()}"
    except (OSError, ValueError):
        return ""


def sweep(among: Iterable[int] | None = None) -> list[int]:
    """Kill the processes of this user, or those `among` these, whose app has ended; their pids."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return []
    candidates = _pids() if among is None else among
    return [pid for pid in candidates if pid != os.getpid() and _kill_if_orphan(pid)]


def _kill_if_orphan(pid: int) -> bool:
    """Check twice, the second time with a descriptor of the process: another process may have got its pid."""
    try:
        if not _is_orphan(pid):
            return False
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError):
        return False
    try:
        if not _is_orphan(pid):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)
    return True


def _is_orphan(pid: int) -> bool:
    found = _mark_of(pid)
    if found is None:
        return False
    namespace, boot, app, started_at, _ = found
    if namespace != _namespace("self") or namespace != _namespace(str(pid)) or boot != _boot():
        return False  # the pid of its app means another process here
    return not _is_alive(int(app), int(started_at))


def _mark_of(pid: int) -> list[str] | None:
    for entry in read(f"/proc/{pid}/environ").split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == VARIABLE.encode():
            parts = value.decode(errors="replace").split("/")
            return parts if len(parts) == 5 else None
    return None


def _is_alive(pid: int, started_at: int) -> bool:
    try:
        return _started_at(pid) == started_at
    except (OSError, ValueError):
        return False


def _started_at(pid: int) -> int:
    """When a process started, in ticks since the boot. `ValueError` for a zombie."""
    state, *fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if state in b"ZX":
        raise ValueError(pid)
    return int(fields[18])


def _namespace(pid: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def _boot() -> str:
    return read("/proc/sys/kernel/random/boot_id").decode().strip()


def read(path: str) -> bytes:
    """The content of a file. pathlib would be a tenth of what a forkserver imports."""
    with open(path, "rb") as file:
        return file.read()


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            yield int(name)

"""Who a worker is, so that others on its host can tell whether it is still there.

A pid alone says nothing: it is given again, also after a reboot and in every container. So a record has the boot and
the pid namespace that its pid belongs to, and when its process began.
"""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

from bullpen import primitives
from bullpen.storage.port import WorkerRecord

_here: set[str] = set()  # the workers of this process


class Machine:
    """What the operating system says about processes. A simulation replaces `machine`."""

    def hostname(self) -> str:
        return socket.gethostname()

    def pid(self) -> int:
        return os.getpid()

    @functools.cache  # noqa: B019 — there is one machine
    def boot_id(self) -> str:
        """The boot of this machine and the pid namespace of this process; "" where that cannot be known."""
        try:
            namespace = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            return ""
        return f"{primitives.machine_boot()}/{namespace}" if primitives.machine_boot() else ""

    def process_started(self, pid: int) -> float | None:
        """When a process began, in ticks since the boot; None if there is none, or it is a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the name before may have spaces and brackets
        state, began = fields[0], fields[19]
        return None if state in "ZX" else float(began)

    def exists(self, pid: int) -> bool:
        """Whether there is such a process, also one that is hidden from us; a zombie is none."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it is somebody else's
            return True
        return not Path(f"/proc/{pid}/stat").exists()


machine = Machine()


def new_worker_id() -> str:
    return f"{machine.hostname()}-{machine.pid()}-{primitives.random.getrandbits(48):012x}"


def introduce(worker: str, queues: tuple[str, ...], concurrency: int, now: float) -> WorkerRecord:
    """The record of a worker of this process, from now on a living one."""
    _here.add(worker)
    pid = machine.pid()
    return WorkerRecord(
        id=worker,
        host=machine.hostname(),
        pid=pid,
        boot_id=machine.boot_id(),
        process_started=machine.process_started(pid) or 0.0,
        queues=queues,
        concurrency=concurrency,
        started_at=now,
        seen_at=now,
    )


def bid_farewell(worker: str) -> None:
    """A worker of this process is none any more."""
    _here.discard(worker)


def is_on_this_host(record: WorkerRecord) -> bool:
    """Whether its pid means anything here."""
    return bool(record.boot_id) and record.boot_id == machine.boot_id()


def is_dead(record: WorkerRecord) -> bool:
    """Whether the owner has certainly ended. False also means that nobody can tell."""
    if not is_on_this_host(record):
        return False
    began = machine.process_started(record.pid)
    if record.pid == machine.pid() and record.process_started == began:
        return record.id not in _here
    return not machine.exists(record.pid) if began is None else began != record.process_started

"""The identity of a worker, by which other workers on its host can tell whether it is alive.

A pid alone identifies no process: the system reuses it, and every boot and every container counts anew. So a record
also has the boot and the pid namespace of the pid, and the start time of the process.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from pathlib import Path

from bullpen import primitives
from bullpen.tasks.storage.port import FunctionSet, WorkerRecord
from bullpen.version import __version__

_own_workers: set[str] = set()  # the workers of this process


class LocalMachine:
    """Reads processes from the operating system. A simulation replaces `machine`."""

    def hostname(self) -> str:
        return socket.gethostname()

    def pid(self) -> int:
        return os.getpid()

    @functools.cache  # noqa: B019 — there is one machine
    def boot_id(self) -> str:
        """The boot of this machine and the pid namespace of this process; "" where the system does not say."""
        try:
            namespace = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            return ""
        return f"{primitives.machine_boot()}/{namespace}" if primitives.machine_boot() else ""

    def process_started(self, pid: int) -> float | None:
        """The start time of a process, in ticks since the boot; None if it does not exist, or is a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()  # the name before may have spaces and brackets
        state, began = fields[0], fields[19]
        return None if state in "ZX" else float(began)

    def peak_memory(self) -> int:
        """The most resident memory that this process has had, in bytes; 0 where the system does not say."""
        try:
            import resource
        except ImportError:  # Windows
            return 0
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def exists(self, pid: int) -> bool:
        """Whether the process exists, also if it is hidden from this one. A zombie does not count."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it belongs to another user
            return True
        return not Path(f"/proc/{pid}/stat").exists()


machine = LocalMachine()


def new_worker_id() -> str:
    return f"{machine.hostname()}-{machine.pid()}-{primitives.random.getrandbits(48):012x}"


def register_worker(
    worker: str,
    lanes: tuple[tuple[str, ...], ...],
    concurrency: int,
    now: float,
    functions: tuple[FunctionSet, ...] = (),
) -> WorkerRecord:
    """Register a worker of this process as alive, and return its record. `lanes`: the queues of each."""
    _own_workers.add(worker)
    pid = machine.pid()
    return WorkerRecord(
        id=worker,
        host=machine.hostname(),
        pid=pid,
        boot_id=machine.boot_id(),
        process_started=machine.process_started(pid) or 0.0,
        queues=tuple(queue for lane in lanes for queue in lane),
        concurrency=concurrency,
        version=__version__,
        started_at=now,
        seen_at=now,
        lanes=lanes,
        functions=functions,
        peak_memory=machine.peak_memory(),
    )


def unregister_worker(worker: str) -> None:
    """Register a worker of this process as ended."""
    _own_workers.discard(worker)


def this_host() -> str:
    """The same for all workers that can see whether this one is alive."""
    return machine.boot_id()


def is_on_this_host(record: WorkerRecord) -> bool:
    """Whether its pid belongs to this boot and this pid namespace."""
    return bool(record.boot_id) and record.boot_id == machine.boot_id()


def is_dead(record: WorkerRecord) -> bool:
    """Whether the worker has certainly ended. False if this cannot be told."""
    if not is_on_this_host(record):
        return record.lost
    began = machine.process_started(record.pid)
    if record.pid == machine.pid() and record.process_started == began:
        return record.id not in _own_workers
    return not machine.exists(record.pid) if began is None else began != record.process_started

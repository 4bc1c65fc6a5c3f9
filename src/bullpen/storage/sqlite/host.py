"""This machine: time that no clock adjustment touches, and whether a process on it is alive."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from bullpen.storage.port import WorkerRecord

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Seconds since this machine was booted, its sleep included: what leases are measured in.

    Where that clock does not exist, the wall clock has to do.
    """
    return time.time() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


@functools.cache
def machine_boot() -> str:
    """Which boot of which machine this is: `elapsed` means nothing in another one. "" where that cannot be known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@functools.cache
def boot_id() -> str:
    """As worker records have it: the boot, and the pid namespace that the pids are from."""
    try:
        return f"{machine_boot()}/{os.stat('/proc/self/ns/pid').st_ino}" if machine_boot() else ""
    except OSError:
        return ""


def process_started(pid: int) -> float | None:
    """When a process began, in ticks since the boot; None if there is none, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may have spaces and brackets
    return None if fields[0] in "ZX" else float(fields[19])


def is_alive(record: WorkerRecord, started: Callable[[int], float | None] = process_started) -> bool:
    """Whether the owner certainly lives. False also means that nobody here can tell."""
    return bool(record.boot_id) and record.boot_id == boot_id() and started(record.pid) == record.process_started

"""This machine: time that no clock adjustment touches."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed() -> float:
    """Seconds since this machine was booted, its sleep included: what leases are measured in.

    Where that clock does not exist, the wall clock has to do.
    """
    return time.time() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

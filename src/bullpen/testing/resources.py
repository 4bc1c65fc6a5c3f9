"""The resources of a process, as a record of its history, because of the invariant that all are released (I21)."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bullpen.testing.history import Record, Write

_SELF = Path("/proc/self")


def note_resources(
    write: Write, actor: str, state: Literal["before", "after"], *, clock: Callable[[], float] = time.monotonic
) -> None:
    """Record how many descriptors, threads and children this process has, and how many bytes of memory.

    Call it with `before` once everything has been used, because a library loads and opens much at its first use, and
    with `after` when everything is closed again. Raises OSError where there is no /proc.
    """
    gc.collect()
    write(Record(at=clock(), actor=actor, op="resources", state=state, counts=_held()))


def _held() -> dict[str, int]:
    tasks = list((_SELF / "task").iterdir())
    pages = int((_SELF / "statm").read_text().split()[1])
    return {
        "fds": len(os.listdir(_SELF / "fd")) - 1,  # the one that lists them
        "threads": len(tasks),
        "children": sum(len(_children(task)) for task in tasks),
        "rss": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:  # the thread has just ended, or the kernel does not tell
        return []

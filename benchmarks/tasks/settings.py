"""The numbers every work shares, and where its files are."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CONCURRENCY = 100
FEW = 10  # at once: the default of a worker
CALLERS = 16
BATCH = 100


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one measurement does. Warm-up comes on top and is not timed."""

    rounds: int
    singles: int  # tasks enqueued one by one
    bulk: int  # tasks enqueued at once
    drained: int  # tasks that wait when a worker starts
    timed: int  # how many of them a slow peer is timed with
    calls: int  # from enqueue to result, one at a time
    pause: float  # seconds between those, so that the worker is idle
    idle: float  # seconds that a worker has nothing to do
    few: int  # backlogs
    many: int
    claims: int
    in_memory: int


FULL = Sizes(
    rounds=5,
    singles=1_000,
    bulk=20_000,
    drained=20_000,
    timed=500,
    calls=100,
    pause=0.005,
    idle=5.0,
    few=1_000,
    many=1_000_000,
    claims=100,
    in_memory=50_000,
)
QUICK = Sizes(
    rounds=3,
    singles=200,
    bulk=20_000,
    drained=5_000,
    timed=300,
    calls=50,
    pause=0.005,
    idle=3.0,
    few=1_000,
    many=100_000,
    claims=100,
    in_memory=20_000,
)


@contextmanager
def new_folder() -> Iterator[Path]:
    """For the files of one measurement, where TMPDIR says: the disk matters."""
    with tempfile.TemporaryDirectory(prefix="bullpen-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def shared_settings() -> dict[str, str]:
    return {"SQLite": sqlite3.sqlite_version, "files on": _file_system(Path(tempfile.gettempdir()).resolve())}


def _file_system(folder: Path) -> str:
    try:
        mounts = [line.split(" ")[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "an unknown file system"
    return max((len(place), kind) for place, kind in mounts if folder.is_relative_to(place))[1]

"""The trace of all runs: every task appends its number and the time to one file, from any process or thread.

The times are those of the clock that all processes of a machine share, taken inside the task. So the reader
need not poll at the right moment, and reading does not disturb the measurement.
"""

from __future__ import annotations

import asyncio
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, monotonic_ns

_ENTRY = struct.Struct("<qq")
_MEMORY = Path("/dev/shm")
PATIENCE = 240.0
LOOK = 0.02  # seconds; while a rate is measured
LOOK_CLOSELY = 0.0005  # while one task is waited for


class Trace:
    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def __call__(self, number: int) -> None:
        os.write(self._file, _ENTRY.pack(number, monotonic_ns()))

    def close(self) -> None:
        os.close(self._file)

    def count(self) -> int:
        return os.stat(self.path).st_size // _ENTRY.size

    def entries(self) -> list[tuple[int, float]]:
        """Numbers with the seconds at which they ran, in the order of running."""
        content = Path(self.path).read_bytes()
        return [(number, at / 1e9) for number, at in _ENTRY.iter_unpack(content[: len(content) // 16 * 16])]

    def distinct(self) -> int:
        return len({number for number, _ in self.entries()})

    async def reaches(
        self, count: int, *, every: float = LOOK, within: float = PATIENCE, check: Callable[[], object] = lambda: None
    ) -> None:
        """Wait until so many tasks have run; `check` raises if they never will."""
        deadline = monotonic() + within
        while self.count() < count:
            if monotonic() > deadline:
                raise TimeoutError(f"{self.count()} of {count} tasks have run after {within:g} s")
            check()
            await asyncio.sleep(every)


@contextmanager
def new_trace() -> Iterator[Trace]:
    """A file in memory, where there is such a folder."""
    with tempfile.NamedTemporaryFile(prefix="bullpen-bench-", dir=_MEMORY if _MEMORY.is_dir() else None) as file:
        trace = Trace(file.name)
        try:
            yield trace
        finally:
            trace.close()

"""A worker process: ``python -m benchmarks.servers.worker LIBRARY ADDRESS TRACE PROCESSES``, until it is killed.

It reports that it is ready when everything is imported, and begins on command.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module

from benchmarks.guard import Guarded

from .library import Library
from .trace import Trace

_READY = "ready"


class WorkerDied(Exception):
    """The worker process has ended, with this output."""


class WorkerProcess:
    """One worker process, with its children."""

    def __init__(self, library: type[Library], address: str, trace: Trace, processes: int = 1) -> None:
        name = f"{library.__module__}:{library.__qualname__}"
        command = [sys.executable, "-m", __spec__.name, name, address, trace.path, str(processes)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = Guarded(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)

    @property
    def pid(self) -> int:
        """Of its guard; the worker is the child of that."""
        return self._process.pid

    async def be_ready(self) -> None:
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        if line.decode().strip() != _READY:
            raise self._dead()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def check(self) -> None:
        """Raises if the process has ended."""
        if self._process.poll() is not None:
            raise self._dead()

    def _dead(self) -> WorkerDied:
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace")
        self.kill()
        return WorkerDied(words[-2000:])

    def kill(self) -> None:
        """Kill the process and its children. May be called again."""
        if self._errors.closed:
            return
        self._process.end()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            assert file is not None
            file.close()


@asynccontextmanager
async def ready_workers(
    library: type[Library], address: str, trace: Trace, processes: int = 1
) -> AsyncIterator[list[WorkerProcess]]:
    """Yields workers that are ready to begin, and kills them at the end."""
    count = 1 if library.is_one_service else processes
    workers = [WorkerProcess(library, address, trace, processes // count) for _ in range(count)]
    try:
        for worker in workers:
            await worker.be_ready()
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def main(name: str, address: str, trace: str, processes: int) -> None:
    logging.disable(logging.WARNING)  # otherwise the log lines would dominate the measurement
    module, _, attribute = name.partition(":")
    library: Library = getattr(import_module(module), attribute)(address, Trace(trace), processes)
    print(_READY, flush=True)
    if sys.stdin.readline():
        library.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

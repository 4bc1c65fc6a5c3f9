"""`bullpen worker --reload`: runs the worker in a child process, and restarts it when a source file changes.

The process gets a moment to finish its tasks. It releases the tasks that take longer, without counting an attempt, and
the next process runs them. If the process cannot start, say after a syntax error, the next change restarts it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bullpen.cli.command import CommandError, ExitCode
from bullpen.cli.worker_process.parent_link import LEVELS
from bullpen.cli.worker_process.supervisor import Child

EVERY = 0.3  # seconds between two scans
MOMENT = 2.0  # seconds to finish tasks before they are released
NOT_SOURCE = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

logger = logging.getLogger("bullpen.worker")

Files = dict[str, tuple[int, int]]  # modification time and size of each file


def reload(words: Sequence[str], grace: float) -> int:
    """Run the command `words`, restarted on changes, until a stop signal. Returns the exit code."""
    if sys.platform == "win32":  # pragma: no cover
        raise CommandError("--reload needs Unix signals and sockets")
    return asyncio.run(Reloader([sys.executable, "-m", "bullpen", *words], grace).run())


class Reloader:
    def __init__(self, command: Sequence[str], grace: float) -> None:
        self._command = command
        self._moment = min(grace, MOMENT)
        self._signals = 0
        self._idle = False  # the process has ended by itself; waiting for a change

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._handle)
        while True:
            files = dict(source_files(Path.cwd()))
            child = await Child.start(self._command, 1, is_first=True)
            try:
                code = await self._while_unchanged(child, files)
            finally:
                child.kill()
            if self._signals:
                return ExitCode.FAILED if code else ExitCode.OK

    async def _while_unchanged(self, child: Child, files: Files) -> int:
        """Wait for a change or a signal, end the process, and return its exit code."""
        ended = asyncio.ensure_future(child.ended())
        while not self._signals:
            changed = next(iter(differing(files, dict(source_files(Path.cwd())))), None)
            if changed is not None:
                logger.warning("%s has changed; restarting the worker", changed)
                return await self._stop(child, ended)
            if ended.done() and not self._idle:
                logger.error("the worker has exited; the next change of a file restarts it")
                self._idle = True
            await asyncio.sleep(EVERY)
        return await self._follow_signals(child, ended)

    async def _stop(self, child: Child, ended: asyncio.Future[int]) -> int:
        self._idle = False
        child.tell(1)
        done, _ = await asyncio.wait((ended,), timeout=self._moment)
        if not done:
            child.tell(2)
        return await ended

    async def _follow_signals(self, child: Child, ended: asyncio.Future[int]) -> int:
        passed_on = 0
        while not ended.done():
            while passed_on < self._signals:
                passed_on += 1
                if passed_on > len(LEVELS):
                    child.kill()
                else:
                    child.tell(passed_on)
            await asyncio.wait((ended,), timeout=EVERY)
        return 0 if self._idle else ended.result()

    def _handle(self) -> None:
        self._signals += 1


def source_files(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """The .py files below a folder, without hidden folders and installed packages."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if _is_source(Path(place, name))]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(place, name)
                try:
                    found = os.stat(path)
                except OSError:  # it is gone again
                    continue
                yield os.path.relpath(path, folder), (found.st_mtime_ns, found.st_size)


def _is_source(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in NOT_SOURCE
    return not is_hidden and not (folder / "pyvenv.cfg").exists()


def differing(before: Files, now: Files) -> list[str]:
    """Files that are new, gone or changed."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))

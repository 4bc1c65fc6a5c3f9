"""The health of a worker process: a file that it rewrites each second, and notifications for systemd.

The event loop writes the file, so a blocked loop shows. The store does not matter here: a worker that cannot reach its
store retries, and a restart does not help it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bullpen.cli.command import CommandError
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool, WorkerState

EVERY = 1.0  # seconds
SUFFIX = ".health"

logger = logging.getLogger("bullpen.worker")


@contextlib.asynccontextmanager
async def shown(pool: AsyncWorkerPool, folder: str | None) -> AsyncIterator[None]:
    """Write the health file and notify systemd until the context exits."""
    systemd = Systemd.of_environment()
    if folder is None and systemd is None:
        yield
        return
    file = None if folder is None else _first(Path(folder), pool)
    telling = asyncio.create_task(_keep_telling(pool, file, systemd))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait((telling,))
        if file is not None:
            file.unlink(missing_ok=True)


def _first(folder: Path, pool: AsyncWorkerPool) -> Path:
    file = folder / f"{pool.name}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(file, pool)
    except OSError as error:
        raise CommandError(f"--health {folder}: cannot write there: {error.strerror}") from None
    return file


async def _keep_telling(pool: AsyncWorkerPool, file: Path | None, systemd: Systemd | None) -> None:
    while True:
        if file is not None:
            try:
                _write(file, pool)
            except OSError as error:  # a full disk does not end the worker; the probe sees the age of the file
                logger.warning("cannot write %s: %s", file, error)
        if systemd is not None:
            systemd.tell(pool.state)
        await asyncio.sleep(EVERY)


def _write(file: Path, pool: AsyncWorkerPool) -> None:
    """Replace the file atomically."""
    told = {"pid": os.getpid(), "state": str(pool.state), "ready": pool.ready, "running": pool.running}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(told))
    new.replace(file)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """The health files of a worker's processes, by name, each with its `age` in seconds."""
    found = {}
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            told, written = json.loads(file.read_text()), file.stat().st_mtime
        except (OSError, ValueError):  # the process has just removed it
            continue
        found[file.name.removesuffix(SUFFIX)] = {**told, "age": max(time.time() - written, 0.0)}
    return found


class Systemd:
    """The notifications of `Type=notify` and `WatchdogSec=`; see sd_notify(3)."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._told: WorkerState | None = None

    @classmethod
    def of_environment(cls) -> Systemd | None:
        address = os.environ.get("NOTIFY_SOCKET")
        return cls(address) if address else None

    def tell(self, state: WorkerState) -> None:
        words = ["WATCHDOG=1"]
        if state is not self._told:
            self._told = state
            words += {WorkerState.RUNNING: ["READY=1"], WorkerState.STOPPING: ["STOPPING=1"]}.get(state, [])
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto("\n".join(words).encode(), self._address)

"""The health of a worker process: a file that it rewrites each second, and notifications for systemd.

The event loop writes the file, so a blocked loop shows. The store does not matter here: a worker that cannot reach its
store retries, and a restart does not help it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from bullpen.cli.command import CommandError
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool, WorkerState

EVERY = 1.0  # seconds
SUFFIX = ".health"
LARGEST = 4096  # bytes of a health file
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)

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
    """In a folder of this user alone, because FOLDER itself may be one for all users, such as a mounted volume."""
    file = folder / own_folder() / f"{pool.name}{SUFFIX}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            file.parent.mkdir(0o700)
        _write(file, pool)
    except (OSError, ValueError) as error:
        raise CommandError(f"--health {folder}: cannot write there: {_reason(error)}") from None
    return file


def own_folder() -> str:
    return f"user-{os.geteuid()}" if hasattr(os, "geteuid") else "user"


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
    """Replace the file atomically. No link is followed, and no other file is overwritten."""
    _check_owner(os.lstat(file.parent), file.parent)
    report = HealthReport(pid=os.getpid(), state=str(pool.state), ready=pool.ready, running=pool.running)
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)  # of a process that was killed
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600), "wb") as opened:
        opened.write(msgspec.json.encode(report))
    new.replace(file)


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a health file."""

    pid: int
    state: str
    ready: bool
    running: int
    age: float = 0.0  # seconds since it was written


_decode_report = msgspec.json.Decoder(HealthReport).decode


def read(folder: Path) -> dict[str, HealthReport]:
    """The health files of a worker's processes, by name. Raises CommandError if one of them is not of a worker.

    Root reads the files of all users, other users only their own.
    """
    own = folder / own_folder()
    try:
        folders = sorted(folder.glob("user-*")) if _is_root() else [own] if os.path.lexists(own) else []
        files = [Path(entry.path) for place in folders for entry in os.scandir(place) if entry.name.endswith(SUFFIX)]
        folder.stat()
    except FileNotFoundError:
        files = []
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot read {folder}: {_reason(error)}") from None
    found = {}
    for file in sorted(files):
        try:
            name = file.name.removesuffix(SUFFIX)
            found[name if file.parent == own else f"{file.parent.name}/{name}"] = _read(file)
        except FileNotFoundError:  # the process has just removed it
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise CommandError(f"{file} is not the health file of a worker: {_reason(error)}") from None
    return found


def _read(file: Path) -> HealthReport:
    """Not blocked by a pipe, not led away by a link, and no more of the file than a worker writes."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _NO_LINK)
    try:
        written = os.fstat(descriptor)
        if not stat.S_ISREG(written.st_mode):
            raise ValueError("it is not a regular file")
        content = os.read(descriptor, LARGEST + 1)
    finally:
        os.close(descriptor)
    if not _is_root():
        _check_owner(written, file)
    if len(content) > LARGEST:
        raise ValueError("it is too large")
    return msgspec.structs.replace(_decode_report(content), age=max(time.time() - written.st_mtime, 0.0))


def _check_owner(found: os.stat_result, path: Path) -> None:
    if stat.S_ISLNK(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
        raise OSError(errno.EPERM, f"{path} belongs to another user, or is a link")
    if hasattr(os, "geteuid") and stat.S_ISDIR(found.st_mode) and found.st_mode & 0o077:
        raise OSError(errno.EPERM, f"{path} is open to other users; its mode must be 700")


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


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

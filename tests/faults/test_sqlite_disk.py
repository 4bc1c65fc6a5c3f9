"""The disk is full, read-only or damaged: a call raises a named error, never succeeds falsely, and later calls work."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bullpen.errors import StorageError, StorageFull, StorageReadOnly, UnsafeFile
from bullpen.tasks.model.task import succeed
from bullpen.tasks.storage.port import TaskFilter
from tests.unit.tasks.storage.sqlite.support import claim, new_task, opened, raw

pytestmark = pytest.mark.anyio


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


async def test_on_a_full_disk_nothing_succeeds_falsely(small_disk: Path) -> None:
    path = small_disk / "jobs.db"
    acknowledged = []
    async with opened(path) as storage:
        try:
            for _ in range(1000):
                tasks = await storage.add([new_task(payload=b"x" * 2000) for _ in range(20)])
                acknowledged += [task.id for task in tasks]
        except StorageFull:
            pass
        with pytest.raises(StorageFull):
            await storage.add([new_task(payload=b"x" * 100_000)])
        assert acknowledged
        assert None not in await storage.get(acknowledged)
        subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
        (task,) = await storage.add([new_task(id="at last", priority=9)])
        assert (await claim(storage)).claimed[0].id == task.id
        assert {*acknowledged, "at last"} <= {task.id for task in await storage.list(TaskFilter(), limit=10**5)}
    with raw(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


async def test_a_disk_without_room_for_the_first_page_is_named(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * ((2 << 20) - 8192))
    with pytest.raises(StorageError):
        async with opened(small_disk / "jobs.db") as storage:
            await storage.add([new_task()])
    (small_disk / "filler").unlink()
    async with opened(small_disk / "jobs.db") as storage:
        await storage.add([new_task()])


async def test_a_disk_that_became_read_only_is_named(small_disk: Path) -> None:
    async with opened(small_disk / "jobs.db") as storage:
        await storage.add([new_task()])
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StorageReadOnly):
        async with opened(small_disk / "jobs.db") as storage:
            await storage.add([new_task()])
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    async with opened(small_disk / "jobs.db") as storage:
        await storage.add([new_task()])


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"),
    [(0o755, 0o644), (0o755, 0o600), (0o777, 0o644), (0o777, 0o600), (0o755, None)],
    ids=["only read", "not even read", "only the folder", "only the folder, not even read", "not made"],
)
def test_a_file_of_another_user_is_rejected_and_left_alone(folder_mode: int, file_mode: int | None) -> None:
    """The file is readable, or unreadable, or cannot be created. It stays unchanged."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter pytest's own folders
        path = Path(folder) / "jobs.db"
        if file_mode is not None:
            asyncio.run(_make(path))
            path.chmod(file_mode)
        os.chmod(folder, folder_mode)
        before = path.read_bytes() if path.exists() else b""
        assert _as_nobody(lambda: asyncio.run(_rejected(path))) == 0
        assert (path.read_bytes() if path.exists() else b"") == before


async def _make(path: Path) -> None:
    async with opened(path) as storage:
        await storage.add([new_task()])


async def _rejected(path: Path) -> None:
    with pytest.raises((StorageReadOnly, UnsafeFile), match=path.name):
        await _make(path)


def _as_nobody(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_damaged_bytes_are_rejected_or_harmless(tmp_path: Path, thorough: bool) -> None:
    """Whatever bytes flip, a call returns or raises a Bullpen error, and never replaces the file by an empty one."""
    whole = tmp_path / "whole.db"
    async with opened(whole) as storage:
        await storage.add([new_task(payload=os.urandom(100), unique_key=f"u{n}") for n in range(300)])
        await claim(storage, 50)
    size = whole.stat().st_size
    rng = random.Random(7)
    rejected = 0
    for number in range(1000 if thorough else 60):
        path = tmp_path / f"{number}.db"
        shutil.copy(whole, path)
        with path.open("r+b") as file:
            for _ in range(rng.choice((1, 3, 200))):
                file.seek(rng.choice((rng.randrange(100), rng.randrange(size))))
                file.write(bytes([rng.randrange(256)]))
        try:
            async with opened(path) as storage:
                answer = await claim(storage, 20)
                await claim(storage, 20, tuple(succeed(task, b"1") for task in answer.claimed))
                await storage.list(TaskFilter(), limit=1000)
                await storage.counts()
                await storage.add([new_task()])
        except StorageError:
            rejected += 1
        assert path.stat().st_size >= size
        path.unlink()
    assert rejected > 5

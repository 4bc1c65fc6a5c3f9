"""A file that is removed or replaced while it is in use: no call succeeds any more, and no commit is lost silently."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bullpen import TaskQueue, primitives
from bullpen.errors import StorageGone
from bullpen.tasks.storage.sqlite import file
from tests.unit.tasks.storage.sqlite.support import new_task, opened, raw

pytestmark = pytest.mark.anyio


def work_on(what: str) -> None: ...


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved.db"))


def replace(path: Path) -> None:
    backup = path.with_name("backup.db")
    with raw(path) as db:
        db.execute("VACUUM INTO ?", (str(backup),))
    db.close()
    backup.replace(path)


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def replace_log(path: Path) -> None:
    log = Path(f"{path}-wal")
    shutil.copy(log, f"{log}.copy")
    os.replace(f"{log}.copy", log)


def remove_index(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def remove_lock_folder(path: Path) -> None:
    shutil.rmtree(f"{path}-bullpen")


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_folder(path: Path) -> None:
    copy = path.parent.with_name("copy")
    shutil.copytree(path.parent, copy, ignore=shutil.ignore_patterns("*.ear"))
    shutil.rmtree(path.parent)
    copy.rename(path.parent)


ALL = [
    *(remove, move, replace, remove_log, replace_log, remove_index),
    *(remove_lock_folder, remove_folder, replace_folder),
]
Fault = Callable[[Path], None]
every_fault = pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.__name__)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "jobs.db"


@every_fault
async def test_no_call_succeeds_with_a_file_that_is_gone(path: Path, fault: Fault) -> None:
    async with opened(path, synchronous="normal") as storage:
        await storage.add([new_task()])
        await storage.get(["x"])
        fault(path)
        for _ in range(2):
            with pytest.raises(StorageGone, match="while it was in use"):
                await storage.add([new_task()])
            with pytest.raises(StorageGone):
                await storage.get(["x"])


@every_fault
async def test_a_commit_into_a_file_that_goes_meanwhile_is_not_acknowledged(
    path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path) as storage:
        await storage.add([new_task()])

        def at(name: str) -> None:
            if name == "sqlite.after_commit":
                monkeypatch.undo()
                fault(path)

        monkeypatch.setattr(primitives, "failpoint", at)
        with pytest.raises(StorageGone):
            await storage.add([new_task()])


@every_fault
def test_a_blocking_caller_is_told(path: Path, fault: Fault) -> None:
    queue = TaskQueue(f"sqlite:///{path}?synchronous=normal")

    work = queue.task(name="work")(work_on)
    work.enqueue("x")
    fault(path)
    with pytest.raises(StorageGone):
        work.enqueue("x")
    queue.close()


async def test_a_store_that_is_opened_again_has_what_it_had(path: Path) -> None:
    """SQLite copies the log, which it has still open, when the last connection is closed."""
    async with opened(path) as storage:
        await storage.add([new_task(id="old")])
        remove_log(path)
        with pytest.raises(StorageGone, match="close the store and open it again"):
            await storage.add([new_task()])
        await storage.close()
        await storage.open()
        await storage.add([new_task(id="new")])
        assert None not in await storage.get(["old", "new"])


async def test_two_changes_of_the_folder_in_one_tick_of_its_clock_are_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_TICK", 10**15)
    async with opened(path) as storage:
        await storage.add([new_task()])
        found = path.parent.stat()
        remove_log(path)
        os.utime(path.parent, ns=(found.st_atime_ns, found.st_mtime_ns))
        with pytest.raises(StorageGone):
            await storage.add([new_task()])


async def test_other_files_in_the_folder_may_come_and_go(path: Path) -> None:
    async with opened(path, synchronous="normal") as storage:
        for number in range(20):
            (path.parent / f"{number}.txt").touch()
            await storage.add([new_task(id=str(number))])
            (path.parent / f"{number}.txt").unlink()
            assert await storage.get([str(number)]) != [None]


async def test_no_lock_of_sqlite_is_lost_when_the_file_is_opened_again(path: Path) -> None:
    """A process that closes any descriptor of a file loses all its locks of it. Another process, which is the last one
    that uses the file then, would delete the log.
    """
    async with opened(path):
        pass
    with raw(path) as own:
        own.execute("SELECT * FROM bullpen_task").fetchall()
        async with opened(path) as storage:
            await storage.add([new_task()])
        one_look = f"import sqlite3; db = sqlite3.connect({str(path)!r}); db.execute('PRAGMA user_version'); db.close()"
        subprocess.run([sys.executable, "-c", one_look], check=True)
        assert Path(f"{path}-wal").exists()
    own.close()

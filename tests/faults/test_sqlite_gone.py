"""The SQLite file is removed, replaced, emptied or damaged under a real worker: the worker ends with an error and exit
code 1.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.cli_support import Folder

APP = """
import threading
from bullpen import TaskQueue

queue = TaskQueue("sqlite:///data/jobs.db?synchronous=normal")


@queue.task
def wait() -> None:
    print("waiting", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "data").mkdir()
    return Folder(tmp_path, APP)


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    shutil.copy(path, f"{path}.copy")
    Path(f"{path}.copy").rename(path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_link(path: Path) -> None:
    path.rename(f"{path}.moved")
    path.symlink_to(f"{path}.moved")


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_sockets_by_file(path: Path) -> None:
    """The worker hung, because it could not delete its socket."""
    shutil.rmtree(f"{path}-bullpen")
    Path(f"{path}-bullpen").touch()


@pytest.mark.parametrize(
    "fault",
    [remove, replace, empty, replace_by_link, remove_log, remove_folder, replace_sockets_by_file],
    ids=lambda fault: fault.__name__,
)
def test_an_idle_worker_ends(folder: Folder, fault: Callable[[Path], None]) -> None:
    with folder.worker().runs() as worker:
        fault(folder.path / "data" / "jobs.db")
        assert worker.ends() == 1
        assert "while it was in use; restart this process" in worker.told
        assert "Traceback" not in worker.told


def overwrite_log(path: Path) -> None:
    log = Path(f"{path}-wal")
    with log.open("r+b") as file:
        file.write(os.urandom(log.stat().st_size))


def drop_tables(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE bullpen_task")
    db.close()


@pytest.mark.parametrize("fault", [overwrite_log, drop_tables], ids=lambda fault: fault.__name__)
def test_an_idle_worker_ends_when_the_contents_are_damaged(folder: Folder, fault: Callable[[Path], None]) -> None:
    """It repeated its calls without an end."""
    with folder.worker().runs() as worker:
        fault(folder.path / "data" / "jobs.db")
        assert worker.ends() == 1
        assert "; the worker stops now" in worker.told
        assert "Traceback" not in worker.told


def test_a_worker_ends_though_a_task_is_running(folder: Folder) -> None:
    with folder.worker().runs() as worker:
        folder.python("wait.enqueue()")
        worker.seen("waiting")
        remove(folder.path / "data" / "jobs.db")
        assert worker.ends() == 1


def test_a_supervisor_starts_its_worker_again(folder: Folder) -> None:
    with folder.worker("--processes", "2").runs() as worker:
        worker.seen("serves default", times=2)
        replace(folder.path / "data" / "jobs.db")
        worker.seen("serves default", times=4)
        assert worker.stop() == 0

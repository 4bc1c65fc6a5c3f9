"""Several processes use one SQLite file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bullpen.errors import StorageBusy
from bullpen.tasks.model.task import SUCCESS
from bullpen.tasks.storage.sqlite.file import WriteLock, create_folder
from tests.unit.tasks.storage.sqlite.support import new_task, opened, raw

pytestmark = pytest.mark.anyio

CHILD = [sys.executable, "-m", "tests.faults.sqlite_child"]


async def test_eight_processes_share_a_file(tmp_path: Path) -> None:
    """All create the file at the same time, add, claim and settle. Every task runs once."""
    path = tmp_path / "jobs.db"
    children = [
        subprocess.Popen([*CHILD, "drain", path, "40"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    answers = [child.communicate(timeout=50) for child in children]
    assert [child.returncode for child in children] == [0] * 8, answers[0][1]
    words = [line.split() for out, _ in answers for line in out.splitlines()]
    added = {word[1] for word in words if word[0] == "added"}
    ran = Counter(word[1] for word in words if word[0] == "ran")
    assert len(added) == 320
    assert set(ran) == added
    assert set(ran.values()) == {1}
    async with opened(path) as storage:
        assert (await storage.counts())["default"] == {SUCCESS: 320}
    with raw(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


async def test_a_process_that_waits_is_woken_by_another(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        child = await asyncio.create_subprocess_exec(*CHILD, "wait", str(storage.path), stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        assert await child.stdout.readline() == b"waiting\n"
        await storage.add([new_task()])
        assert await asyncio.wait_for(child.stdout.readline(), 10) == b"woken\n"
        assert await child.wait() == 0
        child._transport.close()  # type: ignore[attr-defined]


async def test_a_writer_that_hangs_is_named(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", busy_timeout=0.05) as storage:
        other = WriteLock(create_folder(storage.path))
        assert other.acquire(1)
        with pytest.raises(StorageBusy):
            await storage.add([new_task()])
        other.close()  # as when its process is killed
        await storage.add([new_task()])

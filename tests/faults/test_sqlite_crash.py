"""A process is killed at any point: every acknowledged write is in the file, and the file is intact."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen.tasks.model.task import SUCCESS
from bullpen.tasks.storage.port import TaskFilter
from tests.unit.tasks.storage.sqlite.support import claim, new_task, opened, raw

pytestmark = pytest.mark.anyio

CHILD = [sys.executable, "-m", "tests.faults.sqlite_child"]


async def check(path: Path, said: str) -> int:
    """Check that every acknowledged write is in the file. Return their number."""
    words = [line.split() for line in said.splitlines()]
    added = {task for verb, task in words if verb == "added"}
    settled = {task for verb, task in words if verb == "settled"}
    async with opened(path) as storage:
        there = {task.id: task for task in await storage.list(TaskFilter(), limit=10**6)}
        assert added <= set(there), f"{len(added - set(there))} lost"
        assert all(there[task].status is SUCCESS for task in settled)
        await storage.add([new_task(id="after", priority=9)])
        assert (await claim(storage)).claimed[0].id == "after"
    with raw(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    return len(added)


@pytest.mark.parametrize("when", [1, 2, 7])
@pytest.mark.parametrize(
    "failpoint",
    ["sqlite.before_commit", "sqlite.after_commit", "sqlite.before_checkpoint", "sqlite.before_migration_commit"],
)
async def test_acknowledged_writes_survive_a_kill_at_a_failpoint(tmp_path: Path, failpoint: str, when: int) -> None:
    if failpoint == "sqlite.before_migration_commit":
        when = 1
    path = tmp_path / "jobs.db"
    child = subprocess.run(
        [*CHILD, "work", path, "400", failpoint, str(when)], capture_output=True, text=True, check=False, timeout=50
    )
    assert child.returncode == -9, child.stderr
    await check(path, child.stdout)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_acknowledged_writes_survive_a_kill_at_a_system_call(tmp_path: Path, thorough: bool) -> None:
    """At the k-th write or sync, for many k: while the schema is made, and in a file that has one."""
    acknowledged = 0
    for when in range(1, 120) if thorough else (1, 2, 3, 5, 9, 14, 33, 80):
        path = tmp_path / f"{when}.db"
        if when % 2 == 0 or when > 30:
            async with opened(path):
                pass
        calls = "pwrite64,fdatasync,fsync,ftruncate"
        inject = f"inject={calls}:signal=KILL:when={when}"
        child = subprocess.run(
            [
                "strace",
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                f"trace={calls}",
                "-e",
                inject,
                *CHILD,
                "work",
                path,
                "30",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        assert child.returncode != 0, "nothing ended it"
        acknowledged += await check(path, child.stdout)
    assert acknowledged > 10

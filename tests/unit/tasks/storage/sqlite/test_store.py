"""What the SQLite store promises beyond the port: leases that no clock touches, upkeep that writes nothing in vain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bullpen.tasks.model.task import PENDING, RUNNING, AttemptError, Settlement, Task, crash
from bullpen.tasks.storage.port import TaskFilter
from bullpen.tasks.storage.sqlite import schema
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from tests.unit.tasks.storage.sqlite.support import ManualClock, claim, new_task, opened, raw

pytestmark = pytest.mark.anyio


def decide(task: Task, now: float) -> Settlement:
    return crash(task, AttemptError(kind="crash", attempt=task.attempt, at=now))


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 1e9])
async def test_the_wall_clock_does_not_touch_leases(tmp_path: Path, jump: float) -> None:
    manual = ManualClock()
    async with opened(tmp_path / "jobs.db", clock=manual.clock) as storage:
        await storage.add([new_task()])
        (task,) = (await claim(storage, lease=15.0)).claimed
        manual.wall += jump
        assert await storage.rescue_expired(decide, limit=9) == []
        (shown,) = await storage.get([task.id])
        assert shown is not None
        assert shown.lease_until == manual.wall + 15.0
        manual.since_boot += 15.0
        (rescued,) = await storage.rescue_expired(decide, limit=9)
        assert rescued.status is PENDING


async def test_a_new_boot_ends_all_leases(tmp_path: Path) -> None:
    manual = ManualClock(elapsed=5000.0)
    async with opened(tmp_path / "jobs.db", clock=manual.clock) as storage:
        await storage.add([new_task(), new_task()])
        await claim(storage, lease=15.0)
    manual.boot, manual.since_boot = "second boot", 3.0
    async with opened(tmp_path / "jobs.db", clock=manual.clock) as storage:
        assert len(await storage.rescue_expired(decide, limit=9)) == 1
        await claim(storage, lease=15.0)
    async with opened(tmp_path / "jobs.db", clock=manual.clock) as storage:  # the same boot
        assert await storage.rescue_expired(decide, limit=9) == []


async def test_upkeep_is_bounded_and_writes_nothing_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    manual = ManualClock()
    async with opened(tmp_path / "jobs.db", clock=manual.clock) as storage:
        await storage.add([new_task(expires=manual.wall + 1, failure_ttl=5.0) for _ in range(10)])
        before = data_version(storage.path)
        assert (await storage.expire(limit=4), await storage.prune(limit=4)) == ([], 0)
        assert await storage.rescue_expired(decide, limit=4) == []
        assert data_version(storage.path) == before
        manual.advance(1)
        assert [len(await storage.expire(limit=4)) for _ in range(4)] == [4, 4, 2, 0]
        manual.advance(5)
        assert [await storage.prune(limit=4) for _ in range(4)] == [4, 4, 2, 0]
        assert await storage.list(TaskFilter(), limit=9) == []


def data_version(path: Path) -> bytes:
    return path.with_name(path.name + "-wal").read_bytes()


def test_one_object_may_be_used_on_one_loop_after_the_other(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "jobs.db")

    async def use() -> None:
        await storage.add([new_task(queue="other")])
        await storage.wait_for_work(["default"], 0.01)
        await storage.wait_for_result("no such task", 0, 0.01)

    async def end() -> None:
        await use()
        await storage.close()

    asyncio.run(use())
    asyncio.run(use())
    assert len(list(tmp_path.glob("jobs.db-bullpen/*.wakeup"))) == 1
    asyncio.run(end())


async def test_an_older_schema_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(id="old")])
    second = "ALTER TABLE bullpen_task ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\n"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, second))
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(id="new")])
        assert len(await storage.list(TaskFilter(statuses=(PENDING, RUNNING)), limit=9)) == 2
    with raw(tmp_path / "jobs.db") as db:
        assert db.execute("SELECT id, colour FROM bullpen_task ORDER BY id").fetchall() == [
            ("new", "red"),
            ("old", "red"),
        ]
        assert db.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    db.close()

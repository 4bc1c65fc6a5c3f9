"""What the SQLite store promises beyond the port: leases that no clock touches, owners that are alive."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from bullpen.storage.port import Hold, TaskFilter, WorkerRecord
from bullpen.storage.sqlite import host, schema
from bullpen.storage.sqlite.store import SqliteStorage
from bullpen.tasks.task import PENDING, RUNNING, Settlement, Task, TaskError, crash, succeed
from tests.unit.storage.sqlite.support import ManualClock, claim, new_task, opened, raw

pytestmark = pytest.mark.anyio


def decide(task: Task, now: float) -> Settlement:
    return crash(task, TaskError(kind="crash", attempt=task.attempt, at=now))


def own_record(worker: str = "w", **fields: object) -> WorkerRecord:
    known = {
        "id": worker,
        "host": "here",
        "pid": os.getpid(),
        "boot_id": host.boot_id(),
        "process_started": host.process_started(os.getpid()),
        "queues": (),
        "concurrency": 1,
    }
    return WorkerRecord(**{**known, **fields})  # type: ignore[arg-type]


async def test_tasks_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    task = new_task(headers={"a": "b"}, expires=9e9, concurrency_key="k", interval=5.0)
    async with opened(tmp_path / "jobs.db") as storage:
        (kept,) = await storage.add([task])
    async with opened(tmp_path / "jobs.db") as storage:
        assert await storage.get([task.id]) == [kept]


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


async def test_nothing_is_taken_from_an_owner_that_is_alive(tmp_path: Path) -> None:
    manual = ManualClock()
    async with opened(tmp_path / "jobs.db", clock=manual.clock) as storage:
        await storage.add([new_task(id="t")])
        await claim(storage, lease=1.0)
        manual.advance(100.0)
        await storage.note_worker(own_record())
        assert await storage.rescue_expired(decide, limit=9) == []
        renewed = await storage.renew([Hold("t", 1)], 1.0)
        assert renewed.lost == frozenset()
        for dead in (
            own_record(process_started=1.5),
            own_record(boot_id="another"),
            own_record(pid=2**22 + 1),
            own_record(boot_id=""),
        ):
            await storage.note_worker(dead)
            manual.advance(100.0)
            (rescued,) = await storage.rescue_expired(decide, limit=9)
            await storage.retry([rescued.id])
            assert (await claim(storage, lease=1.0)).claimed


async def test_a_worker_that_is_known_to_be_dead_is_not_waited_for(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task()])
        await claim(storage, lease=1000.0)
        await storage.note_worker(own_record())
        (rescued,) = await storage.rescue_expired(decide, limit=9, dead_workers=["w"])
        assert rescued.crashes == 1


async def test_who_is_left_alone_does_not_stand_in_the_way_of_others(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(), new_task(), new_task()])
        claimed = (await claim(storage, 3, lease=0.0)).claimed
        spared = {task.id for task in claimed[:2]}
        rescued = await storage.rescue_expired(
            lambda task, now: None if task.id in spared else decide(task, now), limit=1
        )
        assert [task.id for task in rescued] == [claimed[2].id]


async def test_upkeep_is_bounded_and_writes_nothing_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    manual = ManualClock()
    async with opened(tmp_path / "jobs.db", clock=manual.clock) as storage:
        await storage.add([new_task(expires=manual.wall + 1, result_ttl=5.0) for _ in range(10)])
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


async def test_who_waits_is_woken_by_work_and_by_results(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        waiting = asyncio.ensure_future(storage.wait_for_work(["default"], 30))
        await asyncio.sleep(0.02)
        (task,) = await storage.add([new_task()])
        await asyncio.wait_for(waiting, 5)
        waiting = asyncio.ensure_future(storage.wait_for_result(task.id, 0, 30))
        (held,) = (await claim(storage)).claimed
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await claim(storage, 0, (succeed(held, b"1"),))
        await asyncio.wait_for(waiting, 5)


async def test_who_waits_for_work_wakes_when_a_task_becomes_due(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(eta=await storage.now() + 0.05, priority=3)])
        looks = 0
        while not (await claim(storage)).claimed:
            looks += 1
            await asyncio.wait_for(storage.wait_for_work(["default"], 30), 5)
        assert looks <= 3  # it may have heard of the task itself, and once too early


async def test_a_queue_at_its_limit_is_no_work(tmp_path: Path) -> None:
    """Or a worker would ask again and again."""
    from bullpen.storage.port import Limit

    async with opened(tmp_path / "jobs.db") as storage:
        await storage.set_limit(Limit(queue="default", max_running=1))
        await storage.add([new_task(), new_task()])
        (held,) = (await claim(storage)).claimed
        waiting = asyncio.ensure_future(storage.wait_for_work(["default"], 30))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await claim(storage, 0, (succeed(held, None),))
        await asyncio.wait_for(waiting, 5)


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
    assert len(list(tmp_path.glob("jobs.db-bullpen/*.ear"))) == 1
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

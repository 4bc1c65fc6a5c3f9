"""How long the records of lost workers stay."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from msgspec.structs import replace

from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import WorkerRecord
from bullpen.tasks.worker.identity import is_dead, machine
from bullpen.tasks.worker.reports import Reports
from bullpen.tasks.worker.upkeep import LOST_KEPT, RECENT, SHOWN_FOR, Upkeep

DEAD = WorkerRecord(
    id="dead",
    host="box",
    pid=os.getpid(),
    boot_id=machine.boot_id(),
    process_started=1.0,
    queues=("default",),
    concurrency=1,
)
ELSEWHERE = replace(DEAD, id="elsewhere", boot_id="another")


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def storage(clock: Clock) -> MemoryStorage:
    return MemoryStorage(now=clock)


async def kept(storage: MemoryStorage) -> list[str]:
    await Upkeep(storage, 15.0, Reports("w", "w", None, time.monotonic)).rescue()
    return [record.id for record in await storage.workers()]


@pytest.mark.anyio
async def test_lost_workers_are_shown_for_a_day(storage: MemoryStorage, clock: Clock) -> None:
    assert is_dead(DEAD)
    for record in (DEAD, ELSEWHERE):
        await storage.save_worker(record)
    for passed in (0.0, RECENT + 1, SHOWN_FOR - RECENT - 2):
        clock.now += passed
        assert await kept(storage) == ["dead", "elsewhere"]
    clock.now += 2
    assert await kept(storage) == []


@pytest.mark.anyio
async def test_the_latest_lost_workers_are_shown(storage: MemoryStorage, clock: Clock) -> None:
    for number in range(LOST_KEPT + 5):
        clock.now += 1
        await storage.save_worker(replace(DEAD, id=f"dead-{number:02}"))
    assert await kept(storage) == [f"dead-{number:02}" for number in range(5, LOST_KEPT + 5)]


@pytest.mark.anyio
async def test_a_silent_worker_on_this_host_that_lives_keeps_its_record(storage: MemoryStorage, clock: Clock) -> None:
    began = machine.process_started(os.getppid())
    assert began is not None
    await storage.save_worker(replace(DEAD, id="stopped", pid=os.getppid(), process_started=began))
    clock.now += 10 * SHOWN_FOR
    assert await kept(storage) == ["stopped"]


@pytest.mark.anyio
async def test_the_record_of_a_dead_worker_says_so(storage: MemoryStorage) -> None:
    for record in (DEAD, ELSEWHERE):
        await storage.save_worker(record)
    await kept(storage)
    assert {record.id: record.lost for record in await storage.workers()} == {"dead": True, "elsewhere": False}


@pytest.mark.anyio
async def test_a_worker_that_has_deleted_its_record_before_it_ended_is_not_lost(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.save_worker(DEAD)
    rescue = storage.rescue_expired

    async def meanwhile(*args: Any, **options: Any) -> Any:
        await storage.delete_worker(DEAD.id)
        return await rescue(*args, **options)

    monkeypatch.setattr(storage, "rescue_expired", meanwhile)
    assert await kept(storage) == []

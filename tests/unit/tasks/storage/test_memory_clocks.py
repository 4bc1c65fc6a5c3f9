"""The store in memory has two clocks: the wall's, which may be turned, and one for leases."""

from __future__ import annotations

import pytest

from bullpen.tasks.model.task import PENDING, Task, release
from bullpen.tasks.storage.memory import MemoryStorage


class Clocks:
    now = 1_000_000.0
    elapsed = 50.0


def new_store(clocks: Clocks) -> MemoryStorage:
    return MemoryStorage(lambda: clocks.now, lambda: clocks.elapsed)


async def claim(store: MemoryStorage) -> list[str]:
    exchange = await store.exchange([], worker="w", queues=["default"], limit=10, lease=15.0, claim_id="c")
    return [task.id for task in exchange.claimed]


@pytest.mark.anyio
@pytest.mark.parametrize("turned", [-3600.0, 3600.0])
async def test_a_lease_does_not_notice_that_the_clock_is_turned(turned: float) -> None:
    store = new_store(clocks := Clocks())
    await store.add([Task(id="1", func_path="f", payload=b"{}")])
    assert await claim(store) == ["1"]
    clocks.now += turned
    clocks.elapsed += 14.9
    assert await store.rescue_expired(lambda task, _: release(task), limit=10) == []
    clocks.elapsed += 0.2
    (rescued,) = await store.rescue_expired(lambda task, _: release(task), limit=10)
    assert rescued.status is PENDING


@pytest.mark.anyio
async def test_a_due_task_waits_again_when_the_clock_is_turned_back() -> None:
    store = new_store(clocks := Clocks())
    await store.add([Task(id="1", func_path="f", payload=b"{}", eta=clocks.now + 10)])
    clocks.now += 11
    await store.wait_for_work(["default"], 0.0)  # it has become due
    clocks.now -= 5
    assert await claim(store) == []
    clocks.now += 5
    assert await claim(store) == ["1"]

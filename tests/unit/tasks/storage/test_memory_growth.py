"""The store in memory keeps nothing of tasks that are gone."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import DependsOn, Task, fail, succeed
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.testing.storage_contract.base import claim, error_of

COUNT = 200
_numbers = itertools.count()


def new_task(**fields: object) -> Task:
    return Task(id=f"{next(_numbers):012}", func_path="f", payload=b"{}", result_ttl=0.0, failure_ttl=0.0, **fields)  # type: ignore[arg-type]


async def run_keyed(store: MemoryStorage) -> None:
    """Each with a concurrency key of its own, and a second try."""
    await store.add([new_task(concurrency_key=f"key {next(_numbers)}", max_retries=1) for _ in range(COUNT)])
    mine = await claim(store, COUNT)
    again = await claim(store, COUNT, *(fail(task, error_of(task), 0.0, after=0.0) for task in mine))
    await claim(store, 0, *(succeed(task, None) for task in again))
    assert await store.prune(limit=1000) == COUNT


async def run_group(store: MemoryStorage) -> None:
    """Its callback is written with the end of each."""
    callback = f"callback {next(_numbers)}"
    members = [new_task(next_task_id=callback) for _ in range(COUNT)]
    depends_on = DependsOn(ids=tuple(member.id for member in members))
    await store.add([*members, replace(new_task(depends_on=depends_on, waits_for=COUNT), id=callback)])
    for _ in range(COUNT + 1):
        await claim(store, 0, *(succeed(task, None) for task in await claim(store, 1)))
    assert await store.prune(limit=1000) == COUNT + 1


@pytest.mark.anyio
@pytest.mark.parametrize("run", [run_keyed, run_group])
async def test_tasks_that_are_gone_take_no_memory(run: object) -> None:
    assert callable(run)
    store, sizes = MemoryStorage(), []
    tracemalloc.start()
    try:
        for _ in range(6):
            await run(store)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[1] < 4 * COUNT * 20  # bytes: of each task after the first ones, not even an entry

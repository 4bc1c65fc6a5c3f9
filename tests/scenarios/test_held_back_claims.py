"""On servers too, a claim does not become slow because a limit holds back many tasks of one key."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Limit, Storage
from bullpen.testing.storage_contract.base import claim, claimed_one, new_tasks
from tests.stores import new_store

FEW, MANY = 300, 9000


async def seconds_of_a_claim(store: Storage) -> float:
    """The least of some, for the machine may be busy."""
    least = float("inf")
    for _ in range(30):
        begun = time.perf_counter()
        assert await claim(store, 5) == []
        least = min(least, time.perf_counter() - begun)
    return least


@pytest.mark.parametrize("terms", [{"max_running_per_key": 1}, {"in_order": True}], ids=" ".join)
@pytest.mark.parametrize(("kind", "most"), [("redis", 3.0), ("postgres", 15.0)])
def test_a_claim_is_not_slowed_by_many_tasks_of_one_key(
    kind: str, most: float, terms: dict[str, int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async def ratio(url: str) -> float:
        store = open_storage(url)
        await store.open()
        try:
            await store.set_limit(Limit(queue="default", **terms))  # type: ignore[arg-type]
            await claimed_one(store, concurrency_key="hot")
            await store.add(new_tasks(FEW, concurrency_key="hot"))
            few = await seconds_of_a_claim(store)
            for _ in range(0, MANY - FEW, 1000):
                await store.add(new_tasks(1000, concurrency_key="hot"))
            return await seconds_of_a_claim(store) / few
        finally:
            await store.close()

    with new_store(kind, tmp_path, request) as url:
        assert asyncio.run(ratio(url)) < most  # it would be 30 if all of them were looked at

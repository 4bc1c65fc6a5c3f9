"""The history: counts of minutes and hours."""

from __future__ import annotations

import asyncio

from bullpen.tasks.model.history import HOUR, KEPT, MINUTE, STEPS, HistoryRow
from bullpen.tasks.storage.port import Storage
from bullpen.testing.storage_contract.base import StoreTests


def row(at: int, step: int = MINUTE, queue: str = "default", function: str = "app.send") -> HistoryRow:
    return HistoryRow(step, at, queue, function, (1, 2), (0, 3), (4,))


class HistoryTests(StoreTests):
    """A store adds counts to counts, and keeps them for their time."""

    async def test_counts_of_several_workers_are_added(self, store: Storage) -> None:
        this = int(await store.now()) // MINUTE * MINUTE
        await store.add_history([row(this)])
        await store.add_history([HistoryRow(MINUTE, this, "default", "app.send", (0, 0, 5), (), (1, 0, 0, 7))])
        added = HistoryRow(MINUTE, this, "default", "app.send", (1, 2, 5), (0, 3), (5, 0, 0, 7))
        assert list(await store.history(MINUTE, this, this + 1)) == [added]

    async def test_rows_are_found_by_step_time_queue_and_function(self, store: Storage) -> None:
        this = int(await store.now()) // HOUR * HOUR
        minutes = [row(this - MINUTE), row(this), row(this, queue="mail"), row(this, function="app.öffnen'\"|")]
        await store.add_history([*minutes, row(this, HOUR)])
        assert set(await store.history(MINUTE, this - MINUTE, this + MINUTE)) == set(minutes)
        assert set(await store.history(MINUTE, this, this + MINUTE)) == set(minutes[1:])
        assert list(await store.history(MINUTE, this - MINUTE, this)) == minutes[:1]
        assert list(await store.history(MINUTE, 0.0, this + HOUR, queue="mail")) == [minutes[2]]
        assert list(await store.history(MINUTE, this, this + 0.5, function="app.öffnen'\"|")) == [minutes[3]]
        assert list(await store.history(HOUR, this, this + HOUR)) == [row(this, HOUR)]
        assert list(await store.history(HOUR, this + 1, this + HOUR)) == []
        assert list(await store.history(MINUTE, this, this + HOUR, queue="nobody")) == []

    async def test_rows_come_in_the_order_of_time(self, store: Storage) -> None:
        this = int(await store.now()) // HOUR * HOUR
        rows = [row(this - number * MINUTE, queue=queue) for number in range(90, 0, -1) for queue in ("a", "b")]
        await store.add_history(rows[::-1])
        assert list(await store.history(MINUTE, this - 2 * HOUR, this)) == rows

    async def test_old_rows_are_pruned(self, store: Storage) -> None:
        now = int(await store.now())
        fresh = {step: row((now - int(KEPT[step]) // 2) // step * step, step) for step in STEPS}
        old = [row((now - int(KEPT[step])) // HOUR * HOUR - 2 * 86_400, step) for step in STEPS]
        await store.add_history([*fresh.values(), *old])
        await store.prune(limit=10)
        for step in STEPS:
            assert list(await store.history(step, 0.0, now + 1.0)) == [fresh[step]]

    async def test_many_workers_add_at_the_same_time(self, store: Storage) -> None:
        this = int(await store.now()) // MINUTE * MINUTE
        rows = [row(this, step, queue) for step in STEPS for queue in ("a", "b")]
        rows = [HistoryRow(one.step, this // one.step * one.step, *(one.queue, one.function), (1,)) for one in rows]
        await asyncio.gather(*(store.add_history(rows) for _ in range(20)))
        found = [one for step in STEPS for one in await store.history(step, 0.0, this + 1)]
        assert [(one.queue, one.counts) for one in found] == [("a", (20,)), ("b", (20,))] * 2

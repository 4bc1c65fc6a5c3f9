"""The history: counts of minutes and hours, and failures by their fingerprint."""

from __future__ import annotations

import asyncio

from bullpen.tasks.model.failure_groups import FAILURES_KEPT, FailureExample, FailureRow
from bullpen.tasks.model.history import HOUR, KEPT, MINUTE, STEPS, HistoryRow
from bullpen.tasks.storage.port import Storage
from bullpen.testing.storage_contract.base import StoreTests


def row(at: int, step: int = MINUTE, queue: str = "default", function: str = "app.send") -> HistoryRow:
    return HistoryRow(step, at, queue, function, (1, 2), (0, 3), (4,))


def failure(at: int, last: float, count: int = 1, queue: str = "default", fingerprint: str = "a1") -> FailureRow:
    example = FailureExample(f"task-{last}", "exception", "ValueError", f'it broke "{last}" \\ ö', "app.py:3 in send")
    return FailureRow(at, queue, "app.send", fingerprint, count, last - count, last, example)


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

    async def test_failures_are_added_and_the_latest_is_the_example(self, store: Storage) -> None:
        this = int(await store.now()) // HOUR * HOUR
        await store.add_history([], [failure(this, this + 5.25, 3), failure(this, this + 1.5, queue="mail")])
        await store.add_history([row(this)], [failure(this, this + 2.25, 2), failure(this - HOUR, this - 1.0)])
        found = {one.key: one for one in await store.failures(this)}
        assert len(found) == 2
        added = found[failure(this, 0.0).key]
        assert (added.count, added.first, added.last) == (5, this + 0.25, this + 5.25)
        assert added.example == failure(this, this + 5.25).example
        assert found[failure(this, 0.0, queue="mail").key] == failure(this, this + 1.5, queue="mail")
        await store.add_history([], [failure(this, this + 9.5)])
        (newest,) = [one for one in await store.failures(this) if one.queue == "default"]
        assert (newest.count, newest.example) == (6, failure(this, this + 9.5).example)
        assert len(await store.failures(0.0)) == 3

    async def test_failures_are_deleted_by_their_fingerprint(self, store: Storage) -> None:
        this = int(await store.now()) // HOUR * HOUR
        rows = [failure(this, this + 1.0, fingerprint=name) for name in ("a", "b", "c")]
        await store.add_history([], [*rows, failure(this - HOUR, this - 1.0, fingerprint="a")])
        await store.delete_failures("a")
        await store.delete_failures("b", "another.function")
        await store.delete_failures("c", "app.send")
        assert [one.fingerprint for one in await store.failures(0.0)] == ["b"]

    async def test_old_failures_are_pruned(self, store: Storage) -> None:
        now = int(await store.now()) // HOUR * HOUR
        fresh, old = failure(now, now + 1.0), failure(now - int(FAILURES_KEPT) - 2 * 86_400, 1.0)
        await store.add_history([], [fresh, old])
        await store.prune(limit=10)
        assert list(await store.failures(0.0)) == [fresh]

    async def test_a_damaged_row_hides_no_other_and_takes_new_counts(self, store: Storage) -> None:
        this = int(await store.now()) // HOUR * HOUR
        example = FailureExample("t", "exception", "ValueError", "no", "app.py:1")
        for number, value in enumerate(self.damages_history):
            rows = [row(this, function=f"{name}{number}") for name in ("bad", "good")]
            failures = [FailureRow(this, "default", one.function, "f", 1, this, this, example) for one in rows]
            await store.add_history(rows[:1], failures[:1])
            await self.damage_history(value)
            await store.add_history(rows[1:], failures[1:])
            assert rows[1] in await store.history(MINUTE, this, this + 1), value
            assert failures[1] in await store.failures(this), value
            await store.add_history(rows[:1], failures[:1])
            assert rows[0].function in {one.function for one in await store.history(MINUTE, this, this + 1)}, value
            await store.delete_failures("f")

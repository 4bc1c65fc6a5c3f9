"""Rows that cannot be read: one of them stops nothing, nothing overwrites it, and operators can handle it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    FINAL,
    FORMAT,
    PENDING,
    RUNNING,
    SUCCESS,
    AttemptError,
    DependsOn,
    Settlement,
    Task,
    release,
    set_aside,
    succeed,
)
from bullpen.tasks.model.unreadable import unreadable_message
from bullpen.tasks.storage.port import Limit, Storage, TaskFilter, WorkerRecord
from bullpen.testing.storage_contract.base import (
    A_MOMENT,
    StoreTests,
    added,
    claim,
    claimed_one,
    get,
    hold,
    ids,
    new_task,
    new_tasks,
    settle,
    take_back,
)

WORKER = WorkerRecord(
    id="w", host="h", pid=1, boot_id="b", process_started=1.0, queues=("default",), concurrency=1, started_at=1.0
)


def aside(task: Task, now: float) -> Settlement:
    """What the worker that has claimed it makes of it."""
    error = AttemptError(kind="poison", attempt=task.attempt, at=now, message=unreadable_message(task))
    return set_aside(task, error, 0.0)


class UnreadableTests(StoreTests):
    async def _bad(self, store: Storage, kind: str, **fields: object) -> tuple[Task, Callable[[], Awaitable[object]]]:
        task = await added(store, **fields)
        return task, await self.damage(task.id, kind)

    async def test_it_is_claimed_like_any_other_and_set_aside_with_its_bytes(self, store: Storage) -> None:
        for kind in self.damages_claimed:
            bad, stored = await self._bad(store, kind)
            written = await stored()
            good = await added(store)
            claimed = {task.id: task for task in await claim(store, 10)}
            assert set(claimed) == {bad.id, good.id}, kind
            assert claimed[bad.id].unreadable, kind
            assert not claimed[good.id].unreadable, kind
            rejected = await settle(store, aside(claimed[bad.id], await store.now()), succeed(claimed[good.id], b"1"))
            assert rejected == frozenset(), kind
            assert (await get(store, good)).status is SUCCESS, kind
            after = await get(store, bad)
            assert after.status is FAILED, kind
            assert after.error is not None, kind
            assert after.error.kind == "poison", kind
            if kind.partition(".")[0] not in ("attempt", "worker"):  # which every claim writes
                assert after.unreadable, kind
                assert await stored() == written, kind

    async def test_no_kind_of_damage_keeps_others_from_running(self, store: Storage) -> None:
        for kind in (*self.damages_claimed, *self.damages_other, "newer"):
            await self._bad(store, kind)
            good = await added(store)
            for task in await claim(store, 10):
                now = await store.now()
                assert await settle(store, aside(task, now) if task.unreadable else succeed(task, b"1")) == frozenset()
            assert (await get(store, good)).status is SUCCESS, kind

    async def test_lists_and_counts_show_it(self, store: Storage) -> None:
        await store.add(new_tasks(3))
        for kind in (*self.damages_claimed, *self.damages_other, "newer"):
            bad, _ = await self._bad(store, kind)
            shown = {task.id: task for task in await store.list(TaskFilter(), limit=100)}
            assert shown[bad.id].unreadable, kind
            assert (await get(store, bad)).unreadable, kind
            over = await store.list(TaskFilter(statuses=tuple(FINAL)), limit=100)
            assert (bad.id in ids(over)) == (await get(store, bad)).is_final, kind
        shown_all = await store.list(TaskFilter(), limit=100)
        assert len([task for task in shown_all if not task.unreadable]) == 3
        assert sum(sum(by_status.values()) for by_status in (await store.counts()).values()) >= 3

    async def test_operators_cancel_and_delete_it_but_do_not_retry_it(self, store: Storage) -> None:
        for kind in (*self.damages_claimed, *self.damages_other, "newer"):
            bad, _ = await self._bad(store, kind)
            other = await added(store)
            await store.cancel([bad.id, other.id])
            assert (await get(store, other)).status is CANCELLED, kind
            assert (await get(store, bad)).is_final, kind
            assert ids(await store.retry([bad.id, other.id])) == [other.id], kind
            assert (await get(store, bad)).is_final, kind
            await store.cancel([other.id])
            assert await store.delete([bad.id, other.id]) == 2, kind
            assert list(await store.get([bad.id])) == [None], kind

    async def test_one_that_was_damaged_while_it_ran_can_be_settled_and_rescued(self, store: Storage) -> None:
        for kind in self.damages_claimed:
            first, second = await claimed_one(store), await claimed_one(store)
            await self.damage(first.id, kind)
            await self.damage(second.id, kind)
            await store.renew([hold(first), hold(second)], A_MOMENT)
            assert {task.id for task in await store.find_claim(first.claim_id or "")} <= {first.id, second.id}, kind
            await store.cancel([first.id])
            rescued = await store.rescue_expired(take_back, limit=10, dead_workers=["w"])
            assert {first.id, second.id} == set(ids(rescued)), kind
            for task in await claim(store, 10):
                assert task.unreadable, kind
                await settle(store, aside(task, await store.now()))
            left = await store.list(TaskFilter(statuses=(PENDING, RUNNING)), limit=10)
            assert list(left) == [], kind

    async def test_a_running_one_with_a_damaged_attempt_is_rescued(self, store: Storage) -> None:
        for kind in (*self.damages_claimed, *self.damages_other):
            if kind.partition(".")[0] == "attempt":
                task = await claimed_one(store)
                await self.damage(task.id, kind)
                rescued = await store.rescue_expired(take_back, limit=10, dead_workers=["w"])
                assert ids(rescued) == [task.id], kind
                assert (await get(store, task)).status is not RUNNING, kind
                await store.cancel([task.id])

    async def test_it_expires_and_is_pruned(self, store: Storage) -> None:
        for kind in self.damages_claimed:
            late = await store.now() - 1.0
            bad, _ = await self._bad(store, kind, expires=late, failure_ttl=0.0)
            good = await added(store, expires=late, failure_ttl=0.0)
            await store.expire(limit=10)
            assert (await get(store, good)).status is FAILED, kind
            await store.wait_for_work(["default"], 0.0)
            await store.prune(limit=10)
            assert list(await store.get([good.id])) == [None], kind
            await store.cancel([bad.id])
            await store.delete([bad.id])

    async def test_it_keeps_its_unique_key_and_its_place_before_others(self, store: Storage) -> None:
        for kind in self.damages_claimed:
            bad, _ = await self._bad(store, kind, unique_key="k", concurrency_key="c")
            await store.add([new_task(unique_key="k"), new_task(concurrency_key="c")])
            for task in await claim(store, 10):
                await settle(store, aside(task, await store.now()) if task.unreadable else succeed(task, b"1"))
            assert (await get(store, bad)).status is FAILED, kind
            assert await claim(store, 10) == [], kind

    @pytest.mark.parametrize("outcome", ["success", "failure"])
    async def test_tasks_before_and_behind_it_go_on(self, store: Storage, outcome: str) -> None:
        for kind in self.damages_claimed:
            first, behind = new_task(), new_task(waits_for=1)
            first = replace(first, next_task_id=behind.id)
            await store.add([first, replace(behind, depends_on=DependsOn(ids=(first.id,)))])
            await self.damage(behind.id, kind)
            (running,) = await claim(store, 10)
            how = succeed(running, b"1") if outcome == "success" else aside(replace(running, format=FORMAT), 1.0)
            assert await settle(store, how) == frozenset(), kind
            for task in await claim(store, 10):
                assert task.unreadable, kind
                await settle(store, aside(task, await store.now()))
            await store.cancel([behind.id])
            assert (await get(store, behind)).is_final, kind

    async def test_a_row_of_a_newer_version_waits_and_never_fails(self, store: Storage) -> None:
        bad, stored = await self._bad(store, "newer")
        written = await stored()
        good = await added(store)
        (first, second) = await claim(store, 10)
        assert {first.id, second.id} == {bad.id, good.id}
        task = first if first.id == bad.id else second
        assert task.format > FORMAT
        assert task.unreadable
        settlement = aside(task, await store.now())
        assert (settlement.status, settlement.error) == (PENDING, None)
        assert settlement.delay is not None
        assert settlement.delay >= 1.0
        await settle(store, settlement)
        after = await get(store, bad)
        assert (after.status, after.attempt, after.errors) == (PENDING, 1, ())
        assert after.eta > await store.now()
        assert await stored() == written

    async def test_a_running_row_of_a_newer_version_is_released(self, store: Storage) -> None:
        task = await claimed_one(store)
        await self.damage(task.id, "newer")
        assert await settle(store, release(task)) == frozenset()
        assert (await get(store, task)).status is PENDING

    async def test_an_unreadable_record_of_a_worker_hides_no_other(self, store: Storage) -> None:
        await store.save_worker(WORKER)
        await store.save_worker(replace(WORKER, id="v"))
        await self.damage_worker("v")
        assert [record.id for record in await store.workers()] == ["w"]
        await store.delete_worker("v")

    async def test_damaged_settings_of_a_queue_stop_no_other_queue(self, store: Storage) -> None:
        for kind in (*self.damages_limit, *self.damages_settings):
            await store.set_limit(Limit(queue="other", max_running=1000, rate=1000.0))
            await settle(store, succeed(await claimed_one(store, queue="other"), b"1"))  # a start that the rate counts
            await self.damage_settings(kind)
            here, there = await added(store), await added(store, queue="other")
            for task in await claim(store, 10, queues=["default", "other"]):
                assert await settle(store, succeed(task, b"1")) == frozenset(), kind
            assert (await get(store, here)).status is SUCCESS, kind
            await store.wait_for_work(["default", "other"], 0.0)
            found = {limit.queue: limit for limit in await store.limits()}
            assert all(type(name) is str for name in [*found, *await store.paused()]), kind
            is_held_back = (await get(store, there)).status is PENDING
            assert is_held_back == (kind in self.damages_limit), kind
            assert found["other"].is_readable != is_held_back, kind
            await store.set_limit(Limit(queue="other", max_running=5))
            for task in await claim(store, 10, queues=["other"]):
                await settle(store, succeed(task, b"1"))
            assert (await get(store, there)).status is SUCCESS, kind
            await store.set_limit(Limit(queue="other"))

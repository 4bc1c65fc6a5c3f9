"""What becomes of schedules that are paused or changed, also while they run."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.ids import schedule_id
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import (
    NEVER,
    PENDING,
    RUNNING,
    UNPLANNED,
    ScheduleHold,
    Settlement,
    Task,
    TaskStatus,
    release,
    succeed,
)
from bullpen.tasks.storage.port import Storage
from bullpen.testing.storage_contract.adding import STRANGE
from bullpen.testing.storage_contract.base import (
    FAR,
    Span,
    StoreTests,
    added,
    claim,
    claimed_one,
    get,
    hold,
    ids,
    settle,
    still,
)

CRON = Schedule(key="nightly", cron="0 3 * * *")


def next_run(task: Task, eta: float) -> Settlement:
    """It has completed a run, and waits for the next."""
    return replace(succeed(replace(task, interval=1.0), b"run"), delay=None, eta=eta, scheduled_at=eta, next_run=True)


async def held(store: Storage, kind: ScheduleHold, **fields: object) -> Task:
    """A running schedule that was then paused or changed; as its worker knows it."""
    task = await claimed_one(store, schedule=CRON, scheduled_at=5.0, **fields)
    (changed,) = await store.change([task.id], lambda task, _: replace(task, hold=kind))
    assert still(changed) == still(replace(task, hold=kind))
    return task


class ScheduleTests(StoreTests):
    async def test_a_schedule_is_in_one_queue_whoever_adds_it_to_another(self, store: Storage) -> None:
        task = await added(store, id=schedule_id("tick"), queue="a", interval=FAR)
        assert await store.add([replace(task, queue="b")]) == [task]
        assert await store.get([task.id]) == [task]
        assert set(await store.counts()) == {"a"}

    async def test_the_chosen_tasks_are_changed(self, store: Storage) -> None:
        task = await added(store, schedule=CRON, eta=await store.now() + FAR, concurrency_key="c", headers={"a": "b"})
        other = await added(store)

        def move(task: Task, now: float) -> Task | None:
            return replace(task, eta=now - 1.0, scheduled_at=now, hold="paused") if task.schedule is not None else None

        async with Span(store) as span:
            (changed,) = await store.change([other.id, "nobody", task.id], move)
        assert changed.scheduled_at in span
        assert changed == replace(task, eta=changed.eta, scheduled_at=changed.scheduled_at, hold="paused")
        assert await get(store, task) == changed
        assert await get(store, other) == other
        assert ids(await claim(store, 5)) == [task.id, other.id]

    async def test_the_terms_may_be_changed(self, store: Storage) -> None:
        task = await added(store, schedule=CRON, headers={"a": "b"}, concurrency_key="c", timeout=1.0, interval=3.0)
        terms = {
            "func_path": f"app.{STRANGE}",
            "payload": bytes(range(256)),
            "codec": "pickle",
            "priority": 7,
            "interval": None,
            "schedule": Schedule(key="nightly", cron="*/5 * * * *", timezone="Asia/Tokyo", overlap="queue"),
            "max_retries": 3,
            "backoff": Backoff(0.5, 7.25),
            "timeout": None,
            "at_most_once": True,
            "on_failure": "continue",
            "result_ttl": None,
            "failure_ttl": 5.5,
            "concurrency_key": None,
            "headers": {"trace": STRANGE},
        }
        (changed,) = await store.change([task.id], lambda task, _: replace(task, **terms))
        assert changed == replace(task, **terms)
        assert await get(store, task) == changed
        await added(store, priority=6)
        (mine, _) = await claim(store, 2)
        assert still(mine) == still(replace(await get(store, task)))
        assert mine.payload == bytes(range(256))

    @pytest.mark.parametrize("status", [PENDING, RUNNING])
    async def test_an_attempt_and_its_lease_stay(self, store: Storage, status: TaskStatus) -> None:
        task = await claimed_one(store, schedule=CRON)
        if status is PENDING:
            await settle(store, release(task))
        before = await get(store, task)
        await store.change([task.id], lambda task, _: replace(task, payload=b"other", hold="changed"))
        after = await get(store, task)
        assert still(after) == still(replace(before, payload=b"other", hold="changed"))
        if status is RUNNING:
            assert (await store.renew([hold(task)], FAR)).lost == frozenset()
            assert not await settle(store, succeed(task, b"done"))

    async def test_a_paused_run_is_not_followed_by_another(self, store: Storage) -> None:
        task = await held(store, "paused")
        assert not await settle(store, next_run(task, await store.now()))
        after = await get(store, task)
        assert (after.status, after.eta, after.hold, after.completed_runs) == (PENDING, NEVER, "paused", 1)
        assert await claim(store) == []

    async def test_a_paused_run_is_not_tried_again(self, store: Storage) -> None:
        task = await held(store, "paused")
        assert not await settle(store, release(task))
        after = await get(store, task)
        assert (after.status, after.eta, after.hold) == (PENDING, NEVER, "paused")

    async def test_after_a_change_the_next_run_is_planned_anew(self, store: Storage) -> None:
        task = await held(store, "changed")
        async with Span(store) as span:
            assert not await settle(store, next_run(task, await store.now() + FAR))
        after = await get(store, task)
        assert after.eta in span
        assert (after.scheduled_at, after.hold, after.result) == (UNPLANNED, "", b"run")
        assert ids(await claim(store)) == [task.id]

    async def test_a_run_that_began_before_a_change_goes_on(self, store: Storage) -> None:
        task = await held(store, "changed")
        assert not await settle(store, replace(release(task, FAR), scheduled_at=5.0))
        after = await get(store, task)
        assert (after.scheduled_at, after.hold) == (5.0, "changed")
        assert after.eta > await store.now() + FAR / 2

    async def test_a_request_to_stop_comes_before_a_hold(self, store: Storage) -> None:
        for kind in ("paused", "changed"):
            task = await held(store, kind)
            await store.cancel([task.id])
            assert not await settle(store, next_run(task, await store.now()))
            assert (await get(store, task)).is_final

    async def test_none_of_many_changes_at_once_is_lost(self, store: Storage) -> None:
        task = await added(store, schedule=CRON, scheduled_at=0.0, eta=await store.now() + FAR)

        def move(task: Task, _: float) -> Task:
            return replace(task, scheduled_at=(task.scheduled_at or 0.0) + 1.0, eta=task.eta + 1.0)

        await asyncio.gather(*[store.change([task.id], move) for _ in range(10)])
        assert (await get(store, task)).scheduled_at == 10.0

    async def test_a_pause_and_a_change_at_once_are_both_there(self, store: Storage) -> None:
        for _ in range(5):
            task = await claimed_one(store, schedule=CRON, scheduled_at=5.0)
            await asyncio.gather(
                store.change([task.id], lambda task, _: replace(task, hold="paused")),
                store.change([task.id], lambda task, _: replace(task, payload=b"new", hold=task.hold or "changed")),
            )
            after = await get(store, task)
            assert (after.hold, after.payload) == ("paused", b"new")

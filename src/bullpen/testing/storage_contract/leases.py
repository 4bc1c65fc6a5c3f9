"""Leases: which worker holds a task and until when, rescue after a lease, and progress."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    MAX_LEASE,
    PENDING,
    RUNNING,
    SUCCESS,
    Progress,
    Settlement,
    Task,
    succeed,
)
from bullpen.tasks.storage.port import AttemptKey, Storage
from bullpen.testing.storage_contract.adding import STRANGE
from bullpen.testing.storage_contract.base import (
    FAR,
    RESOLUTION,
    SOON,
    Span,
    StoreTests,
    added,
    claim,
    claimed_one,
    eventually,
    get,
    hold,
    ids,
    new_tasks,
    settle,
    still,
    take_back,
)


class LeaseTests(StoreTests):
    # Renewal.

    async def test_a_renewal_moves_the_end_of_the_lease_and_nothing_else(self, store: Storage) -> None:
        task = await claimed_one(store)
        before = await get(store, task)
        async with Span(store) as span:
            renewal = await store.renew([hold(task)], 2 * FAR)
        assert (renewal.lost, renewal.cancelled) == (frozenset(), frozenset())
        after = await get(store, task)
        assert after.lease_until in span.later(2 * FAR)
        assert still(after) == still(before)

    async def test_many_are_renewed_at_once_and_each_is_told_apart(self, store: Storage) -> None:
        await store.add(new_tasks(600))
        mine = await claim(store, 600)
        asked_to_stop, settled_already = mine[::7], mine[1::7]
        await store.cancel(ids(asked_to_stop))
        await settle(store, *[succeed(task, None) for task in settled_already])
        never = AttemptKey("nobody", 1)
        renewal = await store.renew([*map(hold, mine), never], FAR)
        assert renewal.lost == {never, *map(hold, settled_already)}
        assert renewal.cancelled == set(map(hold, asked_to_stop))
        nothing = await store.renew([], FAR)
        assert (nothing.lost, nothing.cancelled) == (frozenset(), frozenset())

    async def test_a_late_renewal_is_accepted_until_another_worker_takes_the_task(self, store: Storage) -> None:
        """A store that was away for a while is no reason to do work again."""
        await added(store)
        (task,) = await claim(store, lease=0.0)
        assert (await store.renew([hold(task)], FAR)).lost == frozenset()
        assert list(await store.rescue_expired(take_back, limit=10)) == []

    async def test_a_late_settlement_is_accepted_until_another_worker_takes_the_task(self, store: Storage) -> None:
        await added(store)
        (task,) = await claim(store, lease=0.0)
        assert await settle(store, succeed(task, b"late")) == frozenset()

    # Rescue.

    async def test_a_task_is_taken_back_when_its_lease_is_over(self, store: Storage) -> None:
        await store.add(new_tasks(2))
        (held,) = await claim(store, lease=FAR)
        (over,) = await claim(store, lease=SOON)
        (rescued,) = await eventually(lambda: store.rescue_expired(take_back, limit=10))
        assert (rescued.id, rescued.status, rescued.crashes, rescued.attempt) == (over.id, PENDING, 1, 1)
        assert over.lease_until is not None
        assert await store.now() >= over.lease_until - RESOLUTION
        assert rescued == await get(store, over)
        assert (await get(store, held)).status is RUNNING
        (again,) = await claim(store)
        assert (again.id, again.attempt, again.crashes) == (over.id, 2, 1)

    async def test_a_renewed_task_is_not_taken_back(self, store: Storage) -> None:
        await added(store)
        (task,) = await claim(store, lease=0.0)
        await store.renew([hold(task)], FAR)
        assert list(await store.rescue_expired(take_back, limit=10)) == []
        await store.renew([hold(task)], 0.0)
        assert ids(await store.rescue_expired(take_back, limit=10)) == [task.id]

    async def test_tasks_of_dead_workers_are_taken_back_at_once(self, store: Storage) -> None:
        await store.add(new_tasks(6))
        dead = [*await claim(store, 2, worker="dead"), *await claim(store, 1, worker="gone")]
        alive = await claim(store, 2, worker="alive")
        rescued = await store.rescue_expired(take_back, limit=10, dead_workers=["dead", "gone", "never was"])
        assert sorted(ids(rescued)) == ids(dead)
        assert [(await get(store, task)).status for task in alive] == [RUNNING] * 2

    async def test_only_running_tasks_are_rescued(self, store: Storage) -> None:
        await store.add(new_tasks(3))
        done, cancelled = await claim(store, 2, lease=0.0)
        await settle(store, succeed(done, None))
        await store.cancel([cancelled.id])
        (rescued,) = await store.rescue_expired(take_back, limit=10, dead_workers=["w"])
        assert (rescued.id, rescued.status) == (cancelled.id, CANCELLED)
        assert list(await store.rescue_expired(take_back, limit=10, dead_workers=["w"])) == []

    async def test_what_becomes_of_it_is_not_the_stores_to_decide(self, store: Storage) -> None:
        await store.add(new_tasks(3))
        first, second, third = await claim(store, 3, lease=0.0)
        asked: list[tuple[Task, float]] = []

        def decide(task: Task, now: float) -> Settlement | None:
            asked.append((task, now))
            if task.id == second.id:
                return None
            return take_back(replace(task, at_most_once=task.id == third.id), now)

        async with Span(store) as span:
            rescued = await store.rescue_expired(decide, limit=10)
        assert {task.id: task.status for task in rescued} == {first.id: PENDING, third.id: FAILED}
        assert (await get(store, second)).status is RUNNING
        assert {task.id: task.attempt for task, _ in asked} == {first.id: 1, second.id: 1, third.id: 1}
        assert all(now in span for _, now in asked)
        assert {task.worker for task, _ in asked} == {"w"}

    @pytest.mark.parametrize("count", [1, 2])
    async def test_it_may_be_a_success(self, store: Storage, count: int) -> None:
        await store.add(new_tasks(count))
        late = await claim(store, count, lease=0.0)
        rescued = await store.rescue_expired(lambda task, _: succeed(task, b"1"), limit=10)
        assert sorted(ids(rescued)) == ids(late)
        assert {task.status for task in rescued} == {SUCCESS}
        assert sorted(rescued, key=lambda task: task.id) == await store.get(ids(late))

    async def test_a_rescue_is_bounded(self, store: Storage) -> None:
        await store.add(new_tasks(10))
        mine = await claim(store, 10, lease=0.0)
        rescued = [ids(await store.rescue_expired(take_back, limit=4)) for _ in range(4)]
        assert [len(some) for some in rescued] == [4, 4, 2, 0]
        assert sorted(task for some in rescued for task in some) == ids(mine)

    async def test_who_is_left_alone_does_not_stand_in_the_way(self, store: Storage) -> None:
        await store.add(new_tasks(5))
        mine = await claim(store, 5, lease=0.0)
        spared = set(ids(mine[:4]))

        def decide(task: Task, now: float) -> Settlement | None:
            return None if task.id in spared else take_back(task, now)

        assert ids(await store.rescue_expired(decide, limit=1)) == [mine[4].id]

    async def test_a_decision_that_fails_changes_nothing(self, store: Storage) -> None:
        await store.add(new_tasks(3))
        mine = await claim(store, 3, lease=0.0)
        asked: list[str] = []

        def decide(task: Task, now: float) -> Settlement:
            asked.append(task.id)
            if len(asked) == 3:
                raise ZeroDivisionError
            return take_back(task, now)

        with pytest.raises(ZeroDivisionError):
            await store.rescue_expired(decide, limit=10)
        assert [(await get(store, task)).status for task in mine] == [RUNNING] * 3

    # Progress.

    async def test_progress_is_shown_while_it_runs(self, store: Storage) -> None:
        task = await claimed_one(store)
        before = await get(store, task)
        for progress in (Progress(0.0), Progress(2.5, 10.0), Progress(1e12, 1e12, STRANGE)):
            assert await store.note_progress(hold(task), progress) is True
            after = await get(store, task)
            assert after.progress == progress
        assert still(replace(after, progress=None)) == still(before)
        await store.note_progress(hold(task), Progress(3, 7.0))
        whole = (await get(store, task)).progress
        assert whole is not None
        assert (type(whole.done), type(whole.total)) == (int, float)

    async def test_a_lease_that_is_longer_than_any_lease_has_expired(self, store: Storage) -> None:
        """Another program has written it, or the clock of the store was set back."""
        tasks = [await claimed_one(store) for _ in range(3)]
        await store.renew([hold(tasks[0])], MAX_LEASE - 60.0)
        await store.renew([hold(tasks[1])], MAX_LEASE + 60.0)
        await store.renew([hold(tasks[2])], 1e9)
        assert set(ids(await store.rescue_expired(take_back, limit=10))) == {tasks[1].id, tasks[2].id}

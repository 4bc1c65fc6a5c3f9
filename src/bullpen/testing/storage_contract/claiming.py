"""Which worker gets which tasks, in which order."""

from __future__ import annotations

from bullpen.tasks.model.task import PENDING, RUNNING, Progress, claimed, release, succeed
from bullpen.tasks.storage.port import Storage
from bullpen.testing.storage_contract.base import (
    FAR,
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
    new_task,
    new_tasks,
    settle,
)


class ClaimingTests(StoreTests):
    async def test_a_claimed_task_runs_in_its_next_attempt(self, store: Storage) -> None:
        task = await added(store, priority=3, headers={"a": "b"})
        async with Span(store) as span:
            (mine,) = await claim(store, worker="anna", lease=40.0, claim_id="first")
        assert mine.started_at is not None
        assert mine.started_at in span
        assert mine.lease_until is not None
        assert mine.lease_until in span.later(40.0)
        expected = claimed(task, worker="anna", claim_id="first", now=mine.started_at, lease_until=mine.lease_until)
        assert mine == expected
        found = await get(store, task)
        assert found.lease_until is not None
        assert abs(found.lease_until - mine.lease_until) < 0.001  # leases may be kept by another clock
        assert found.attempt == 1
        assert (found.status, found.worker, found.claim_id) == (RUNNING, "anna", "first")

    async def test_the_order_is_priority_then_time_then_id(self, store: Storage) -> None:
        now = await store.now()
        in_order = [
            new_task(id="d", priority=9, eta=now - 1),
            new_task(id="b", priority=5, eta=now - 9),
            new_task(id="a", priority=5, eta=now - 8),
            new_task(id="c", priority=5, eta=now - 8, concurrency_key="k"),
            new_task(id="f", priority=5, eta=now - 8),
            new_task(id="e", priority=0, eta=now - 99),
        ]
        await store.add([in_order[index] for index in (4, 2, 5, 0, 3, 1)])
        assert ids(await claim(store, 4) + await claim(store, 10)) == ids(in_order)

    async def test_the_order_holds_over_several_queues(self, store: Storage) -> None:
        now = await store.now()
        in_order = [
            new_task(id="3", queue="a", priority=1, eta=now - 1),
            new_task(id="4", queue="b", eta=now - 5),
            new_task(id="1", queue="a", eta=now - 4),
            new_task(id="2", queue="b", eta=now - 4),
        ]
        await store.add(in_order[::-1])
        assert ids(await claim(store, 10, queues=("b", "a"))) == ids(in_order)

    async def test_first_come_first_served(self, store: Storage) -> None:
        given = [await added(store) for _ in range(5)]
        assert [ids(await claim(store)) for _ in given] == [[task.id] for task in given]

    async def test_no_more_than_asked_for_and_each_once(self, store: Storage) -> None:
        given = await store.add(new_tasks(25))
        taken = [await claim(store, limit) for limit in (0, 1, 7, 100, 100)]
        assert [len(some) for some in taken] == [0, 1, 7, 17, 0]
        assert [task.id for some in taken for task in some] == ids(given)

    async def test_only_of_the_queues_that_are_asked_for(self, store: Storage) -> None:
        for queue in ("a", "b", "c"):
            await added(store, queue=queue)
        assert await claim(store, 10, queues=()) == []
        assert await claim(store, 10, queues=("none",)) == []
        assert sorted(task.queue for task in await claim(store, 10, queues=("c", "none", "a", "c", "a"))) == ["a", "c"]
        assert [task.queue for task in await claim(store, 10, queues=("b",))] == ["b"]

    async def test_not_before_its_time(self, store: Storage) -> None:
        now = await store.now()
        await added(store, eta=now + FAR, priority=9)
        soon = await added(store, eta=now + SOON)
        (mine,) = await eventually(lambda: claim(store, 10))
        assert mine.id == soon.id
        assert mine.started_at is not None
        assert mine.started_at >= soon.eta
        assert await claim(store, 10) == []

    async def test_not_after_its_time(self, store: Storage) -> None:
        late = await added(store, expires=await store.now() - 1.0)
        in_time = await added(store, expires=await store.now() + FAR)
        assert ids(await claim(store, 10)) == [in_time.id]
        assert (await get(store, late)).status is PENDING

    async def test_attempts_rise_by_one_for_the_whole_life(self, store: Storage) -> None:
        task = await claimed_one(store, interval=0.0)
        seen = [task.attempt]
        for move in (release, lambda mine: succeed(mine, None), release):
            (task,) = await claim(store, 1, move(task))
            seen.append(task.attempt)
        await store.cancel([task.id])
        await settle(store, release(await get(store, task)))
        await store.retry([task.id])
        (task,) = await claim(store)
        assert [*seen, task.attempt] == [1, 2, 3, 4, 5]

    async def test_settling_and_claiming_are_one_step(self, store: Storage) -> None:
        first = await claimed_one(store)
        second = await added(store)
        exchange = await store.exchange(
            [succeed(first, b"1")], worker="w", queues=["default"], limit=1, lease=FAR, claim_id="next"
        )
        assert exchange.rejected == frozenset()
        assert ids(exchange.claimed) == [second.id]
        assert (await get(store, first)).result == b"1"

    async def test_a_claim_goes_on_beside_a_rejection(self, store: Storage) -> None:
        lost = await claimed_one(store)
        await settle(store, succeed(lost, None))
        waiting = await added(store)
        exchange = await store.exchange(
            [succeed(lost, b"late")], worker="w", queues=["default"], limit=5, lease=FAR, claim_id="next"
        )
        assert exchange.rejected == {hold(lost)}
        assert ids(exchange.claimed) == [waiting.id]

    async def test_progress_stays_until_the_next_attempt_reports(self, store: Storage) -> None:
        task = await claimed_one(store)
        await store.note_progress(hold(task), Progress(1, 2, "half"))
        (again,) = await claim(store, 1, release(task), worker="other", claim_id="again")
        assert (again.progress, again.worker, again.claim_id) == (Progress(1, 2, "half"), "other", "again")
        assert (await get(store, task)).progress == Progress(1, 2, "half")
        await store.note_progress(hold(again), Progress(0, 2))
        assert (await get(store, task)).progress == Progress(0, 2)

    # Lost answers of claims.

    async def test_a_claim_can_be_asked_for(self, store: Storage) -> None:
        await store.add(new_tasks(5))
        mine = await claim(store, 3, claim_id="mine")
        others = await claim(store, 2, claim_id="others")
        assert sorted(ids(await store.find_claim("mine"))) == sorted(ids(mine))
        assert {hold(task) for task in await store.find_claim("others")} == {hold(task) for task in others}
        assert list(await store.find_claim("never made")) == []

    async def test_of_a_claim_only_what_still_runs_is_found(self, store: Storage) -> None:
        await store.add(new_tasks(4))
        done, again, gone, left = await claim(store, 4, claim_id="mine")
        await settle(store, succeed(done, None), release(again), release(gone, FAR))
        await claim(store, 1, claim_id="other")
        assert ids(await store.find_claim("mine")) == [left.id]
        assert ids(await store.find_claim("other")) == [again.id]

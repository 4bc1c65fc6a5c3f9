"""Which task holds a unique key, for how long, and what happens to duplicates."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from bullpen.errors import TaskExists
from bullpen.tasks.model.task import CANCELLED, PENDING, RUNNING, fail, release, succeed
from bullpen.tasks.model.unique import Duplicates
from bullpen.tasks.storage.port import Storage, TaskFilter
from bullpen.testing.storage_contract.base import (
    A_MOMENT,
    FAR,
    SOON,
    StoreTests,
    added,
    claim,
    claimed_one,
    error_of,
    eventually,
    get,
    ids,
    new_task,
    new_tasks,
    settle,
    still,
)

REPLACE, REJECT = Duplicates("replace"), Duplicates("reject")


class UniqueTests(StoreTests):
    async def test_a_unique_key_is_unique_in_its_queue(self, store: Storage) -> None:
        here = await added(store, unique_key="k")
        there = await added(store, unique_key="k", queue="mail")
        assert here.id != there.id
        assert ids(await store.add([new_task(unique_key="k", queue="mail")])) == [there.id]

    # For how long.

    async def test_a_key_may_be_free_as_soon_as_its_task_starts(self, store: Storage) -> None:
        first = await added(store, unique_key="k", unique_scope="waiting")
        assert ids(await store.add([new_task(unique_key="k")])) == [first.id]
        (running,) = await claim(store)
        second = await added(store, unique_key="k", unique_scope="waiting")
        assert second.id != first.id
        assert ids(await store.add([new_task(unique_key="k")])) == [second.id]
        await settle(store, fail(replace(running, max_retries=1), error_of(running), 0.0, after=0.0))
        assert (await get(store, first)).status is PENDING  # it had started, and has its key no more
        assert ids(await store.add([new_task(unique_key="k")])) == [second.id]
        assert set(ids(await claim(store, 5))) == {first.id, second.id}

    async def test_a_key_may_be_kept_for_a_time_after_the_end(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k", unique_until=await store.now() + FAR)
        await settle(store, succeed(first, b"1"))
        done = await get(store, first)
        assert list(await store.add([new_task(unique_key="k")])) == [done]
        assert list(await store.add([new_task(unique_key="k")], REPLACE)) == [done]  # it does not wait

    async def test_a_key_is_free_when_its_time_and_its_task_are_over(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k", unique_until=await store.now() + SOON)
        await settle(store, succeed(first, b"1"))

        async def is_free() -> bool:
            return ids(await store.add([new_task(unique_key="k", unique_scope="alive")])) != [first.id]

        await eventually(is_free)
        late = await claimed_one(store, queue="mail", unique_key="k", unique_until=await store.now() - 1.0)
        assert ids(await store.add([new_task(queue="mail", unique_key="k")])) == [late.id]  # it runs

    async def test_a_task_that_holds_its_key_for_a_time_is_not_pruned_before(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k", unique_until=await store.now() + FAR, result_ttl=A_MOMENT)
        other = await claimed_one(store, unique_key="o", unique_until=await store.now() - FAR, result_ttl=A_MOMENT)
        await settle(store, succeed(first, None))
        await settle(store, succeed(other, None))
        assert await store.prune(limit=10) == 1
        assert ids(await store.add([new_task(unique_key="k")])) == [first.id]

    async def test_a_deleted_task_holds_no_key(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k", unique_until=await store.now() + FAR)
        await settle(store, succeed(first, None))
        assert await store.delete([first.id]) == 1
        second = new_task(unique_key="k")
        assert ids(await store.add([second])) == [second.id]

    async def test_a_task_is_not_retried_while_another_one_holds_its_key_for_a_time(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k")
        await settle(store, succeed(first, None))
        second = await claimed_one(store, unique_key="k", unique_until=await store.now() + FAR)
        await settle(store, succeed(second, None))
        assert ids(await store.retry([first.id, second.id])) == [second.id]

    async def test_a_task_that_has_given_up_its_key_is_retried_without_it(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k", unique_scope="waiting")
        await settle(store, succeed(first, None))
        second = await added(store, unique_key="k", unique_scope="waiting")
        assert ids(await store.retry([first.id])) == [first.id]
        assert ids(await store.add([new_task(unique_key="k")])) == [second.id]
        third = await added(store, unique_key="j", unique_scope="waiting")
        await store.cancel([third.id])
        await added(store, unique_key="j")
        assert list(await store.retry([third.id])) == []  # it would wait for its first start

    # Replacing.

    async def test_a_pending_task_is_replaced_in_its_place(self, store: Storage) -> None:
        first = await added(store, unique_key="k", unique_scope="waiting", payload=b"old", concurrency_key="c")
        now = await store.now()
        new = new_task(
            unique_key="k",
            unique_scope="waiting",
            payload=b"new",
            func_path="app.other",
            priority=5,
            eta=now + FAR,
            expires=now + 2 * FAR,
            max_retries=3,
            headers={"a": "b"},
        )
        (kept,) = await store.add([new], REPLACE)
        assert kept == replace(new, id=first.id, created_at=first.created_at)
        assert await get(store, first) == kept
        assert ids(await store.list(TaskFilter(), limit=10)) == [first.id]
        assert await claim(store) == []
        (again,) = await store.add([replace(new, id="another", eta=0.0, priority=2, payload=b"newest")], REPLACE)
        assert (again.id, again.payload) == (first.id, b"newest")
        (mine,) = await claim(store, 5)
        assert still(mine) == still(await get(store, first))
        assert (mine.payload, mine.priority, mine.attempt) == (b"newest", 2, 1)
        assert await store.counts() == {"default": {RUNNING: 1}}

    async def test_a_replaced_task_is_claimed_by_its_new_priority(self, store: Storage) -> None:
        eta = await store.now() - 1.0
        first = await added(store, unique_key="k", eta=eta, priority=9)
        other = await added(store, eta=eta, priority=5)
        await store.add([new_task(unique_key="k", eta=eta, priority=0)], REPLACE)
        assert ids(await claim(store, 5)) == [other.id, first.id]

    async def test_a_replaced_task_has_all_its_retries_again_and_keeps_its_attempts(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k", max_retries=5)
        await settle(store, fail(first, error_of(first), 0.0, after=FAR))
        (kept,) = await store.add([new_task(unique_key="k", payload=b"new")], REPLACE)
        assert (kept.id, kept.attempt, kept.failures) == (first.id, 1, 0)
        assert kept.errors == (error_of(first),)
        (mine,) = await claim(store)
        assert (mine.id, mine.attempt, mine.payload, mine.failures) == (first.id, 2, b"new", 0)
        assert await settle(store, succeed(first, None))  # of the attempt before

    async def test_a_running_task_is_not_replaced(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k", payload=b"old")
        (kept,) = await store.add([new_task(unique_key="k", payload=b"new")], REPLACE)
        assert still(kept) == still(first)
        await settle(store, release(first))
        (mine,) = await claim(store)
        assert mine.payload == b"old"

    async def test_a_start_is_pushed_no_further_than_allowed(self, store: Storage) -> None:
        first = await added(store, unique_key="k", unique_scope="waiting", eta=await store.now() + 10.0)
        pushing = Duplicates("replace", 60.0)
        for seconds, expected in ((30.0, None), (59.0, None), (61.0, first.created_at + 60.0), (FAR, None)):
            eta = first.created_at + seconds
            (kept,) = await store.add([new_task(unique_key="k", unique_scope="waiting", eta=eta)], pushing)
            assert kept.id == first.id
            assert kept.eta == pytest.approx(expected or min(eta, first.created_at + 60.0), abs=1e-4)
            assert (await get(store, first)).eta == kept.eta

    # Rejecting.

    async def test_a_second_one_is_rejected_and_all_that_come_with_it(self, store: Storage) -> None:
        first = await added(store, unique_key="k")
        batch = [new_task(queue="mail"), new_task(unique_key="j"), new_task(unique_key="k"), new_task()]
        with pytest.raises(TaskExists) as raised:
            await store.add(batch, REJECT)
        assert (raised.value.task, raised.value.key) == (first.id, "k")
        assert ids(await store.list(TaskFilter(), limit=10)) == [first.id]
        assert await store.get(ids(batch)) == [None] * 4
        await store.cancel([first.id])
        assert ids(await store.add(batch, REJECT)) == ids(batch)
        assert ids(await store.add(batch, REJECT)) == ids(batch)  # the caller did not learn the outcome

    async def test_one_key_twice_in_a_batch_is_rejected(self, store: Storage) -> None:
        batch = [new_task(unique_key="k"), new_task(unique_key="k")]
        with pytest.raises(TaskExists) as raised:
            await store.add(batch, REJECT)
        assert raised.value.task == batch[0].id
        assert list(await store.list(TaskFilter(), limit=10)) == []

    async def test_a_rejected_task_does_not_affect_the_others(self, store: Storage) -> None:
        await added(store, unique_key="k")
        calls = [store.add([new_task()]) for _ in range(10)]
        calls.append(store.add([new_task(unique_key="k")], REJECT))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(answer, TaskExists) for answer in answers] == [False] * 10 + [True]
        assert len(await store.list(TaskFilter(), limit=100)) == 11

    # All at once.

    @pytest.mark.parametrize("duplicates", [Duplicates(), REPLACE, REJECT])
    async def test_one_of_many_concurrent_producers_gets_the_key(self, store: Storage, duplicates: Duplicates) -> None:
        calls = [store.add([task], duplicates) for task in new_tasks(20, unique_key="k")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        (only,) = await store.list(TaskFilter(), limit=100)
        for answer in answers:
            assert isinstance(answer, TaskExists) or ids(answer) == [only.id]  # type: ignore[arg-type]
        if duplicates is REJECT:
            assert sum(isinstance(answer, TaskExists) for answer in answers) == 19
        await store.cancel([only.id])
        assert (await get(store, only)).status is CANCELLED

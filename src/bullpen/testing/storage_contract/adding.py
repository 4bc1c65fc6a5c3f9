"""An added task is stored unchanged, once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import PENDING, Task, cancel, fail, succeed
from bullpen.tasks.storage.port import Storage, TaskFilter
from bullpen.testing.storage_contract.base import (
    FAR,
    Span,
    StoreTests,
    added,
    claim,
    claimed_one,
    error_of,
    get,
    ids,
    new_task,
    new_tasks,
    settle,
    still,
)

STRANGE = "q'uo\"te; \\ % _ \0 \n\t ÿ € 𝄞 \u202e"


class AddingTests(StoreTests):
    async def test_a_task_comes_back_as_it_was_given(self, store: Storage) -> None:
        now = await store.now()
        given = new_task(
            func_path=f"app.{STRANGE}",
            payload=bytes(range(256)),
            codec="pickle",
            queue="mail.out-1",
            priority=7,
            eta=now + FAR,
            interval=0.125,
            schedule=Schedule(
                key=f"s {STRANGE}",
                declared=True,
                cron="*/5 0 1 * *",
                timezone="Europe/Berlin",
                misfire="skip",
                misfire_grace=2.25,
                overlap="queue",
            ),
            scheduled_at=now + FAR + 0.5,
            max_retries=1_000_000,
            backoff=Backoff(base=0.5, max_delay=7.25, factor=1.5, jitter=0.25, delays=(1.0, 2.5)),
            timeout=2.5,
            expires=now + 2 * FAR,
            at_most_once=True,
            on_failure="continue",
            result_ttl=17.5,
            failure_ttl=34.25,
            unique_key=f"u {STRANGE}",
            unique_scope="waiting",
            unique_until=now + 3 * FAR,
            concurrency_key=f"c {STRANGE}",
            headers={"trace": STRANGE, STRANGE: ""},
        )
        (kept,) = await store.add([given])
        assert kept == replace(given, created_at=kept.created_at)
        assert await get(store, given) == kept

    @pytest.mark.parametrize("ttl", [None, 0.0, 0.001, 3e9])
    async def test_a_time_to_live_comes_back(self, store: Storage, ttl: float | None) -> None:
        assert (await get(store, await added(store, result_ttl=ttl))).result_ttl == ttl
        assert (await get(store, await added(store, failure_ttl=ttl))).failure_ttl == ttl

    @pytest.mark.parametrize("size", [0, 1, 262_144])
    async def test_a_payload_is_any_bytes(self, store: Storage, size: int) -> None:
        payload = bytes(number % 251 for number in range(size))
        task = await added(store, payload=payload)
        assert (await get(store, task)).payload == payload
        (mine,) = await claim(store)
        assert mine.payload == payload

    async def test_a_task_without_a_time_is_due_at_once_by_the_clock_of_the_store(self, store: Storage) -> None:
        async with Span(store) as span:
            kept = await store.add([new_task(created_at=1.0), new_task(eta=-1.0, created_at=9e9)])
        for task in kept:
            assert task.created_at in span
            assert task.eta == task.created_at
            assert await get(store, task) == task

    async def test_a_time_in_the_past_is_kept(self, store: Storage) -> None:
        task = await added(store, eta=12.5)
        assert (await get(store, task)).eta == 12.5

    async def test_many_are_added_at_once_and_returned_in_their_order(self, store: Storage) -> None:
        given = new_tasks(700)[::-1]
        kept = await store.add(given)
        assert ids(kept) == ids(given)
        assert len(await store.list(TaskFilter(), limit=1000)) == 700

    async def test_nothing_is_added(self, store: Storage) -> None:
        assert list(await store.add([])) == []
        assert list(await store.list(TaskFilter(), limit=10)) == []

    async def test_an_id_that_is_there_stays_as_it_is(self, store: Storage) -> None:
        """A caller that never learned the outcome can add the task again."""
        first = await added(store, payload=b"first")
        other = new_task()
        assert list(await store.add([other, replace(first, payload=b"second")])) == [await get(store, other), first]
        assert await get(store, first) == first
        (mine,) = await claim(store)
        assert mine.id == first.id
        (there,) = await store.add([replace(first, payload=b"third")])
        assert still(there) == still(mine)
        await settle(store, succeed(mine, b"done"))
        done = await get(store, first)
        assert list(await store.add([first])) == [done]
        assert await get(store, first) == done

    async def test_one_id_twice_in_a_batch_is_one_task(self, store: Storage) -> None:
        first, between = new_task(payload=b"first"), new_task()
        kept = await store.add([first, between, replace(first, payload=b"second")])
        assert ids(kept) == [first.id, between.id, first.id]
        assert [task.payload for task in kept] == [b"first", b"[]", b"first"]
        assert len(await store.list(TaskFilter(), limit=10)) == 2

    # Unique keys; more in unique.py.

    async def test_a_unique_key_has_one_living_task(self, store: Storage) -> None:
        first = await added(store, unique_key="k")
        assert list(await store.add([new_task(unique_key="k")])) == [first]
        (running,) = await claim(store)
        (there,) = await store.add([new_task(unique_key="k")])
        assert still(there) == still(running)
        await settle(store, fail(replace(running, max_retries=1), error_of(running), 0.0, after=FAR))
        waiting = await get(store, first)
        assert waiting.status is PENDING
        assert list(await store.add([new_task(unique_key="k")])) == [waiting]
        other, free = await store.add([new_task(unique_key="other"), new_task()])
        assert set(ids(await store.list(TaskFilter(), limit=10))) == {first.id, other.id, free.id}

    async def test_a_unique_key_is_free_when_its_task_is_over(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k")
        await settle(store, succeed(first, None))
        second = new_task(unique_key="k")
        assert ids(await store.add([second])) == [second.id]
        (running,) = await claim(store)
        await settle(store, cancel(running))
        third = new_task(unique_key="k")
        assert ids(await store.add([third])) == [third.id]
        await store.cancel([third.id])
        fourth = new_task(unique_key="k")
        assert ids(await store.add([fourth])) == [fourth.id]

    async def test_an_interval_keeps_its_unique_key(self, store: Storage) -> None:
        task = await claimed_one(store, unique_key="k", interval=FAR)
        await settle(store, succeed(task, b"1"))
        assert ids(await store.add([new_task(unique_key="k")])) == [task.id]

    async def test_one_unique_key_twice_in_a_batch_is_one_task(self, store: Storage) -> None:
        batch: list[Task] = [new_task(unique_key="k"), new_task(unique_key="j"), new_task(unique_key="k")]
        kept = await store.add(batch)
        assert ids(kept) == [batch[0].id, batch[1].id, batch[0].id]

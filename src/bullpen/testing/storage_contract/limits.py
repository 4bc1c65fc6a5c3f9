"""Paused queues, and limits that hold over all workers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from bullpen.tasks.model.ids import schedule_id
from bullpen.tasks.model.schedule_changes import run_now
from bullpen.tasks.model.task import RUNNING, fail, release, succeed
from bullpen.tasks.storage.port import Limit, Storage
from bullpen.testing.storage_contract.base import (
    FAR,
    RESOLUTION,
    StoreTests,
    added,
    claim,
    claimed_one,
    error_of,
    eventually,
    get,
    hold,
    ids,
    new_task,
    new_tasks,
    settle,
    take_back,
)


class LimitTests(StoreTests):
    # Pause.

    async def test_nothing_of_a_paused_queue_starts(self, store: Storage) -> None:
        running = await claimed_one(store, queue="a")
        await store.add([*new_tasks(2, queue="a", priority=9), new_task(queue="b")])
        await store.pause("a")
        await store.pause("a")
        assert await store.paused() == {"a"}
        assert [task.queue for task in await claim(store, 10, queues=("a", "b"))] == ["b"]
        assert (await store.renew([hold(running)], FAR)).lost == frozenset()
        assert await settle(store, succeed(running, b"x")) == frozenset()
        await store.resume("a")
        await store.resume("never paused")
        assert await store.paused() == frozenset()
        assert [task.queue for task in await claim(store, 10, queues=("a", "b"))] == ["a", "a"]

    # How many run.

    async def test_no_more_run_than_a_queue_allows(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="a", max_running=3))
        await store.add([*new_tasks(10, queue="a", priority=9), *new_tasks(2, queue="b")])
        first = await claim(store, 2, worker="one", queues=("a",))
        second = await claim(store, 10, worker="two", queues=("a", "b"))
        assert len(first) == 2
        assert Counter(task.queue for task in second) == {"a": 1, "b": 2}
        assert await claim(store, 10, queues=("a",)) == []
        assert len(await claim(store, 10, succeed(first[0], None), release(first[1], FAR), queues=("a",))) == 2
        await store.rescue_expired(take_back, limit=10, dead_workers=["two"])
        assert len(await claim(store, 10, queues=("a",))) == 1

    async def test_a_limit_can_be_changed_and_lifted(self, store: Storage) -> None:
        await store.add(new_tasks(10))
        await store.set_limit(Limit(queue="default", max_running=4))
        mine = await claim(store, 10)
        assert len(mine) == 4
        await store.set_limit(Limit(queue="default", max_running=2))
        assert await claim(store, 10, succeed(mine[0], None)) == []
        assert len(await claim(store, 10, succeed(mine[1], None), succeed(mine[2], None))) == 1
        await store.set_limit(Limit(queue="default"))
        assert len(await claim(store, 10)) == 5

    async def test_limits_are_told(self, store: Storage) -> None:
        given = [
            Limit(queue="b", max_running=4, max_running_per_key=2, rate=0.5),
            Limit(queue="a", rate=100.0),
            Limit(queue="c", in_order=True, declared=True),
        ]
        for limit in given:
            await store.set_limit(limit)
        await store.set_limit(Limit(queue="a", max_running=1))
        assert list(await store.limits()) == [Limit(queue="a", max_running=1), given[0], given[2]]  # by queue

    # … with one key.

    async def test_no_more_run_than_a_key_allows(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", max_running_per_key=2))
        keys = ["x", "x", "x", "y", None, "x", None, "y", "y", None]
        given = await store.add([new_task(concurrency_key=key) for key in keys])
        mine = await claim(store, 100)
        assert ids(mine) == [given[number].id for number in (0, 1, 3, 4, 6, 7, 9)]
        assert await claim(store, 100) == []
        assert ids(await claim(store, 100, succeed(mine[1], None))) == [given[2].id]
        assert ids(await claim(store, 100, succeed(mine[5], None))) == [given[8].id]

    async def test_a_key_counts_in_its_own_queue(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="a", max_running_per_key=1))
        await store.add([new_task(queue=queue, concurrency_key="x") for queue in ("a", "b", "a", "b")])
        mine = await claim(store, 10, queues=("a", "b"))
        assert Counter(task.queue for task in mine) == {"a": 1, "b": 2}

    async def test_many_of_a_busy_key_do_not_stand_in_the_way(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", max_running_per_key=1))
        await store.add(new_tasks(400, concurrency_key="busy", priority=5))
        others = await store.add([new_task(concurrency_key=f"k{number}") for number in range(5)])
        free = await added(store)
        assert len(await claim(store, 1)) == 1
        assert ids(await claim(store, 10)) == [*ids(others), free.id]

    async def test_no_task_is_claimed_twice_beside_a_busy_key(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", max_running_per_key=2))
        await store.add(new_tasks(2, concurrency_key="busy"))
        assert len(await claim(store, 2)) == 2
        before = await added(store, concurrency_key="quiet")  # it has room for one more
        await store.add(new_tasks(400, concurrency_key="busy"))
        behind = await added(store, concurrency_key="other")
        assert ids(await claim(store, 10)) == [before.id, behind.id]

    async def test_both_limits_hold(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", max_running=4, max_running_per_key=2))
        given = await store.add([new_task(concurrency_key=key) for key in ("x", "x", "x", "y", "z", None)])
        assert ids(await claim(store, 10)) == [given[number].id for number in (0, 1, 3, 4)]

    @pytest.mark.parametrize("terms", [{"max_running_per_key": 1}, {"in_order": True}])
    async def test_many_that_are_held_back_hide_nobody(self, store: Storage, terms: dict[str, Any]) -> None:
        await store.set_limit(Limit(queue="default", **terms))
        busy = await claimed_one(store, concurrency_key="busy")
        held = await store.add(new_tasks(250, concurrency_key="busy"))
        free, first, _, other = await store.add(
            [new_task(), *new_tasks(2, concurrency_key="a"), new_task(concurrency_key="b")]
        )
        regular = await added(store, id=schedule_id("regular"), concurrency_key="c", interval=FAR)
        await store.add(new_tasks(250, concurrency_key="busy"))
        last = await added(store, concurrency_key="d")
        expected = [free.id, first.id, other.id, regular.id, last.id]
        assert ids(await claim(store, 4)) == expected[:4]
        assert ids(await claim(store, 50)) == expected[4:]
        assert ids(await claim(store, 50, succeed(busy, None))) == [held[0].id]

    # In order.

    async def test_tasks_of_a_key_run_one_by_one_as_they_were_added(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", in_order=True))
        a1, b1, a2, free, a3 = await store.add(
            [new_task(concurrency_key=key) for key in ("a", "b", "a", None)]
            + [new_task(concurrency_key="a", priority=9)]
        )
        mine = await claim(store, 10)
        assert ids(mine) == [a1.id, b1.id, free.id]
        assert await claim(store, 10) == []
        (mine_too,) = await claim(store, 10, succeed(mine[0], None))
        assert mine_too.id == a2.id
        assert ids(await claim(store, 10, succeed(mine_too, None))) == [a3.id]

    async def test_a_task_waits_for_an_earlier_one_that_waits_for_another_try(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", in_order=True))
        first = await claimed_one(store, concurrency_key="a", max_retries=3)
        second, later = await store.add(
            [new_task(concurrency_key="a"), new_task(concurrency_key="b", eta=await store.now() + FAR)]
        )
        behind = await added(store, concurrency_key="b")
        assert await claim(store, 10, fail(first, error_of(first), 0.0, after=FAR)) == []
        await store.cancel([later.id])
        assert ids(await claim(store, 10)) == [behind.id]
        await store.cancel([first.id])
        assert ids(await claim(store, 10)) == [second.id]

    async def test_one_that_is_run_again_comes_before_those_added_after_it(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", in_order=True))
        first = await claimed_one(store, concurrency_key="a")
        await settle(store, succeed(first, None))
        second = await added(store, concurrency_key="a")
        await store.retry([first.id])
        (mine,) = await claim(store, 10)
        assert mine.id == first.id
        assert ids(await claim(store, 10, succeed(mine, None))) == [second.id]

    async def test_many_behind_one_key_do_not_stand_in_the_way_of_others(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", in_order=True))
        busy = await claimed_one(store, concurrency_key="busy", max_retries=1)
        await settle(store, fail(busy, error_of(busy), 0.0, after=FAR))
        await store.add(new_tasks(300, concurrency_key="busy", priority=5))
        others = await store.add([new_task(concurrency_key=f"k{number}") for number in range(5)])
        assert ids(await claim(store, 10)) == ids(others)
        assert await claim(store, 10) == []

    async def test_a_schedule_does_not_hold_up_later_tasks(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", in_order=True))
        waits, runs = await store.add(
            [
                new_task(id=schedule_id(name), concurrency_key="a", interval=FAR, eta=await store.now() + in_seconds)
                for name, in_seconds in (("waits", FAR), ("runs", -1.0))
            ]
        )
        first, second = await store.add(new_tasks(2, concurrency_key="a"))
        (mine,) = await claim(store, 10)
        assert mine.id == runs.id
        (mine,) = await claim(store, 10, succeed(mine, None))
        assert mine.id == first.id
        assert ids(await store.change([waits.id], run_now)) == [waits.id]  # besides the order, but not at the same time
        assert await claim(store, 10) == []
        (mine,) = await claim(store, 1, fail(mine, error_of(mine), 0.0))
        (other,) = await claim(store, 1, succeed(mine, None))
        assert {mine.id, other.id} == {waits.id, second.id}

    # How many start.

    async def test_no_more_start_than_a_rate_allows(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="slow", rate=1 / FAR))
        await store.add([*new_tasks(3, queue="slow", priority=9), *new_tasks(2, queue="free")])
        (first,) = await claim(store, 5, queues=("slow",))
        assert [task.queue for task in await claim(store, 5, queues=("slow", "free"))] == ["free", "free"]
        assert await claim(store, 5, succeed(first, None), queues=("slow",)) == []
        await store.set_limit(Limit(queue="slow"))
        assert len(await claim(store, 5, queues=("slow",))) == 2

    async def test_a_rate_goes_on_in_time(self, store: Storage) -> None:
        rate = 20
        await store.set_limit(Limit(queue="default", rate=float(rate)))
        await store.add(new_tasks(rate + 5))
        starts: list[float] = []

        async def claim_all() -> bool:
            starts.extend(task.started_at or 0.0 for task in await claim(store, 100))
            return len(starts) == rate + 5

        await claim_all()
        assert len(starts) == rate
        await eventually(claim_all)
        for number in range(5):  # in no second are there more
            assert starts[rate + number] - starts[number] >= 1.0 - RESOLUTION

    async def test_a_second_start_of_one_task_counts_too(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", rate=1 / FAR))
        task = await claimed_one(store)
        assert await claim(store, 5, release(task)) == []
        assert (await get(store, task)).attempt == 1

    async def test_a_limit_does_not_touch_what_runs(self, store: Storage) -> None:
        task = await claimed_one(store)
        await store.set_limit(Limit(queue="default", max_running=1, rate=1 / FAR))
        assert (await get(store, task)).status is RUNNING
        assert await settle(store, succeed(task, None)) == frozenset()

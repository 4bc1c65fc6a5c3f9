"""Upkeep: expired tasks, results past their retention, and the records of workers."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from bullpen.tasks.model.task import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCESS,
    Task,
    cancel,
    fail,
    fail_permanently,
    release,
    succeed,
)
from bullpen.tasks.storage.port import AttemptKey, Limit, StackAnswer, Storage, TaskFilter, WorkerRecord
from bullpen.testing.storage_contract.base import (
    A_MOMENT,
    FAR,
    SOON,
    Span,
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
)


class UpkeepTests(StoreTests):
    # Expiry.

    async def test_a_task_that_was_not_started_in_time_fails(self, store: Storage) -> None:
        now = await store.now()
        late = await added(store, expires=now - 1.0)
        await store.add([new_task(expires=now + FAR), new_task()])
        async with Span(store) as span:
            (failed,) = await store.expire(limit=10)
        assert (failed.id, failed.status) == (late.id, FAILED)
        assert failed.error is not None
        assert (failed.error.kind, failed.error.attempt) == ("expired", 0)
        assert failed.finished_at in span
        assert await get(store, late) == failed
        assert list(await store.expire(limit=10)) == []

    async def test_expiry_comes_in_time(self, store: Storage) -> None:
        soon = await added(store, expires=await store.now() + SOON, eta=await store.now() + FAR)
        (failed,) = await eventually(lambda: store.expire(limit=10))
        assert failed.id == soon.id
        assert failed.finished_at is not None
        assert soon.expires is not None
        assert failed.finished_at >= soon.expires

    async def test_a_started_task_does_not_expire_but_its_retry_does(self, store: Storage) -> None:
        async def started_in_time() -> list[Task]:
            await added(store, expires=await store.now() + 0.1)
            return await claim(store)

        (task,) = await eventually(started_in_time)
        assert task.expires is not None
        await asyncio.sleep(task.expires - await store.now() + SOON)
        assert task.id not in ids(await store.expire(limit=10))
        assert (await get(store, task)).status is RUNNING
        await settle(store, release(task))
        assert await claim(store) == []
        assert ids(await store.expire(limit=10)) == [task.id]

    async def test_expiry_is_bounded(self, store: Storage) -> None:
        given = await store.add(new_tasks(10, expires=await store.now() - 1.0))
        expired = [ids(await store.expire(limit=4)) for _ in range(4)]
        assert [len(some) for some in expired] == [4, 4, 2, 0]
        assert sorted(task for some in expired for task in some) == ids(given)

    # Retention.

    async def test_a_task_that_was_kept_for_its_time_is_pruned(self, store: Storage) -> None:
        ttls = [A_MOMENT, SOON, FAR, None]
        given = [await claimed_one(store, result_ttl=ttl) for ttl in ttls]
        await settle(store, *[succeed(task, b"1") for task in given])
        forgotten = 0

        async def two_are() -> bool:
            nonlocal forgotten
            forgotten += await store.prune(limit=10)
            return forgotten == 2

        await eventually(two_are)
        assert ids(await store.list(TaskFilter(), limit=10)) == ids(given[2:])
        assert await store.prune(limit=10) == 0

    async def test_however_it_ended(self, store: Storage) -> None:
        await store.add(new_tasks(4, result_ttl=A_MOMENT, failure_ttl=A_MOMENT))
        done, failed, gone = await claim(store, 3)
        await settle(store, succeed(done, None), fail(failed, error_of(failed), 0.0), cancel(gone))
        await store.cancel([task.id for task in await store.list(TaskFilter(statuses=(PENDING,)), limit=10)])
        late = await added(store, failure_ttl=A_MOMENT, expires=await store.now() - 1.0)
        assert ids(await store.expire(limit=10)) == [late.id]
        assert await store.prune(limit=10) == 5
        assert list(await store.list(TaskFilter(), limit=10)) == []

    async def test_a_failed_task_is_kept_for_its_own_time(self, store: Storage) -> None:
        """Failed, expired and poison; a cancelled task is kept like a success."""
        ttls: list[dict[str, Any]] = [
            {"result_ttl": 0.0},
            {"result_ttl": 0.0, "failure_ttl": FAR},
            {"result_ttl": 0.0, "failure_ttl": None},
            {"result_ttl": None, "failure_ttl": 0.0},
        ]
        left = set()
        for fields in ttls:
            failed, poison, stopped = [await claimed_one(store, **fields) for _ in range(3)]
            late = await added(store, expires=await store.now() - 1.0, **fields)
            bad = replace(error_of(poison), kind="poison")
            await settle(store, fail(failed, error_of(failed), 0.0), fail_permanently(poison, bad), cancel(stopped))
            assert ids(await store.expire(limit=10)) == [late.id]
            left |= {stopped.id} if fields["result_ttl"] is None else {failed.id, poison.id, late.id}
        assert await store.prune(limit=50) == 6
        assert {task.id for task in await store.list(TaskFilter(), limit=50)} == left

    async def test_a_success_that_is_kept_for_no_time_may_be_gone_at_once(self, store: Storage) -> None:
        """The next prune deletes it at the latest, and failed tasks that are kept for no time."""
        done, failed, again = [await claimed_one(store, result_ttl=0.0, failure_ttl=0.0) for _ in range(3)]
        unique = await claimed_one(store, result_ttl=0.0, unique_key="k", unique_until=await store.now() + FAR)
        endings = (succeed(done, b"1"), fail(failed, error_of(failed), 0.0), release(again, FAR), succeed(unique, b"1"))
        assert not await settle(store, *endings)
        assert await settle(store, succeed(done, b"2")) == {AttemptKey(done.id, done.attempt)}
        await store.prune(limit=10)
        assert await store.get([done.id, failed.id]) == [None, None]
        assert [(await get(store, task)).status for task in (again, unique)] == [PENDING, SUCCESS]

    async def test_an_unfinished_task_is_never_pruned(self, store: Storage) -> None:
        waiting = await added(store, result_ttl=A_MOMENT, eta=await store.now() + FAR)
        running = await claimed_one(store, result_ttl=A_MOMENT)
        interval = await claimed_one(store, result_ttl=A_MOMENT, interval=FAR)
        retried = await claimed_one(store, result_ttl=A_MOMENT)
        await settle(store, succeed(interval, b"1"), succeed(retried, b"1"))
        await store.retry([retried.id])
        assert await store.prune(limit=10) == 0
        assert len([task for task in await store.get(ids([waiting, running, interval, retried])) if task]) == 4

    async def test_forgetting_is_bounded_and_begins_with_the_oldest(self, store: Storage) -> None:
        await store.add(new_tasks(10, result_ttl=A_MOMENT))
        mine = await claim(store, 10)
        for task in mine[::-1]:
            await settle(store, succeed(task, None))
        assert await store.prune(limit=4) == 4
        left = ids(await store.list(TaskFilter(), limit=10))
        finished = {task.id: (await get(store, task)).finished_at for task in mine if task.id in left}
        if len(set(finished.values())) == 6:  # a coarse clock gives several the same instant
            assert left == ids(mine[:6])
        assert [await store.prune(limit=4) for _ in range(3)] == [4, 2, 0]

    async def test_a_queue_that_is_gone_leaves_nothing(self, store: Storage) -> None:
        """Names of queues may be made from data, such as one queue per customer."""
        await store.set_limit(Limit(queue="gone", rate=1000.0, max_running_per_key=5))
        await store.pause("gone")
        await store.resume("gone")
        past = await store.now() - FAR
        for fields in ({"priority": 3}, {"concurrency_key": "c"}, {"unique_key": "u"}, {"max_retries": 1}):
            task = await claimed_one(store, queue="gone", eta=past, result_ttl=0.0, **fields)
            await settle(store, succeed(task, None))
        later = await added(store, queue="gone", eta=await store.now() + FAR)
        soon = await added(store, queue="gone", concurrency_key="c", expires=await store.now() + FAR)
        await store.cancel(ids([later, soon]))
        assert await store.delete(ids([later, soon])) == 2
        await eventually(lambda: self.has_pruned(store, {"gone"}))  # its limit is still there
        await store.set_limit(Limit(queue="gone"))
        await store.wait_for_work(["gone", "never"], 0.0)
        assert await claim(store, queues=["gone", "never"]) == []
        await store.prune(limit=10)
        assert list(await store.limits()) == []
        assert await self.queue_names(store) == set()

    async def has_pruned(self, store: Storage, left: set[str]) -> bool:
        await store.prune(limit=10)
        assert await self.queue_names(store) >= left
        return await store.list(TaskFilter(), limit=1) == []

    # Worker records.

    async def test_workers_are_seen_when_they_say_so_by_the_clock_of_the_store(self, store: Storage) -> None:
        record = WorkerRecord(
            id="w",
            host="höst",
            pid=2**22,
            boot_id="boot/1",
            process_started=12345.5,
            queues=("a", "b"),
            concurrency=7,
            running=3,
            started_at=99.5,
            seen_at=1.0,
            stacks=(StackAnswer(request="1", at=1.0, stack='File "a.py", line 1\n'),),
            peak_memory=2**40,
        )
        async with Span(store) as span:
            await store.save_worker(record)
            await store.save_worker(replace(record, id="other", queues=()))
        by_id = {seen.id: seen for seen in await store.workers()}
        assert set(by_id) == {"w", "other"}
        assert by_id["w"] == replace(record, seen_at=by_id["w"].seen_at)
        assert by_id["w"].seen_at in span
        async with Span(store) as span:
            await store.save_worker(replace(record, running=0, stopping=True))
        by_id = {seen.id: seen for seen in await store.workers()}
        assert (by_id["w"].running, by_id["w"].stopping) == (0, True)
        assert by_id["w"].seen_at in span
        await store.delete_worker("w")
        await store.delete_worker("never was")
        assert [seen.id for seen in await store.workers()] == ["other"]

    async def test_a_failure_is_kept_with_its_black_box(self, store: Storage) -> None:
        task = await claimed_one(store)
        error = replace(error_of(task), log=("12:00:00.000 INFO é\n\x00",), exit_code=-11, peak_memory=2**40)
        await settle(store, fail_permanently(task, error))
        assert (await get(store, task)).error == error

    async def test_a_header_of_a_running_task_asks_its_worker_and_changes_nothing_else(self, store: Storage) -> None:
        task = await claimed_one(store, headers={"a": "1"})
        headers = {"a": "1", "bullpen-stack": "x"}
        assert await store.change([task.id], lambda task, _: replace(task, headers=headers))
        now = await get(store, task)
        assert (dict(now.headers), now.status, now.attempt) == (headers, RUNNING, 1)
        assert abs((now.lease_until or 0) - (task.lease_until or 0)) < 0.01
        assert await store.change([task.id], lambda task, _: replace(task, headers={"a": "1"}))
        assert await settle(store, succeed(task, b"1")) == frozenset()
        assert dict((await get(store, task)).headers) == {"a": "1"}

    async def test_a_worker_that_leaves_keeps_its_tasks_until_they_are_taken_back(self, store: Storage) -> None:
        task = await claimed_one(store)
        await store.delete_worker("w")
        assert (await get(store, task)).status is RUNNING
        assert await settle(store, succeed(task, None)) == frozenset()

"""The verbs of operators: get, list, counts, cancel, retry, delete."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    PENDING,
    RUNNING,
    SUCCESS,
    Task,
    TaskStatus,
    cancel,
    fail,
    redriven,
    release,
    succeed,
)
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


async def one_of_each(store: Storage, **fields: object) -> dict[TaskStatus, Task]:
    await store.add(new_tasks(5, **fields))
    done, failed, gone, _ = await claim(store, 4, queues=(str(fields.get("queue", "default")),))
    await settle(store, succeed(done, b"1"), fail(failed, error_of(failed), 0.0), cancel(gone))
    tasks = await store.list(TaskFilter(), limit=100)
    return {task.status: task for task in tasks[-5:]}


class PeopleTests(StoreTests):
    async def test_the_queues_with_pending_tasks_are_known(self, store: Storage) -> None:
        assert await store.queues() == frozenset()
        await store.add(new_tasks(3, queue="a-1"))
        await added(store, queue="a-2", concurrency_key="k")
        await added(store, queue="b", eta=FAR)
        await added(store, queue="_c.d-e", priority=9)
        assert await store.queues() == {"a-1", "a-2", "b", "_c.d-e"}

    # Looking.

    async def test_get_answers_in_the_order_of_the_question(self, store: Storage) -> None:
        first, second = await store.add(new_tasks(2))
        answer = await store.get([second.id, "nobody", first.id, second.id])
        assert list(answer) == [second, None, first, second]
        assert list(await store.get([])) == []

    async def test_a_list_has_what_fits_all_that_is_asked_for(self, store: Storage) -> None:
        by_status = await one_of_each(store)
        mail = await added(store, queue="mail", func_path="app.mail")
        (resize,) = await store.add([new_task(queue="mail", func_path="app.resize", priority=9)])
        (resize,) = await claim(store, 1, queues=("mail",), worker="other")
        everything = [*ids(list(by_status.values())), mail.id, resize.id]

        async def found(**which: object) -> list[str]:
            return ids(await store.list(TaskFilter(**which), limit=100))  # type: ignore[arg-type]

        assert await found() == sorted(everything)
        for status in TaskStatus:
            expected = [by_status[status].id] + [mail.id] * (status is PENDING) + [resize.id] * (status is RUNNING)
            assert await found(statuses=(status,)) == sorted(expected)
        assert await found(statuses=(SUCCESS, FAILED)) == sorted([by_status[SUCCESS].id, by_status[FAILED].id])
        assert await found(queues=("mail",)) == [mail.id, resize.id]
        assert await found(queues=("mail", "none", "default")) == sorted(everything)
        assert await found(func_path="app.resize") == [resize.id]
        assert await found(worker="other") == [resize.id]
        assert await found(ids=(resize.id, "nobody", mail.id)) == [mail.id, resize.id]
        assert await found(ids=(resize.id, mail.id), statuses=(PENDING,), queues=("mail",)) == [mail.id]
        assert await found(queues=("mail",), statuses=(PENDING,), func_path="app.resize") == []
        for nothing in ({"ids": ()}, {"queues": ()}, {"statuses": ()}, {"func_path": "none"}, {"worker": "none"}):
            assert await found(**nothing) == []

    async def test_a_list_comes_in_pages(self, store: Storage) -> None:
        given = sorted(ids(await store.add(new_tasks(23)[::-1])))
        pages: list[list[str]] = []
        after = None
        while page := await store.list(TaskFilter(), limit=10, after=after):
            pages.append(ids(page))
            after = page[-1].id
        assert [len(page) for page in pages] == [10, 10, 3]
        assert [task for page in pages for task in page] == given
        failed = TaskFilter(statuses=(FAILED,))
        for task in await claim(store, 9):
            await settle(store, fail(task, error_of(task), 0.0))
        first = await store.list(failed, limit=5)
        second = await store.list(failed, limit=5, after=first[-1].id)
        assert len(ids(first) + ids(second)) == 9
        assert sorted(ids(first) + ids(second)) == ids(first) + ids(second)

    async def test_counts_are_by_queue_and_status(self, store: Storage) -> None:
        assert not any(any(by_status.values()) for by_status in (await store.counts()).values())
        await one_of_each(store)
        await one_of_each(store, queue="mail", concurrency_key="k", result_ttl=None)
        await added(store, queue="mail", eta=await store.now() + FAR)
        counts = await store.counts()
        assert set(counts) == {"default", "mail"}
        assert dict(counts["default"]) == dict.fromkeys(TaskStatus, 1)
        assert dict(counts["mail"]) == {**dict.fromkeys(TaskStatus, 1), PENDING: 2}

    async def test_counts_up_to_a_limit_are_exact(self, store: Storage) -> None:
        await one_of_each(store, queue="mail")
        await store.add([new_task(queue="bulk") for _ in range(5)])
        await store.add([new_task(queue="bulk", concurrency_key="k") for _ in range(2)])
        counts = await store.counts(limit=3)
        assert set(counts) == {"bulk", "mail"}
        assert dict(counts["mail"]) == dict.fromkeys(TaskStatus, 1)
        assert counts["bulk"][PENDING] > 3
        assert (await store.counts(limit=7))["bulk"] == {PENDING: 7}

    async def test_the_earliest_tasks_of_each_queue_and_priority_are_found(self, store: Storage) -> None:
        assert list(await store.first_pending(1)) == []
        now = await store.now()
        high = [await added(store, eta=now + 50 + number, priority=9) for number in range(3)]
        low = await added(store, eta=now + 10, priority=3)
        keyed = await added(store, eta=now + 20, queue="mail", concurrency_key="k")
        await added(store, eta=now + 30, queue="mail")
        running = await claimed_one(store, queue="busy")
        found = {task.id: task for task in await store.first_pending(1)}
        assert {high[0].id, low.id, keyed.id} <= set(found)
        assert not {high[1].id, running.id} & set(found)
        assert found[low.id] == low
        assert {task.id for task in high} <= set(ids(await store.first_pending(3)))
        await settle(store, release(running, FAR))
        assert running.id in ids(await store.first_pending(1))

    async def test_pages_of_pending_tasks_are_in_the_order_in_which_they_are_due(self, store: Storage) -> None:
        now = await store.now()
        waiting = [
            await added(store, eta=now + FAR + at, priority=priority, queue=queue, concurrency_key=key)
            for at, priority, queue, key in (
                (3, 9, "mail", None),
                (1, 0, "mail", None),
                *[(2, 5, "mail", None)] * 4,  # tasks of one eta
                *[(2, 5, "other", None)] * 3,
                (2, 7, "mail", "k"),
                (5, 0, "other", "k"),
                (0, 3, "third", None),
            )
        ]
        await claimed_one(store, queue="busy")
        await one_of_each(store, queue="ended")
        waiting.sort(key=lambda task: (task.eta, task.id))
        for queue in (None, "mail", "other", "missing"):
            expected = [task for task in waiting if queue in (None, task.queue)]
            for size in (1, 2, 100):
                found: list[Task] = []
                while page := await store.list_pending(
                    limit=size, queue=queue, after=(found[-1].eta, found[-1].id) if found else None
                ):
                    assert len(page) <= size
                    found += page
                assert [task for task in found if task.queue != "ended"] == expected
        gone = waiting[3]
        await store.cancel([gone.id])  # a page starts after a task that is no longer pending
        after = (gone.eta, gone.id)
        behind = [task for task in waiting[4:] if task.queue == "mail"]
        assert list(await store.list_pending(limit=100, queue="mail", after=after)) == behind

    # Cancelling.

    async def test_a_pending_task_is_cancelled(self, store: Storage) -> None:
        waiting, later = await store.add([new_task(), new_task(eta=await store.now() + FAR)])
        again = await claimed_one(store, priority=9)
        await settle(store, release(again, FAR))
        async with Span(store) as span:
            changed = await store.cancel([later.id, "nobody", waiting.id, again.id])
        assert ids(changed) == [later.id, waiting.id, again.id]
        for task in changed:
            assert task.status is CANCELLED
            assert task.finished_at in span
            assert await get(store, task) == task
        assert await claim(store, 10) == []

    async def test_a_running_task_is_asked_to_stop(self, store: Storage) -> None:
        task = await claimed_one(store)
        before = await get(store, task)
        (changed,) = await store.cancel([task.id])
        assert still(changed) == still(replace(before, cancel_requested=True))
        asked = await get(store, task)
        assert (asked.status, asked.cancel_requested) == (RUNNING, True)
        await settle(store, release(asked))
        assert (await get(store, task)).status is CANCELLED

    async def test_a_request_to_stop_may_come_too_late(self, store: Storage) -> None:
        task = await claimed_one(store)
        await store.cancel([task.id])
        assert await settle(store, succeed(task, b"done")) == frozenset()
        assert (await get(store, task)).status is SUCCESS

    @pytest.mark.parametrize("end", ["completes", "is released"])
    async def test_a_task_that_was_asked_to_stop_does_not_run_again_though_its_worker_missed_it(
        self, store: Storage, end: str
    ) -> None:
        task = await claimed_one(store, interval=0.0)
        await store.cancel([task.id])
        await settle(store, succeed(task, b"1") if end == "completes" else release(task))
        assert list(await claim(store)) == []
        after = await get(store, task)
        assert after.status is (SUCCESS if end == "completes" else CANCELLED)
        assert after.finished_at is not None
        assert after.result == (b"1" if end == "completes" else None)

    async def test_a_final_task_cannot_be_cancelled(self, store: Storage) -> None:
        by_status = await one_of_each(store)
        over = [by_status[status] for status in (SUCCESS, FAILED, CANCELLED)]
        assert list(await store.cancel(ids(over))) == []
        assert list(await store.get(ids(over))) == over

    # Running again.

    @pytest.mark.parametrize("status", [SUCCESS, FAILED, CANCELLED])
    async def test_a_final_task_is_retried_with_all_its_retries(self, store: Storage, status: TaskStatus) -> None:
        before = (await one_of_each(store))[status]
        async with Span(store) as span:
            (changed,) = await store.retry([before.id])
        assert changed.eta in span
        assert changed == redriven(before, changed.eta)
        assert await get(store, before) == changed
        (_, again) = await claim(store, 5)
        assert (again.id, again.attempt, again.failures) == (before.id, 2, 0)

    async def test_what_expired_runs_again_without_its_limit(self, store: Storage) -> None:
        task = await added(store, expires=await store.now() - 1.0)
        await store.expire(limit=10)
        await store.retry([task.id])
        assert ids(await claim(store)) == [task.id]

    async def test_an_unfinished_task_is_not_retried_by_operators(self, store: Storage) -> None:
        by_status = await one_of_each(store)
        alive = [by_status[PENDING], by_status[RUNNING]]
        before = await store.get(ids(alive))
        assert list(await store.retry([*ids(alive), "nobody"])) == []
        assert list(map(still, await store.get(ids(alive)))) == list(map(still, before))

    async def test_a_unique_key_never_lives_twice(self, store: Storage) -> None:
        first = await claimed_one(store, unique_key="k")
        await settle(store, succeed(first, None))
        second = await claimed_one(store, unique_key="k")
        assert list(await store.retry([first.id])) == []
        await settle(store, succeed(second, None))
        assert ids(await store.retry([second.id, first.id])) == [second.id]
        assert (await get(store, first)).status is SUCCESS

    # Forgetting.

    async def test_only_final_tasks_are_deleted(self, store: Storage) -> None:
        by_status = await one_of_each(store)
        everything = [task.id for task in by_status.values()]
        assert await store.delete([]) == 0
        assert await store.delete([*everything, "nobody", *everything]) == 3
        left = await store.list(TaskFilter(), limit=10)
        assert {task.status for task in left} == {PENDING, RUNNING}
        assert await store.delete(everything) == 0

    async def test_an_id_that_was_deleted_is_free(self, store: Storage) -> None:
        task = await claimed_one(store, unique_key="k")
        await settle(store, succeed(task, b"1"))
        await store.delete([task.id])
        (anew,) = await store.add([new_task(id=task.id, unique_key="k")])
        assert (anew.status, anew.attempt, anew.result) == (PENDING, 0, None)
        assert ids(await claim(store)) == [task.id]

    async def test_an_id_that_was_deleted_is_free_for_another_queue(self, store: Storage) -> None:
        eta = await store.now() - 10.0
        first, gone = await store.add([new_task(queue="mail", eta=eta - 1.0), new_task(queue="mail", eta=eta)])
        await store.cancel([gone.id])
        await store.delete([gone.id])
        await store.add([new_task(id=gone.id, queue="cpu", eta=eta)])
        assert ids(await claim(store, 10, queues=("mail",))) == [first.id]
        assert ids(await claim(store, 10, queues=("cpu",))) == [gone.id]

"""Tasks that are imported from another store, and tasks that are exported to one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    FINAL,
    PENDING,
    SUCCESS,
    AttemptError,
    DependsOn,
    Progress,
    Step,
    Task,
    TaskStatus,
    succeed,
)
from bullpen.tasks.storage.port import Storage, TaskFilter
from bullpen.testing.storage_contract.base import (
    FAR,
    StoreTests,
    added,
    claim,
    claimed_one,
    get,
    ids,
    new_task,
    settle,
)

OF_THOSE_THAT_RUN = {"claim_id", "lease_until"}


def with_a_past(now: float, status: TaskStatus, **fields: Any) -> Task:
    """A task in which everything is unusual."""
    task = new_task(
        payload=b"\x00\xff not even JSON",
        codec="other",
        queue="mail",
        priority=3,
        status=status,
        eta=now - 10.25,
        interval=7.5,
        schedule=Schedule(cron="*/5 * * * *", timezone="Europe/Berlin"),
        max_retries=4,
        backoff=Backoff(0.5, 99.0),
        timeout=12.5,
        expires=now + FAR,
        at_most_once=True,
        on_failure="continue",
        result_ttl=FAR,
        failure_ttl=2 * FAR,
        unique_key="unique \x00 ü",
        unique_scope="waiting",
        unique_until=now + FAR,
        concurrency_key="key",
        headers={"trace": "1", "ü": "\x00"},
        next_task_id="behind",
        depends_on=DependsOn(ids=("before", "beside"), place="1", many=True, run_always=True),
        waits_for=2,
        attempt=5,
        failures=2,
        crashes=1,
        completed_runs=6,
        scheduled_at=now - 20.5,
        hold="paused",
        worker="somebody",
        cancel_requested=True,
        steps=(Step(name="charge \x00 ü", number=1, attempt=4, result=b"\xff", started_at=now, ended_at=now),),
        awaits="paid ✓",
        progress=Progress(1.0, 3.0, "pages"),
        result=b"\x00result",
        result_dropped="too large",
        errors=tuple(
            AttemptError(kind="exception", attempt=n, at=now - n, type="T", message="m\x00", traceback="t")
            for n in (1, 2)
        ),
        created_at=now - 100.5,
        started_at=now - 50.25,
        finished_at=now - 40.125 if status in FINAL else None,
    )
    return replace(task, **fields)


class MovingTests(StoreTests):
    @pytest.mark.parametrize("status", [PENDING, SUCCESS, FAILED, CANCELLED])
    async def test_an_imported_task_keeps_its_history(self, store: Storage, status: TaskStatus) -> None:
        task = with_a_past(await store.now(), status)
        usual = Task(id="", func_path="", payload=b"")
        same = {name for name in Task.__struct_fields__ if getattr(task, name) == getattr(usual, name)}
        assert same - OF_THOSE_THAT_RUN <= {"status", "finished_at", "format", "unreadable"}, (
            "give the task above an unusual value for these"
        )
        assert await store.import_tasks([task]) == {task.id}
        assert await get(store, task) == task
        assert (await store.counts())["mail"][status] == 1
        assert ids(await store.list(TaskFilter(statuses=(status,)), limit=10)) == [task.id]

    async def test_an_imported_pending_task_is_claimed_like_any_other(self, store: Storage) -> None:
        now = await store.now()
        first = with_a_past(now, PENDING, eta=now - 5, cancel_requested=False, unique_key=None)
        later = with_a_past(now, PENDING, eta=now + FAR, cancel_requested=False, unique_key="later")
        newcomer = await added(store, queue="mail", priority=3)
        await store.import_tasks([later, first])
        claimed = await claim(store, 5, queues=("mail",))
        assert [(task.id, task.attempt) for task in claimed] == [(first.id, 6), (newcomer.id, 1)]

    async def test_an_imported_final_task_is_kept_for_the_rest_of_its_time(self, store: Storage) -> None:
        now = await store.now()
        old = with_a_past(now, SUCCESS, finished_at=now - 10, result_ttl=5.0, unique_key=None, unique_until=None)
        fresh = with_a_past(now, SUCCESS, finished_at=now - 10, result_ttl=FAR, unique_key=None)
        forever = with_a_past(now, SUCCESS, finished_at=now - 10, result_ttl=None, unique_key=None)
        assert await store.import_tasks([old, fresh, forever]) == {old.id, fresh.id, forever.id}
        assert await store.prune(limit=10) == 1
        assert await store.import_tasks([old]) == {old.id}

    async def test_existing_and_running_tasks_are_not_imported(self, store: Storage) -> None:
        now = await store.now()
        there = await added(store, queue="mail", unique_key="k")
        other = with_a_past(now, PENDING, unique_key="k", unique_scope="alive", unique_until=None)
        over = with_a_past(now, SUCCESS, unique_key="k", unique_until=now - 1)
        mine = await claimed_one(store)
        assert await store.import_tasks([replace(there, priority=9), other, over, replace(mine, id="another")]) == {
            over.id
        }
        assert await get(store, there) == there
        assert list(await store.get([other.id, "another"])) == [None, None]
        assert await store.import_tasks([]) == frozenset()

    async def test_an_imported_task_holds_its_unique_key_for_the_rest_of_its_time(self, store: Storage) -> None:
        now = await store.now()
        over = with_a_past(now, SUCCESS, unique_key="k")
        assert await store.import_tasks([over]) == {over.id}
        (there,) = await store.add([new_task(queue="mail", unique_key="k")])
        assert there.id == over.id
        assert await store.import_tasks([with_a_past(now, SUCCESS, unique_key="k")]) == frozenset()

    async def test_of_two_with_one_unique_key_the_first_is_put(self, store: Storage) -> None:
        now = await store.now()
        there = await added(store, unique_key="k", queue="mail", eta=now + FAR)
        first, second = (with_a_past(now, status, unique_key="j") for status in (PENDING, CANCELLED))
        again = with_a_past(now, PENDING, id=there.id, unique_key="i")
        third = with_a_past(now, PENDING, unique_key="i")
        assert await store.import_tasks([first, second, again, third]) == {first.id, third.id}
        assert await get(store, there) == there

    async def test_an_unchanged_task_is_exported(self, store: Storage) -> None:
        waiting = await added(store, unique_key="k", concurrency_key="c", eta=await store.now() + FAR)
        over = await claimed_one(store)
        await settle(store, succeed(over, b"1"))
        over = await get(store, over)
        assert await store.export_tasks([waiting, over]) == {waiting.id, over.id}
        assert list(await store.get([waiting.id, over.id])) == [None, None]
        assert not any(any(by_status.values()) for by_status in (await store.counts()).values())
        assert await store.export_tasks([waiting, over]) == frozenset()
        (anew,) = await store.add([new_task(unique_key="k")])
        assert anew.unique_key == "k"

    async def test_a_task_that_has_changed_meanwhile_is_not_exported(self, store: Storage) -> None:
        claimed_meanwhile = await added(store)
        mine = (await claim(store))[0]
        assert await store.export_tasks([claimed_meanwhile, mine]) == frozenset()
        await settle(store, succeed(mine, b"1"))
        over = await get(store, mine)
        await store.retry([over.id])
        assert await store.export_tasks([over]) == frozenset()
        again = await get(store, mine)
        await store.cancel([again.id])
        assert await store.export_tasks([again]) == frozenset()
        assert (await get(store, mine)).status is CANCELLED
        waits = await added(store, headers={"a": "1"}, eta=await store.now() + FAR)
        await store.change([waits.id], lambda task, _: replace(task, headers={"a": "2"}))
        assert await store.export_tasks([waits]) == frozenset()
        assert await store.export_tasks([await get(store, waits)]) == {waits.id}
        assert await store.export_tasks([]) == frozenset()

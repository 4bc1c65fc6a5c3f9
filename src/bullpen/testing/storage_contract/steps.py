"""Kept steps: each is written under the fence of its attempt, comes with the next claim, and belongs to one run."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import PENDING, Step, Task, cancel, crash, fail, release, succeed, suspend
from bullpen.tasks.model.unique import Duplicates
from bullpen.tasks.storage.port import AttemptKey, Storage, TaskFilter
from bullpen.testing.storage_contract.adding import STRANGE
from bullpen.testing.storage_contract.base import (
    FAR,
    StoreTests,
    added,
    claim,
    claimed_one,
    error_of,
    eventually,
    get,
    hold,
    new_task,
    settle,
)


def step_of(task: Task, name: str = "charge", number: int = 1, result: bytes | None = b"42") -> Step:
    return Step(
        name=name,
        number=number,
        attempt=task.attempt,
        digest="d1",
        result=result,
        error=None if result is not None else error_of(task, STRANGE),
        tries=2,
        started_at=1.5,
        ended_at=2.5,
    )


async def kept(store: Storage, task: Task, *names: str) -> list[Step]:
    """Steps that the store has kept for a running task."""
    steps = [step_of(task, name, number) for number, name in enumerate(names, start=1)]
    for step in steps:
        assert await store.save_step(hold(task), step) is True
    return steps


async def names_of(store: Storage, task: Task) -> list[str]:
    return [step.name for step in (await get(store, task)).steps]


class StepTests(StoreTests):
    async def test_steps_come_along_with_the_next_claim_as_they_were_kept(self, store: Storage) -> None:
        task = await claimed_one(store)
        assert task.steps == ()
        steps = [step_of(task, f"b {STRANGE}", 1), step_of(task, "a", 2, None), step_of(task, "c", 3, b"")]
        for step in steps:
            assert await store.save_step(hold(task), step) is True
        assert (await get(store, task)).steps == tuple(steps)
        assert await settle(store, release(task)) == frozenset()
        (again,) = await claim(store)
        assert again.attempt == 2
        assert again.steps == tuple(steps)
        assert (await store.list(TaskFilter(), limit=10))[0].steps == tuple(steps)

    async def test_a_large_step_is_kept(self, store: Storage) -> None:
        task = await claimed_one(store)
        step = step_of(task, result=bytes(range(256)) * 1024)
        assert await store.save_step(hold(task), step) is True
        assert (await get(store, task)).steps == (step,)

    async def test_steps_of_two_tasks_stay_apart(self, store: Storage) -> None:
        first, second = await claimed_one(store), await claimed_one(store)
        await kept(store, first, "charge", "ship")
        await kept(store, second, "charge")
        assert await names_of(store, first) == ["charge", "ship"]
        assert await names_of(store, second) == ["charge"]

    async def test_steps_that_are_saved_at_once_are_kept_except_those_of_a_lost_attempt(self, store: Storage) -> None:
        await store.add([new_task() for _ in range(4)])
        tasks = await claim(store, limit=4)
        lost = tasks[1]
        await settle(store, release(lost))
        saves = [(task, step_of(task, name, number)) for task in tasks for number, name in enumerate("ab", start=1)]
        kept = await asyncio.gather(*[store.save_step(hold(task), step) for task, step in saves])
        assert kept == [task is not lost for task, _ in saves]
        assert [await names_of(store, task) for task in tasks] == [["a", "b"], [], ["a", "b"], ["a", "b"]]

    async def test_a_step_replaces_one_with_the_same_name(self, store: Storage) -> None:
        task = await claimed_one(store)
        await kept(store, task, "charge", "ship")
        assert await store.save_step(hold(task), step_of(task, "charge", 3, b"43")) is True
        assert [(step.name, step.result) for step in (await get(store, task)).steps] == [
            ("ship", b"42"),
            ("charge", b"43"),
        ]

    async def test_a_step_of_an_earlier_attempt_is_rejected(self, store: Storage) -> None:
        task = await claimed_one(store)
        await settle(store, release(task))
        assert await store.save_step(hold(task), step_of(task)) is False  # pending
        (again,) = await claim(store)
        assert await store.save_step(hold(task), step_of(task)) is False  # in another attempt
        assert await store.save_step(AttemptKey("no such task", 1), step_of(task)) is False
        await settle(store, succeed(again, b"1"))
        assert await store.save_step(hold(again), step_of(again)) is False  # final
        assert await names_of(store, task) == []

    async def test_a_retry_a_crash_and_the_end_keep_the_steps(self, store: Storage) -> None:
        task = await claimed_one(store, max_retries=5)
        await kept(store, task, "charge")
        await settle(store, fail(task, error_of(task), 0.5, after=0.0))
        (task,) = await claim(store)
        await settle(store, crash(task, error_of(task)))
        (task,) = await claim(store)
        assert [step.name for step in task.steps] == ["charge"]
        await settle(store, succeed(task, b"1"))
        assert await names_of(store, task) == ["charge"]

    @pytest.mark.parametrize("ends", ["success", "failure"])
    async def test_the_next_run_of_an_interval_begins_without_steps(self, store: Storage, ends: str) -> None:
        task = await claimed_one(store, interval=0.001, on_failure="continue")
        await kept(store, task, "charge")
        await settle(store, succeed(task, b"1") if ends == "success" else fail(task, error_of(task), 0.5))
        assert await names_of(store, task) == []
        (again,) = await eventually(lambda: claim(store))
        assert again.steps == ()
        await kept(store, again, "ship")
        assert await names_of(store, task) == ["ship"]

    @pytest.mark.parametrize("many", [False, True])
    async def test_a_retry_by_an_operator_keeps_the_steps_of_a_failure_and_drops_those_of_a_success(
        self, store: Storage, many: bool
    ) -> None:
        tasks = [await claimed_one(store) for _ in range(3)]
        for task in tasks:
            await kept(store, task, "charge")
        done, failed, cancelled = tasks
        await settle(store, succeed(done, b"1"), fail(failed, error_of(failed), 0.5), cancel(cancelled))
        if many:
            assert len((await store.change_batch("retry", TaskFilter(), limit=10)).changed) == 3
        else:
            assert len(await store.retry([task.id for task in tasks])) == 3
        assert [await names_of(store, task) for task in tasks] == [[], ["charge"], ["charge"]]
        by_id = {task.id: task for task in await claim(store, 3)}
        assert [len(by_id[task.id].steps) for task in tasks] == [0, 1, 1]
        await kept(store, by_id[done.id], "ship")
        assert await names_of(store, done) == ["ship"]

    async def test_a_task_that_another_one_replaces_loses_its_steps(self, store: Storage) -> None:
        task = await claimed_one(store, unique_key="k")
        await kept(store, task, "charge")
        await settle(store, release(task, FAR))
        await store.add([new_task(unique_key="k", payload=b"[1]")], Duplicates("replace"))
        assert (await get(store, task)).payload == b"[1]"
        assert await names_of(store, task) == []
        assert await self.stored_steps(store) == 0

    async def test_a_change_may_drop_the_steps(self, store: Storage) -> None:
        task = await claimed_one(store)
        await kept(store, task, "charge")
        await settle(store, release(task, FAR))
        await store.change([task.id], lambda task, _: replace(task, priority=3))
        assert await names_of(store, task) == ["charge"]
        await store.change([task.id], lambda task, _: replace(task, steps=()))
        assert await names_of(store, task) == []

    async def test_expires_no_longer_applies_to_a_task_that_sleeps(self, store: Storage) -> None:
        now = await store.now()
        task = await claimed_one(store, expires=now + FAR)
        await settle(store, suspend(task, now + 0.01))
        (woken,) = await eventually(lambda: claim(store))
        assert (woken.id, woken.expires, woken.eta) == (task.id, None, now + 0.01)
        assert (woken.attempt, woken.failures, woken.crashes) == (2, 0, 0)

    async def test_deleted_and_pruned_tasks_leave_no_steps(self, store: Storage) -> None:
        deleted = await claimed_one(store)
        pruned = await claimed_one(store, result_ttl=0.0)
        for task in (deleted, pruned):
            await kept(store, task, "charge")
        await settle(store, succeed(deleted, b"1"), replace(succeed(pruned, b"1"), forgotten=False))
        assert await store.delete([deleted.id]) == 1
        await store.prune(limit=10)
        assert await store.get([deleted.id, pruned.id]) == [None, None]
        for task in (deleted, pruned):  # a new task with the id of an old one
            await added(store, id=task.id)
            assert await names_of(store, task) == []
        assert await self.stored_steps(store) == 0

    async def stored_steps(self, store: Storage) -> int:
        """How many steps the store has. Override it if the store keeps them apart from their task."""
        return 0

    async def lose_steps(self, store: Storage) -> bool:
        """Delete all steps, and no task. Override it if the store keeps them apart from their task."""
        return False

    async def test_a_task_whose_steps_are_gone_is_set_aside_and_repeats_none(self, store: Storage) -> None:
        task = await claimed_one(store)
        await kept(store, task, "charge", "ship")
        await settle(store, release(task))
        if not await self.lose_steps(store):
            return
        assert "another program has deleted them" in (await get(store, task)).unreadable
        (again,) = await claim(store)
        assert "steps: another program has deleted them" in again.unreadable
        assert again.steps == ()

    async def test_steps_move_with_their_task(self, store: Storage) -> None:
        task = await claimed_one(store)
        steps = await kept(store, task, "charge", "ship")
        await settle(store, release(task, FAR))
        whole = await get(store, task)
        assert await store.export_tasks([whole]) == {task.id}
        assert await self.stored_steps(store) == 0
        assert await store.import_tasks([whole]) == {task.id}
        assert (await get(store, task)).steps == tuple(steps)
        await store.change([task.id], lambda task, now: replace(task, eta=now))
        (again,) = await claim(store)
        assert again.status is not PENDING
        assert again.steps == tuple(steps)

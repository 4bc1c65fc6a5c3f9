"""Events: the first one of a name is kept, and no task that waits for one is left asleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    NEVER,
    PENDING,
    Settlement,
    Step,
    Task,
    cancel,
    crash,
    fail,
    release,
    succeed,
    suspend,
)
from bullpen.tasks.storage.port import Storage, TaskFilter
from bullpen.testing.storage_contract.base import (
    FAR,
    PATIENCE,
    SOON,
    StoreTests,
    claim,
    claimed_one,
    error_of,
    eventually,
    get,
    hold,
    ids,
    new_task,
    settle,
)
from bullpen.testing.storage_contract.waiting import waits

NAME = "approved:42 ✓"
PAYLOAD = b'{"by":"ada"}'


def begun(task: Task, event: str = NAME) -> Step:
    return Step(name=f"event {event}", number=1, attempt=task.attempt, until=NEVER, event=event)


async def waiting(store: Storage, event: str = NAME, until: float = NEVER, **fields: object) -> Task:
    """A task that waits for an event."""
    task = await claimed_one(store, **fields)
    assert await store.save_step(hold(task), begun(task, event))
    assert not await settle(store, suspend(task, until, event))
    return task


def crash_of(task: Task) -> Settlement:
    return crash(task, error_of(task))


async def is_due(store: Storage, task: Task) -> bool:
    now = (await get(store, task)).eta <= await store.now()
    assert now == (task.id in ids(await claim(store, 10)))
    return now


class EventTests(StoreTests):
    # The events themselves.

    async def test_the_first_event_of_a_name_is_kept(self, store: Storage) -> None:
        before = await store.now()
        assert await store.wait_for_event(NAME, 0.0) is None
        assert await store.emit(NAME, PAYLOAD, FAR) is True
        assert await store.emit(NAME, b"2", FAR) is False
        event = await store.wait_for_event(NAME, FAR)
        assert event is not None
        assert (event.name, event.payload) == (NAME, PAYLOAD)
        assert before <= event.at <= await store.now()
        assert abs(event.expires_at - event.at - FAR) < 1e-3
        assert await store.wait_for_event("another", 0.0) is None

    async def test_a_payload_may_be_any_bytes(self, store: Storage) -> None:
        for number, payload in enumerate((b"", b"null", bytes(range(256)) * 1024)):
            await store.emit(f"e{number}", payload, None)
            event = await store.wait_for_event(f"e{number}", 0.0)
            assert event is not None
            assert (event.payload, event.expires_at) == (payload, NEVER)

    async def test_a_program_that_waits_gets_the_event(self, store: Storage) -> None:
        other = store.another() or store
        async with waits(other.wait_for_event(NAME, FAR)) as answer:
            await store.emit("another", b"1", FAR)
            await store.emit(NAME, PAYLOAD, FAR)
        event = await answer
        assert event is not None
        assert event.payload == PAYLOAD
        if other is not store:
            await other.close()

    async def test_a_wait_for_an_event_ends(self, store: Storage) -> None:
        assert await asyncio.wait_for(store.wait_for_event(NAME, SOON), PATIENCE) is None

    async def test_events_are_listed_by_name(self, store: Storage) -> None:
        for name in ("b", "a", "c"):
            await store.emit(name, name.encode(), FAR)
        assert [event.name for event in await store.events(limit=2)] == ["a", "b"]
        assert [event.name for event in await store.events(limit=2, after="b")] == ["c"]
        assert [event.payload for event in await store.events(limit=9)] == [b"a", b"b", b"c"]

    async def test_after_its_time_to_live_an_event_is_pruned_or_replaced(self, store: Storage) -> None:
        await store.emit("short", b"1", 0.001)
        await store.emit("replaced", b"1", 0.001)
        await store.emit("long", b"1", FAR)
        await asyncio.sleep(0.005)
        assert await store.emit("replaced", b"2", FAR) is True
        await store.prune(limit=10)
        assert [(event.name, event.payload) for event in await store.events(limit=9)] == [
            ("long", b"1"),
            ("replaced", b"2"),
        ]
        assert await store.emit("short", b"2", FAR) is True

    # Tasks that wait.

    async def test_a_task_that_waits_is_not_due(self, store: Storage) -> None:
        task = await waiting(store)
        stored = await get(store, task)
        assert (stored.status, stored.awaits, stored.eta) == (PENDING, NAME, NEVER)
        assert (stored.attempt, stored.failures, stored.crashes) == (1, 0, 0)
        await store.emit("another", b"1", FAR)
        assert not await is_due(store, task)

    async def test_an_event_after_the_settlement_makes_the_task_due(self, store: Storage) -> None:
        task, other = await waiting(store), await waiting(store, "another")
        assert await store.emit(NAME, PAYLOAD, FAR) is True
        assert await is_due(store, task)
        assert (await get(store, other)).eta == NEVER

    async def test_an_event_before_the_settlement_makes_the_task_due(self, store: Storage) -> None:
        assert await store.emit(NAME, PAYLOAD, FAR) is True
        assert await is_due(store, await waiting(store))

    async def test_events_during_settlements_lose_no_wake_up(self, store: Storage) -> None:
        other = store.another() or store
        tasks = [await claimed_one(store, queue=f"q{number % 3}") for number in range(30)]
        names = [f"e{number % 10}" for number in range(30)]

        async def settle_all() -> None:
            for task, name in zip(tasks, names, strict=True):
                assert not await settle(store, suspend(task, NEVER, name))

        async def emit_all() -> None:
            for name in names[5:15]:
                await other.emit(name, PAYLOAD, FAR)

        await asyncio.gather(settle_all(), emit_all())
        now = await store.now()
        assert [(await get(store, task)).eta <= now for task in tasks] == [True] * 30
        if other is not store:
            await other.close()

    async def test_one_event_wakes_all_that_wait_for_it_in_all_queues(self, store: Storage) -> None:
        tasks = [await waiting(store, queue=queue) for queue in ("a", "b", "a")]
        await store.emit(NAME, PAYLOAD, FAR)
        assert sorted(ids(await claim(store, 10, queues=["a", "b"]))) == sorted(task.id for task in tasks)

    async def test_a_worker_that_waits_for_work_is_woken(self, store: Storage) -> None:
        await waiting(store)
        async with waits(store.wait_for_work(["default"], FAR)):
            await store.emit(NAME, PAYLOAD, FAR)

    async def test_a_task_is_due_when_its_time_is_over(self, store: Storage) -> None:
        task = await waiting(store, until=await store.now() + 0.005)
        (again,) = await eventually(lambda: claim(store))
        assert (again.id, again.awaits) == (task.id, NAME)

    async def test_an_event_makes_no_task_due_later(self, store: Storage) -> None:
        """One that is due keeps its place; so does one that is woken twice."""
        until = await store.now() - 1.0
        task = await waiting(store, until=until)
        await store.emit(NAME, PAYLOAD, FAR)
        assert (await get(store, task)).eta == until

    async def test_a_wait_lasts_until_the_next_settlement(self, store: Storage) -> None:
        task = await waiting(store, max_retries=3)
        await store.emit(NAME, PAYLOAD, FAR)
        (again,) = await claim(store)
        assert (again.id, again.awaits, again.attempt) == (task.id, NAME, 2)
        await settle(store, fail(again, error_of(again), 0.5, after=FAR))
        assert (await get(store, task)).awaits is None

    async def test_a_settlement_of_an_earlier_attempt_waits_for_nothing(self, store: Storage) -> None:
        task = await claimed_one(store)
        await settle(store, release(task))
        (again,) = await claim(store)
        assert len(await settle(store, suspend(task, NEVER, NAME))) == 1
        assert (await get(store, again)).awaits is None

    async def test_a_task_that_was_asked_to_stop_does_not_wait(self, store: Storage) -> None:
        task = await claimed_one(store)
        await store.cancel([task.id])
        await settle(store, suspend(task, NEVER, NAME))
        assert (await get(store, task)).is_final

    async def test_a_cancelled_task_is_not_woken_and_a_retried_one_is_due(self, store: Storage) -> None:
        for many in (False, True):
            task = await waiting(store)
            assert ids(await store.cancel([task.id])) == [task.id]
            await store.emit(f"{NAME}{many}", PAYLOAD, FAR)
            assert (await get(store, task)).is_final
            if many:
                await store.change_batch("retry", TaskFilter(ids=(task.id,)), limit=10)
            else:
                await store.retry([task.id])
            stored = await get(store, task)
            assert (stored.awaits, [step.name for step in stored.steps]) == (None, [f"event {NAME}"])
            assert await is_due(store, task)

    async def test_a_paused_schedule_is_not_woken(self, store: Storage) -> None:
        task = await waiting(store, interval=FAR)
        await store.change([task.id], lambda task, _: replace(task, hold="paused", eta=NEVER))
        await store.emit(NAME, PAYLOAD, FAR)
        assert not await is_due(store, task)

    async def test_the_next_run_waits_for_nothing(self, store: Storage) -> None:
        task = await waiting(store, interval=FAR)
        await store.emit(NAME, PAYLOAD, FAR)
        (again,) = await claim(store)
        await settle(store, succeed(again, b"1"))
        stored = await get(store, task)
        assert (stored.awaits, stored.steps) == (None, ())

    async def test_an_event_that_an_unfinished_task_awaits_is_not_pruned(self, store: Storage) -> None:
        task = await waiting(store)
        await store.emit(NAME, PAYLOAD, 0.001)
        await asyncio.sleep(0.005)
        await store.prune(limit=10)
        assert await store.wait_for_event(NAME, 0.0) is not None  # pending
        (again,) = await claim(store)
        await store.prune(limit=10)
        assert await store.wait_for_event(NAME, 0.0) is not None  # running
        await settle(store, succeed(again, b"1"))
        await store.prune(limit=10)
        assert await store.wait_for_event(NAME, 0.0) is None
        assert (await get(store, task)).is_final

    @pytest.mark.parametrize("move", [crash_of, release], ids=["crash", "release"])
    async def test_an_event_outlives_an_attempt_that_has_not_kept_its_payload(
        self, store: Storage, move: Callable[[Task], Settlement]
    ) -> None:
        task = await waiting(store)
        await store.emit(NAME, PAYLOAD, 0.001)
        await asyncio.sleep(0.005)
        (again,) = await claim(store)
        await settle(store, move(again))
        await store.prune(limit=10)
        assert await store.wait_for_event(NAME, 0.0) is not None
        assert ids(await claim(store)) == ids([task])

    async def test_an_event_that_has_come_shortens_no_pause_of_a_released_task(self, store: Storage) -> None:
        task = await waiting(store)
        await store.emit(NAME, PAYLOAD, FAR)
        (again,) = await claim(store)
        await settle(store, release(again, FAR))
        assert not await is_due(store, task)

    async def test_tasks_that_wait_are_listed(self, store: Storage) -> None:
        first, second, third = await waiting(store), await waiting(store), await waiting(store, "another")
        ended = await waiting(store)
        await store.cancel([ended.id])
        await store.add([new_task(eta=await store.now() + FAR)])
        assert ids(await store.list(TaskFilter(awaits=NAME), limit=9)) == ids([first, second])
        assert ids(await store.list(TaskFilter(awaits=""), limit=9)) == ids([first, second, third])
        assert await store.count(TaskFilter(awaits=NAME)) == 2
        assert await store.count(TaskFilter(awaits="")) == 3
        batch = await store.change_batch("cancel", TaskFilter(awaits="another"), limit=9)
        assert [task.id for task in batch.changed] == [third.id]

    async def test_a_wait_moves_with_its_task(self, store: Storage) -> None:
        task = await waiting(store)
        whole = await get(store, task)
        assert await store.export_tasks([whole]) == {task.id}
        assert await store.import_tasks([whole]) == {task.id}
        assert (await get(store, task)).awaits == NAME
        await store.emit(NAME, PAYLOAD, FAR)
        assert await is_due(store, task)

    async def test_other_settlements_wait_for_nothing(self, store: Storage) -> None:
        await store.emit(NAME, PAYLOAD, FAR)
        moves: list[Settlement] = []
        for _ in range(3):
            task = await claimed_one(store, max_retries=3)
            moves += [[release(task, FAR), fail(task, error_of(task), 0.5, after=FAR), cancel(task)][len(moves)]]
        assert not await settle(store, *moves)
        assert [(await store.get([one.id]))[0].awaits for one in moves] == [None] * 3  # type: ignore[union-attr]

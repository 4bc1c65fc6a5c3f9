"""What becomes of tasks: every move of the table, and every write that comes too late."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    CANCELLED,
    ERRORS_KEPT,
    FAILED,
    PENDING,
    RUNNING,
    SUCCESS,
    TASK_MOVES,
    Progress,
    Settlement,
    Task,
    TaskStatus,
    cancel,
    crash,
    fail,
    fail_permanently,
    postpone,
    release,
    settled,
    succeed,
    suspend,
)
from bullpen.tasks.storage.port import AttemptKey, Storage
from bullpen.testing.storage_contract.adding import STRANGE
from bullpen.testing.storage_contract.base import (
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
    hold,
    ids,
    new_tasks,
    settle,
    still,
    take_back,
)

Move = Callable[[Task], Settlement]
AT = 4_000_000_000.25

SETTLEMENTS: dict[str, Move] = {
    "success": lambda task: succeed(task, b"42"),
    "success without a result": lambda task: succeed(task, None),
    "success with an empty result": lambda task: succeed(task, b""),
    "success with a large result": lambda task: succeed(task, bytes(range(256)) * 1024),
    "success, result dropped": lambda task: succeed(task, None, f"too large {STRANGE}"),
    "a run of an interval": lambda task: succeed(replace(task, interval=FAR), b"run"),
    "retry": lambda task: fail(replace(task, max_retries=3), error_of(task), 0.5),
    "retry after a time": lambda task: fail(replace(task, max_retries=3), error_of(task), 0.5, after=12.5),
    "failure": lambda task: fail(task, error_of(task, STRANGE), 0.5),
    "failed run of an interval": lambda task: fail(
        replace(task, interval=FAR, on_failure="continue"), error_of(task), 0.5
    ),
    "crash": lambda task: crash(task, error_of(task)),
    "poison": lambda task: crash(replace(task, crashes=2), error_of(task)),
    "lost": lambda task: crash(replace(task, at_most_once=True), error_of(task)),
    "failed permanently": lambda task: fail_permanently(task, error_of(task)),
    "postponed": lambda task: postpone(task, error_of(task), 0.5, give_up_after=FAR),
    "released": release,
    "released for later": lambda task: release(task, FAR),
    "suspended": lambda task: suspend(task, AT),
    "cancelled": cancel,
    "until a time": lambda task: replace(release(task), delay=None, eta=AT, scheduled_at=AT, next_run=True),
    "a run until a time": lambda task: replace(
        succeed(replace(task, interval=1.0), b"run"), delay=None, eta=AT, scheduled_at=AT - 1.5, next_run=True
    ),
}


# Every way from one status to another.


async def _claimed(store: Storage) -> str:
    return (await claimed_one(store)).id


async def _settled(store: Storage, move: Move) -> str:
    task = await claimed_one(store)
    assert not await settle(store, move(task))
    return task.id


async def _cancelled(store: Storage) -> str:
    task = await added(store)
    await store.cancel([task.id])
    return task.id


async def _expired(store: Storage) -> str:
    task = await added(store, expires=await store.now() - 1.0)
    assert ids(await store.expire(limit=10)) == [task.id]
    return task.id


async def _retried(store: Storage, move: Move) -> str:
    task_id = await _settled(store, move)
    assert ids(await store.retry([task_id])) == [task_id]
    return task_id


MOVES: dict[tuple[TaskStatus, TaskStatus], Callable[[Storage], Awaitable[str]]] = {
    (PENDING, RUNNING): _claimed,
    (PENDING, CANCELLED): _cancelled,
    (PENDING, FAILED): _expired,
    (RUNNING, SUCCESS): lambda store: _settled(store, SETTLEMENTS["success"]),
    (RUNNING, FAILED): lambda store: _settled(store, SETTLEMENTS["failure"]),
    (RUNNING, CANCELLED): lambda store: _settled(store, SETTLEMENTS["cancelled"]),
    (RUNNING, PENDING): lambda store: _settled(store, SETTLEMENTS["released"]),
    (SUCCESS, PENDING): lambda store: _retried(store, SETTLEMENTS["success"]),
    (FAILED, PENDING): lambda store: _retried(store, SETTLEMENTS["failure"]),
    (CANCELLED, PENDING): lambda store: _retried(store, SETTLEMENTS["cancelled"]),
}


# Every way in which a worker loses a task, which then is as it is, whatever that worker still writes.


async def _was_settled(store: Storage, task: Task, move: Move) -> None:
    assert not await settle(store, move(task))


async def _was_rescued(store: Storage, task: Task) -> None:
    assert ids(await store.rescue_expired(take_back, limit=10, dead_workers=["w"])) == [task.id]


async def _was_rescued_and_claimed(store: Storage, task: Task) -> None:
    await _was_rescued(store, task)
    assert ids(await claim(store, worker="other")) == [task.id]


async def _was_cancelled_and_rescued(store: Storage, task: Task) -> None:
    await store.cancel([task.id])
    await _was_rescued(store, task)
    assert (await get(store, task)).status is CANCELLED


async def _was_retried_and_claimed(store: Storage, task: Task) -> None:
    await _was_settled(store, task, SETTLEMENTS["failed permanently"])
    await store.retry([task.id])
    assert ids(await claim(store, worker="other")) == [task.id]


async def _was_deleted(store: Storage, task: Task) -> None:
    await _was_settled(store, task, SETTLEMENTS["success"])
    assert await store.delete([task.id]) == 1


LOSSES: dict[str, Callable[[Storage, Task], Awaitable[None]]] = {
    "it succeeded": lambda store, task: _was_settled(store, task, SETTLEMENTS["success"]),
    "it failed": lambda store, task: _was_settled(store, task, SETTLEMENTS["failed permanently"]),
    "it was cancelled": lambda store, task: _was_settled(store, task, SETTLEMENTS["cancelled"]),
    "it was released": lambda store, task: _was_settled(store, task, SETTLEMENTS["released"]),
    "it waits for its retry": lambda store, task: _was_settled(store, task, SETTLEMENTS["retry"]),
    "it was rescued": _was_rescued,
    "it was rescued and claimed": _was_rescued_and_claimed,
    "it was cancelled and rescued": _was_cancelled_and_rescued,
    "it was retried and claimed": _was_retried_and_claimed,
    "it was deleted": _was_deleted,
}


class SettlingTests(StoreTests):
    @pytest.mark.parametrize("has_keys", [False, True])
    @pytest.mark.parametrize("kind", SETTLEMENTS)
    async def test_a_settlement_makes_of_a_task_what_it_says(self, store: Storage, kind: str, has_keys: bool) -> None:
        keys = {"unique_key": "u", "concurrency_key": "c"} if has_keys else {}
        task = await claimed_one(store, headers={"a": "b"}, **keys)
        before = await get(store, task)
        settlement = SETTLEMENTS[kind](task)
        async with Span(store) as span:
            assert await settle(store, settlement) == frozenset()
        after = await get(store, task)
        expected = settled(before, settlement, span.begin)
        assert after == replace(expected, eta=after.eta, finished_at=after.finished_at)
        if settlement.delay is None:
            assert after.eta == expected.eta
        else:
            assert after.eta in span.later(settlement.delay)
        assert (after.finished_at is None) == (expected.finished_at is None)
        if after.finished_at is not None:
            assert after.finished_at in span

    async def test_a_success_keeps_what_went_before_it_but_for_the_result(self, store: Storage) -> None:
        task = await claimed_one(store, max_retries=3)
        (task,) = await claim(store, 1, fail(task, error_of(task), 0.0, after=0.0))
        (task,) = await claim(store, 1, crash(task, error_of(task)))
        assert (task.failures, task.crashes, len(task.errors)) == (1, 1, 2)
        for result, why in ((b"1", ""), (None, "too large")):
            settlement = succeed(task, result, why)
            assert await settle(store, settlement) == frozenset()
            after = await get(store, task)
            assert after == replace(settled(task, settlement, FAR), finished_at=after.finished_at)
            assert ids(await store.retry([task.id])) == [task.id]
            (task,) = await claim(store)

    def test_every_move_of_the_table_is_tried(self) -> None:
        assert set(MOVES) == {(old, new) for old, moves in TASK_MOVES.items() for new in moves}

    @pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{move[0]}-{move[1]}")
    async def test_a_move_of_the_table(self, store: Storage, move: tuple[TaskStatus, TaskStatus]) -> None:
        task = await get(store, await MOVES[move](store))
        assert task.status is move[1]
        counts = await store.counts()
        assert {status: count for status, count in counts["default"].items() if count} == {move[1]: 1}

    async def test_a_released_task_may_be_claimed_again_when_it_is_due(self, store: Storage) -> None:
        far, soon, now = [await claimed_one(store, max_retries=5) for _ in range(3)]
        await settle(store, release(far, FAR), fail(soon, error_of(soon), 0.0, after=SOON), release(now))
        assert ids(await claim(store)) == [now.id]
        (again,) = await eventually(lambda: claim(store))
        assert (again.id, again.attempt, again.failures) == (soon.id, 2, 1)
        assert again.started_at is not None
        assert again.started_at >= again.eta
        assert await claim(store) == []

    async def test_an_interval_keeps_its_id_and_its_last_result(self, store: Storage) -> None:
        task = await claimed_one(store, interval=SOON, max_retries=3)
        await settle(store, succeed(task, b"first"))
        waiting = await get(store, task)
        assert (waiting.status, waiting.completed_runs, waiting.result) == (PENDING, 1, b"first")
        (task,) = await eventually(lambda: claim(store))
        await settle(store, fail(task, error_of(task), 0.0, after=0.0))
        assert (await get(store, task)).result == b"first"
        (task,) = await claim(store)
        await settle(store, succeed(task, b"second"))
        waiting = await get(store, task)
        assert (waiting.completed_runs, waiting.result, waiting.failures, waiting.attempt) == (2, b"second", 0, 3)

    async def test_the_latest_errors_are_kept_oldest_first(self, store: Storage) -> None:
        task = await claimed_one(store, max_retries=1000)
        for number in range(ERRORS_KEPT + 3):
            error = replace(error_of(task, f"{number} {STRANGE}"), traceback="long\n" * 4000)
            (task,) = await claim(store, 1, fail(task, error, 0.0, after=0.0))
        kept = (await get(store, task)).errors
        assert [error.message for error in kept] == [f"{n} {STRANGE}" for n in range(3, ERRORS_KEPT + 3)]
        assert {len(error.traceback) for error in kept} == {20_000}
        assert [error.attempt for error in kept] == list(range(4, ERRORS_KEPT + 4))

    @pytest.mark.parametrize("kind", SETTLEMENTS)
    async def test_the_last_progress_comes_with_the_settlement(self, store: Storage, kind: str) -> None:
        """Also beside settlements without one, which leave it as it is."""
        told, quiet = [await claimed_one(store, max_retries=3) for _ in range(2)]
        for task in (told, quiet):
            await store.note_progress(hold(task), Progress(1, 3))
        last = replace(SETTLEMENTS[kind](told), progress=Progress(3, 3.5, STRANGE))
        assert not await settle(store, last, SETTLEMENTS[kind](quiet))
        assert (await get(store, told)).progress == Progress(3, 3.5, STRANGE)
        assert (await get(store, quiet)).progress == Progress(1, 3)

    # Late writes.

    @pytest.mark.parametrize("loss", LOSSES)
    async def test_a_lost_task_takes_no_write_of_its_old_attempt(self, store: Storage, loss: str) -> None:
        task = await claimed_one(store, max_retries=3)
        await LOSSES[loss](store, task)
        (before,) = await store.get([task.id])
        for kind, move in SETTLEMENTS.items():
            assert await settle(store, move(task)) == {hold(task)}, kind
        renewal = await store.renew([hold(task)], FAR)
        assert renewal.lost == {hold(task)}
        assert renewal.cancelled == frozenset()
        assert await store.note_progress(hold(task), Progress(1.0)) is False
        (after,) = await store.get([task.id])
        assert still(after) == still(before)

    async def test_a_write_of_an_attempt_that_never_was_is_rejected(self, store: Storage) -> None:
        task = await claimed_one(store)
        for other in (replace(task, attempt=0), replace(task, attempt=2), replace(task, id="nobody")):
            assert await settle(store, succeed(other, b"x")) == {hold(other)}
            assert (await store.renew([hold(other)], FAR)).lost == {hold(other)}
            assert await store.note_progress(hold(other), Progress(1.0)) is False
        assert (await get(store, task)).status is RUNNING

    async def test_a_task_that_waits_is_nobodys_to_settle(self, store: Storage) -> None:
        task = await added(store)
        assert await settle(store, succeed(task, b"x")) == {AttemptKey(task.id, 0)}
        assert await get(store, task) == task

    @pytest.mark.parametrize("count", [2, 11, 130])
    async def test_a_stale_one_among_others_is_rejected_alone(self, store: Storage, count: int) -> None:
        given = await store.add(new_tasks(count, max_retries=1))
        mine = await claim(store, count)
        stale = {mine[0].id, mine[count // 2].id, mine[-1].id}
        for task in mine:
            if task.id in stale:
                await settle(store, release(task, FAR))
        moves = [SETTLEMENTS[kind] for kind in ("success", "success", "success", "retry", "failure", "cancelled")]
        settlements = [moves[number % len(moves)](task) for number, task in enumerate(mine)]
        assert await settle(store, *settlements) == {hold(task) for task in mine if task.id in stale}
        after = [await get(store, task) for task in given]
        for task, settlement in zip(after, settlements, strict=True):
            assert task.status is (PENDING if task.id in stale else settlement.status)

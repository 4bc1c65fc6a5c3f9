"""Bugs that were there once, here or in other queues, to be put back on purpose: a simulation has to find each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from bullpen.tasks.model import task as tasks
from bullpen.tasks.model.task import CANCELLED, FAILED, PENDING, RUNNING, SUCCESS, Settlement, Task
from bullpen.tasks.storage import memory, rules
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Exchange
from bullpen.tasks.worker import attempt as attempts
from bullpen.tasks.worker import upkeep
from bullpen.tasks.worker.attempt import TaskAttempt
from bullpen.tasks.worker.exchange import StoreExchange
from bullpen.tasks.worker.lane import LaneRunner

replace = msgspec.structs.replace
Patch = Callable[[pytest.MonkeyPatch], None]

SABOTAGES: dict[str, tuple[Patch, frozenset[str]]] = {}  # and the invariants of which one has to break


def sabotage(*broken: str) -> Callable[[Patch], Patch]:
    def keep(patch: Patch) -> Patch:
        SABOTAGES[patch.__name__] = patch, frozenset(broken)
        return patch

    return keep


# Workers.


@sabotage("I9")
def claims_the_whole_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneRunner, "_room", lambda lane, returning: 0 if lane._stopping else 100)


@sabotage("I9")
def gives_the_permit_back_before_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = LaneRunner.settle

    def early(lane: LaneRunner, attempt: TaskAttempt, settlement: Settlement | None) -> None:
        settle(lane, attempt, settlement)
        lane.held.pop(attempt.key, None)

    monkeypatch.setattr(LaneRunner, "settle", early)


@sabotage("I1", "I3", "I10", "I17", "I19")
def loses_final_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = LaneRunner.settle

    def forget(lane: LaneRunner, attempt: TaskAttempt, settlement: Settlement | None) -> None:
        settle(lane, attempt, None if settlement is not None and settlement.status is FAILED else settlement)

    monkeypatch.setattr(LaneRunner, "settle", forget)


@sabotage("I1", "I16")
def strands_the_tasks_of_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rescue(_: object) -> None:
        pass

    monkeypatch.setattr(upkeep.Upkeep, "rescue", rescue)


@sabotage("I5")
def takes_tasks_from_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "is_dead", lambda _: True)


@sabotage("I10")
def counts_a_release_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    release = tasks.release

    def counted(task: Task, delay: float = 0.0) -> Settlement:
        return replace(release(task, delay), failures=task.failures + 1)

    monkeypatch.setattr(attempts, "release", counted)


@sabotage("I17")
def stops_without_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = LaneRunner.serve

    async def hasty(lane: LaneRunner) -> None:
        room = lane._room
        lane._room = lambda returning: _leave() if lane._stopping else room(returning)  # type: ignore[method-assign]
        try:
            await serve(lane)
        except _Left:
            lane.held.clear()

    monkeypatch.setattr(LaneRunner, "serve", hasty)


class _Left(Exception):
    pass


def _leave() -> int:
    raise _Left


@sabotage("I3")
def acknowledges_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TaskAttempt.begin

    def early(attempt: TaskAttempt) -> None:
        begin(attempt)
        attempt._lane.settle(attempt, tasks.succeed(attempt.task, b"1"))

    monkeypatch.setattr(TaskAttempt, "begin", early)


@sabotage("I2", "I4", "I8", "I10")
def runs_what_it_was_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a claim did not return is made up: the attempt before it."""
    take = LaneRunner._take

    def twice(lane: LaneRunner, claimed: Any, limit: int, sent: float) -> None:
        take(lane, [replace(task, attempt=task.attempt + 1) for task in claimed], limit, sent)

    monkeypatch.setattr(LaneRunner, "_take", twice)


@sabotage("I9", "I17")
def forgets_claims_whose_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def shrug(_: StoreExchange, *__: object) -> tuple[()]:
        await asyncio.sleep(1.0)
        return ()

    monkeypatch.setattr(StoreExchange, "_resolve", shrug)


# Moves.


@sabotage("I15")
def loses_a_request_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = tasks.settled

    def forgetful(task: Task, settlement: Settlement, now: float) -> Task:
        asked = task.cancel_requested and settlement.delay is not None
        return settled(replace(task, cancel_requested=False) if asked else task, settlement, now)

    monkeypatch.setattr(rules, "settled", forgetful)


@sabotage("I10")
def retries_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = tasks.fail

    def stubborn(task: Task, error: Any, luck: float, **options: Any) -> Settlement:
        return fail(replace(task, max_retries=100), error, luck, **options)

    monkeypatch.setattr(attempts, "fail", stubborn)


@sabotage("I10", "I1")
def forgives_every_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_CRASHES", 1000)


@sabotage("I10")
def repeats_what_may_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = tasks.crash
    monkeypatch.setattr(upkeep, "crash", lambda task, error: crash(replace(task, at_most_once=False), error))


@sabotage("I13", "I11")
def forgets_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    succeed = tasks.succeed

    def too_soon(task: Task, *result: Any, **more: Any) -> Settlement:
        made = succeed(task, *result, **more)
        return made if made.delay is None else replace(made, delay=made.delay / 2)

    monkeypatch.setattr(attempts, "succeed", too_soon)


@sabotage("I19")
def keeps_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "AttemptError", lambda **fields: tasks.AttemptError(**{**fields, "message": ""}))


# The store.


@sabotage("I7")
def settles_without_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "applies", lambda task, _: task.status is RUNNING)


@sabotage("I6", "I7")
def settles_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "applies", lambda task, settlement: task.attempt == settlement.attempt)


@sabotage("I7")
def renews_without_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(store: MemoryStorage, hold: Any) -> Task | None:
        task = store._tasks.get(hold.id)
        return task if task is not None and task.status is RUNNING else None

    monkeypatch.setattr(MemoryStorage, "_held", held)


@sabotage("I7")
def keeps_steps_without_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def save_step(store: MemoryStorage, hold: Any, step: Any) -> bool:
        task = store._tasks[hold.id]
        store._write(tasks.with_step(task, step), store._now())
        return True

    monkeypatch.setattr(MemoryStorage, "save_step", save_step)


@sabotage("I22")
def claims_without_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = tasks.claimed

    def forgetful(task: Task, **facts: Any) -> Task:
        pauses = tuple(step for step in task.steps if step.until is not None)  # else the task sleeps for ever
        return replace(claimed(task, **facts), steps=pauses)

    monkeypatch.setattr(memory, "claimed", forgetful)


@sabotage("I1")
def never_wakes_a_task_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = tasks.settled

    def forgetful(task: Task, settlement: Settlement, now: float) -> Task:
        after = settled(task, settlement, now)
        return replace(after, eta=tasks.NEVER) if settlement.awaits else after

    monkeypatch.setattr(rules, "settled", forgetful)


@sabotage("I4")
def claims_without_a_new_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = tasks.claimed
    monkeypatch.setattr(memory, "claimed", lambda task, **facts: replace(claimed(task, **facts), attempt=1))


@sabotage("I11")
def starts_before_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    claimable = MemoryStorage._claimable

    def impatient(store: MemoryStorage, queues: Any, now: float, limit: int) -> Iterator[Task]:
        return claimable(store, queues, now + 2.0, limit)

    monkeypatch.setattr(MemoryStorage, "_claimable", impatient)


@sabotage("I14")
def claims_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory._WaitingTasks, "__iter__", lambda line: iter(list(line._entries)[::-1]))


@sabotage("I12")
def forgets_unique_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    add = MemoryStorage._add_task

    def anyone(store: MemoryStorage, task: Task, duplicates: Any, now: float) -> Task:
        store._unique.clear()
        return add(store, task, duplicates, now)

    monkeypatch.setattr(MemoryStorage, "_add_task", anyone)


@sabotage("I1", "I20")
def loses_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    write = MemoryStorage._write

    def careless(store: MemoryStorage, task: Task, now: float) -> None:
        if task.attempt or not task.id.endswith("3"):
            write(store, task, now)

    monkeypatch.setattr(MemoryStorage, "_write", careless)


@sabotage("I15", "I6")
def cancels_on_paper_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(store: MemoryStorage, ids: Any, move: Any) -> list[Task]:
        found = [store._tasks[one] for one in ids if one in store._tasks and store._tasks[one].status is PENDING]
        return [replace(task, status=CANCELLED) for task in found]

    change = MemoryStorage._change
    monkeypatch.setattr(
        MemoryStorage,
        "_change",
        lambda store, ids, move: (said if move is tasks.cancelled_by_operator else change)(store, ids, move),
    )


@sabotage("I9")
def hands_out_more_than_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = MemoryStorage.exchange

    async def generous(store: MemoryStorage, settlements: Any, **asked: Any) -> Exchange:
        return await exchange(store, settlements, **{**asked, "limit": 3 * asked["limit"]})

    monkeypatch.setattr(MemoryStorage, "exchange", generous)


@sabotage("I20", "I1")
def forgets_the_end_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    write = MemoryStorage._write

    def forgetful(store: MemoryStorage, task: Task, now: float) -> None:
        write(store, task, now)
        if task.status is SUCCESS:
            store._tasks.pop(task.id)

    monkeypatch.setattr(MemoryStorage, "_write", forgetful)

"""Chains, groups and children in simulated lives of a queue: processes vanish at every failpoint, requests are lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from bullpen import RESULT, TaskQueue, chain, current_task, group
from bullpen.tasks.model.task import SUCCESS, Task
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.testing import Plan, simulate
from bullpen.testing.simulation import SimulationRun

SEEDS = 40
ROUGH = Plan(workers=3, concurrency=2, lease=3.0, trouble=0.15, faults=0, deaths=0.03, seconds=6.0)


def play(seed: int) -> tuple[SimulationRun, dict[str, Any]]:
    """A run, and what became of it."""
    queue = TaskQueue("memory://")
    began: Counter[str] = Counter()
    jobs: dict[str, Any] = {}

    @queue.task(name="add", max_retries=5, backoff=0)
    async def add(a: int, b: int = 1) -> int:
        began[current_task().id] += 1
        return a + b

    @queue.task(name="total", max_retries=5, backoff=0)
    async def total(values: list[int]) -> int:
        return sum(values)

    @queue.task(name="parent", max_retries=5, backoff=0)
    async def parent(count: int) -> str:
        return current_task().enqueue(group(add.call(n) for n in range(count)).then(total.call(RESULT))).id

    async def start() -> None:
        jobs["chain"] = await chain(add.call(1), add.call(RESULT), add.call(RESULT)).aenqueue()
        jobs["group"] = await group(add.call(n) for n in range(4)).then(total.call(RESULT)).aenqueue()
        jobs["parent"] = await parent.aenqueue(3)

    run = simulate(seed, ROUGH, queue=queue, start=start, kill=0.02)
    return run, jobs


def is_good(run: SimulationRun, jobs: dict[str, Any]) -> bool:
    """Whether all that was enqueued has succeeded, and the children are there once."""
    statuses = Counter((task.name, task.status) for task in run.tasks)
    if len(jobs) < 3 or any(task.crashes for task in run.tasks):
        return run.is_good  # the producer was cut off, or gave up: the invariants still hold
    whole = {("add", SUCCESS): 3 + 4 + 3, ("total", SUCCESS): 2, ("parent", SUCCESS): 1}
    return run.is_good and dict(statuses) == whole


def test_chains_groups_and_children_come_to_their_end_in_every_life() -> None:
    ends = 0
    for seed in range(SEEDS):
        run, jobs = play(seed)
        run.raise_for_violations()
        assert is_good(run, jobs), (seed, [(task.name, str(task.status), task.errors) for task in run.tasks])
        ends += len(run.tasks) == 13
    assert ends > SEEDS / 2


def forgets_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStorage, "_update_followers", lambda *_: None)


def loses_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStorage, "_add_child", lambda *_: None)


def starts_before_the_others_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    add = MemoryStorage._add_task

    def hasty(store: MemoryStorage, task: Task, duplicates: Any, now: float) -> Task:
        return add(store, replace(task, waits_for=min(task.waits_for, 1)), duplicates, now)

    monkeypatch.setattr(MemoryStorage, "_add_task", hasty)


@pytest.mark.parametrize("sabotage", [forgets_who_waits, loses_children, starts_before_the_others_are_done])
def test_a_bug_that_is_put_back_is_found(monkeypatch: pytest.MonkeyPatch, sabotage: Any) -> None:
    sabotage(monkeypatch)
    assert any(not is_good(*play(seed)) for seed in range(SEEDS)), sabotage.__name__

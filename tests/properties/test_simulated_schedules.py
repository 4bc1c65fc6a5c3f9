"""Schedules in simulated lives: processes vanish, clocks are turned, requests are lost. No time comes twice."""

from __future__ import annotations

from collections import defaultdict

import pytest
from msgspec.structs import replace

from bullpen.tasks.model import schedule_changes, task
from bullpen.tasks.model.schedule import Schedule, next_fire_time
from bullpen.tasks.model.task import Task
from bullpen.tasks.worker import attempt
from bullpen.testing import InvariantBroken, Plan, simulate
from bullpen.testing.simulation import SimulationRun

# One with each way to overlap.
PLAN = Plan(tasks=1, workers=2, lease=3.0, schedules=3, trouble=0.02, deaths=0.02, faults=6, seconds=12.0)
SEEDS = 60
FOUND_WITHIN = 60


def started_twice(run: SimulationRun) -> list[set[str]]:
    """Tasks that a schedule whose runs may overlap has started for one and the same time."""
    started: dict[float, set[str]] = defaultdict(set)
    for record in run.history:
        if record.op == "enqueue" and record.terms is not None and not record.terms.repeats and record.scheduled_at:
            started[record.scheduled_at].add(record.task)
    return [tasks for tasks in started.values() if len(tasks) > 1]


def test_no_time_of_a_schedule_comes_twice(thorough: bool) -> None:
    ran = 0
    for seed in range(20_000 if thorough else SEEDS):
        run = simulate(seed, PLAN)
        run.raise_for_violations()
        assert not started_twice(run), seed
        ran += sum(info.completed_runs for info in run.tasks)
    assert ran > SEEDS * 5


def is_found(seed: int) -> bool:
    try:
        run = simulate(seed, PLAN)
        run.raise_for_violations()
    except InvariantBroken:
        return True
    return bool(started_twice(run))


def test_a_schedule_that_goes_back_in_time_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(schedule: Schedule, after: float) -> float | None:
        return next_fire_time(schedule, after - 3.0)

    monkeypatch.setattr(task, "next_fire_time", without_memory)
    assert any(map(is_found, range(FOUND_WITHIN)))


def test_a_run_that_is_started_twice_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_the_minute(task: Task) -> Task:
        run = schedule_changes.occurrence(task)
        return replace(run, scheduled_at=(run.scheduled_at or 0.0) // 60 * 60)

    monkeypatch.setattr(attempt, "occurrence", of_the_minute)
    assert any(map(is_found, range(FOUND_WITHIN)))

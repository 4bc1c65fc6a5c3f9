"""Thousands of simulated lives of a queue, each from its seed. The simulation itself replays, and it finds bugs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bullpen import primitives
from bullpen.tasks.model.task import TASK_MOVES, TaskStatus
from bullpen.tasks.worker import identity
from bullpen.testing import InvariantBroken, Plan, simulate
from bullpen.testing.simulation import SimulationRun
from tests.properties.sabotage import SABOTAGES

SEEDS = 600
THOROUGH_SEEDS = 100_000
FIRST = 200
BATCHES = 4
FOUND_WITHIN = 100  # seeds, for each sabotage
DENSE = Plan(tasks=12, workers=2, lease=3.0, faults=8)  # much happens in little time
REPLAYED = range(15)


@pytest.fixture(scope="module")
def first_runs() -> list[SimulationRun]:
    return [simulate(seed) for seed in range(FIRST)]


def test_every_invariant_holds_for_the_first_seeds(first_runs: list[SimulationRun]) -> None:
    for run in first_runs:
        run.raise_for_violations()


@pytest.fixture(scope="module")
def dense_runs() -> list[SimulationRun]:
    return [simulate(seed, DENSE) for seed in range(FOUND_WITHIN)]


def test_every_invariant_holds_where_sabotage_is_looked_for(dense_runs: list[SimulationRun]) -> None:
    for run in dense_runs:
        run.raise_for_violations()


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_invariant_holds_for_every_seed(batch: int, thorough: bool) -> None:
    for seed in range(FIRST + batch, THOROUGH_SEEDS if thorough else SEEDS, BATCHES):
        simulate(seed).raise_for_violations()


def test_a_seed_is_replayed_byte_for_byte(first_runs: list[SimulationRun]) -> None:
    for run in first_runs[::5]:
        assert simulate(run.seed).lines == run.lines


def digest(seeds: range) -> str:
    return hashlib.sha256(b"".join(simulate(seed).lines for seed in seeds)).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_is_replayed_in_another_process_with_other_hashes(hash_seed: str) -> None:
    source = f"from tests.properties.test_simulation import *; print(digest({REPLAYED!r}))"
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == digest(REPLAYED)


def test_different_seeds_are_different_lives(first_runs: list[SimulationRun]) -> None:
    assert len({run.lines for run in first_runs}) == FIRST


def test_everything_that_can_go_wrong_does(first_runs: list[SimulationRun], dense_runs: list[SimulationRun]) -> None:
    """Else the promises are kept for want of trouble."""
    runs = [*first_runs, *dense_runs]
    seen = {(record.op, record.outcome, record.status) for run in runs for record in run.history}
    assert {("settle", "rejected", status) for status in ("success", "failed", "pending")} <= seen
    assert {("rescue", "ok", status) for status in ("pending", "failed", "cancelled")} <= seen
    assert {("renew", "rejected", ""), ("expire", "ok", "failed"), ("enqueue", "rejected", "")} <= seen
    assert {("cancel", "ok", "running"), ("cancel", "ok", "cancelled"), ("redrive", "ok", "pending")} <= seen
    steps = {(record.outcome, bool(record.step)) for run in runs for record in run.history if record.op == "step"}
    assert steps >= {("ok", True), ("ok", False), ("rejected", False)}
    assert any(record.suspended and record.outcome == "ok" for run in runs for record in run.history)
    ops = {record.op for run in runs for record in run.history}
    assert ops >= {"begin", "end", "abandon", "return", "effect", "lose", "progress"}
    reasons = {record.reason for run in runs for record in run.history if record.state == "crashed"}
    assert reasons >= {"anywhere", "its task", "exchange.before", "exchange.after", "attempt.before", "attempt.after"}
    assert reasons >= {"step.before", "step.after"}
    faults = {record.state.split()[0] for run in runs for record in run.history if record.op == "fault"}
    assert faults >= {"kill", "freeze", "cut", "away", "clock", "stop", "calm"}
    late = [record for run in runs for record in run.history if record.late]
    assert late, "no claim was made for somebody who had given up waiting"


def test_every_move_of_a_task_is_in_the_table_and_every_one_is_made(dense_runs: list[SimulationRun]) -> None:
    made = {move for run in dense_runs for move in moves(run)}
    allowed = {(old, new) for old, following in TASK_MOVES.items() for new in following}
    stays = {(TaskStatus.RUNNING, TaskStatus.RUNNING)}  # it was asked to stop
    assert made - stays == allowed


def moves(run: SimulationRun) -> Iterator[tuple[TaskStatus, TaskStatus]]:
    now: dict[str, TaskStatus] = {}
    for record in run.history:
        if record.outcome != "ok" or record.op not in (
            "enqueue",
            "claim",
            "settle",
            "rescue",
            "expire",
            "cancel",
            "redrive",
        ):
            continue
        if record.op == "enqueue":
            now.setdefault(record.task, TaskStatus.PENDING)
            continue
        after = TaskStatus.RUNNING if record.op == "claim" else TaskStatus(record.status)
        yield now[record.task], after
        now[record.task] = after


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_bug_that_is_put_back_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, broken = SABOTAGES[name]
    patch(monkeypatch)
    for seed in range(FOUND_WITHIN):
        if simulate(seed, DENSE).verdict.broken & broken:
            return
    pytest.fail(f"{name} breaks none of {', '.join(sorted(broken))} in {FOUND_WITHIN} seeds")


def test_there_are_enough_sabotages() -> None:
    assert len(SABOTAGES) >= 20


def test_a_violation_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    SABOTAGES["claims_the_whole_backlog"][0](monkeypatch)
    run = next(run for run in map(simulate, range(50)) if not run.is_good)
    with pytest.raises(InvariantBroken, match="I9") as raised:
        run.raise_for_violations()
    assert f"simulate({run.seed})" in str(raised.value.__notes__)


def test_a_plan_is_kept_to() -> None:
    run = simulate(7, Plan(tasks=5, workers=2, concurrency=3, lease=4.0, trouble=0.0, faults=0, deaths=0.0))
    run.raise_for_violations()
    assert sum(record.op == "enqueue" for record in run.history) == 5
    starting = [record for record in run.history if record.state == "starting" and record.at < 1001.0]
    assert [record.permits for record in starting] == [3, 3]
    assert {record.lease for record in run.history if record.op == "claim"} == {4.0}
    assert not any("crashed" in record.state and record.reason != "its task" for record in run.history)


def test_nothing_is_left_replaced() -> None:
    before = primitives.random, primitives.start_loop, primitives.failpoint, identity.machine
    simulate(1)
    assert (primitives.random, primitives.start_loop, primitives.failpoint, identity.machine) == before

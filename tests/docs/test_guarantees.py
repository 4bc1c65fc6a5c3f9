"""docs/explanation/guarantees.md, task-guarantees.md and supervision.md: the tests they name exist, and here are those
that are nowhere else.
"""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import weakref

import pytest

from bullpen import Pool, QueueTimeout
from bullpen.testing import ManualClock, ScriptedRuntime
from bullpen.testing.invariants import INVARIANTS
from tests.docs.markdown import ROOT, python_blocks
from tests.properties.sabotage import SABOTAGES
from tests.properties.test_simulation import FOUND_WITHIN, SEEDS, THOROUGH_SEEDS

HOMES = {
    "machine": "tests/properties/test_pool_machine.py",
    "schedules": "tests/properties/test_schedules.py",
    "limits": "tests/scenarios/test_limits.py",
    "drop-in": "tests/scenarios/test_drop_in.py",
    "nested": "tests/scenarios/test_nested.py",
    "contract": "src/bullpen/testing/contracts.py",
    "page": "tests/docs/test_guarantees.py",
}


HOMES_OF_TASKS = {
    "storm": "tests/faults/test_kill_storm.py",
    "killed": "tests/faults/test_worker_killed.py",
    "network": "tests/faults/test_network.py",
    "two hosts": "tests/faults/test_two_hosts.py",
    "locked": "tests/faults/test_sqlite_locked.py",
    "gone": "tests/faults/test_sqlite_gone.py",
    "gone in store": "tests/unit/tasks/storage/sqlite/test_gone.py",
    "server killed": "tests/faults/test_server_killed.py",
    "channels": "tests/faults/test_redis_channels.py",
    "schedules": "tests/scenarios/test_schedules.py",
    "schedules killed": "tests/faults/test_schedules_killed.py",
    "simulated schedules": "tests/properties/test_simulated_schedules.py",
    "cron": "tests/properties/test_cron.py",
    "completed": "tests/faults/test_complete_killed.py",
    "simulation": "tests/properties/test_simulation.py",
    "steps": "tests/scenarios/test_steps.py",
    "steps killed": "tests/faults/test_steps_killed.py",
    "steps storm": "tests/faults/test_steps_storm.py",
    "sleep": "tests/scenarios/test_sleep.py",
    "leases": "tests/scenarios/test_task_worker_leases.py",
    "outcomes": "tests/scenarios/test_task_worker_outcomes.py",
    "dispatch": "tests/scenarios/test_seed_bounded_dispatch.py",
    "worker-pool": "tests/scenarios/test_seed_worker_pool_core.py",
    "settled": "tests/unit/tasks/model/test_settled.py",
    "clocks": "tests/unit/tasks/storage/test_memory_clocks.py",
}


HOMES_OF_PROCESSES = {
    "failures": "tests/scenarios/test_process_failures.py",
    "ends": "tests/scenarios/test_process_ends.py",
    "orphans": "tests/scenarios/test_process_orphans.py",
    "pools": "tests/scenarios/test_process_pools.py",
    "scripts": "tests/scenarios/test_process_scripts.py",
    "spares": "tests/scenarios/test_process_spares.py",
    "surroundings": "tests/scenarios/test_process_surroundings.py",
    "storm": "tests/scenarios/test_process_storm.py",
    "lanes": "tests/scenarios/test_process_lanes.py",
    "memory": "tests/scenarios/test_process_limits.py",
}


@pytest.mark.parametrize(
    ("page", "homes"),
    [("guarantees.md", HOMES), ("task-guarantees.md", HOMES_OF_TASKS), ("supervision.md", HOMES_OF_PROCESSES)],
    ids=["pools", "tasks", "processes"],
)
def test_every_test_that_a_page_names_exists(page: str, homes: dict[str, str]) -> None:
    text = (ROOT / "docs/explanation" / page).read_text()
    named = re.findall(rf"\b({'|'.join(homes)}) `(\w+)`", text)
    assert {home for home, _ in named} == set(homes)
    missing = [name for home, name in named if f"def {name}(" not in (ROOT / homes[home]).read_text()]
    assert missing == []


def test_the_page_about_tasks_names_every_invariant_and_counts_right() -> None:
    text = (ROOT / "docs/explanation/task-guarantees.md").read_text()
    named = set(re.findall(r"\bI\d+\b", text.partition("## What is not")[0]))
    judged_elsewhere = {"I2", "I3", "I6", "I14", "I21"}  # promises that go without saying
    assert named | judged_elsewhere == set(INVARIANTS)
    assert f"by {len(INVARIANTS)} invariants" in text
    assert f"within {FOUND_WITHIN} seeds" in text
    assert f"{SEEDS} seeds, a thorough one (`--thorough`) {THOROUGH_SEEDS:,}." in text
    assert len(SABOTAGES) == 30
    assert "Thirty bugs" in text


def test_the_test_in_contributing_is_this_one() -> None:
    (example,) = (
        block for block in python_blocks((ROOT / "CONTRIBUTING.md").read_text()) if block.text.startswith("def test_")
    )
    assert example.text in (ROOT / HOMES["page"]).read_text()


def test_an_expired_request_never_runs() -> None:
    clock, runtime, ran = ManualClock(), ScriptedRuntime(), list[str]()
    with Pool(1, runtime=runtime, clock=clock) as pool:
        pool.submit(ran.append, "first")
        late = pool.using(queue_timeout=5).submit(ran.append, "late")
        clock.advance(5)
        runtime.run_all()
        assert isinstance(late.exception(), QueueTimeout)
    assert ran == ["first"]


def test_requests_start_in_order() -> None:
    started = list[int]()
    with Pool(1) as pool:
        for number in range(100):
            pool.submit(started.append, number)
    assert started == list(range(100))


def test_a_cancelled_request_is_freed_at_once() -> None:
    class Argument:
        pass

    release, argument = threading.Event(), Argument()
    gone = weakref.ref(argument)
    with Pool(1) as pool:
        pool.submit(release.wait)
        future = pool.submit(id, argument)
        del argument
        assert future.cancel()
        gc.collect()
        assert gone() is None
        release.set()


def test_an_open_pool_is_drained_at_exit() -> None:
    source = (
        "import time\nfrom bullpen import Pool\npool = Pool(1)\n"
        "for n in range(3): pool.submit(lambda n=n: (time.sleep(0.01), print(n)))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["0", "1", "2"]

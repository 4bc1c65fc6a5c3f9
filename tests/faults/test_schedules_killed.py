"""Workers with schedules are killed at random, or at failpoints. No time of a schedule runs twice."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from bullpen import ScheduleInfo, TaskQueue
from tests.faults.schedule_worker import new_queue
from tests.stores import SERVERS, new_store

WORKERS, WITHIN = 8, 60.0


class Herd:
    """Workers in their own processes. No process outlives the test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.effects = url, folder / "effects"
        self.alive: list[subprocess.Popen[bytes]] = []
        self.killed: set[str] = set()

    def start(self, fatal: str = "", hits: int = 0) -> subprocess.Popen[bytes]:
        words = [self.url, str(self.effects), fatal, str(hits)]
        command = [sys.executable, "-m", "tests.faults.schedule_worker", *words]
        self.alive.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return self.alive[-1]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        self.bury(process)

    def bury(self, process: subprocess.Popen[bytes]) -> None:
        assert process.wait(WITHIN) == -signal.SIGKILL
        process.communicate()
        self.killed.add(str(process.pid))
        self.alive.remove(process)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.effects.read_text().splitlines()] if self.effects.exists() else []

    def wait_for_ends(self, count: int, name: str = "alone") -> None:
        """Wait until there are `more` further runs."""
        deadline = time.monotonic() + WITHIN
        enough = self._ends(name) + count
        while self._ends(name) < enough:
            assert time.monotonic() < deadline, self.lines()[-10:]
            time.sleep(0.02)

    def _ends(self, name: str) -> int:
        return sum(line[0] == name and line[3] == "ends" for line in self.lines())

    def stop(self) -> None:
        for process in self.alive:
            process.terminate()
        for process in self.alive:
            assert process.wait(WITHIN) in (0, -signal.SIGTERM)  # the latter if the run had not begun yet
            process.communicate()
        self.alive.clear()

    def __enter__(self) -> Herd:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.alive:
            process.kill()
            process.communicate()


def check_that_no_time_came_twice(herd: Herd) -> None:
    """A second run of one time is allowed only if the worker of the first run was killed during it."""
    begun: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, at, pid, what in herd.lines():
        if what == "begins" and name != "again":
            begun[name, at].append(pid)
    for run, pids in begun.items():
        assert set(pids[:-1]) <= herd.killed, f"{run} was begun by {pids}, and of those {herd.killed} were killed"
        assert len(set(pids)) == len(pids), f"{run} was begun twice by one worker: {pids}"


async def look(url: str) -> Sequence[ScheduleInfo]:
    async with TaskQueue(url) as queue:
        return await queue.schedules.alist()


def storm(herd: Herd, kills: int, seed: int, workers: int = WORKERS) -> None:
    luck = random.Random(seed)
    for _ in range(workers):
        herd.start()
    herd.wait_for_ends(1)
    for _ in range(kills):
        time.sleep(luck.uniform(0.0, 0.6))
        herd.kill(luck.choice(herd.alive))
        herd.start()
    herd.wait_for_ends(2)
    herd.wait_for_ends(1, "beside")
    herd.stop()
    check_that_no_time_came_twice(herd)
    schedules = asyncio.run(look(herd.url))
    assert [schedule.key for schedule in schedules] == ["again", "alone", "beside"]
    assert all(schedule.status.value == "pending" for schedule in schedules)


@pytest.mark.timeout(300)
def test_no_time_runs_twice_while_eight_workers_are_killed_at_random(tmp_path: Path, thorough: bool) -> None:
    with Herd(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path) as herd:
        storm(herd, kills=100 if thorough else 5, seed=1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", SERVERS)
def test_no_time_runs_twice_on_a_server(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, thorough: bool
) -> None:
    with new_store(kind, tmp_path, request) as url, Herd(url, tmp_path) as herd:
        storm(herd, kills=30 if thorough else 2, seed=2, workers=WORKERS if thorough else 3)


@pytest.mark.parametrize(
    ("fatal", "hits"),
    [
        ("schedules.before_declare", 0),
        ("schedules.after_declare", 0),
        ("exchange.before", 2),
        ("exchange.after", 2),
    ],
)
def test_a_worker_that_is_killed_with_its_schedules_leaves_one_of_each(tmp_path: Path, fatal: str, hits: int) -> None:
    with Herd(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path) as herd:
        herd.bury(herd.start(fatal, hits))
        herd.start()
        herd.wait_for_ends(1)
        herd.wait_for_ends(1, "beside")
        herd.stop()
        check_that_no_time_came_twice(herd)
        assert len(asyncio.run(look(herd.url))) == 3


def test_the_check_finds_a_time_that_ran_twice(tmp_path: Path) -> None:
    herd = Herd("", tmp_path)
    herd.effects.write_text("alone 10 1 begins\nalone 10 2 begins\n")
    with pytest.raises(AssertionError, match="was begun by"):
        check_that_no_time_came_twice(herd)
    herd.killed = {"1"}
    check_that_no_time_came_twice(herd)


def test_the_workers_declare_the_functions_that_the_tests_expect(tmp_path: Path) -> None:
    queue = new_queue(f"sqlite:///{tmp_path / 'jobs.db'}", "")
    assert [each.schedule_key for each in queue.registry] == ["alone", "beside", "again"]

"""Limits on the memory of worker processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    InvalidOption,
    Pool,
    PoolFailed,
    ProcessRuntime,
    ProgramRuntime,
    RemoteError,
    WorkerLost,
    WorkerOutOfMemory,
)
from tests.scenarios.process_support import PATIENCE, START_METHODS, eventually

MB = 1024 * 1024

kept: list[bytearray] = []

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")


def take(count: int) -> int:
    return len(b"x" * count)


def keep(count: int) -> int:
    kept.append(bytearray(b"x" * count))
    return os.getpid()


def take_all_there_is() -> None:
    hoard = []
    while True:
        hoard.append(b"x" * MB)


def lift_and_take(count: int) -> int:
    """Lift the limit as far as a task can without privileges, then take memory."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return take(count)


def give(count: int) -> bytes:
    return b"x" * count


@pytest.mark.parametrize("start", START_METHODS)
def test_a_worker_that_needs_too_much_memory_is_ended_and_its_caller_gets_an_error(start: Any) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start, memory_limit=300 * MB)) as pool:
        assert pool.do(take, 10 * MB) == 10 * MB
        for call in ((take, 400 * MB), (take_all_there_is,)):
            error = pool.submit(*call).exception(PATIENCE)
            assert isinstance(error, WorkerOutOfMemory)
            assert isinstance(error, WorkerLost)
            assert error.limit == 300 * MB
            assert isinstance(error.__cause__, MemoryError)
        assert pool.do(take, 10 * MB) == 10 * MB, "another worker takes its place"
        assert pool.stats().spawned == 3


@pytest.mark.parametrize("start", START_METHODS)
def test_a_task_cannot_lift_the_limit(start: Any) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start, memory_limit=300 * MB)) as pool:
        soft, hard = pool.do(resource.getrlimit, resource.RLIMIT_DATA)
        assert soft == 300 * MB
        assert soft < hard <= 320 * MB, "a little is left for the report"
        assert isinstance(pool.submit(lift_and_take, 400 * MB).exception(PATIENCE), WorkerOutOfMemory)


def test_a_limit_above_that_of_the_system_is_that_of_the_system() -> None:
    low = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20))"
    code = f"{low}; from bullpen import Pool, ProcessRuntime; "
    code += "p = Pool(1, runtime=ProcessRuntime(memory_limit=1 << 40)); print(p.do(resource.getrlimit, 2)); p.close()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ended.stdout == f"({400 * MB}, {400 * MB})\n"


def test_a_large_argument_counts_once() -> None:
    with Pool(1, runtime=ProcessRuntime(memory_limit=200 * MB)) as pool:
        assert pool.do(len, bytes(100 * MB)) == 100 * MB
        assert pool.do(len, bytearray(100 * MB)) == 100 * MB
        assert pool.stats().spawned == 1


@pytest.mark.parametrize("start", START_METHODS)
def test_a_worker_that_cannot_start_within_its_memory_limit_reports_it(start: Any) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start, memory_limit=1000)) as pool:
        error = pool.submit(pow, 2, 2).exception(PATIENCE)
        assert isinstance(error, PoolFailed)
        assert "its memory_limit is 1000 bytes" in str(error.__cause__)


def test_an_item_of_a_map_that_wants_too_much_ends_its_worker() -> None:
    with Pool(1, runtime=ProcessRuntime(memory_limit=300 * MB)) as pool:
        with pytest.raises(WorkerOutOfMemory):
            list(pool.map(take, [400 * MB]))
        assert list(pool.map(take, [1, 2, 3])) == [1, 2, 3]


def fail_with_much(count: int) -> None:
    raise ValueError("x" * count)


@pytest.mark.parametrize("capacity", [1, 2])
def test_an_error_that_there_is_no_memory_to_send_arrives_by_name(capacity: int) -> None:
    with Pool(1, runtime=ProcessRuntime(memory_limit=200 * MB), capacity=capacity) as pool:
        worker = pool.do(os.getpid)
        error = pool.submit(fail_with_much, 60 * MB).exception(PATIENCE)
        assert isinstance(error, RemoteError)
        assert "ValueError: xxx" in str(error)
        assert pool.do(os.getpid) == worker


def test_without_a_limit_a_memory_error_is_an_error_like_any_other() -> None:
    with Pool(1, runtime="process") as pool:
        assert isinstance(pool.submit(take, 1 << 60).exception(PATIENCE), MemoryError)
        assert pool.do(take, 1) == 1
        assert pool.stats().spawned == 1


def test_a_worker_that_has_grown_is_replaced_between_requests() -> None:
    with Pool(1, runtime=ProcessRuntime(max_rss=150 * MB)) as pool:
        first = pool.do(keep, 1)
        assert pool.do(keep, 200 * MB) == first, "what it was at is finished"
        eventually(lambda: pool.stats().recycled == 1)
        assert pool.do(os.getpid) != first
        assert pool.stats().lost == 0


def test_a_program_that_has_grown_is_replaced_between_calls(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import json, os, sys
kept = []
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "hello":
        print(json.dumps({"type": "ready", "protocol": 1}), flush=True)
    elif message["type"] == "call":
        kept.append(b"x" * message["args"][0])
        print(json.dumps({"type": "result", "id": message["id"], "value": os.getpid()}), flush=True)
"""
    )
    with Pool(1, runtime=ProgramRuntime([sys.executable, "-S", program], max_rss=150 * MB)) as pool:
        first = pool.do("keep", 200 * MB)
        eventually(lambda: pool.stats().recycled == 1)
        assert pool.do("keep", 1) != first


@pytest.mark.parametrize("option", ["max_rss", "memory_limit"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1 GB", True])
def test_limits_that_make_no_sense_are_rejected(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        ProcessRuntime(**{option: value})

"""Worker processes that fork, are stopped, are dead already, or send garbage: no call is answered by another process,
nothing hangs, and no process is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bullpen import Pool, ProcessRuntime
from bullpen.pools.runtimes.process import forkserver_client
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, START_METHODS, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


# Forked children that leave the user's function.


@pytest.mark.parametrize("start", START_METHODS)
@pytest.mark.parametrize("capacity", [1, 2])
def test_a_forked_child_that_leaves_the_function_ends_without_a_word(start: Any, capacity: int) -> None:
    with Pool(1, runtime=ProcessRuntime(start=start), capacity=capacity) as pool:
        first = pool.do(work.pid)
        for how, code in (("returns", 0), ("raises", 1), ("exits", 3)):
            assert pool.submit(work.fork_and_leave, how).result(PATIENCE) == code, how
        assert list(pool.stream(work.fork_and_yield)) == [0]
        assert pool.do(work.pid) == first
    assert pool.stats().spawned == 1


def test_a_forked_child_of_an_initializer_is_no_second_worker() -> None:
    with Pool(1, runtime="process", initializer=work.fork_at_start) as pool:
        assert [pool.do(work.identity, number) for number in range(10)] == list(range(10))


@pytest.mark.parametrize("how", ["goes on", "raises"])
def test_a_forked_child_of_a_preloaded_module_is_no_second_forkserver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = f"forks_and_{how.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text(f"import os\nif not os.fork() and {how == 'raises'}:\n    raise ValueError\n")
    with Pool(8, runtime=ProcessRuntime(preload=[name]), min_workers=8) as pool:
        assert pool.wait_ready(PATIENCE)
        parents = {work.parent_of(pool.do(work.pid)) for _ in range(8)}
    assert len(parents) == 1


# Processes that are stopped (SIGSTOP), which only SIGKILL ends.

SCRIPT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from bullpen import Pool, ProcessRuntime
from tests.scenarios import process_support as work
from tests.scenarios.test_process_faults import impatient

if __name__ == "__main__":
    impatient()
    pool = Pool(2, runtime=ProcessRuntime(stop_grace=0.2))
    worker = pool.do(os.getpid)
    os.kill({victim}, signal.SIGSTOP)
    print(*work.descendants_of(os.getpid()), flush=True)
"""


def impatient() -> None:
    """Wait for a forkserver that does not answer only for a moment."""
    forkserver_client.LOOK_EVERY, forkserver_client.LAST_WAIT = 0.02, 0.2


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver_client, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(forkserver_client, "LAST_WAIT", 0.2)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: work.state_of(pid) == "T")


def test_a_stopped_idle_worker_does_not_keep_a_pool_from_closing() -> None:
    with Pool(2, runtime=ProcessRuntime(stop_grace=0.1), min_workers=2) as pool:
        assert pool.wait_ready(PATIENCE)
        worker = pool.do(work.pid)
        stop(worker)
    assert not work.is_alive(worker)


def test_a_worker_has_time_to_close_its_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTER_FOLDER", str(tmp_path))
    with Pool(1, runtime=ProcessRuntime(stop_grace=None), worker=work.Counter) as pool:
        worker = pool.do("where")
    assert (tmp_path / f"closed-{worker}").exists()


def test_a_worker_that_was_stopped_while_it_starts_does_not_keep_a_pool_from_closing(tmp_path: Path) -> None:
    with Pool(1, runtime="process", initializer=work.sleep_noting, initargs=(tmp_path / "pid",), min_workers=1):
        worker = work.read_pid(tmp_path / "pid")
        stop(worker)
    assert not work.is_alive(worker)


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize("when", ["a worker ends", "a worker starts", "a worker died"])
def test_a_forkserver_that_does_not_answer_is_replaced(when: str, tmp_path: Path) -> None:
    with Pool(2, runtime=ProcessRuntime(preload=["wave"])) as pool:  # a forkserver of its own
        worker = pool.do(work.pid)
        forkserver = work.parent_of(worker)
        stop(forkserver)
        if when == "a worker starts":
            running = pool.submit(work.wait_for, tmp_path / "go")
            assert pool.submit(work.pid).result(PATIENCE) != worker
            (tmp_path / "go").touch()
            assert running.result(PATIENCE) == worker, "the other workers go on"
        elif when == "a worker died":
            os.kill(worker, signal.SIGKILL)
            eventually(lambda: pool.stats().workers == 0)
            assert pool.do(work.pid) != worker
    assert not work.is_alive(worker)
    eventually(lambda: not work.is_alive(forkserver))


@pytest.mark.parametrize("victim", ["worker", "work.parent_of(worker)"])
def test_a_script_ends_though_a_process_of_its_pool_is_stopped(tmp_path: Path, victim: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(victim=victim, root=os.getcwd()))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) >= 2
    eventually(lambda: not any(map(work.is_alive, pids)))

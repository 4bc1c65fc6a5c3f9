"""A worker that is forked before anybody needs it, so that the next one is there at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen import Pool, WorkerLost
from tests.scenarios.process_support import (
    PATIENCE,
    children_of,
    eventually,
    is_alive,
    kill_self,
    parent_of,
    pid,
    read_pid,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def spares_beside(*workers: int) -> set[int]:
    """The processes that the forkserver of these has besides them."""
    return set(children_of(parent_of(workers[0]))) - set(workers)


def spare_beside(*workers: int) -> int:
    eventually(lambda: len(spares_beside(*workers)) == 1)
    return spares_beside(*workers).pop()


def replace_worker(pool: Pool) -> int:
    with pytest.raises(WorkerLost):
        pool.do(kill_self)
    return pool.using(timeout=PATIENCE).do(pid)


def test_the_replacement_of_a_dead_worker_was_forked_before_it_died() -> None:
    with Pool(1, runtime="process") as pool:
        spare = spare_beside(pool.do(pid))
        assert replace_worker(pool) == spare
        assert spare_beside(spare) != spare


def test_a_killed_spare_affects_no_call() -> None:
    with Pool(1, runtime="process") as pool:
        worker = pool.do(pid)
        spare = spare_beside(worker)
        os.kill(spare, signal.SIGKILL)
        eventually(lambda: not spares_beside(worker))  # the forkserver has reaped it
        assert replace_worker(pool) not in (worker, spare)


def test_orders_that_are_too_large_for_a_spare_are_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with Pool(1, runtime="process") as pool:
        worker = pool.do(pid)
        spare = spare_beside(worker)
        monkeypatch.setattr(sys, "argv", ["x" * 100_000])
        replacement = replace_worker(pool)
        assert replacement not in (worker, spare)
        eventually(lambda: not is_alive(spare))


def test_a_spare_ends_with_its_forkserver_whatever_has_ended_that() -> None:
    with Pool(1, runtime="process") as pool:
        worker = pool.do(pid)
        forkserver, spare = parent_of(worker), spare_beside(worker)
        os.kill(forkserver, signal.SIGKILL)
        eventually(lambda: not is_alive(spare))


APP = """
import pathlib, sys
from bullpen import Pool
from tests.scenarios.process_support import sleep_noting
with Pool(1, runtime="process") as pool:
    pool.do(sleep_noting, pathlib.Path(sys.argv[1]))
"""


def test_a_spare_ends_with_the_app_though_its_forkserver_is_stopped(tmp_path: Path) -> None:
    app = subprocess.Popen([sys.executable, "-c", APP, tmp_path / "worker"], cwd=Path(__file__).parents[2])
    worker = read_pid(tmp_path / "worker")
    forkserver, spare = parent_of(worker), spare_beside(worker)
    os.kill(forkserver, signal.SIGSTOP)
    try:
        app.kill()
        app.wait()
        eventually(lambda: not is_alive(spare))
    finally:
        os.kill(forkserver, signal.SIGKILL)

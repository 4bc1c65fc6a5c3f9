"""On which event loop workers run that own one: uvloop's where it is installed, unless somebody says otherwise."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import get_args

import pytest
import uvloop

from bullpen import MissingExtra, TaskQueue, WorkerPool
from bullpen.cli.settings import LOOPS
from bullpen.consumer.loops import LoopKind, new_runner
from bullpen.errors import InvalidOption
from tests.scenarios.cli_support import Folder
from tests.scenarios.support import PATIENCE

uvloop.new_event_loop().close()  # the first one opens descriptors that stay open

APP = """
import asyncio

from bullpen import TaskQueue

queue = TaskQueue("sqlite:///jobs.db")


@queue.task
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]
"""
OF_LOOP = {"auto": "uvloop", "asyncio": "asyncio", "uvloop": "uvloop"}


def loop_of(runner: asyncio.Runner) -> str:
    with runner:
        return type(runner.get_loop()).__module__.partition(".")[0]


def test_the_command_knows_the_same_loops() -> None:
    assert get_args(LoopKind) == LOOPS == tuple(OF_LOOP)


@pytest.mark.parametrize("kind", get_args(LoopKind))
def test_a_pool_runs_on_the_loop_that_is_asked_for(kind: LoopKind) -> None:
    queue = TaskQueue("memory://")

    @queue.task(name="loop")
    async def loop() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    pool = WorkerPool(queue)
    pool.start(loop=kind)
    try:
        assert loop.enqueue().result(timeout=PATIENCE) == OF_LOOP[kind]
    finally:
        pool.stop()
        queue.close()


def test_uvloop_is_not_needed_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as if it were not installed
    assert loop_of(new_runner()) == loop_of(new_runner("asyncio")) == "asyncio"
    with pytest.raises(MissingExtra, match=r"bullpen\[uvloop\]"):
        new_runner("uvloop")


def test_another_loop_is_refused() -> None:
    with pytest.raises(InvalidOption, match="loop must be one of auto, asyncio, uvloop"):
        new_runner("trio")  # type: ignore[arg-type]


@pytest.mark.parametrize(("words", "expected"), [((), "asyncio"), (("--loop", "uvloop"), "uvloop")])
def test_a_worker_runs_and_stops_on_it(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    folder = Folder(tmp_path, app=APP)
    folder.write("pyproject.toml", '[tool.bullpen]\nloop = "asyncio"\n')
    with folder.worker(*words) as worker:
        worker.runs()
        assert folder.python("print(loop.enqueue().result(timeout=60))") == f"{expected}\n"
        assert worker.stop() == 0

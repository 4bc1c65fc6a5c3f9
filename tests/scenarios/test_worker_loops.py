"""On which event loop workers run that own one: uvloop's where it is installed, unless somebody says otherwise."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import get_args

import pytest
import uvloop

from bullpen import MissingExtra, TaskQueue, WorkerPool
from bullpen.cli.settings import LOOPS
from bullpen.errors import InvalidOption
from bullpen.tasks.model.task import PENDING
from bullpen.tasks.worker.loops import LoopKind, new_runner
from tests.scenarios.cli_support import Folder
from tests.scenarios.support import PATIENCE, eventually

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


def loop_of(new: AbstractContextManager[asyncio.Runner]) -> str:
    with new as runner:
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
    with pytest.raises(MissingExtra, match=r"pybullpen\[uvloop\]"):
        new_runner("uvloop")


def test_another_loop_is_rejected() -> None:
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


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_coroutine_that_ignores_its_end_keeps_no_worker_from_ending(
    kind: LoopKind, caplog: pytest.LogCaptureFixture
) -> None:
    queue = TaskQueue("memory://")
    began, let_go = threading.Event(), threading.Event()

    @queue.task(name="stubborn")
    async def stubborn() -> None:
        began.set()
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    pool = WorkerPool(queue, grace=0.1)
    pool.start(loop=kind)
    job = stubborn.enqueue()
    assert began.wait(PATIENCE)
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    stopping.join(PATIENCE)
    has_ended = not stopping.is_alive()
    let_go.set()
    stopping.join()
    assert has_ended
    assert "abandoned a coroutine that ignores its cancellation" in caplog.text
    assert job.status is PENDING
    queue.close()


STUBBORN = """
import asyncio
from pathlib import Path

from bullpen import TaskQueue

queue = TaskQueue("sqlite:///jobs.db")


@queue.task
async def stubborn() -> None:
    Path("began").touch()
    while True:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass
"""


def test_a_worker_in_a_terminal_ends_though_a_coroutine_ignores_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path, app=STUBBORN)
    with folder.worker("--grace", "0.1") as worker:
        worker.runs()
        folder.python("stubborn.enqueue()")
        assert eventually((tmp_path / "began").exists)
        assert worker.stop() == 0
    (task,) = folder.json("tasks", "--app", "app")["tasks"]
    assert task["status"] == "pending"

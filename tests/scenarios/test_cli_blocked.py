"""A worker whose event loop stands still says so, and where."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.cli.worker_process import loop_watch
from bullpen.cli.worker_process.loop_watch import LoopWatch
from tests.scenarios.cli_support import Folder


class Heard(logging.Handler):
    """Keeps what is said, and wakes who waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.said = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.said.set()


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    loop_watch.logger.addHandler(handler)
    yield handler
    loop_watch.logger.removeHandler(handler)


def block_until(said: threading.Event) -> None:
    assert said.wait(30)


@pytest.mark.anyio
async def test_a_loop_that_is_blocked_is_reported_with_the_line(heard: Heard) -> None:
    with LoopWatch(patience=0.02):
        block_until(heard.said)
    (line,) = heard.lines
    assert "the event loop has been blocked" in line
    assert "assert said.wait(30)" in line
    assert "block_until(heard.said)" in line


def block_deep_down(depth: int, said: threading.Event) -> None:
    if depth:
        block_deep_down(depth - 1, said)
    else:
        block_until(said)


@pytest.mark.anyio
async def test_the_line_of_the_task_is_shown_however_deep_it_blocks(heard: Heard) -> None:
    with LoopWatch(patience=0.02):
        block_deep_down(50, heard.said)
    (line,) = heard.lines
    assert "block_deep_down(50, heard.said)" in line
    assert "_run_once" not in line


@pytest.mark.anyio
async def test_a_loop_that_goes_round_is_not_reported(heard: Heard) -> None:
    with LoopWatch(patience=0.2):
        for _ in range(50):
            await asyncio.sleep(0.01)
    assert heard.lines == []


@pytest.mark.anyio
async def test_what_blocks_again_and_again_is_said_once_a_minute(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopWatch(patience=0.02):
        block_until(heard.said)
        await asyncio.sleep(0.05)
        heard.said.clear()
        assert not heard.said.wait(0.3)
        monkeypatch.setattr(loop_watch, "SAID_EVERY", 0.0)
        await asyncio.sleep(0.05)
        block_until(heard.said)


def test_a_worker_names_the_task_that_blocks_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.python("block.enqueue(1000)")
    with folder.worker() as worker:
        worker.seen("the event loop has been blocked for 2.")
        worker.seen(r"app\.py.* in block")
        worker.seen(r"time\.sleep\(seconds\)")
        worker.send(signal.SIGKILL)
        worker.ends()

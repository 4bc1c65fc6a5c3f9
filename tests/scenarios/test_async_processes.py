"""An `AsyncPool` whose functions run in processes, or in programs."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    AsyncPool,
    DeadlineExceeded,
    InvalidOption,
    NotPicklable,
    ProcessRuntime,
    ProgramRuntime,
    WorkerError,
    WorkerLost,
)
from tests.scenarios import process_support as work
from tests.scenarios.process_support import PATIENCE, eventually, is_alive, read_pid

pytestmark = pytest.mark.anyio


async def own_pid() -> int:
    return os.getpid()


async def test_functions_run_in_processes_and_coroutines_on_the_loop() -> None:
    async with AsyncPool(runtime="process", threads=2) as pool:
        assert await pool.do(work.pid) != os.getpid()
        assert await pool.submit(work.pid) != os.getpid()
        assert await pool.do(own_pid) == os.getpid()
        assert pool.serve(work.identity, 1)
        assert [item async for item in pool.map(work.square_slowly, range(20))] == [n**2 for n in range(20)]
        assert sum(await asyncio.gather(*(pool.do(pow, n, 2) for n in range(200)))) == sum(n**2 for n in range(200))
        assert pool.can("kill_running", threads=True)
        assert not pool.can("kill_running")


async def test_errors_arrive_as_themselves() -> None:
    async with AsyncPool(runtime="process", threads=1) as pool:
        with pytest.raises(ValueError, match="on purpose"):
            await pool.do(work.fail)
        with pytest.raises(NotPicklable):
            await pool.do(work.identity, threading.Lock())
        with pytest.raises(WorkerLost):
            await pool.do(work.crash)
        assert await pool.do(pow, 2, 2) == 4


async def test_a_cancelled_or_late_call_is_ended(tmp_path: Path) -> None:
    async with AsyncPool(runtime=ProcessRuntime(cancel_grace=0.1), threads=1) as pool:
        with pytest.raises(DeadlineExceeded):
            await pool.using(timeout=0.3).do(work.hold_the_gil, tmp_path / "late")
        assert await pool.do(pow, 2, 2) == 4, "another worker takes its place"
        task = asyncio.ensure_future(pool.do(work.stop_with_a_note, tmp_path / "begun", tmp_path / "ended"))
        await asyncio.to_thread(read_pid, tmp_path / "begun")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(eventually, (tmp_path / "ended").exists)


async def test_streams_come_from_processes_with_backpressure_and_can_be_left(tmp_path: Path) -> None:
    async with AsyncPool(runtime="process", threads=1) as pool:
        assert [item async for item in pool.stream(work.count_up, 500)] == list(range(500))
        async with pool.using(buffersize=4).stream(work.count_noting, tmp_path) as stream:
            assert await anext(stream) == 0
            assert await asyncio.to_thread(work.count_of, tmp_path) < 50, "nobody reads on"
            assert [await anext(stream) for _ in range(50)] == list(range(1, 51))
        await asyncio.to_thread(eventually, (tmp_path / "closed").exists)
        with pytest.raises(ValueError, match="on purpose"):
            async for _ in pool.stream(work.count_then_fail, 3):
                pass


async def test_a_stream_runs_again_only_if_nothing_has_come(tmp_path: Path) -> None:
    async with AsyncPool(runtime="process", threads=1) as pool:
        stream = pool.using(idempotent=True).stream(work.count_and_crash, str(tmp_path / "mark"), 0)
        assert [item async for item in stream] == [0, 1, 2]
        stream = pool.using(idempotent=True).stream(work.count_and_crash, str(tmp_path / "other"), 2)
        seen = []
        with pytest.raises(WorkerLost):  # noqa: PT012 — the items before it count
            async for item in stream:
                seen.append(item)
        assert seen == [0, 1]


async def test_each_process_keeps_an_instance_of_its_own(tmp_path: Path) -> None:
    async with AsyncPool(runtime="process", threads=1, worker=work.Counter) as pool:
        assert await pool.do("add", 2) == 2
        assert await pool.do("add", 3) == 5
        assert await pool.do("where") != os.getpid()
        assert [item async for item in pool.stream("count", 3)] == [0, 1, 2]
        assert await pool.using(session="a").do("add", 1) == 6


async def test_close_kills_workers_that_do_not_end_in_time(tmp_path: Path) -> None:
    pool = AsyncPool(runtime="process", threads=1)
    call = pool.submit(work.hold_the_gil, tmp_path / "pid")
    pid = await asyncio.to_thread(read_pid, tmp_path / "pid")
    async with asyncio.timeout(PATIENCE):
        await pool.close(grace=0.1)
    assert isinstance(call.exception(), WorkerError)
    assert not is_alive(pid)


async def test_programs_are_called_by_name() -> None:
    program = Path(__file__).parents[2] / "examples" / "programs" / "worker.py"
    runtime = ProgramRuntime([sys.executable, "-S", program])
    async with AsyncPool(runtime=runtime, threads=1) as pool:
        assert await pool.do("add", 1, 2) == 3
        assert await pool.do(own_pid) == os.getpid()
        assert [item async for item in pool.stream("count", 3)] == [0, 1, 2]
        assert [item async for item in pool.map("add", [1, 2], [3, 4])] == [4, 6]
        ways: list[Any] = [pool.submit, pool.serve, pool.stream]
        for way in ways:
            with pytest.raises(InvalidOption, match="name of a method"):
                way(abs, 1)
        with pytest.raises(InvalidOption, match="name of a method"):
            await pool.do(abs, 1)


async def test_a_runtime_that_there_is_not_is_rejected() -> None:
    with pytest.raises(InvalidOption, match="runtime"):
        AsyncPool(runtime="rocket")


@pytest.mark.parametrize("runtime", ["process", ProcessRuntime()])
async def test_a_side_of_processes_is_not_called_threads(runtime: Any) -> None:
    async with AsyncPool(runtime=runtime, threads=1, name="app") as pool:
        await pool.do(work.pid)
        assert pool.stats().threads.name == "app-processes"
        assert [info.name for info in pool.workers() if "_" in info.name] == ["app-processes_0"]
        for told in (str(pool.stats()), str(pool.explain()), repr(pool)):
            assert "threads" not in told

"""Tasks that run in processes: lanes like `cpu:2@process`, and functions that say so themselves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    AsyncWorkerPool,
    InvalidOption,
    InvalidTask,
    Job,
    Progress,
    TaskError,
    TaskFailed,
    TaskQueue,
    TaskStatus,
)
from bullpen.tasks.worker import lane
from tests.scenarios import process_tasks as tasks
from tests.scenarios.process_support import PATIENCE, eventually, is_alive, read_pid

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def working(
    queue: TaskQueue = tasks.plain, lanes: str = "default:2@process", **options: Any
) -> AsyncIterator[AsyncWorkerPool]:
    async with AsyncWorkerPool(queue, lanes=lanes, poll_interval=0.05, **options) as worker:
        yield worker


async def failure(job: Job[Any]) -> TaskError:
    with pytest.raises(TaskFailed):
        await job.aresult(PATIENCE)
    error = (await job.ainfo()).error
    assert error is not None
    return error


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 — it is the store that knows
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("lane", ["process", "thread"])
async def test_an_error_that_is_false_or_raises_when_it_is_looked_at_is_the_failure_of_its_task(lane: str) -> None:
    async with working(lanes=f"default:2@{lane}"):
        for name in ("NoLength", "NoTruth", "NoText", "NoFields", "NoName"):
            error = await failure(await tasks.fail_with.aenqueue(name))
            assert error.kind == "exception"
            assert error.type.endswith(name) or lane == "process", error  # or as a RemoteError
            assert name in error.type + error.message
        assert await (await tasks.pid.aenqueue()).aresult(PATIENCE)


async def test_functions_run_in_processes_and_coroutines_on_the_loop() -> None:
    async with working():
        jobs = [await tasks.pid.aenqueue() for _ in range(10)]
        pids = {await job.aresult(PATIENCE) for job in jobs}
        assert os.getpid() not in pids
        assert 1 <= len(pids) <= 2, "there are two permits"
        assert await (await tasks.pid_of_the_loop.aenqueue()).aresult(PATIENCE) == os.getpid()
        assert await (await tasks.pid_of_a_thread.aenqueue()).aresult(PATIENCE) == os.getpid()
        assert await (await tasks.has_a_name_of_its_own.aenqueue()).aresult(PATIENCE) != os.getpid()
        former = await tasks.plain.aenqueue("former", elsewhere=True)
        assert await former.aresult(PATIENCE) != os.getpid()
        assert await (await tasks.registered_elsewhere.aenqueue()).aresult(PATIENCE) != os.getpid()
    eventually(lambda: not any(map(is_alive, pids)))


async def test_a_function_may_ask_for_a_process_in_any_lane() -> None:
    async with working(lanes="default:2"):
        assert await (await tasks.pid.aenqueue()).aresult(PATIENCE) == os.getpid()
        assert await (await tasks.pid_of_own_choice.aenqueue()).aresult(PATIENCE) != os.getpid()


async def test_arguments_and_results_are_restored_by_annotations() -> None:
    async with working():
        assert await (await tasks.next_day.aenqueue(date(2026, 12, 31))).aresult(PATIENCE) == date(2027, 1, 1)


async def test_what_cannot_run_in_a_process_is_rejected_when_it_is_declared() -> None:
    queue = TaskQueue("memory://")

    def inner() -> None: ...

    async def on_loop() -> None: ...

    with pytest.raises(InvalidTask, match="top of a module"):
        queue.task(name="inner", runtime="process")(inner)
    with pytest.raises(InvalidTask, match="async"):
        queue.task(name="on_loop", runtime="process")(on_loop)
    with pytest.raises(InvalidOption, match="runtime"):
        queue.task(name="inner", runtime="rocket")(inner)  # type: ignore[call-overload]


async def test_a_function_that_a_process_cannot_find_fails_and_says_so() -> None:
    queue = TaskQueue("memory://")

    def inner() -> None: ...

    async with working(queue):
        error = await failure(await queue.task(name="inner")(inner).aenqueue())
    assert error.type == "bullpen.errors.InvalidTask"
    assert "a process cannot find it" in error.message


async def test_errors_come_with_their_type_and_traceback() -> None:
    async with working():
        error = await failure(await tasks.fail_for_good.aenqueue("on purpose"))
        assert (error.type, error.message) == ("tests.scenarios.process_tasks.MyError", "on purpose")
        assert error.traceback.splitlines()[1].endswith("in fail_for_good"), "it begins in the function itself"
        assert error.attempt == 1, "give_up_on knows the class"
        assert (await failure(await tasks.leave.aenqueue())).type == "SystemExit"
        assert "returned a coroutine" in (await failure(await tasks.forget_to_await.aenqueue())).message


@pytest.mark.parametrize("name", ["PoolFailed", "PoolSaturated", "WorkerLost", "WorkerStartFailed"])
async def test_an_error_of_a_pool_that_a_task_uses_is_the_tasks_own(name: str, tmp_path: Path) -> None:
    async with working(lanes="default:1@process"):
        pid = await (await tasks.pid.aenqueue()).aresult(PATIENCE)
        for task in (tasks.use_a_pool, tasks.use_a_pool_once):
            job = await task.aenqueue(str(tmp_path / task.definition.func_path), name)
            error = await failure(job)
            assert (error.kind, error.type, error.attempt) == ("exception", f"bullpen.errors.{name}", 1)
            assert "in raise_an_error_of_pools" in error.traceback
            assert "in_process.py" not in error.traceback, "it begins in the function itself"
            assert (await job.ainfo()).crashes == 0
            assert (tmp_path / task.definition.func_path).read_text() == "x", "it ran once"
        assert await (await tasks.pid.aenqueue()).aresult(PATIENCE) == pid, "the lane keeps its process"


async def test_the_process_of_a_function_in_a_lane_of_threads_is_not_called_a_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with working(lanes="default:2@thread", name="w"):
        await (await tasks.complain.aenqueue()).aresult(PATIENCE)
    (line,) = [record.getMessage() for record in caplog.records if "the disk is nearly full" in record.getMessage()]
    assert line == "w default:2@process_0: the disk is nearly full"


async def test_a_task_may_say_that_its_process_is_broken(tmp_path: Path) -> None:
    async with working(lanes="default:1@process"):
        job = await tasks.break_its_process.aenqueue(str(tmp_path / "pid"))
        assert await job.aresult(PATIENCE) != read_pid(tmp_path / "pid-1")
        assert ((await job.ainfo()).attempt, (await job.ainfo()).failures) == (2, 0)


async def test_no_process_for_a_task_gives_it_back_until_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PROCESS_TASKS_FOLDER", str(tmp_path))
    monkeypatch.setattr(lane, "TaskProcess", tasks.ReluctantProcess)
    monkeypatch.setattr(lane, "START_PAUSE", 0.05)
    (tmp_path / "broken").touch()
    async with working(lanes="default:1@process") as worker:
        job = await tasks.pid.using(max_retries=0).aenqueue()

        async def was_tried_again() -> bool:
            return (await job.ainfo()).attempt >= 3

        await until(was_tried_again)
        (tmp_path / "broken").unlink()
        assert await job.aresult(PATIENCE) != os.getpid()
        info = await job.ainfo()
        assert (info.failures, info.crashes, worker.ready) == (0, 0, True)
    assert "no process could be started for it" in caplog.text


async def test_a_crash_of_a_process_is_a_crash_of_that_task_only(tmp_path: Path) -> None:
    async with working(lanes="default:2@process") as worker:
        crashing = await tasks.crash_first.aenqueue(str(tmp_path / "notes"))
        others = [await tasks.pid.aenqueue() for _ in range(10)]
        assert await crashing.aresult(PATIENCE) == 3
        info = await crashing.ainfo()
        assert (info.attempt, info.failures, info.status) == (3, 0, TaskStatus.SUCCESS)
        for job in others:
            await job.aresult(PATIENCE)
            assert (await job.ainfo()).crashes == 0
        assert worker.ready
        assert worker.abandoned == 0


async def test_a_task_that_always_crashes_is_poison_and_one_at_most_once_is_lost() -> None:
    async with working():
        error = await failure(await tasks.crash_always.aenqueue())
        assert error.kind == "poison"
        assert "exit code 9" in error.message
        assert (await failure(await tasks.crash_once.aenqueue())).kind == "lost"


async def test_a_retry_in_a_process_keeps_its_cause() -> None:
    async with working():
        error = await failure(await tasks.ask_again.aenqueue())
    assert (error.type, error.message) == ("KeyError", "'missing'; try again: busy")
    assert 'raise Retry("busy") from error' in error.traceback


async def test_a_timeout_kills_what_holds_the_interpreter(tmp_path: Path) -> None:
    async with working(lanes="default:1@process") as worker:
        await (await tasks.pid.aenqueue()).aresult(PATIENCE)  # there is a process now
        job = await tasks.hold_the_gil.using(timeout=1.0).aenqueue(str(tmp_path / "pid"))
        pid = await asyncio.to_thread(read_pid, tmp_path / "pid")
        error = await failure(job)
        assert (error.kind, error.type) == ("timeout", "TimeoutError")
        assert not is_alive(pid), "the task was settled while its process still ran"
        assert worker.abandoned == 0
        assert await (await tasks.pid.aenqueue()).aresult(PATIENCE) > 0


async def test_a_cancelled_task_is_interrupted_and_cleans_up(tmp_path: Path) -> None:
    async with working():
        job = await tasks.sleep.aenqueue(str(tmp_path / "pid"))
        pid = await asyncio.to_thread(read_pid, tmp_path / "pid")
        await job.acancel()

        async def is_cancelled() -> bool:
            return (await job.ainfo()).status is TaskStatus.CANCELLED

        await until(is_cancelled)
        assert (tmp_path / "pid-ended").exists(), "finally blocks run"
        assert is_alive(pid), "the process goes on"


async def test_stopping_ends_processes_and_gives_tasks_back(tmp_path: Path) -> None:
    async with working() as worker:
        job = await tasks.sleep.aenqueue(str(tmp_path / "pid"), child=True)
        pid = await asyncio.to_thread(read_pid, tmp_path / "pid")
        await worker.stop(grace=0.1)
    info = await job.ainfo()
    assert (info.status, info.crashes, info.failures) == (TaskStatus.PENDING, 0, 0)
    eventually(lambda: not is_alive(pid))
    await job.acancel()


async def test_a_task_in_a_process_knows_itself_and_tells_its_progress(tmp_path: Path) -> None:
    async with working(lease=0.6):
        job = await tasks.report.using(timeout=60).aenqueue(str(tmp_path))

        async def is_done() -> bool:
            return (await job.ainfo()).progress == Progress(1000, 1000, "all")

        await until(is_done)
        (tmp_path / "go").touch()
        assert await job.aresult(PATIENCE) == f"{job.id} 1 False True"
        assert "cannot complete itself" in (await failure(await tasks.complete.aenqueue())).message


async def test_a_process_has_lifespans_middleware_and_injected_values_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCESS_TASKS_FOLDER", str(tmp_path))
    async with working(tasks.queue, lanes="default:1@process"):
        number, pid = await (await tasks.surrounded.aenqueue()).aresult(PATIENCE)
        assert (number, pid != os.getpid()) == (41, True)
        assert (await (await tasks.surrounded.aenqueue()).aresult(PATIENCE))[0] == 43
        assert (tmp_path / f"opened-{pid}").exists()
        assert not (tmp_path / f"closed-{pid}").exists()
    assert (tmp_path / f"closed-{pid}").exists()


async def test_the_tasks_of_a_script_run_in_processes(tmp_path: Path) -> None:
    script = tmp_path / "one_file.py"
    script.write_text(
        """
import os
from bullpen import TaskQueue, WorkerPool

queue = TaskQueue("memory://")

@queue.task
def pid() -> int:
    return os.getpid()

if __name__ == "__main__":
    with WorkerPool(queue, lanes="default:1@process"):
        assert pid.enqueue().result(30) != os.getpid()
    print("done")
"""
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert (out, process.returncode) == (b"done\n", 0), err.decode()

"""A failed attempt keeps its last log lines, where it hung, and how its process ended."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bullpen import Job, TaskError, TaskQueue, WorkerPool
from bullpen.cli.main import main
from bullpen.tasks.worker import attempt
from bullpen.tasks.worker.black_box import KEPT, LINES, LONGEST
from tests.scenarios import process_tasks
from tests.scenarios.support import eventually
from tests.stores import KINDS, new_store

PATIENCE = 60
logger = logging.getLogger("shop")


def error_of(job: Job[Any]) -> TaskError:
    assert eventually(lambda: job.status == "failed", PATIENCE)
    error = job.info().error
    assert error is not None
    return error


def start_its_process() -> None:
    """A timeout that counts from here on does not end a process that still starts."""
    first = process_tasks.pid.enqueue()
    assert eventually(lambda: first.status == "success", PATIENCE)


def bullpen_output(*words: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert main(words) == 0
    return output.getvalue()


def messages(error: TaskError) -> list[str]:
    return [line.partition("shop: ")[2] for line in error.log]


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_a_timeout_keeps_the_last_log_lines_in_every_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    go_on = threading.Event()

    def hangs(password: str, order: int) -> None:
        for number in range(LINES + 10):
            logger.warning("step %d", number)
        logger.warning("login with %s for order %d, token=abc", password, order)
        assert go_on.wait(PATIENCE)

    def on(address: str) -> TaskError:
        with TaskQueue(address) as queue:
            task = queue.task(name="hangs", timeout=0.2)(hangs)
            with WorkerPool(queue):
                error = error_of(task.enqueue("hunter2!", 4711))
                go_on.set()
        return error

    if kind == "memory":
        error = on("memory://")
    else:
        with new_store(kind, tmp_path, request) as address:
            error = on(address)
    assert error.kind == "timeout"
    assert "in hangs" in error.traceback
    assert len(error.log) == LINES
    assert messages(error)[0] == "step 11"
    assert messages(error)[-1] == "login with [redacted] for order 4711, token=[redacted]"
    assert " WARNING shop: " in error.log[0]


def test_tasks_that_run_at_the_same_time_keep_their_own_lines_also_from_threads_that_they_await() -> None:
    with TaskQueue("memory://") as queue:
        both_run = threading.Barrier(2)

        @queue.task(name="fails")
        async def fails(name: str) -> None:
            logger.warning("%s begins", name)
            await asyncio.to_thread(both_run.wait, PATIENCE)
            await asyncio.to_thread(logger.error, "%s waits", name, exc_info=ValueError(name))
            raise RuntimeError(name)

        with WorkerPool(queue, concurrency=2):
            for job in [fails.enqueue("one"), fails.enqueue("two")]:
                error = error_of(job)
                name = error.message
                assert messages(error) == [f"{name} begins", f"{name} waits (ValueError: {name})"]


def test_a_coroutine_that_is_abandoned_keeps_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.05)
    over = threading.Event()
    with TaskQueue("memory://") as queue:

        @queue.task(name="stays", timeout=0.05)
        async def stays() -> None:
            logger.warning("begins")
            while not over.is_set():
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    logger.warning("ignores its end")

        with WorkerPool(queue):
            error = error_of(stays.enqueue())
            over.set()
    assert messages(error) == ["begins", "ignores its end"]
    assert "in stays" in error.traceback


def test_a_function_may_keep_no_lines_and_the_others_are_bounded() -> None:
    with TaskQueue("memory://") as queue:

        @queue.task(name="private", black_box=False)
        def private() -> None:
            logger.warning("private")
            raise RuntimeError

        @queue.task(name="floods", redact=["who"])
        def floods() -> None:
            for _ in range(100):
                logger.warning("who='ada l.' %s", "ü" * 5000)
            logger.warning("%d does not fit", "this")  # the handlers report it, as ever
            raise RuntimeError

        with WorkerPool(queue):
            assert error_of(private.enqueue()).log == ()
            log = error_of(floods.enqueue()).log
    assert len(log) > 1
    assert sum(len(line.encode()) for line in log) <= KEPT
    assert all("who=[redacted]" in line for line in log)


def test_a_line_that_is_cut_within_a_secret_shows_no_part_of_it() -> None:
    def fails(private_key: str, password: str) -> None:
        logger.warning("%s", private_key)
        logger.warning("%s%s", "-" * (LONGEST - 40), password)
        raise ValueError

    with TaskQueue("memory://") as queue:
        task = queue.task(name="fails")(fails)
        with WorkerPool(queue):
            lines = messages(error_of(task.enqueue("k\n" * 2 * LONGEST, "hunter2!" * 20)))
    assert len(lines) == 2
    assert not set("khunter2!").intersection("".join(lines).replace("[redacted]", ""))


def test_a_task_that_succeeds_after_a_failure_shows_what_the_failed_attempt_logged() -> None:
    with TaskQueue("memory://") as queue:

        @queue.task(name="flaky", max_retries=1, backoff=0.01)
        def flaky() -> None:
            logger.warning("tries")
            if not failed:
                failed.append(1)
                raise RuntimeError

        failed: list[int] = []
        with WorkerPool(queue):
            job = flaky.enqueue()
            job.result(timeout=PATIENCE)
        (error,) = job.info().errors
        assert messages(error) == ["tries"]


def test_a_process_that_hangs_shows_where_and_its_lines() -> None:
    with WorkerPool(process_tasks.plain, lanes="default:1@process"):
        start_its_process()
        error = error_of(process_tasks.hangs_after_logging.enqueue("hunter2!"))
    assert error.kind == "timeout"
    assert error.traceback.splitlines()[1].endswith("in hangs_after_logging")
    assert "hangs_after_logging" in error.where
    assert messages(error) == ["login with [redacted]"]
    assert error.exit_code is None


def test_a_process_that_has_to_be_killed_shows_where_how_and_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with WorkerPool(process_tasks.plain, lanes="default:1@process"):
        start_its_process()
        error = error_of(process_tasks.hangs_and_ignores_its_end.enqueue())
    assert error.kind == "timeout"
    assert error.traceback.splitlines()[1].endswith("in hangs_and_ignores_its_end")
    assert "hangs_and_ignores_its_end" in error.where
    assert messages(error) == ["begins"]
    assert error.exit_code in (-signal.SIGTERM, -signal.SIGKILL)


def test_a_process_that_crashes_keeps_its_signal_its_memory_and_its_lines() -> None:
    with WorkerPool(process_tasks.plain, lanes="default:1@process"):
        error = error_of(process_tasks.is_killed_after_logging.enqueue())
        private = error_of(process_tasks.is_killed_without_black_box.enqueue())
    assert error.exit_code == -signal.SIGSEGV
    assert error.peak_memory is not None
    assert 50 * 2**20 < error.peak_memory < 10 * 2**30
    assert messages(error)[-1] == f"line 59 of {50 * 2**20} bytes"
    assert "in is_killed_after_logging" in error.traceback, "faulthandler has written it"
    assert (private.exit_code, private.log) == (-signal.SIGKILL, ())


def test_the_worker_that_rescues_a_task_records_what_is_known(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import os, signal\n"
        "from bullpen import TaskQueue\n"
        f"queue = TaskQueue('sqlite:///{tmp_path}/jobs.db')\n"
        "@queue.task(at_most_once=True)\n"
        "def dies():\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with TaskQueue(f"sqlite:///{tmp_path}/jobs.db") as queue:
        job = queue.task(name="app.dies", at_most_once=True)(print).enqueue()
        worker = [sys.executable, "-m", "bullpen", "worker", "app:queue"]
        assert subprocess.run(worker, cwd=tmp_path, check=False, capture_output=True).returncode != 0
        with WorkerPool(queue):
            error = error_of(job)
    assert error.kind == "lost"
    assert "s after its last heartbeat" in error.message
    assert error.peak_memory is not None
    assert error.peak_memory > 2**20


def test_people_see_it_escaped(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/jobs.db"
    with TaskQueue(address) as queue:

        @queue.task(name="fails")
        def fails() -> None:
            logger.warning("red \x1b[31m alert\nsecond line")
            raise RuntimeError

        with WorkerPool(queue):
            job = fails.enqueue()
            error_of(job)
    shown = bullpen_output("tasks", "show", job.id, "--url", address)
    assert "last log lines (UTC)" in shown
    assert "red \\x1b[31m alert\\nsecond line" in shown
    assert "\x1b[31m" not in shown
    shown = bullpen_output("tasks", "show", job.id, "--url", address, "--json")
    assert "alert" in shown
    assert "\x1b" not in shown

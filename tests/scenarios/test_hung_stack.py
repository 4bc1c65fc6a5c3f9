"""A timeout keeps the stack where the function hung."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bullpen import TaskQueue, WorkerPool
from bullpen.tasks.worker import attempt
from tests.scenarios.support import eventually

PATIENCE = 60


def test_a_function_that_hangs_on_a_thread_shows_where() -> None:
    go_on = threading.Event()

    def waits_for_a_lock() -> None:
        assert go_on.wait(PATIENCE)

    with TaskQueue("memory://") as queue:

        @queue.task(name="hangs", timeout=0.05)
        def hangs() -> None:
            waits_for_a_lock()

        with WorkerPool(queue):
            job = hangs.enqueue()
            assert eventually(lambda: job.status == "failed")
            go_on.set()
        error = job.info().error
        assert error is not None
        assert (error.kind, error.type) == ("timeout", "TimeoutError")
        first, *rest = [line.strip() for line in error.traceback.splitlines() if line.strip().startswith("File")]
        assert first.endswith("in hangs")
        assert any("in waits_for_a_lock" in line for line in rest)
        assert not any("bullpen/tasks/worker" in line for line in (first, *rest))
        assert error.where.startswith("scenarios/test_hung_stack.py:")
        assert "waits_for_a_lock" in error.where
        (group,) = queue.failures()
        assert (group.fingerprint, group.where) == (error.fingerprint, error.where)


def test_a_coroutine_that_ignores_its_cancellation_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "PATIENCE", 0.05)
    over = threading.Event()

    async def goes_on() -> None:
        while not over.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    with TaskQueue("memory://") as queue:

        @queue.task(name="stays", timeout=0.05)
        async def stays() -> None:
            await goes_on()

        with WorkerPool(queue):
            job = stays.enqueue()
            assert eventually(lambda: job.status == "failed")
            over.set()
        error = job.info().error
        assert error is not None
        assert error.kind == "timeout"
        assert "in stays" in error.traceback
        assert "in goes_on" in error.traceback
        assert "goes_on" in error.where

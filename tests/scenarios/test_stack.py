"""`job.stack()` and `bullpen stack ID`: a worker says where a running task is, on every runtime and store."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen import AsyncWorkerPool, StackUnavailable, TaskQueue, WorkerPool
from bullpen.cli.main import main
from bullpen.tasks.worker import heartbeat
from tests.scenarios import process_tasks
from tests.scenarios.support import eventually
from tests.stores import KINDS, new_store

PATIENCE = 30


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "UPKEEP_EVERY", 0.02)


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_a_coroutine_and_a_function_on_a_thread_show_where_they_are(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    go_on = threading.Event()

    def waits_for_a_lock() -> None:
        assert go_on.wait(PATIENCE)

    async def waits_for_an_answer() -> None:
        while not go_on.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    @contextlib.contextmanager
    def address() -> Iterator[str]:
        if kind == "memory":
            yield "memory://"
        else:
            with new_store(kind, tmp_path, request) as one:
                yield one

    with address() as url, TaskQueue(url) as queue:

        @queue.task(name="on_thread")
        def on_thread() -> None:
            waits_for_a_lock()

        @queue.task(name="on_loop")
        async def on_loop() -> None:
            await waits_for_an_answer()

        with WorkerPool(queue):
            job = on_thread.using(headers={"a": "1"}).enqueue()
            other = on_loop.enqueue()
            assert eventually(lambda: job.status == other.status == "running", PATIENCE)
            lines = job.stack(PATIENCE).splitlines()
            assert lines[0].endswith("in on_thread")
            assert any(line.endswith("in waits_for_a_lock") for line in lines)
            assert job.info().headers == {"a": "1"}, "the request is gone"
            lines = other.stack(PATIENCE).splitlines()
            assert lines[0].endswith("in on_loop")
            assert any(line.endswith("in waits_for_an_answer") for line in lines)
            go_on.set()
            job.result(timeout=PATIENCE)
            other.result(timeout=PATIENCE)
        with pytest.raises(StackUnavailable, match="it is success, and only a running task has a stack"):
            job.stack()


def test_a_coroutine_that_blocks_the_loop_shows_the_function_that_blocks_it(tmp_path: Path) -> None:
    go_on = threading.Event()

    def blocks() -> None:
        assert go_on.wait(PATIENCE)

    with TaskQueue(f"sqlite:///{tmp_path}/jobs.db") as queue:

        @queue.task(name="stuck")
        async def stuck() -> None:
            blocks()

        with WorkerPool(queue):
            job = stuck.enqueue()
            assert eventually(lambda: job.status == "running", PATIENCE)
            try:
                assert "in blocks" in job.stack(PATIENCE)
            finally:
                go_on.set()


@pytest.mark.anyio
async def test_a_process_shows_where_it_is() -> None:
    async with AsyncWorkerPool(process_tasks.plain, lanes="default:1@process"):
        job = await process_tasks.naps.aenqueue()
        async with asyncio.timeout(PATIENCE):
            while await job.astatus() != "running":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        try:
            lines = (await job.astack(PATIENCE)).splitlines()
        finally:
            await job.acancel()
        assert lines[0].endswith("in naps")


def test_a_worker_that_does_not_answer_is_named() -> None:
    go_on = threading.Event()
    with TaskQueue("memory://") as queue:

        @queue.task(name="waits")
        def waits() -> None:
            assert go_on.wait(PATIENCE)

        with WorkerPool(queue):
            job = waits.enqueue()
            assert eventually(lambda: job.status == "running", PATIENCE)
            with pytest.raises(StackUnavailable, match=r"worker .* did not answer within 0 s"):
                job.stack(timeout=0)
            assert job.info().headers == {}
            go_on.set()


def test_the_command_prints_it(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/jobs.db"
    go_on = threading.Event()
    with TaskQueue(address) as queue:

        @queue.task(name="waits")
        def waits() -> None:
            assert go_on.wait(PATIENCE)

        with WorkerPool(queue):
            job = waits.enqueue()
            assert eventually(lambda: job.status == "running", PATIENCE)
            for form in ((), ("--json",)):
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    assert main(["stack", job.id, "--url", address, *form]) == 0
                shown = output.getvalue()
                assert "in waits" in (json.loads(shown)["stack"] if form else shown)
            go_on.set()
            job.result(timeout=PATIENCE)
            assert main(["stack", job.id, "--url", address]) == 1

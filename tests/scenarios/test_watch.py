"""`job.watch()`: a task as it changes."""

from __future__ import annotations

import threading

import pytest

from bullpen import InvalidOption, TaskNotFound, TaskQueue, TaskStatus, WorkerPool, current_task

PATIENCE = 60


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: object) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


def test_each_change_is_told_once_until_the_end(address: str) -> None:
    go_on = threading.Event()
    with TaskQueue(address) as queue:

        @queue.task(name="counts", max_retries=1, backoff=0)
        def counts() -> None:
            current_task().progress(1, 2)
            assert go_on.wait(PATIENCE)
            if current_task().attempt == 1:
                raise ValueError("again")

        job = counts.enqueue()
        told = []
        updates = job.watch(every=0.01)
        told.append(next(updates))
        with WorkerPool(queue):
            for update in updates:
                told.append(update)
                if update.progress is not None:
                    go_on.set()
        states = [(update.status, update.attempt, update.progress and update.progress.done) for update in told]
        assert states[0] == (TaskStatus.PENDING, 0, None)
        assert states[-1] == (TaskStatus.SUCCESS, 2, 1)
        assert (TaskStatus.RUNNING, 1, 1) in states
        assert len(set(states)) == len(states)
        assert [update.status for update in job.watch()] == [TaskStatus.SUCCESS]


@pytest.mark.anyio
async def test_async_code_watches_too_and_hears_of_the_end_at_once(address: str) -> None:
    async with TaskQueue(address) as queue:

        @queue.task(name="works")
        async def works() -> int:
            return 7

        job = await works.aenqueue()
        updates = job.awatch(every=1000.0)
        assert (await anext(updates)).status is TaskStatus.PENDING
        worker = WorkerPool(queue)
        worker.start()
        try:
            assert [update.status async for update in updates][-1] is TaskStatus.SUCCESS
        finally:
            worker.stop()
    queue.close()


def test_a_deleted_task_ends_the_watch_with_an_error(address: str) -> None:
    with TaskQueue(address) as queue:
        job = queue.enqueue("app.send", elsewhere=True)
        updates = job.watch(every=0.01)
        assert next(updates).status is TaskStatus.PENDING
        assert job.cancel()
        assert queue.delete(job.id) == 1
        with pytest.raises(TaskNotFound):
            next(updates)
        with pytest.raises(InvalidOption, match="every must be"):
            next(job.watch(every=0))

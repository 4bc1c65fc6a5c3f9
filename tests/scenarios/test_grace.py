"""`grace`: how long a pool that ends waits for its work, with real threads, processes and coroutines."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from bullpen import AsyncPool, Pool, Pools, ProcessRuntime, WorkerAbandoned, WorkerLost
from bullpen.pools.options import cpu_count, default_size
from tests.scenarios.support import PATIENCE, Blocker

GRACE = 0.2
QUICK = 5.0
"""Far more than the grace, and far less than the calls take."""


def leave(pool: Pool) -> None:
    with pool:
        pass


@pytest.mark.parametrize("end", [leave, Pool.close])
def test_a_thread_that_runs_past_the_grace_of_its_pool_is_left_behind(end: Any) -> None:
    with Blocker() as blocker:
        pool = Pool(1, grace=GRACE)
        running, waiting = pool.submit(blocker), pool.submit(int)
        blocker.wait_entered()
        began = time.monotonic()
        end(pool)
        assert GRACE <= time.monotonic() - began < QUICK
        assert isinstance(running.exception(PATIENCE), WorkerAbandoned)
        assert waiting.cancelled()


def test_a_process_that_runs_past_the_grace_of_its_pool_is_killed() -> None:
    with Pool(1, runtime="process", grace=GRACE) as pool:
        assert pool.do(abs, -1) == 1
        running = pool.submit(time.sleep, 60)
        began = time.monotonic()
    assert GRACE <= time.monotonic() - began < 2 * QUICK
    assert isinstance(running.exception(PATIENCE), WorkerAbandoned | WorkerLost)


def test_a_coroutine_that_runs_past_the_grace_of_its_pool_is_cancelled() -> None:
    async def main() -> None:
        async with AsyncPool(1, grace=GRACE) as pool:
            running = pool.submit(asyncio.sleep, 60)
            await asyncio.sleep(0)
            began = time.monotonic()
        assert GRACE <= time.monotonic() - began < QUICK
        with pytest.raises((WorkerAbandoned, asyncio.CancelledError)):
            await running

    asyncio.run(main())


def test_work_that_ends_within_the_grace_is_done() -> None:
    with Pool(1, grace=PATIENCE) as pool:
        futures = [pool.submit(time.sleep, 0.01) for _ in range(5)]
    assert [future.result(0) for future in futures] == [None] * 5


def test_an_argument_of_close_comes_before_the_grace_of_the_pool() -> None:
    with Blocker() as blocker:
        pool = Pool(1, grace=60)
        running = pool.submit(blocker)
        blocker.wait_entered()
        began = time.monotonic()
        pool.close(grace=0)
        assert time.monotonic() - began < QUICK
        assert isinstance(running.exception(PATIENCE), WorkerAbandoned)


def test_several_pools_have_each_their_own_grace() -> None:
    with Blocker() as blocker:
        with Pools(quick={"max_workers": 1, "grace": GRACE}, slow={"max_workers": 1}) as pools:
            running, slow = pools["quick"].submit(blocker), pools["slow"].submit(time.sleep, 2 * GRACE)
            blocker.wait_entered()
        assert isinstance(running.exception(PATIENCE), WorkerAbandoned)
        assert slow.result(0) is None


# The size of a pool that is not given one.


def test_there_is_a_process_for_each_cpu_and_there_are_a_few_threads_more() -> None:
    cpus = cpu_count()
    if hasattr(os, "sched_getaffinity"):
        assert cpus == len(os.sched_getaffinity(0))
    assert default_size("process") == default_size(ProcessRuntime()) == cpus
    assert default_size("thread") == min(32, cpus + 4)
    with Pool(runtime="process") as pool:
        assert pool.stats().max_workers == cpus
    with Pool() as pool:
        assert pool.stats().max_workers == min(32, cpus + 4)

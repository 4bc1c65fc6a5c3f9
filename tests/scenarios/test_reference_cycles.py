"""A closed pool that is dropped is freed at once: reference counting suffices, and the collector finds nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from bullpen import AsyncPool, Pool, PoolFailed, WorkerLost

from .support import eventually


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def parts(engine: Any) -> list[weakref.ref[Any]]:
    return [weakref.ref(part) for part in (engine, engine.shutdown, engine.admission, engine.deaths, engine.timer)]


def assert_free(refs: list[weakref.ref[Any]]) -> None:
    assert eventually(lambda: all(ref() is None for ref in refs)), [ref() for ref in refs]
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    ours = [one for one in gc.garbage if type(one).__module__.startswith("bullpen")]
    assert not ours


def count(n: int) -> Iterator[int]:
    yield from range(n)


def fail() -> None:
    raise ValueError("no")


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Model:
    capacity = 2

    def double(self, x: int) -> int:
        return 2 * x


def use(pool: Pool) -> None:
    assert pool.submit(abs, -1).result() == 1
    assert pool.using(timeout=60, run_timeout=60).do(abs, -2) == 2
    assert list(pool.map(abs, range(100))) == list(range(100))
    assert list(pool.stream(count, 5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="no"):
        pool.do(fail)


def plain(runtime: str) -> list[weakref.ref[Any]]:
    with Pool(2, runtime=runtime) as pool:
        use(pool)
    return [weakref.ref(pool), *parts(pool._engine)]


def bounded(runtime: str) -> list[weakref.ref[Any]]:
    with Pool(2, runtime=runtime, max_queue=5, when_full="block", min_workers=2) as pool:
        pool.wait_ready()
        use(pool)
    return [weakref.ref(pool), *parts(pool._engine)]


def with_instances(runtime: str) -> list[weakref.ref[Any]]:
    with Pool(1, runtime=runtime, worker=Model) as pool:
        assert list(pool.map("double", range(10))) == list(range(0, 20, 2))
    return [weakref.ref(pool), *parts(pool._engine)]


def closed_without_waiting(runtime: str) -> list[weakref.ref[Any]]:
    pool = Pool(2, runtime=runtime)
    assert pool.do(abs, -1) == 1
    pool.shutdown(wait=False)
    return [weakref.ref(pool), *parts(pool._engine)]


def failed(runtime: str) -> list[weakref.ref[Any]]:
    pool = Pool(1, runtime=runtime, initializer=fail, min_workers=1)
    with suppress(PoolFailed):
        pool.wait_ready()
    pool.close()
    return [weakref.ref(pool), *parts(pool._engine)]


@pytest.mark.parametrize("runtime", ["thread", "process"])
@pytest.mark.parametrize("make", [plain, bounded, with_instances, closed_without_waiting, failed])
def test_a_closed_pool_is_freed_without_the_collector(
    make: Callable[[str], list[weakref.ref[Any]]], runtime: str
) -> None:
    assert_free(make(runtime))


def test_a_pool_whose_process_was_killed_is_freed_without_the_collector() -> None:
    def run() -> list[weakref.ref[Any]]:
        with Pool(1, runtime="process") as pool:
            with pytest.raises(WorkerLost):
                pool.do(kill_itself)
            assert pool.do(abs, -1) == 1
        return [weakref.ref(pool), *parts(pool._engine)]

    assert_free(run())


@pytest.mark.parametrize("runtime", ["thread", "process"])
def test_a_closed_async_pool_is_freed_without_the_collector(runtime: str) -> None:
    async def double(x: int) -> int:
        return 2 * x

    async def main() -> list[weakref.ref[Any]]:
        async with AsyncPool(2, threads=2, runtime=runtime) as pool:
            assert await pool.do(double, 1) == 2
            assert await pool.using(timeout=60).do(abs, -1) == 1
            assert [x async for x in pool.map(double, range(5))] == [0, 2, 4, 6, 8]
            assert [x async for x in pool.map(abs, range(5))] == [0, 1, 2, 3, 4]
            assert [x async for x in pool.stream(count, 3)] == [0, 1, 2]
        sides = [pool._coroutines, pool._threads]
        return [weakref.ref(pool), *(ref for side in sides for ref in parts(side.engine))]

    assert_free(asyncio.run(main()))


def test_a_closed_pool_still_answers() -> None:
    with Pool(1) as pool:
        future = pool.submit(abs, -1)
    assert pool.stats().completed == 1
    assert str(pool.explain()) == f"pool {pool.stats().name!r} is closed"
    assert "is done" in str(pool.explain(future))
    pool.close()

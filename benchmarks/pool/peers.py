"""Each library in its own idiom: how it is opened, and the loop its users would write.

No adapter stands between a loop and a peer. A loop receives the peer's own bound method (``pool.submit``,
``pool.apply_async``), so no peer pays for a wrapper. Peers are imported when they are opened: a missing one is a
message and not a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from multiprocessing.pool import ThreadPool
from time import perf_counter_ns
from typing import Any, TypeVar

from benchmarks.model import Peer
from bullpen import CallPolicy

from .settings import COROUTINES_AT_ONCE, LIMIT_SECONDS, MAX_QUEUE, WORKERS

Function = Callable[..., object]
Loop = Callable[[Function, int], object]
"""Runs a function that many times on an open pool. Returns the objects that must live until the clock has stopped."""
TimedLoop = Callable[[Function, int], list[int]]
"""Runs a function that many times, one after the other; returns the nanoseconds of each call."""
L = TypeVar("L", Loop, TimedLoop)


EXECUTOR = Peer(
    "ThreadPoolExecutor",
    "concurrent.futures:ThreadPoolExecutor",
    None,
    None,
    f"ThreadPoolExecutor({WORKERS})",
    lambda: ThreadPoolExecutor(WORKERS),
)
THREAD_POOL = Peer(
    "multiprocessing ThreadPool",
    "multiprocessing.pool:ThreadPool",
    None,
    None,
    f"ThreadPool({WORKERS})",
    lambda: ThreadPool(WORKERS),
)
PEBBLE = Peer(
    "pebble",
    "pebble:ThreadPool",
    "pebble",
    "pip install pebble",
    f"pebble.ThreadPool(max_workers={WORKERS})",
    lambda: import_module("pebble").ThreadPool(max_workers=WORKERS),
)
JOBLIB = Peer(
    "joblib",
    "joblib:Parallel",
    "joblib",
    "pip install joblib",
    f'Parallel(n_jobs={WORKERS}, backend="threading", batch_size="auto")',
    lambda: import_module("joblib").Parallel(n_jobs=WORKERS, backend="threading", batch_size="auto"),
)
JOBLIB_SINGLE = Peer(
    "joblib",
    "joblib:Parallel",
    "joblib",
    "pip install joblib",
    f'Parallel(n_jobs={WORKERS}, backend="threading", batch_size=1)',
    lambda: import_module("joblib").Parallel(n_jobs=WORKERS, backend="threading", batch_size=1),
)
BULLPEN = Peer(
    "bullpen",
    "bullpen:Pool",
    "pybullpen",
    "pip install -e .",
    f"Pool({WORKERS})",
    lambda: import_module("bullpen").Pool(WORKERS),
)
BULLPEN_LIMITED = Peer(
    "bullpen",
    "bullpen:Pool",
    "pybullpen",
    "pip install -e .",
    f"Pool({WORKERS}, max_queue={MAX_QUEUE}, calls=CallPolicy(queue_timeout={LIMIT_SECONDS}))",
    lambda: import_module("bullpen").Pool(WORKERS, max_queue=MAX_QUEUE, calls=CallPolicy(queue_timeout=LIMIT_SECONDS)),
)

RUN_IN_EXECUTOR = Peer(
    "run_in_executor",
    "concurrent.futures:ThreadPoolExecutor",
    None,
    None,
    f"ThreadPoolExecutor({WORKERS})",
)
TO_THREAD = Peer(
    "asyncio.to_thread",
    "concurrent.futures:ThreadPoolExecutor",
    None,
    None,
    f"set_default_executor(ThreadPoolExecutor({WORKERS}))",
)
TASK_GROUP = Peer(
    "Semaphore + TaskGroup",
    "asyncio:TaskGroup",
    None,
    None,
    f"Semaphore({COROUTINES_AT_ONCE})",
)
CONSUMERS = Peer(
    "asyncio.Queue + consumers",
    "asyncio:Queue",
    None,
    None,
    f"Queue({COROUTINES_AT_ONCE}), as many tasks that take from it",
)
ASYNC_BULLPEN = Peer(
    "bullpen",
    "bullpen:AsyncPool",
    "pybullpen",
    "pip install -e .",
    f"AsyncPool({COROUTINES_AT_ONCE}, threads={WORKERS})",
)

SCRIPTED = Peer(
    "bullpen",
    "bullpen.testing:ScriptedRuntime",
    "pybullpen",
    "pip install -e .",
    "Pool(n, min_workers=n, runtime=ScriptedRuntime())",
)


def on(peer: Peer, make: Callable[[Any], L]) -> Callable[[], AbstractContextManager[L]]:
    """Open a peer's pool on entry, hand out the loop made from it, and close the pool on exit."""

    @contextmanager
    def opened() -> Iterator[L]:
        with peer.open() as pool:
            yield make(pool)

    return opened


def gather(submit: Callable[..., Any]) -> Loop:
    """Submit everything into a list, then ask every future for its result."""

    def loop(function: Function, count: int) -> object:
        futures = [submit(function) for _ in range(count)]
        for future in futures:
            future.result()
        return futures

    return loop


def gather_async_results(apply_async: Callable[..., Any]) -> Loop:
    """The same for `multiprocessing`, whose futures answer to ``get``."""

    def loop(function: Function, count: int) -> object:
        results = [apply_async(function) for _ in range(count)]
        for result in results:
            result.get()
        return results

    return loop


def serve(submit: Callable[..., object], *closing: Callable[[], object]) -> Loop:
    """Submit all calls without keeping their futures, then close, which waits until all have run."""

    def loop(function: Function, count: int) -> object:
        for _ in range(count):
            submit(function)
        for step in closing:
            step()
        return None

    return loop


def drain(iterate: Callable[..., Any]) -> Loop:
    """Walk over the results of a map in order."""

    def loop(function: Function, count: int) -> object:
        for _ in iterate(function, range(count)):
            pass
        return None

    return loop


def drain_map_future(iterate: Callable[..., Any]) -> Loop:
    """The same for pebble, whose map returns a future of an iterator."""

    def loop(function: Function, count: int) -> object:
        for _ in iterate(function, range(count)).result():
            pass
        return None

    return loop


def drain_parallel(parallel: Callable[..., Any]) -> Loop:
    """The same for joblib, which takes delayed calls and returns a list."""
    delayed = import_module("joblib").delayed

    def loop(function: Function, count: int) -> object:
        call = delayed(function)
        for _ in parallel(call(i) for i in range(count)):
            pass
        return None

    return loop


def one_by_one(submit: Callable[..., Any]) -> TimedLoop:
    """Submit one, wait for its result, then the next."""

    def loop(function: Function, count: int) -> list[int]:
        spans = []
        for _ in range(count):
            started = perf_counter_ns()
            submit(function).result()
            spans.append(perf_counter_ns() - started)
        return spans

    return loop


def one_by_one_async_result(apply_async: Callable[..., Any]) -> TimedLoop:
    """The same for `multiprocessing`, whose futures answer to ``get``."""

    def loop(function: Function, count: int) -> list[int]:
        spans = []
        for _ in range(count):
            started = perf_counter_ns()
            apply_async(function).get()
            spans.append(perf_counter_ns() - started)
        return spans

    return loop

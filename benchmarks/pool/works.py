"""The works of this suite as tables: the measurements, their contestants, and the bars for Bullpen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from benchmarks.metrics import LATENCY, P50, P99, RATE, THROUGHPUT
from benchmarks.model import Bar, Contestant, Metric, Suite, Work

from . import asynchronous, dispatch, memory, sessions
from .peers import (
    ASYNC_BULLPEN,
    BULLPEN,
    BULLPEN_LIMITED,
    CONSUMERS,
    EXECUTOR,
    JOBLIB,
    JOBLIB_SINGLE,
    PEBBLE,
    RUN_IN_EXECUTOR,
    SCRIPTED,
    TASK_GROUP,
    THREAD_POOL,
    TO_THREAD,
    drain,
    drain_map_future,
    drain_parallel,
    gather,
    gather_async_results,
    on,
    one_by_one,
    one_by_one_async_result,
    serve,
)
from .settings import FULL, LIMIT_SECONDS, QUICK, WORKERS
from .timing import latency, rate, rate_until_closed

BARS = (
    Bar("gather", RATE, 5.0),
    Bar("serve", RATE, 5.0),
    Bar("map", RATE, 8.0),
    Bar("gather-limits", RATE, 2.5),
    Bar("serve-limits", RATE, 2.5),
    Bar("latency", P50, 1.0),
    Bar("latency", P99, 1.0),
    Bar("async-submit", RATE, 6.0),
    Bar("async-do", RATE, 3.0),
    Bar("coroutines", RATE, 1.7),
    Bar("dispatch-scale", dispatch.COST, 1.3),
    Bar("sessions", sessions.STRICT, 1.3),
    Bar("sessions", sessions.HINT, 1.3),
    Bar("memory", memory.QUEUED_TRACED, 1.0),
    Bar("memory", memory.QUEUED_RESIDENT, 1.0),
    Bar("memory", memory.WORKER_TRACED, 1.0),
    Bar("memory", memory.WORKER_RESIDENT, 1.0),
)


_LIMITED_VIEW = f"{BULLPEN_LIMITED.opened_as}.using(timeout={LIMIT_SECONDS})"


def _limited_view(pool: Any) -> Any:
    return pool.using(timeout=LIMIT_SECONDS)


def _imap_one_by_one(pool: Any) -> Any:
    return lambda function, items: pool.imap(function, items, chunksize=1)


_EXECUTOR_GATHER = Contestant(
    EXECUTOR.name,
    EXECUTOR,
    f"{EXECUTOR.opened_as}: submit, then result()",
    rate(on(EXECUTOR, lambda pool: gather(pool.submit))),
)
_EXECUTOR_SERVE = Contestant(
    EXECUTOR.name,
    EXECUTOR,
    f"{EXECUTOR.opened_as}: submit, then shutdown(wait=True)",
    rate_until_closed(on(EXECUTOR, lambda pool: serve(pool.submit, pool.shutdown))),
)

_RUN_IN_EXECUTOR = Contestant(
    RUN_IN_EXECUTOR.name,
    RUN_IN_EXECUTOR,
    f"{RUN_IN_EXECUTOR.opened_as}: gather(*[loop.run_in_executor(executor, noop), …])",
    asynchronous.rate_of_functions(asynchronous.run_in_executor),
)

WORKS = (
    Work(
        "gather",
        "{tasks:,} no-ops: submit all into a list, then ask each for its result",
        THROUGHPUT,
        (
            _EXECUTOR_GATHER,
            Contestant(
                THREAD_POOL.name,
                THREAD_POOL,
                f"{THREAD_POOL.opened_as}: apply_async, then get()",
                rate(on(THREAD_POOL, lambda pool: gather_async_results(pool.apply_async))),
            ),
            Contestant(
                PEBBLE.name,
                PEBBLE,
                f"{PEBBLE.opened_as}: schedule, then result()",
                rate(on(PEBBLE, lambda pool: gather(pool.schedule))),
            ),
            Contestant(
                BULLPEN.name,
                BULLPEN,
                f"{BULLPEN.opened_as}: submit, then result()",
                rate(on(BULLPEN, lambda pool: gather(pool.submit))),
            ),
        ),
    ),
    Work(
        "serve",
        "{tasks:,} no-ops: fire and forget, then close and wait",
        THROUGHPUT,
        (
            _EXECUTOR_SERVE,
            Contestant(
                THREAD_POOL.name,
                THREAD_POOL,
                f"{THREAD_POOL.opened_as}: apply_async, then close() and join()",
                rate_until_closed(on(THREAD_POOL, lambda pool: serve(pool.apply_async, pool.close, pool.join))),
            ),
            Contestant(
                PEBBLE.name,
                PEBBLE,
                f"{PEBBLE.opened_as}: schedule, then close() and join()",
                rate_until_closed(on(PEBBLE, lambda pool: serve(pool.schedule, pool.close, pool.join))),
            ),
            Contestant(
                BULLPEN.name,
                BULLPEN,
                f"{BULLPEN.opened_as}: serve, then close()",
                rate_until_closed(on(BULLPEN, lambda pool: serve(pool.serve, pool.close))),
            ),
        ),
    ),
    Work(
        "map",
        "{tasks:,} no-ops: walk over the results of a map, in order",
        THROUGHPUT,
        (
            Contestant(
                EXECUTOR.name,
                EXECUTOR,
                f"{EXECUTOR.opened_as}: map (chunksize has no effect on threads)",
                rate(on(EXECUTOR, lambda pool: drain(pool.map))),
            ),
            Contestant(
                f"{THREAD_POOL.name}, imap by 1",
                THREAD_POOL,
                f"{THREAD_POOL.opened_as}: imap, chunksize=1",
                rate(on(THREAD_POOL, lambda pool: drain(_imap_one_by_one(pool)))),
            ),
            Contestant(
                f"{THREAD_POOL.name}, map in chunks",
                THREAD_POOL,
                f"{THREAD_POOL.opened_as}: map, default chunksize (16 chunks; returns when all is done)",
                rate(on(THREAD_POOL, lambda pool: drain(pool.map))),
            ),
            Contestant(
                PEBBLE.name,
                PEBBLE,
                f"{PEBBLE.opened_as}: map, default chunksize=1",
                rate(on(PEBBLE, lambda pool: drain_map_future(pool.map))),
            ),
            Contestant(
                f"{JOBLIB.name}, batch auto",
                JOBLIB,
                f"{JOBLIB.opened_as}, one call with all items",
                rate(on(JOBLIB, drain_parallel)),
            ),
            Contestant(
                f"{JOBLIB.name}, batch 1",
                JOBLIB_SINGLE,
                f"{JOBLIB_SINGLE.opened_as}, one call with all items",
                rate(on(JOBLIB_SINGLE, drain_parallel)),
            ),
            Contestant(
                BULLPEN.name,
                BULLPEN,
                f"{BULLPEN.opened_as}: map",
                rate(on(BULLPEN, lambda pool: drain(pool.map))),
            ),
        ),
    ),
    Work(
        "gather-limits",
        "gather with a bounded queue, a queue timeout and a deadline on every task; the reference has no limits",
        THROUGHPUT,
        (
            _EXECUTOR_GATHER,
            Contestant(
                BULLPEN.name,
                BULLPEN_LIMITED,
                f"{_LIMITED_VIEW}: submit, then result()",
                rate(on(BULLPEN_LIMITED, lambda pool: gather(_limited_view(pool).submit))),
            ),
        ),
    ),
    Work(
        "serve-limits",
        "serve with a bounded queue, a queue timeout and a deadline on every task; the reference has no limits",
        THROUGHPUT,
        (
            _EXECUTOR_SERVE,
            Contestant(
                BULLPEN.name,
                BULLPEN_LIMITED,
                f"{_LIMITED_VIEW}: serve, then the pool's close()",
                rate_until_closed(on(BULLPEN_LIMITED, lambda pool: serve(_limited_view(pool).serve, pool.close))),
            ),
        ),
    ),
    Work(
        "latency",
        "{calls:,} no-ops one at a time: from submit to the result in hand",
        LATENCY,
        (
            Contestant(
                EXECUTOR.name,
                EXECUTOR,
                f"{EXECUTOR.opened_as}: submit(noop).result()",
                latency(on(EXECUTOR, lambda pool: one_by_one(pool.submit))),
            ),
            Contestant(
                THREAD_POOL.name,
                THREAD_POOL,
                f"{THREAD_POOL.opened_as}: apply_async(noop).get()",
                latency(on(THREAD_POOL, lambda pool: one_by_one_async_result(pool.apply_async))),
            ),
            Contestant(
                PEBBLE.name,
                PEBBLE,
                f"{PEBBLE.opened_as}: schedule(noop).result()",
                latency(on(PEBBLE, lambda pool: one_by_one(pool.schedule))),
            ),
            Contestant(
                BULLPEN.name,
                BULLPEN,
                f"{BULLPEN.opened_as}: submit(noop).result()",
                latency(on(BULLPEN, lambda pool: one_by_one(pool.submit))),
            ),
        ),
    ),
    Work(
        "async-submit",
        "{tasks:,} no-ops on threads from asyncio: submit all, then gather",
        THROUGHPUT,
        (
            _RUN_IN_EXECUTOR,
            Contestant(
                ASYNC_BULLPEN.name,
                ASYNC_BULLPEN,
                f"{ASYNC_BULLPEN.opened_as}: gather(*[pool.submit(noop), …])",
                asynchronous.rate_of_functions(asynchronous.pool_submit),
            ),
        ),
    ),
    Work(
        "async-do",
        "{tasks:,} no-ops on threads from asyncio: gather of coroutines that wait for one each",
        THROUGHPUT,
        (
            _RUN_IN_EXECUTOR,
            Contestant(
                TO_THREAD.name,
                TO_THREAD,
                f"{TO_THREAD.opened_as}: gather(*[to_thread(noop), …])",
                asynchronous.rate_of_functions(asynchronous.to_thread),
            ),
            Contestant(
                ASYNC_BULLPEN.name,
                ASYNC_BULLPEN,
                f"{ASYNC_BULLPEN.opened_as}: gather(*[pool.do(noop), …])",
                asynchronous.rate_of_functions(asynchronous.pool_do),
            ),
        ),
    ),
    Work(
        "coroutines",
        "{tasks:,} coroutines that await once, 100 of them at once",
        THROUGHPUT,
        (
            Contestant(
                TASK_GROUP.name,
                TASK_GROUP,
                f"{TASK_GROUP.opened_as}: each task enters it",
                asynchronous.rate_of_coroutines(asynchronous.semaphore_and_task_group),
            ),
            Contestant(
                CONSUMERS.name,
                CONSUMERS,
                f"{CONSUMERS.opened_as} and keep the results in order",
                asynchronous.rate_of_coroutines(asynchronous.queue_and_consumers),
            ),
            Contestant(
                f"{ASYNC_BULLPEN.name}, submit and gather",
                ASYNC_BULLPEN,
                f"{ASYNC_BULLPEN.opened_as}: gather(*[pool.submit(f), …])",
                asynchronous.rate_of_coroutines(asynchronous.pool_submit),
            ),
            Contestant(
                f"{ASYNC_BULLPEN.name}, map",
                ASYNC_BULLPEN,
                f"{ASYNC_BULLPEN.opened_as}: async for _ in pool.map(f, items)",
                asynchronous.rate_of_coroutines(asynchronous.pool_map),
            ),
        ),
    ),
    Work(
        "dispatch-scale",
        "{dispatches:,} dispatches with scripted workers: what one costs must not grow with the number of workers",
        (Metric(dispatch.COST, "cost of a dispatch", "µs", "lower"),),
        tuple(
            Contestant(
                f"{BULLPEN.name}, {workers:,} workers",
                SCRIPTED,
                f"Pool({workers}, min_workers={workers}, runtime=ScriptedRuntime())",
                dispatch.cost(workers),
            )
            for workers in (dispatch.FEW, dispatch.MANY)
        ),
    ),
    Work(
        "sessions",
        "{dispatches:,} requests of sessions, scripted workers: the cost must not grow with the number of sessions",
        (
            Metric(sessions.STRICT, "cost of a request, strict_queue", "µs", "lower"),
            Metric(sessions.HINT, "cost of a request, hint", "µs", "lower"),
        ),
        tuple(
            Contestant(
                f"{BULLPEN.name}, {count:,} sessions",
                SCRIPTED,
                f"Pool(4, min_workers=4, sessions=SessionPolicy(max_sessions={count}), runtime=ScriptedRuntime())"
                ".using(session=id)",
                sessions.cost(count),
            )
            for count in (sessions.FEW, sessions.MANY)
        ),
    ),
    Work(
        "memory",
        "{queued:,} queued no-ops behind blocked workers, and {idle_workers:,} idle workers",
        (
            Metric(memory.QUEUED_TRACED, "queued request, traced", "bytes", "lower"),
            Metric(memory.QUEUED_RESIDENT, "queued request, resident", "bytes", "lower"),
            Metric(memory.WORKER_TRACED, "idle worker, traced", "bytes", "lower"),
            Metric(memory.WORKER_RESIDENT, "idle worker, resident", "bytes", "lower"),
        ),
        (
            Contestant(
                EXECUTOR.name,
                EXECUTOR,
                "ThreadPoolExecutor(n): submit",
                memory.memory(ThreadPoolExecutor),
            ),
            Contestant(
                BULLPEN.name,
                BULLPEN,
                "Pool(n): submit",
                memory.memory(lambda workers: import_module("bullpen").Pool(workers)),
            ),
        ),
    ),
)


POOL = Suite(
    name="pool",
    title="bullpen.Pool beside other thread pools",
    higher="Throughput × ThreadPoolExecutor",
    lower="Latency, dispatch and memory × reference",
    works=WORKS,
    bars=BARS,
    full=FULL,
    quick=QUICK,
    settings=lambda: {"workers": str(WORKERS)},
)

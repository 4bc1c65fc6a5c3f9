"""What is measured, who takes part in it, and the bar Bullpen has set itself for each: all of it in tables."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from . import asynchronous, dispatch, memory, sessions
from .peers import (
    ASYNC_BULLPEN,
    BULLPEN,
    BULLPEN_LIMITED,
    EXECUTOR,
    JOBLIB,
    JOBLIB_SINGLE,
    PEBBLE,
    RUN_IN_EXECUTOR,
    SCRIPTED,
    TASK_GROUP,
    THREAD_POOL,
    TO_THREAD,
    Peer,
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
from .settings import LIMIT_SECONDS, Sizes
from .timing import P50, P99, RATE, Measure, latency, rate, rate_until_closed


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a work. Every metric is compared as a ratio to the work's reference, in the same round."""

    key: str
    title: str
    unit: str
    better: Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A peer with the settings and the calls it takes part with."""

    label: str
    peer: Peer
    settings: str
    measure: Measure


@dataclass(frozen=True, slots=True)
class Work:
    """One comparison. The first contestant is the reference of all ratios; ours, the last, is judged by the bars."""

    name: str
    title: str
    size_of: Literal["tasks", "calls", "queued", "dispatches"]
    metrics: tuple[Metric, ...]
    contestants: tuple[Contestant, ...]

    @property
    def reference(self) -> Contestant:
        return self.contestants[0]

    @property
    def judged(self) -> Contestant | None:
        """None when a filter has left Bullpen out."""
        last = self.contestants[-1]
        return last if last.peer.name == BULLPEN.name else None

    def describe(self, sizes: Sizes) -> str:
        return self.title.format(count=getattr(sizes, self.size_of), workers=sizes.idle_workers)


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise: the median of the per-round ratios, rounded to the two digits that are printed, reaches `ratio`."""

    work: str
    metric: str
    ratio: float


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


def bar_of(work: Work, metric: Metric) -> Bar | None:
    return next((bar for bar in BARS if (bar.work, bar.metric) == (work.name, metric.key)), None)


def meets(bar: Bar, metric: Metric, ratio: float) -> bool:
    """Judged as printed, so that a table never shows 1.00 beside a bar of 1.00 and calls it missed."""
    shown = round(ratio, 2)
    return shown >= bar.ratio if metric.better == "higher" else shown <= bar.ratio


THROUGHPUT = (Metric(RATE, "throughput", "tasks/s", "higher"),)
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
        "{count:,} no-ops: submit all into a list, then ask each for its result",
        "tasks",
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
        "{count:,} no-ops: fire and forget, then close and wait",
        "tasks",
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
        "{count:,} no-ops: walk over the results of a map, in order",
        "tasks",
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
        "tasks",
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
        "tasks",
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
        "{count:,} no-ops one at a time: from submit to the result in hand",
        "calls",
        (Metric(P50, "median", "µs", "lower"), Metric(P99, "99th percentile", "µs", "lower")),
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
        "{count:,} no-ops on threads from asyncio: submit all, then gather",
        "tasks",
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
        "{count:,} no-ops on threads from asyncio: gather of coroutines that wait for one each",
        "tasks",
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
        "{count:,} coroutines that await once, 100 of them at once",
        "tasks",
        THROUGHPUT,
        (
            Contestant(
                TASK_GROUP.name,
                TASK_GROUP,
                f"{TASK_GROUP.opened_as}: each task enters it",
                asynchronous.rate_of_coroutines(asynchronous.semaphore_and_task_group),
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
        "{count:,} dispatches with scripted workers: what one costs must not grow with the number of workers",
        "dispatches",
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
        "{count:,} requests of sessions, scripted workers: what one costs must not grow with the number of sessions",
        "dispatches",
        (
            Metric(sessions.STRICT, "cost of a request, strict_queue", "µs", "lower"),
            Metric(sessions.HINT, "cost of a request, hint", "µs", "lower"),
        ),
        tuple(
            Contestant(
                f"{BULLPEN.name}, {count:,} sessions",
                SCRIPTED,
                f"Pool(4, min_workers=4, max_sessions={count}, runtime=ScriptedRuntime()).using(session=id)",
                sessions.cost(count),
            )
            for count in (sessions.FEW, sessions.MANY)
        ),
    ),
    Work(
        "memory",
        "{count:,} queued no-ops behind blocked workers, and {workers:,} idle workers",
        "queued",
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


def contestants() -> Iterator[tuple[Work, Contestant]]:
    for work in WORKS:
        for contestant in work.contestants:
            yield work, contestant


def find(work_name: str, label: str) -> Contestant:
    return next(c for work, c in contestants() if work.name == work_name and c.label == label)

"""The options of an `AsyncPool`, dealt out to its two lanes. What has no meaning there is refused, with a reason."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from bullpen.core.ready import SchedulerStrategy
from bullpen.core.terms import Affinity
from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pool.async_instances import lives_on_loop
from bullpen.pool.instances import CapacityStrategy
from bullpen.pool.options import (
    PoolOptions,
    Seconds,
    WhenFull,
    Wrap,
    arguments,
    at_least,
    default_max_workers,
    duration,
    error_types,
    one_of,
    seconds,
)
from bullpen.pool.options import restart_limit as checked_restart_limit
from bullpen.pool.startup import InitializationDelegate
from bullpen.runtimes.port import Runtime, by_name_only
from bullpen.telemetry.catalogue import Event

DEFAULT_MAX_WORKERS = 100


def lane_options(
    max_workers: int | None,
    threads: int | None,
    name: str,
    *,
    runtime: str | Runtime,
    worker: Callable[[], Any] | None,
    min_workers: int | None,
    min_threads: int | None,
    capacity: int,
    capacity_strategy: CapacityStrategy,
    wrap: Wrap | None,
    awrap: Wrap | None,
    thread_name_prefix: str,
    initializer: Callable[..., object] | None,
    initargs: Iterable[Any],
    max_queue: int | None,
    when_full: WhenFull,
    queue_timeout: Seconds | None,
    run_timeout: Seconds | None,
    max_abandoned: int,
    idle_timeout: Seconds | None,
    scheduler: str | Callable[[], SchedulerStrategy],
    log_errors: bool,
    observer: Callable[[Event], object] | None,
    affinity: Affinity,
    session_ttl: Seconds | None,
    max_sessions: int,
    crash_retries: int,
    initialization: InitializationDelegate | None,
    startup_batch_size: int,
    startup_batch_delay: Seconds,
    restart_limit: tuple[int, Seconds] | None,
    reconcile_interval: Seconds | None,
    reconcile_batch_size: int,
    taint_duration: Seconds,
    taint_on: type[BaseException] | tuple[type[BaseException], ...],
    max_requests: int | None,
    max_age: Seconds | None,
) -> tuple[PoolOptions, PoolOptions]:
    """What the coroutines of a pool are told, and what its threads are.

    A place on the loop that keeps nothing costs nothing and cannot break: it is there when it is needed, and knows
    neither minimum nor age. One that keeps an instance is a worker like a thread.
    """
    max_workers = DEFAULT_MAX_WORKERS if max_workers is None else max_workers
    at_least("max_workers", max_workers, 1)
    threads = default_max_workers() if threads is None else threads
    at_least("threads", threads, 1)
    one_of("when_full", when_full, ("reject", "block"))
    if worker is not None and not callable(worker):
        raise InvalidOptionType("worker", worker, "a class, a function that makes an object, or None")
    on_loop = worker is not None and lives_on_loop(worker)
    on_threads = worker is not None and not on_loop
    _check_minimum("min_workers", min_workers, "max_workers", max_workers)
    _check_minimum("min_threads", min_threads, "threads", threads)
    if min_workers is not None and not on_loop:
        raise InvalidOption(
            "min_workers",
            min_workers,
            "None unless worker= has coroutine methods: a place on the loop that keeps nothing is there when it is "
            "needed; threads have min_threads",
        )
    if worker is None and capacity != 1 and not by_name_only(runtime):
        at_least("capacity", capacity, 1)
        raise InvalidOption(
            "capacity",
            capacity,
            "1 without worker=: how many run at once is max_workers for coroutines, else threads",
        )
    _check_wraps(wrap, awrap)
    _check_delegate(initialization)
    common: dict[str, Any] = {
        "max_queue": max_queue,
        "when_full": when_full,
        "queue_timeout": seconds("queue_timeout", queue_timeout),
        "run_timeout": seconds("run_timeout", run_timeout, zero=False),
        "log_errors": log_errors,
        "observer": observer,
        "affinity": affinity,
        "session_ttl": seconds("session_ttl", session_ttl, zero=False),
        "max_sessions": max_sessions,
        "crash_retries": crash_retries,
        "startup_batch_size": startup_batch_size,
        "startup_batch_delay": duration("startup_batch_delay", startup_batch_delay),
        "restart_limit": checked_restart_limit(restart_limit),
        "reconcile_batch_size": reconcile_batch_size,
        "taint_duration": duration("taint_duration", taint_duration, zero=False),
    }
    of_workers: dict[str, Any] = {
        "idle_timeout": seconds("idle_timeout", idle_timeout, zero=False),
        "scheduler": scheduler,
        "reconcile_interval": seconds("reconcile_interval", reconcile_interval, zero=False),
        "taint_on": error_types("taint_on", taint_on),
        "max_requests": max_requests,
        "max_age": seconds("max_age", max_age, zero=False),
    }
    of_instances: dict[str, Any] = {
        "worker": worker,
        "capacity": capacity,
        "capacity_strategy": capacity_strategy,
        "initialization": initialization,
    }
    for_threads = PoolOptions(
        max_workers=threads,
        min_workers=_either(min_threads, threads if on_threads or by_name_only(runtime) else 0),
        name=f"{name}-threads" if isinstance(name, str) else name,
        runtime=runtime,
        thread_name_prefix=thread_name_prefix,
        initializer=initializer,
        initargs=arguments("initargs", initargs),
        max_abandoned=max_abandoned,
        wrap=wrap,
        **common,
        **of_workers,
        **(_NO_INSTANCES if on_loop else of_instances),
    )
    for_coroutines = PoolOptions(
        max_workers=max_workers,
        min_workers=_either(min_workers, max_workers if on_loop else 0),
        name=name,
        runtime="event_loop",
        thread_name_prefix="",
        initializer=None,
        initargs=(),
        max_abandoned=0,
        wrap=awrap,
        **common,
        **(of_workers if on_loop else _PLACES),
        **(of_instances if on_loop else _NO_INSTANCES),
    )
    return for_coroutines, for_threads


_PLACES: dict[str, Any] = {
    "idle_timeout": None,
    "scheduler": "rotation",
    "reconcile_interval": None,
    "taint_on": (),
    "max_requests": None,
    "max_age": None,
}
_NO_INSTANCES: dict[str, Any] = {
    "worker": None,
    "capacity": 1,
    "capacity_strategy": "pool",
    "initialization": None,
}


def _check_minimum(name: str, value: int | None, name_of_most: str, most: int) -> None:
    if value is None:
        return
    at_least(name, value, 0)
    if value > most:
        raise InvalidOption(name, value, f"at most {name_of_most}, which is {most}")


def _either(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_wraps(wrap: Any, awrap: Any) -> None:
    """Each has to be of the kind of what it is called around."""
    if inspect.iscoroutinefunction(wrap):
        raise InvalidOptionType(
            "wrap", wrap, "a plain function: it is called on threads, around functions; for coroutines there is awrap"
        )
    if awrap is not None and not inspect.iscoroutinefunction(awrap):
        raise InvalidOptionType(
            "awrap",
            awrap,
            "a coroutine function: it is called on the loop, around coroutines; functions have wrap",
        )


def _check_delegate(delegate: Any) -> None:
    for method in ("prepare", "started"):
        if inspect.iscoroutinefunction(getattr(delegate, method, None)):
            raise InvalidOptionType(
                "initialization",
                delegate,
                f"an object whose {method} is a plain function: prepare has a thread of its own, and started is brief; "
                "await what has to be awaited before the pool is used",
            )

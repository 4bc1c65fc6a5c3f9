"""The options of an `AsyncPool`, dealt out to its two lanes. What has no meaning there is refused, with a reason."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pool.async_instances import lives_on_loop
from bullpen.pool.options import (
    PoolOptions,
    Wrap,
    arguments,
    at_least,
    default_max_workers,
    duration,
    error_types,
    one_of,
    restart_limit,
    seconds,
)
from bullpen.runtimes.port import Runtime, by_name_only

DEFAULT_MAX_WORKERS = 100


Check = Callable[[str, Any], Any]


def _left_to_the_lane(_: str, value: Any) -> Any:
    """`PoolOptions` checks it."""
    return value


_positive_seconds = functools.partial(seconds, zero=False)

# What both lanes are told.
_COMMON: dict[str, Check] = {
    "max_queue": _left_to_the_lane,
    "when_full": _left_to_the_lane,
    "queue_timeout": seconds,
    "run_timeout": _positive_seconds,
    "log_errors": _left_to_the_lane,
    "observer": _left_to_the_lane,
    "affinity": _left_to_the_lane,
    "session_ttl": _positive_seconds,
    "max_sessions": _left_to_the_lane,
    "crash_retries": _left_to_the_lane,
    "startup_batch_size": _left_to_the_lane,
    "startup_batch_delay": duration,
    "restart_limit": lambda _, value: restart_limit(value),
    "reconcile_batch_size": _left_to_the_lane,
    "taint_duration": functools.partial(duration, zero=False),
}
# Threads, and workers on the loop that keep an instance.
_OF_WORKERS: dict[str, Check] = {
    "idle_timeout": _positive_seconds,
    "scheduler": _left_to_the_lane,
    "reconcile_interval": _positive_seconds,
    "taint_on": error_types,
    "max_requests": _left_to_the_lane,
    "max_age": _positive_seconds,
}
_OF_THREADS: dict[str, Check] = {
    "thread_name_prefix": _left_to_the_lane,
    "initializer": _left_to_the_lane,
    "initargs": arguments,
    "max_abandoned": _left_to_the_lane,
}
# The lane whose workers keep an instance.
_OF_INSTANCES: dict[str, Check] = {
    "worker": _left_to_the_lane,
    "capacity": _left_to_the_lane,
    "capacity_strategy": _left_to_the_lane,
    "initialization": _left_to_the_lane,
}


def lane_options(
    max_workers: int | None,
    threads: int | None,
    name: str,
    *,
    runtime: str | Runtime,
    min_workers: int | None,
    min_threads: int | None,
    wrap: Wrap | None,
    awrap: Wrap | None,
    **options: Any,
) -> tuple[PoolOptions, PoolOptions]:
    """What the coroutines of a pool are told, and what its threads are: `options` are those of the tables above.

    A place on the loop that keeps nothing costs nothing and cannot break: it is there when it is needed, and knows
    neither minimum nor age. One that keeps an instance is a worker like a thread.
    """
    max_workers = DEFAULT_MAX_WORKERS if max_workers is None else max_workers
    at_least("max_workers", max_workers, 1)
    threads = default_max_workers() if threads is None else threads
    at_least("threads", threads, 1)
    one_of("when_full", options["when_full"], ("reject", "block"))
    worker = options["worker"]
    if worker is not None and not callable(worker):
        raise InvalidOptionType("worker", worker, "a class, a function that makes an object, or None")
    on_loop = worker is not None and lives_on_loop(worker)
    _check_minimum("min_workers", min_workers, "max_workers", max_workers)
    _check_minimum("min_threads", min_threads, "threads", threads)
    on_threads = (worker is not None and not on_loop) or by_name_only(runtime)
    _check_kept(min_workers, options["capacity"], on_loop=on_loop, kept=on_loop or on_threads)
    _check_wraps(wrap, awrap)
    _check_delegate(options["initialization"])
    common, of_workers, of_threads, of_instances = (
        {option: check(option, options[option]) for option, check in table.items()}
        for table in (_COMMON, _OF_WORKERS, _OF_THREADS, _OF_INSTANCES)
    )
    for_threads = PoolOptions(
        max_workers=threads,
        min_workers=_either(min_threads, threads if on_threads else 0),
        name=f"{name}-threads" if isinstance(name, str) else name,
        runtime=runtime,
        wrap=wrap,
        **common,
        **of_workers,
        **of_threads,
        **(_NO_INSTANCES if on_loop else of_instances),
    )
    for_coroutines = PoolOptions(
        max_workers=max_workers,
        min_workers=_either(min_workers, max_workers if on_loop else 0),
        name=name,
        runtime="event_loop",
        wrap=awrap,
        **common,
        **(of_workers if on_loop else _PLACES),
        **_NO_THREADS,
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
_NO_THREADS: dict[str, Any] = {
    "thread_name_prefix": "",
    "initializer": None,
    "initargs": (),
    "max_abandoned": 0,
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


def _check_kept(min_workers: int | None, capacity: int, *, on_loop: bool, kept: bool) -> None:
    """What has a meaning only for workers that keep something."""
    if min_workers is not None and not on_loop:
        raise InvalidOption(
            "min_workers",
            min_workers,
            "None unless worker= has coroutine methods: a place on the loop that keeps nothing is there when it is "
            "needed; threads have min_threads",
        )
    if not kept and capacity != 1:
        at_least("capacity", capacity, 1)
        raise InvalidOption(
            "capacity",
            capacity,
            "1 without worker=: how many run at once is max_workers for coroutines, else threads",
        )


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

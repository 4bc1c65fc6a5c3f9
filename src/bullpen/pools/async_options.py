"""The options of an `AsyncPool`, divided between its two sides. An option without a meaning is rejected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pools.async_instances import lives_on_loop
from bullpen.pools.checks import arguments, at_least
from bullpen.pools.options import CommonOptions, PoolOptions, default_size, read_keywords
from bullpen.pools.policies import CapacityPolicy, RecyclePolicy
from bullpen.pools.runtimes.port import Runtime, by_name_only

DEFAULT_MAX_WORKERS = 100


class AsyncPoolKeywords(CommonOptions, total=False):
    """Options of `AsyncPool`, besides `max_workers`."""

    threads: int | None
    min_threads: int | None
    initializer: Callable[..., object] | None
    initargs: Iterable[Any]


ASYNC_POOL_NAMES = frozenset(AsyncPoolKeywords.__annotations__)

# A place on the loop that keeps no instance is there when it is needed. It knows neither age nor idleness.
_PLACES: dict[str, Any] = {
    **RecyclePolicy(idle_timeout=None).flat_values(),
    "scheduler": "rotation",
    "reconcile_interval": None,
}
_NO_THREADS: dict[str, Any] = {"initializer": None, "initargs": (), "max_abandoned": 0}
_NO_INSTANCES: dict[str, Any] = {**CapacityPolicy().flat_values(), "worker": None, "initialization": None}


def side_options(max_workers: int | None, name: str, options: AsyncPoolKeywords) -> tuple[PoolOptions, PoolOptions]:
    """The options of a pool's coroutines, and those of its threads."""
    values = read_keywords("AsyncPool()", ASYNC_POOL_NAMES, options)
    runtime = values.get("runtime", "thread")
    max_workers = DEFAULT_MAX_WORKERS if max_workers is None else max_workers
    at_least("max_workers", max_workers, 1)
    threads = values.pop("threads", None)
    threads = default_size(runtime) if threads is None else threads
    at_least("threads", threads, 1)
    worker = values.get("worker")
    if worker is not None and not callable(worker):
        raise InvalidOptionType("worker", worker, "a class, a function that makes an object, or None")
    on_loop = worker is not None and lives_on_loop(worker)
    min_workers, min_threads = values.pop("min_workers", None), values.pop("min_threads", None)
    _check_minimum("min_workers", min_workers, "max_workers", max_workers)
    _check_minimum("min_threads", min_threads, "threads", threads)
    on_threads = (worker is not None and not on_loop) or by_name_only(runtime)
    _check_kept(min_workers, values["capacity"], on_loop=on_loop, kept=on_loop or on_threads)
    awrap = values.pop("awrap")
    _check_wraps(values["wrap"], awrap)
    _check_delegate(values["initialization"])
    values["initargs"] = arguments("initargs", values.get("initargs", ()))
    values["name"] = name
    of_threads = values | {
        "max_workers": threads,
        "min_workers": _either(min_threads, threads if on_threads else 0),
        "name": f"{name}-{_side_name(runtime)}" if isinstance(name, str) else name,
    }
    of_coroutines = (
        values
        | _NO_THREADS
        | {
            "max_workers": max_workers,
            "min_workers": _either(min_workers, max_workers if on_loop else 0),
            "runtime": "event_loop",
            "wrap": awrap,
        }
    )
    if on_loop:
        return PoolOptions(**of_coroutines), PoolOptions(**(of_threads | _NO_INSTANCES))
    return PoolOptions(**(of_coroutines | _PLACES | _NO_INSTANCES)), PoolOptions(**of_threads)


def _side_name(runtime: str | Runtime) -> str:
    """The workers of functions, in the name of their pool."""
    kind = runtime if isinstance(runtime, str) else getattr(runtime, "name", "")
    return {"process": "processes", "program": "programs"}.get(kind, "threads")


def _check_minimum(name: str, value: int | None, name_of_most: str, most: int) -> None:
    if value is None:
        return
    at_least(name, value, 0)
    if value > most:
        raise InvalidOption(name, value, f"at most {name_of_most}, which is {most}")


def _check_kept(min_workers: int | None, capacity: int, *, on_loop: bool, kept: bool) -> None:
    """Check the options that need workers with instances."""
    if min_workers is not None and not on_loop:
        raise InvalidOption(
            "min_workers",
            min_workers,
            "None unless worker= has coroutine methods: without an instance nothing has to be started on the loop; "
            "for threads use min_threads",
        )
    if not kept and capacity != 1:
        at_least("capacity", capacity, 1)
        raise InvalidOption(
            "capacity",
            capacity,
            "1 without worker=: max_workers limits the coroutines that run at once, threads the functions",
        )


def _either(value: int | None, default: int) -> int:
    return default if value is None else value


def _check_wraps(wrap: Any, awrap: Any) -> None:
    """`wrap` has to be a plain function, `awrap` a coroutine function."""
    if inspect.iscoroutinefunction(wrap):
        raise InvalidOptionType(
            "calls.wrap",
            wrap,
            "a plain function: it is called on threads, around functions; for coroutines there is awrap",
        )
    if awrap is not None and not inspect.iscoroutinefunction(awrap):
        raise InvalidOptionType(
            "calls.awrap",
            awrap,
            "a coroutine function: it is called on the loop, around coroutines; functions have wrap",
        )


def _check_delegate(delegate: Any) -> None:
    for method in ("prepare", "started"):
        if inspect.iscoroutinefunction(getattr(delegate, method, None)):
            raise InvalidOptionType(
                "startup.delegate",
                delegate,
                f"an object in which {method} is a plain function: prepare has its own thread, and started is brief; "
                "await coroutines before the pool is used",
            )

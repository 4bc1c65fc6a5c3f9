"""A pool's options: one frozen object that checks itself, before anything is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from bullpen.core.ready import LeastLoaded, MostRecentlyUsed, Rotation, SchedulerStrategy
from bullpen.core.request import WrappedCall
from bullpen.core.terms import AFFINITIES, Affinity, Terms
from bullpen.core.timing import TimeLimits
from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.pool.instances import CAPACITY_STRATEGIES, CapacityStrategy, Instances, ProgramMethods
from bullpen.pool.startup import InitializationDelegate
from bullpen.runtimes.port import Runtime, by_name_only
from bullpen.telemetry.catalogue import Event

Seconds = float | timedelta
WhenFull = Literal["reject", "block"]
Wrap = Callable[[WrappedCall], Any]

DEFAULT_WINDOW = 1024  # how many items of a map may be under way or unread

SCHEDULERS: dict[str, Callable[[], SchedulerStrategy]] = {
    "rotation": Rotation,
    "most_recently_used": MostRecentlyUsed,
    "least_loaded": LeastLoaded,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Everything a pool was told, checked and with durations in seconds."""

    max_workers: int
    thread_name_prefix: str
    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    runtime: str | Runtime
    name: str
    min_workers: int
    max_queue: int | None
    when_full: WhenFull
    queue_timeout: float | None
    run_timeout: float | None
    max_abandoned: int
    idle_timeout: float | None
    scheduler: str | Callable[[], SchedulerStrategy]
    wrap: Wrap | None
    log_errors: bool
    observer: Callable[[Event], object] | None
    affinity: Affinity
    session_ttl: float | None
    max_sessions: int
    crash_retries: int
    worker: Callable[[], Any] | None
    capacity: int
    capacity_strategy: CapacityStrategy
    initialization: InitializationDelegate | None
    startup_batch_size: int
    startup_batch_delay: float
    restart_limit: tuple[int, float] | None
    reconcile_interval: float | None
    reconcile_batch_size: int
    taint_duration: float
    taint_on: tuple[type[BaseException], ...]
    max_requests: int | None
    max_age: float | None

    def __post_init__(self) -> None:
        at_least("max_workers", self.max_workers, 1)
        at_least("min_workers", self.min_workers, 0)
        if self.min_workers > self.max_workers:
            raise InvalidOption("min_workers", self.min_workers, f"at most max_workers, which is {self.max_workers}")
        if self.max_queue is not None:
            at_least("max_queue", self.max_queue, 0, none="for a backlog without limit")
        one_of("when_full", self.when_full, ("reject", "block"))
        if self.when_full == "block" and self.max_queue is None:
            raise InvalidOption(
                "when_full", self.when_full, "'reject' while max_queue is None: such a backlog is never full"
            )
        at_least("max_abandoned", self.max_abandoned, 0)
        text("name", self.name)
        text("thread_name_prefix", self.thread_name_prefix)
        function("initializer", self.initializer)
        function("wrap", self.wrap)
        function("observer", self.observer)
        if not isinstance(self.runtime, str):
            has_methods(
                "runtime", self.runtime, ("start", "cancel", "kill", "join"), "the name of a runtime, or a Runtime"
            )
        if isinstance(self.scheduler, str):
            one_of("scheduler", self.scheduler, tuple(SCHEDULERS))
        elif not callable(self.scheduler):
            raise InvalidOptionType(
                "scheduler", self.scheduler, f"{_either(tuple(SCHEDULERS))}, or a function that makes one"
            )
        boolean("log_errors", self.log_errors)
        one_of("affinity", self.affinity, AFFINITIES)
        at_least("max_sessions", self.max_sessions, 1)
        at_least("crash_retries", self.crash_retries, 0)
        if self.worker is not None and not callable(self.worker):
            raise InvalidOptionType("worker", self.worker, "a class, a function that makes an object, or None")
        at_least("capacity", self.capacity, 1)
        one_of("capacity_strategy", self.capacity_strategy, CAPACITY_STRATEGIES)
        if self.capacity_strategy != "pool" and self.worker is None and not by_name_only(self.runtime):
            raise InvalidOption(
                "capacity_strategy",
                self.capacity_strategy,
                "'pool' without worker=, for there is nobody to declare one",
            )
        if self.initialization is not None:
            has_methods(
                "initialization",
                self.initialization,
                ("prepare", "started"),
                "an object with prepare(pool_name) and started(pool_name, workers), or None",
            )
        at_least("startup_batch_size", self.startup_batch_size, 1)
        at_least("reconcile_batch_size", self.reconcile_batch_size, 1)
        if self.max_requests is not None:
            at_least("max_requests", self.max_requests, 1, none="for any number")

        if self.wrap is not None and by_name_only(self.runtime):
            raise InvalidOption("wrap", self.wrap, "None, for the workers are programs and know no Python functions")

    def call_options(self) -> CallOptions:
        """The options of a call that says nothing else."""
        limits = TimeLimits(None, self.queue_timeout, self.run_timeout)
        return CallOptions(limits, Terms(None, self.affinity, False, self.crash_retries))

    def new_instances(self) -> Instances | None:
        """What the workers keep, if they keep anything."""
        if by_name_only(self.runtime):
            return ProgramMethods(self.name, self.runtime.name, self.capacity, self.capacity_strategy)
        if self.worker is None:
            return None
        return Instances(self.name, self.worker, self.capacity, self.capacity_strategy)

    def new_scheduler(self) -> SchedulerStrategy:
        make = SCHEDULERS[self.scheduler] if isinstance(self.scheduler, str) else self.scheduler
        strategy = make()
        has_methods(
            "scheduler", strategy, ("push", "pop", "__len__"), "an object with push(worker_id, load), pop() and len()"
        )
        return strategy


class CallOptions:
    """What `using(...)` was told for single calls. Immutable."""

    __slots__ = ("buffersize", "context", "limits", "terms")

    TIMES = ("timeout", "queue_timeout", "run_timeout")
    NAMES = (*TIMES, "context", "buffersize", "session", "affinity", "idempotent", "crash_retries")

    def __init__(self, limits: TimeLimits, terms: Terms, context: bool = False, buffersize: int | None = None) -> None:
        self.limits = limits
        self.terms = terms
        self.context = context
        self.buffersize = buffersize  # of streams and maps

    def using(self, **changes: Any) -> CallOptions:
        """These options with some changed; a wrong name or value is refused."""
        values = {name: getattr(self.limits, name) for name in self.TIMES}
        values |= {name: getattr(self.terms, name) for name in Terms.__slots__}
        values["context"] = self.context
        values["buffersize"] = self.buffersize
        for name, value in changes.items():
            if name not in self.NAMES:
                raise InvalidOptionType("using()", name, "called with " + ", ".join(self.NAMES))
            values[name] = _call_option(name, value)
        return CallOptions(
            TimeLimits(**{name: values[name] for name in self.TIMES}),
            Terms(**{name: values[name] for name in Terms.__slots__}),
            values["context"],
            values["buffersize"],
        )

    def of_map(self, timeout: Seconds | None, buffersize: int | None, now: float) -> tuple[float | None, int]:
        """When a map that was begun `now` has to be done, and how many of its items may be under way or unread."""
        if buffersize is not None:
            at_least("buffersize", buffersize, 1, none=f"for {DEFAULT_WINDOW}")
        if isinstance(timeout, int | float) and timeout < 0:
            timeout = 0.0  # as with the standard executors, it has passed
        limit = seconds("timeout", timeout)
        return None if limit is None else now + limit, buffersize or self.buffersize or DEFAULT_WINDOW


def _call_option(name: str, value: Any) -> Any:
    """The value of an option of a call, checked."""
    if name in CallOptions.TIMES:
        return seconds(name, value, zero=name != "run_timeout")
    if name == "session":
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidOptionType("session", value, "a string that is not empty, or None")
    elif name == "affinity":
        one_of("affinity", value, AFFINITIES)
    elif name == "crash_retries":
        at_least("crash_retries", value, 0)
    elif name == "buffersize":
        if value is not None:
            at_least("buffersize", value, 1, none="for the usual one")
    else:
        boolean(name, value)
    return value


def default_max_workers() -> int:
    """As many as `ThreadPoolExecutor` would take."""
    count = getattr(os, "process_cpu_count", os.cpu_count)()
    return int(min(32, (count or 1) + 4))


def seconds(name: str, value: Seconds | None, *, zero: bool = True) -> float | None:
    """A duration in seconds; None stands for no limit."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionType(name, value, "a number of seconds, a timedelta, or None")
    if value != value or value < 0 or (value == 0 and not zero):  # noqa: PLR0124 — not a number
        raise InvalidOption(name, value, f"{'≥ 0' if zero else '> 0'} seconds, or None for no limit")
    try:
        return float(value)
    except OverflowError:
        raise InvalidOption(name, "a number beyond all floats", "a number of seconds that fits a float") from None


def duration(name: str, value: Seconds, *, zero: bool = True) -> float:
    """A duration in seconds that may not be missing."""
    if value is None:
        raise InvalidOptionType(name, value, "a number of seconds, or a timedelta")
    checked = seconds(name, value, zero=zero)
    assert checked is not None
    return checked


def restart_limit(value: tuple[int, Seconds] | None) -> tuple[int, float] | None:
    """How many workers may die in how many seconds."""
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidOptionType("restart_limit", value, "a tuple (deaths ≥ 0, seconds > 0), or None")
    at_least("restart_limit", value[0], 0)
    return value[0], duration("restart_limit", value[1], zero=False)


def error_types(name: str, value: object) -> tuple[type[BaseException], ...]:
    """A tuple of classes of exceptions."""
    if isinstance(value, type) and issubclass(value, BaseException):
        return (value,)
    if not isinstance(value, tuple) or not all(isinstance(kind, type) for kind in value):
        raise InvalidOptionType(name, value, "a tuple of classes of exceptions")
    if not all(issubclass(kind, BaseException) for kind in value):
        raise InvalidOptionType(name, value, "a tuple of classes of exceptions")
    return value


def at_least(name: str, value: object, minimum: int, none: str = "") -> None:
    allowed = f"a whole number ≥ {minimum}" + (f", or None {none}" if none else "")
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionType(name, value, allowed)
    if value < minimum:
        raise InvalidOption(name, value, allowed)


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str):
        raise InvalidOptionType(name, value, _either(allowed))
    if value not in allowed:
        raise InvalidOption(name, value, _either(allowed))


def text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidOptionType(name, value, "a string")


def boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidOptionType(name, value, "True or False")


def function(name: str, value: object) -> None:
    if value is not None and not callable(value):
        raise InvalidOptionType(name, value, "a function, or None")


def has_methods(name: str, value: object, methods: tuple[str, ...], allowed: str) -> None:
    if not all(callable(getattr(value, method, None)) for method in methods):
        raise InvalidOptionType(name, value, allowed)


def arguments(name: str, value: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of arguments, given as any iterable."""
    try:
        return tuple(value)
    except TypeError:
        raise InvalidOptionType(name, value, "a tuple of arguments for the initializer") from None


def _either(values: tuple[str, ...]) -> str:
    return "one of " + ", ".join(map(repr, values))

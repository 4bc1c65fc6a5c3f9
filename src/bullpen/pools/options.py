"""A pool's options: keywords as a caller gives them, and one frozen object that checks itself before anything starts.

Options that belong together are in the groups of `policies.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType, UnknownOption
from bullpen.pools.checks import Seconds, at_least, boolean, function, has_methods, one_of, seconds, text
from bullpen.pools.dispatch.ready_queue import SchedulerStrategy
from bullpen.pools.dispatch.request import AFFINITIES, Affinity, CallTraits, TimeLimits
from bullpen.pools.instances import CapacityStrategy, Instances, ProgramMethods
from bullpen.pools.policies import (
    GROUPS,
    SCHEDULERS,
    CallPolicy,
    CapacityPolicy,
    InitializationDelegate,
    RecyclePolicy,
    RestartPolicy,
    SessionPolicy,
    StartupPolicy,
    Wrap,
)
from bullpen.pools.runtimes.port import Runtime, by_name_only
from bullpen.telemetry import TelemetryEvent

WhenFull = Literal["reject", "block"]

DEFAULT_WINDOW = 1024  # how many items of a map may be under way or unread


class CommonOptions(TypedDict, total=False):
    """Options that `Pool` and `AsyncPool` have. `PoolOptions` has their defaults, and their checks."""

    runtime: str | Runtime
    name: str | None
    worker: Callable[[], Any] | None
    min_workers: int | None
    max_queue: int | None
    when_full: WhenFull
    capacity: int | CapacityPolicy
    affinity: Affinity
    observer: Callable[[TelemetryEvent], object] | None
    grace: Seconds | None
    calls: CallPolicy
    sessions: SessionPolicy
    recycling: RecyclePolicy
    restarts: RestartPolicy
    startup: StartupPolicy


class PoolKeywords(CommonOptions, total=False):
    """Options of `Pool`, besides the four of the standard executors."""

    clock: primitives.Clock | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """All options of a pool, without groups, checked and with durations in seconds."""

    max_workers: int
    min_workers: int
    name: str
    thread_name_prefix: str = ""
    initializer: Callable[..., object] | None = None
    initargs: tuple[Any, ...] = ()
    runtime: str | Runtime = "thread"
    worker: Callable[[], Any] | None = None
    max_queue: int | None = None
    when_full: WhenFull = "reject"
    affinity: Affinity = "hint"
    observer: Callable[[TelemetryEvent], object] | None = None
    grace: float | None = None
    # Those of the groups, which have checked them.
    queue_timeout: float | None
    run_timeout: float | None
    crash_retries: int
    scheduler: str | Callable[[], SchedulerStrategy]
    wrap: Wrap | None
    log_errors: bool
    capacity: int
    capacity_strategy: CapacityStrategy
    session_ttl: float | None
    max_sessions: int
    max_requests: int | None
    max_age: float | None
    idle_timeout: float | None
    taint_on: tuple[type[BaseException], ...]
    taint_duration: float
    restart_limit: int | None
    restart_window: float
    max_abandoned: int
    reconcile_interval: float | None
    reconcile_batch_size: int
    startup_batch_size: int
    startup_batch_delay: float
    initialization: InitializationDelegate | None

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
        text("name", self.name)
        text("thread_name_prefix", self.thread_name_prefix)
        function("initializer", self.initializer)
        function("observer", self.observer)
        if not isinstance(self.runtime, str):
            has_methods(
                "runtime", self.runtime, ("start", "cancel", "kill", "join"), "the name of a runtime, or a Runtime"
            )
        one_of("affinity", self.affinity, AFFINITIES)
        if self.worker is not None and not callable(self.worker):
            raise InvalidOptionType("worker", self.worker, "a class, a function that makes an object, or None")
        if self.capacity_strategy != "pool" and self.worker is None and not by_name_only(self.runtime):
            raise InvalidOption(
                "capacity.strategy", self.capacity_strategy, "'pool' without worker=: only an instance declares its own"
            )
        if self.wrap is not None and by_name_only(self.runtime):
            raise InvalidOption("calls.wrap", self.wrap, "None: the workers are programs and know no Python functions")

    def call_options(self) -> CallOptions:
        """The default options of a call."""
        limits = TimeLimits(None, self.queue_timeout, self.run_timeout)
        return CallOptions(limits, CallTraits(None, self.affinity, False, self.crash_retries))

    def new_instances(self) -> Instances | None:
        """The instances that the workers keep, if they keep any."""
        if by_name_only(self.runtime):
            return ProgramMethods(self.name, self.runtime.name, self.capacity, self.capacity_strategy)
        if self.worker is None:
            return None
        return Instances(self.name, self.worker, self.capacity, self.capacity_strategy)

    def new_scheduler(self) -> SchedulerStrategy:
        make = SCHEDULERS[self.scheduler] if isinstance(self.scheduler, str) else self.scheduler
        strategy = make()
        has_methods(
            "calls.scheduler",
            strategy,
            ("push", "pop", "__len__"),
            "an object with push(worker_id, load), pop() and len()",
        )
        return strategy


def read_keywords(where: str, allowed: frozenset[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords that `where` was called with: names checked, groups replaced by their values, defaults left out."""
    for name in given:
        if name not in allowed:
            raise UnknownOption(where, name, allowed, instead=_instead_of(name))
    values = {name: value for name, value in given.items() if name not in GROUPS}
    for name, kind in GROUPS.items():
        group = given.get(name, kind())
        if name == "capacity" and not isinstance(group, kind):
            at_least(name, group, 1)
            group = CapacityPolicy(limit=group)
        if not isinstance(group, kind):
            raise InvalidOptionType(name, group, f"a {kind.__name__}")
        values |= group.flat_values()
    if "grace" in values:
        values["grace"] = seconds("grace", values["grace"])
    return values


POOL_NAMES = frozenset(PoolKeywords.__annotations__)

# The group of an option, and its name there; also by its name in `PoolOptions`.
GROUPED = {
    name: (kind, option)
    for kind in GROUPS.values()
    for option, flat in kind.flat_names().items()
    for name in (option, flat)
}


def _instead_of(name: str) -> str | None:
    """How to give the option `name`, if it belongs to a group."""
    if name not in GROUPED:
        return None
    kind, option = GROUPED[name]
    return f"{kind.GROUP}={kind.__name__}({option}=…)"


class CallOptions:
    """The options that `using(...)` sets for single calls. Immutable."""

    __slots__ = ("buffersize", "context", "limits", "traits")

    TIMES = ("timeout", "queue_timeout", "run_timeout")
    NAMES = (*TIMES, "context", "buffersize", "session", "affinity", "idempotent", "crash_retries")

    def __init__(
        self, limits: TimeLimits, traits: CallTraits, context: bool = False, buffersize: int | None = None
    ) -> None:
        self.limits = limits
        self.traits = traits
        self.context = context
        self.buffersize = buffersize  # of streams and maps

    def using(self, **changes: Any) -> CallOptions:
        """These options with some changed. Raises `InvalidOption` for a wrong name or value."""
        values = {name: getattr(self.limits, name) for name in self.TIMES}
        values |= {name: getattr(self.traits, name) for name in CallTraits.__slots__}
        values["context"] = self.context
        values["buffersize"] = self.buffersize
        for name, value in changes.items():
            if name not in self.NAMES:
                raise UnknownOption("using()", name, self.NAMES)
            values[name] = _call_option(name, value)
        return CallOptions(
            TimeLimits(**{name: values[name] for name in self.TIMES}),
            CallTraits(**{name: values[name] for name in CallTraits.__slots__}),
            values["context"],
            values["buffersize"],
        )

    def of_map(self, timeout: Seconds | None, buffersize: int | None, now: float) -> tuple[float | None, int]:
        """When a map that was begun `now` has to be done, and how many of its items may be under way or unread."""
        if buffersize is not None:
            at_least("buffersize", buffersize, 1, none=f"for {DEFAULT_WINDOW}")
        if isinstance(timeout, int | float) and timeout < 0:
            timeout = 0.0  # as with the standard executors, a negative timeout has passed
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


def default_size(runtime: str | Runtime) -> int:
    """How many workers a pool has if its caller does not say: one process per CPU, or as many threads as
    `ThreadPoolExecutor` has.
    """
    cpus = cpu_count()
    is_process = (runtime if isinstance(runtime, str) else getattr(runtime, "name", None)) == "process"
    return cpus if is_process else min(32, cpus + 4)


def cpu_count() -> int:
    """The CPUs that this process may use, where the system says so; else all."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1

# ruff: noqa: RUF009 — `_option` is `dataclasses.field`, with a check
"""Groups of a pool's options: small frozen objects. Each option stands here once: its type, its default, its check.

`Pool(8, recycling=RecyclePolicy(max_requests=1000))`. A group checks its values when it is made. `Pool` and `AsyncPool`
take the same groups, and `[tool.bullpen.pools.NAME.recycling]` is one in a file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol

from bullpen.errors import InvalidOptionType
from bullpen.pools.checks import (
    Seconds,
    at_least,
    boolean,
    duration,
    either,
    error_types,
    function,
    has_methods,
    one_of,
    seconds,
)
from bullpen.pools.dispatch.ready_queue import LeastLoaded, MostRecentlyUsed, Rotation, SchedulerStrategy
from bullpen.pools.dispatch.request import WrappedCall
from bullpen.pools.instances import CAPACITY_STRATEGIES, CapacityStrategy

Wrap = Callable[[WrappedCall], Any]
ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]
Check = Callable[[str, Any], Any]

SCHEDULERS: dict[str, Callable[[], SchedulerStrategy]] = {
    "rotation": Rotation,
    "most_recently_used": MostRecentlyUsed,
    "least_loaded": LeastLoaded,
}


class InitializationDelegate(Protocol):
    """An object that a pool calls when it starts: to fetch a model, to check a licence, to update a registry."""

    def prepare(self, pool_name: str) -> None:
        """Called once, on a thread of its own, before the first worker starts. If it raises, the pool has failed."""

    def started(self, pool_name: str, workers: int) -> None:
        """The pool runs, with `workers` workers so far. Called on the pool's timer thread: be brief."""


def _option(default: Any, check: Check, flat: str | None = None) -> Any:
    """A field of a group. `check(name, value)` raises, or returns the value, durations in seconds.

    `flat` is the name of the value in `PoolOptions`, if that differs.
    """
    return field(default=default, metadata={"check": check, "flat": flat})


class Policy:
    """The base of the groups."""

    __slots__ = ()

    GROUP: ClassVar[str]  # the name of the pool's option

    def __post_init__(self) -> None:
        for option in fields(self):  # type: ignore[arg-type]  # each group is a dataclass
            name = option.name
            object.__setattr__(self, name, option.metadata["check"](f"{self.GROUP}.{name}", getattr(self, name)))

    @classmethod
    def option_types(cls) -> dict[str, str]:
        """The type of each field, as it is written."""
        return {option.name: str(option.type) for option in fields(cls)}  # type: ignore[arg-type]

    @classmethod
    def flat_names(cls) -> dict[str, str]:
        """The name in `PoolOptions` of each field."""
        return {option.name: option.metadata["flat"] or option.name for option in fields(cls)}  # type: ignore[arg-type]

    def flat_values(self) -> dict[str, Any]:
        """The values by their names in `PoolOptions`."""
        return {flat: getattr(self, name) for name, flat in self.flat_names().items()}


# Checks, as `_option` takes them.


def _number(least: int, none: str = "") -> Check:
    """A whole number; with `none`, or None."""

    def check(name: str, value: Any) -> Any:
        if value is not None or not none:
            at_least(name, value, least, none)
        return value

    return check


def _unchanged(check: Callable[[str, Any], None]) -> Check:
    """The value itself, if `check` does not raise."""

    def checked(name: str, value: Any) -> Any:
        check(name, value)
        return value

    return checked


def _scheduler(name: str, value: Any) -> None:
    if isinstance(value, str):
        one_of(name, value, tuple(SCHEDULERS))
    elif not callable(value):
        raise InvalidOptionType(name, value, f"{either(tuple(SCHEDULERS))}, or a function that makes one")


def _delegate(name: str, value: Any) -> None:
    allowed = "an object with prepare(pool_name) and started(pool_name, workers), or None"
    if value is not None:
        has_methods(name, value, ("prepare", "started"), allowed)


def _strategy(name: str, value: Any) -> None:
    one_of(name, value, CAPACITY_STRATEGIES)


_limit = functools.partial(seconds, zero=False)
_positive = functools.partial(duration, zero=False)


# The groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy(Policy):
    """`calls=`: how the pool treats each call. `using()` changes the first three for single calls."""

    GROUP: ClassVar[str] = "calls"

    queue_timeout: Seconds | None = _option(None, seconds)
    run_timeout: Seconds | None = _option(None, _limit)
    crash_retries: int = _option(1, _number(0))
    scheduler: str | Callable[[], SchedulerStrategy] = _option("rotation", _unchanged(_scheduler))
    wrap: Wrap | None = _option(None, _unchanged(function))
    awrap: Wrap | None = _option(None, _unchanged(function))
    log_errors: bool = _option(True, _unchanged(boolean))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPolicy(Policy):
    """`capacity=`: how many requests a worker runs at once, and whether instances of `worker` declare their own."""

    GROUP: ClassVar[str] = "capacity"

    limit: int = _option(1, _number(1), "capacity")
    strategy: CapacityStrategy = _option("pool", _unchanged(_strategy), "capacity_strategy")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPolicy(Policy):
    """`sessions=`: how long, and how many, sessions the pool remembers."""

    GROUP: ClassVar[str] = "sessions"

    ttl: Seconds | None = _option(3600.0, _limit, "session_ttl")
    max_sessions: int = _option(10_000, _number(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclePolicy(Policy):
    """`recycling=`: when the pool ends or replaces a worker that works, and when it stops using one for a while."""

    GROUP: ClassVar[str] = "recycling"

    max_requests: int | None = _option(None, _number(1, none="for any number"))
    max_age: Seconds | None = _option(None, _limit)
    idle_timeout: Seconds | None = _option(60.0, _limit)
    taint_on: ErrorTypes = _option((), error_types)
    taint_duration: Seconds = _option(60.0, _positive)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy(Policy):
    """`restarts=`: how the pool replaces workers that die, or that run past their `run_timeout`."""

    GROUP: ClassVar[str] = "restarts"

    limit: int | None = _option(None, _number(0, none="for twice max_workers, at least 8"), "restart_limit")
    within: Seconds = _option(60.0, _positive, "restart_window")
    max_abandoned: int = _option(0, _number(0))
    reconcile_interval: Seconds | None = _option(60.0, _limit)
    reconcile_batch_size: int = _option(10, _number(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupPolicy(Policy):
    """`startup=`: how the pool starts its `min_workers`."""

    GROUP: ClassVar[str] = "startup"

    batch_size: int = _option(10, _number(1), "startup_batch_size")
    batch_delay: Seconds = _option(0.0, duration, "startup_batch_delay")
    delegate: InitializationDelegate | None = _option(None, _unchanged(_delegate), "initialization")


GROUPS: dict[str, type[Policy]] = {
    group.GROUP: group
    for group in (CallPolicy, CapacityPolicy, SessionPolicy, RecyclePolicy, RestartPolicy, StartupPolicy)
}

"""The options of a worker: one frozen object that checks itself, and its lanes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bullpen.errors import InvalidOption, InvalidOptionType, UnknownOption
from bullpen.pools.checks import Seconds, at_least, duration, function, one_of, seconds, text
from bullpen.tasks.model.queue_patterns import queue_or_pattern
from bullpen.tasks.model.task import MAX_LEASE
from bullpen.telemetry import TelemetryEvent

RUNTIMES = ("thread", "process")

_LANE = re.compile(r"(?P<queues>[^\s:@]+)(:(?P<concurrency>\d+))?(@(?P<runtime>\w+))?")
_WRITTEN = "written as queue[,queue…][:permits][@runtime], like 'default:100' or 'mail,sms:4@process'"


@dataclass(frozen=True, slots=True)
class Lane:
    """Queues that share their own permits: at most `concurrency` of their tasks run at once on this worker.

    A queue is a name, or a pattern such as `partner-*`. With a pattern the lane serves every queue that matches, except
    those that another lane names and those that match a pattern of an earlier lane.
    """

    queues: tuple[str, ...]
    concurrency: int
    runtime: str = "thread"  # of functions that are not async

    def __post_init__(self) -> None:
        if isinstance(self.queues, str) or not isinstance(self.queues, tuple) or not self.queues:
            raise InvalidOptionType("queues", self.queues, "a tuple of names or patterns of queues")
        for queue in self.queues:
            queue_or_pattern("queues", queue)
        if len(set(self.queues)) < len(self.queues):
            raise InvalidOption("queues", self.queues, "different queues")
        at_least("concurrency", self.concurrency, 1)
        one_of("runtime", self.runtime, RUNTIMES)

    def __str__(self) -> str:
        return f"{','.join(self.queues)}:{self.concurrency}@{self.runtime}"

    @classmethod
    def parse(cls, written: str, concurrency: int) -> Lane:
        """`"mail,sms:4@thread"`; without a number it has `concurrency` permits."""
        found = _LANE.fullmatch(written)
        if found is None:
            raise InvalidOption("lanes", written, _WRITTEN)
        queues = tuple(queue_or_pattern("lanes", queue) for queue in found["queues"].split(","))
        permits = concurrency if found["concurrency"] is None else int(found["concurrency"])
        at_least("lanes", permits, 1)
        if found["runtime"] is not None and found["runtime"] not in RUNTIMES:
            raise InvalidOption("lanes", written, f"lanes with one of the runtimes {', '.join(RUNTIMES)}")
        if len(set(queues)) < len(queues):
            raise InvalidOption("lanes", written, "lanes that name each queue once")
        return cls(queues, permits, found["runtime"] or "thread")


Lanes = str | Iterable[str | Lane]


def read_lanes(lanes: Lanes, concurrency: int) -> tuple[Lane, ...]:
    """Lanes as they are given: one string with spaces between them, or several strings and `Lane`s."""
    if isinstance(lanes, str):
        lanes = lanes.split()
    try:
        given = list(lanes)
    except TypeError:
        raise InvalidOptionType("lanes", lanes, f"lanes, {_WRITTEN}") from None
    read = []
    for lane in given:
        if isinstance(lane, str):
            read.append(Lane.parse(lane, concurrency))
        elif isinstance(lane, Lane):
            read.append(lane)
        else:
            raise InvalidOptionType("lanes", lane, f"a Lane, or {_WRITTEN}")
    if not read:
        raise InvalidOption("lanes", lanes, "at least one lane")
    queues = [queue for lane in read for queue in lane.queues]
    for queue in queues:
        if queues.count(queue) > 1:
            raise InvalidOption("lanes", lanes, f"lanes that share no queue, and {queue!r} is in two")
    return tuple(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of a worker, checked, with durations in seconds."""

    lanes: tuple[Lane, ...] | None
    concurrency: int
    name: str
    poll_interval: float
    grace: float | None
    lease: float
    max_abandoned: int
    unknown_after: float
    observer: Callable[[TelemetryEvent], object] | None

    @classmethod
    def unknown_name(cls, where: str, name: str) -> UnknownOption:
        """The error for a name that is no option of a worker."""
        return UnknownOption(where, name, cls.__slots__, instead=f"lanes=…, {_WRITTEN}" if name == "queues" else None)

    def lanes_for(self, queues: tuple[str, ...]) -> tuple[Lane, ...]:
        """The lanes that were given; without any, one lane for all of `queues`."""
        return (Lane(queues, self.concurrency),) if self.lanes is None else self.lanes

    @property
    def renew_every(self) -> float:
        return self.lease / 3

    @property
    def margin(self) -> float:
        """Seconds before the end of a lease. A worker that cannot renew the lease interrupts the task then."""
        return self.lease / 5

    @property
    def store_patience(self) -> float:
        """The longest wait for an answer of the store. After it, the outcome of the call is unknown."""
        return self.lease * 2 / 3

    @property
    def longest_pause(self) -> float:
        """The longest pause between two tries to reach an unavailable store."""
        return min(5.0, self.lease / 3)

    @classmethod
    def read(
        cls,
        *,
        concurrency: int,
        lanes: Lanes | None,
        name: str,
        poll_interval: Seconds,
        grace: Seconds | None,
        lease: Seconds,
        max_abandoned: int,
        unknown_after: Seconds,
        observer: Callable[[TelemetryEvent], object] | None,
    ) -> WorkerOptions:
        at_least("concurrency", concurrency, 1)
        text("name", name)
        at_least("max_abandoned", max_abandoned, 0)
        function("observer", observer)
        return cls(
            lanes=None if lanes is None else read_lanes(lanes, concurrency),
            concurrency=concurrency,
            name=name,
            poll_interval=duration("poll_interval", poll_interval, zero=False),
            grace=seconds("grace", grace),
            lease=_lease(lease),
            max_abandoned=max_abandoned,
            unknown_after=duration("unknown_after", unknown_after),
            observer=observer,
        )


def _lease(value: Seconds) -> float:
    lease = duration("lease", value, zero=False)
    if lease > MAX_LEASE:
        raise InvalidOption("lease", value, f"> 0 seconds, and at most {MAX_LEASE:.0f}, a day; the worker renews it")
    return lease

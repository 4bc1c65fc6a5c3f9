"""Snapshots of a pool: `PoolStats` in numbers, `WorkerInfo` and `SessionInfo` one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from bullpen.pools.dispatch.sessions import serves
from bullpen.pools.dispatch.states import PoolState, WorkerStatus
from bullpen.pools.dispatch.worker import READY, STARTING, TAINTED, Worker
from bullpen.pools.supervision.nested_waits import all_on

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of durations in seconds, from a sample: the first requests and then one in 32, the latest of them."""

    p50: float
    p90: float
    p99: float
    samples: int

    @classmethod
    def of(cls, values: list[float]) -> Percentiles | None:
        if not values:
            return None
        values.sort()
        count = len(values)
        p50, p90, p99 = (values[math.ceil(count * part) - 1] for part in (0.5, 0.9, 0.99))
        return cls(p50, p90, p99, count)

    def __str__(self) -> str:
        return f"p50 {_duration(self.p50)}, p90 {_duration(self.p90)}, p99 {_duration(self.p99)}"


_ACCEPTING = (PoolState.CONFIGURING, PoolState.INITIALIZING, PoolState.RUNNING)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool at one moment. First the counters since it was made, then the current numbers.

    At rest `submitted` is the sum of `completed`, `failed`, `cancelled`, `timed_out`, `queue_timeouts`, `lost`,
    `queued` and `running`. While requests move, single numbers may be off by those under way.
    """

    name: str
    state: PoolState
    submitted: int
    completed: int
    failed: int
    cancelled: int
    timed_out: int
    queue_timeouts: int
    lost: int
    saturated: int
    abandoned: int
    retried: int
    died: int
    recycled: int
    spawned: int
    retired: int
    workers: int
    starting: int
    idle: int
    busy: int
    tainted: int
    running: int
    queued: int
    max_workers: int
    degraded: bool
    wait: Percentiles | None
    run: Percentiles | None

    @classmethod
    def of(cls, engine: Engine) -> PoolStats:
        tallies, spawned, retired = engine.registry.totals()
        workers = engine.registry.snapshot()
        everyone = (*workers, *engine.registry.abandoned())
        loads = [(worker.status, len(worker.requests) + len(worker.prefetched)) for worker in workers]
        samples = list(engine.dispatcher.samples)
        return cls(
            name=engine.name,
            state=engine.state,
            submitted=engine.dispatcher.submitted + engine.counts.items.value + engine.counts.extra_submitted.value,
            completed=tallies.completed + engine.counts.extra_completed.value,
            failed=tallies.failed + engine.counts.failed_waiting.value + engine.counts.extra_failed.value,
            cancelled=engine.counts.cancelled.value + engine.counts.extra_cancelled.value,
            timed_out=engine.counts.timed_out.value,
            queue_timeouts=engine.counts.queue_timeouts.value,
            lost=engine.counts.lost.value,
            saturated=engine.counts.saturated.value,
            abandoned=engine.counts.abandoned_workers.value,
            retried=engine.counts.retried.value,
            died=engine.counts.died.value,
            recycled=engine.recycling.recycled,
            spawned=spawned,
            retired=retired,
            workers=len(workers),
            starting=sum(status is STARTING for status, _ in loads),
            idle=sum(status is READY and not load for status, load in loads),
            busy=sum(load > 0 for _, load in loads),
            tainted=sum(status is TAINTED for status, _ in loads),
            running=sum(not request.ended for worker in everyone for request in all_on(worker))
            + engine.retries.running,
            queued=engine.queued(),
            max_workers=engine.max_workers,
            degraded=engine.restarts.degraded,
            wait=Percentiles.of([wait for wait, _ in samples]),
            run=Percentiles.of([run for _, run in samples]),
        )

    @property
    def healthy(self) -> bool:
        """Whether the pool accepts calls, and its workers do not die too often. A pool that was never used is."""
        return self.state in _ACCEPTING and not self.degraded

    def __str__(self) -> str:
        rows = [f"pool {self.name} ({self.state}): {self.busy} busy, {self.idle} idle of at most {self.max_workers}"]
        if self.tainted:
            rows[0] += f", {self.tainted} tainted"
        if self.degraded:
            rows[0] += ", degraded"
        counted = [
            f"{field.name} {getattr(self, field.name)}"
            for field in fields(self)[2:17]
            if getattr(self, field.name) or field.name in ("submitted", "completed")
        ]
        rows.append(", ".join([*counted, f"queued {self.queued}"]))
        if self.wait is not None and self.run is not None:
            rows.append(f"waited {self.wait}; ran {self.run}")
        return "\n".join(rows)


@dataclass(frozen=True, slots=True)
class AsyncPoolStats:
    """An `AsyncPool` at one moment: its coroutines and its threads, each as a pool of its own, and sums over both."""

    coroutines: PoolStats
    threads: PoolStats

    @property
    def name(self) -> str:
        return self.coroutines.name

    @property
    def state(self) -> PoolState:
        """That of the coroutines, unless the threads have failed or are not closed yet. A side that was never used
        does not decide.
        """
        if self.threads.state is PoolState.FAILED or self.coroutines.state is PoolState.CLOSED:
            return self.threads.state
        if self.coroutines.state is PoolState.INITIALIZING and self.threads.state is PoolState.RUNNING:
            return PoolState.RUNNING
        return self.coroutines.state

    @property
    def healthy(self) -> bool:
        """Whether both sides are; one that was never used is."""
        return self.coroutines.healthy and self.threads.healthy

    @property
    def submitted(self) -> int:
        return self.coroutines.submitted + self.threads.submitted

    @property
    def completed(self) -> int:
        return self.coroutines.completed + self.threads.completed

    @property
    def failed(self) -> int:
        return self.coroutines.failed + self.threads.failed

    @property
    def cancelled(self) -> int:
        return self.coroutines.cancelled + self.threads.cancelled

    @property
    def timed_out(self) -> int:
        return self.coroutines.timed_out + self.threads.timed_out

    @property
    def queue_timeouts(self) -> int:
        return self.coroutines.queue_timeouts + self.threads.queue_timeouts

    @property
    def lost(self) -> int:
        return self.coroutines.lost + self.threads.lost

    @property
    def saturated(self) -> int:
        return self.coroutines.saturated + self.threads.saturated

    @property
    def running(self) -> int:
        return self.coroutines.running + self.threads.running

    @property
    def queued(self) -> int:
        return self.coroutines.queued + self.threads.queued

    def __str__(self) -> str:
        return f"{self.coroutines}\n{self.threads}"


GIVEN_UP = "given up"  # the label of a request that still runs after its caller got an error


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker at one moment."""

    id: int
    name: str
    slot: int | None
    status: WorkerStatus
    load: int
    capacity: int
    running: tuple[str, ...]
    completed: int
    failed: int
    age: float

    @classmethod
    def of(cls, worker: Worker, now: float) -> WorkerInfo:
        with worker.lock:
            return cls(
                id=worker.id,
                name=worker.name,
                slot=worker.slot,
                status=worker.status,
                load=len(worker.requests),
                capacity=worker.capacity,
                running=tuple(request.label or GIVEN_UP for request in all_on(worker)),
                completed=worker.completed,
                failed=worker.failed,
                age=now - worker.started_at,
            )

    def __str__(self) -> str:
        what = f" {', '.join(self.running)}" if self.running else ""
        return f"{self.name}: {self.status}{what}, {self.completed} done, {self.failed} failed, {self.age:.1f} s old"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session at one moment."""

    id: str
    worker: str | None  # None until its first request starts
    available: bool  # the worker is there and can take requests, now or when it has room
    strict: bool
    waiting: int
    idle: float  # seconds since it was last used

    @classmethod
    def all_of(cls, engine: Engine) -> list[SessionInfo]:
        now = engine.clock.monotonic()
        return [
            cls(
                id=bound.id,
                worker=None if bound.worker is None else bound.worker.name,
                available=bound.worker is not None and serves(bound.worker),
                strict=bound.strict,
                waiting=bound.waiting,
                idle=now - bound.used_at,
            )
            for bound in engine.sessions.snapshot(now)
        ]

    def __str__(self) -> str:
        where = "not bound yet" if self.worker is None else f"on {self.worker}"
        gone = "" if self.available or self.worker is None else ", which is not available"
        return f"{self.id}: {where}{gone}, {self.waiting} waiting, last used {self.idle:.1f} s ago"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"

"""Prometheus metrics of pools, queues and workers: a collector for a registry of `prometheus_client`.

    from prometheus_client import REGISTRY
    from bullpen.integrations.prometheus import BullpenCollector

    REGISTRY.register(BullpenCollector(pool, queue))

`bullpen worker --metrics-port N` serves the metrics of a worker; `prometheus_server.py` does it.

The collector counts nothing itself. A scrape reads the statistics of the pools, the totals that workers keep for their
history, and, at most every `FRESH` seconds, the store. So no call and no task becomes slower, and no error here can
reach one. `METRICS` is the list of all metrics. No label has an id, and the number of label values is limited.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType, MissingExtra
from bullpen.pools.async_pool import AsyncPool
from bullpen.pools.pool import Pool
from bullpen.pools.pools import Pools
from bullpen.pools.stats import PoolStats
from bullpen.pools.stats_by_name import stats_by_name
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.client.why import STALE_AFTER
from bullpen.tasks.model.history import BOUNDS, PLACE_OF, STARTED, HistoryCounts
from bullpen.tasks.model.task import TaskStatus
from bullpen.tasks.storage.port import Counts, WorkerRecord
from bullpen.tasks.worker.history_tally import OTHERS, Totals
from bullpen.tasks.worker.identity import is_dead
from bullpen.tasks.worker.sync import WorkerPool
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool
from bullpen.telemetry import SafeLogger

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingExtra("bullpen.integrations.prometheus", "prometheus") from None

FRESH = 5.0  # seconds for which a read of the store is used again
REST = 20  # a slow read is used again for so many times the time that it took, so the store is busy for 5 % at most
PATIENCE = 2.0  # seconds that a scrape waits for the store
MOST_NAMES = 200  # queues, and pairs of queue and function, with labels of their own; OTHERS has the rest
BUCKETS = range(8, 52, 2)  # places in BOUNDS: from 1.6 ms to 56 minutes, each twice the one before

Source = Pool | AsyncPool | Pools | TaskQueue | WorkerPool | AsyncWorkerPool

logger = SafeLogger("bullpen.metrics")


class MetricKind(NamedTuple):
    """A metric: its name, type and labels, and what it says."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


TASK, POOL, LANE = ("queue", "function"), ("pool", "side"), ("lane",)

METRICS = {
    metric.name: metric
    for metric in (
        MetricKind("bullpen_tasks_started_total", "counter", TASK, "Attempts at tasks that this worker has begun."),
        MetricKind(
            "bullpen_task_outcomes_total",
            "counter",
            (*TASK, "outcome"),
            "Attempts that have ended: success, failed, retried, cancelled, expired, crashed, released.",
        ),
        MetricKind("bullpen_task_run_seconds", "histogram", TASK, "Time for which the function of an attempt ran."),
        MetricKind("bullpen_task_wait_seconds", "histogram", TASK, "Time from when a task was due to its claim."),
        MetricKind("bullpen_worker_slots", "gauge", LANE, "Tasks that a lane of this worker can run at once."),
        MetricKind("bullpen_worker_running", "gauge", LANE, "Tasks that a lane holds."),
        MetricKind("bullpen_worker_abandoned", "gauge", LANE, "Functions that run on after their attempt was settled."),
        MetricKind("bullpen_worker_claiming", "gauge", LANE, "1 if the lane claims tasks when it has free slots."),
        MetricKind("bullpen_worker_process_up", "gauge", ("process",), "1 if this process of the worker answers."),
        MetricKind("bullpen_queue_tasks", "gauge", ("queue", "status"), "Tasks in the store."),
        MetricKind(
            "bullpen_queue_oldest_seconds", "gauge", ("queue",), "Time since the oldest task that waits was due; or 0."
        ),
        MetricKind("bullpen_queue_paused", "gauge", ("queue",), "1 if the queue is paused."),
        MetricKind("bullpen_queue_workers", "gauge", ("queue",), "Workers that are up and serve the queue."),
        MetricKind("bullpen_workers", "gauge", ("state",), "Workers in the store: up, stopping, lost."),
        MetricKind("bullpen_store_up", "gauge", (), "1 if the store answered when it was last read."),
        MetricKind("bullpen_store_read_seconds", "gauge", (), "Time that the last read of the store took."),
        MetricKind("bullpen_store_read_age_seconds", "gauge", (), "Age of the values that were read from the store."),
        MetricKind("bullpen_pool_submitted_total", "counter", POOL, "Requests that the pool accepted."),
        MetricKind(
            "bullpen_pool_outcomes_total",
            "counter",
            (*POOL, "outcome"),
            "Requests that have ended: completed, failed, cancelled, timed_out, queue_timeout, lost.",
        ),
        MetricKind("bullpen_pool_rejected_total", "counter", POOL, "Requests rejected because the pool was full."),
        MetricKind("bullpen_pool_retried_total", "counter", POOL, "Runs of idempotent requests after a worker died."),
        MetricKind("bullpen_pool_worker_starts_total", "counter", POOL, "Workers that were started."),
        MetricKind("bullpen_pool_worker_deaths_total", "counter", POOL, "Workers that died, or could not start."),
        MetricKind("bullpen_pool_worker_recycled_total", "counter", POOL, "Workers replaced by age, size or use."),
        MetricKind("bullpen_pool_worker_abandoned_total", "counter", POOL, "Workers abandoned with their function."),
        MetricKind("bullpen_pool_queued", "gauge", POOL, "Requests that wait."),
        MetricKind("bullpen_pool_running", "gauge", POOL, "Requests that run."),
        MetricKind("bullpen_pool_workers", "gauge", (*POOL, "state"), "Workers: idle, busy, starting, tainted."),
        MetricKind("bullpen_pool_max_workers", "gauge", POOL, "The largest number of workers."),
        MetricKind("bullpen_pool_healthy", "gauge", POOL, "1 if the pool accepts calls and is not degraded."),
        MetricKind("bullpen_pool_wait_quantile_seconds", "gauge", (*POOL, "quantile"), "Wait of sampled requests."),
        MetricKind("bullpen_pool_run_quantile_seconds", "gauge", (*POOL, "quantile"), "Run time of sampled requests."),
    )
}


class BullpenCollector(Collector):
    """The metrics of pools, workers and at most one queue, for a registry of `prometheus_client`.

        REGISTRY.register(BullpenCollector(pool, queue))

    A `TaskQueue` brings the numbers of its store, a `WorkerPool` those of the tasks that it runs here. A scrape waits
    at most 2 s for the store, and not at all on the thread of an event loop: it then shows the values of the read
    before.
    """

    def __init__(self, *sources: Source) -> None:
        self._pools: list[Pool | AsyncPool | Pools] = []
        self._workers: list[AsyncWorkerPool] = []
        self._store: StoreReader | None = None
        for source in sources:
            self._add(source)

    def _add(self, source: Source) -> None:
        match source:
            case Pool() | AsyncPool() | Pools():
                self._pools.append(source)
            case WorkerPool():
                self._workers.append(source._pool)
            case AsyncWorkerPool():
                self._workers.append(source)
            case TaskQueue():
                if self._store is not None:
                    raise InvalidOption("sources", source, "at most one TaskQueue: two may have queues of one name")
                self._store = StoreReader(source)
            case _:
                allowed = "Pool, AsyncPool, Pools, TaskQueue, WorkerPool or AsyncWorkerPool objects"
                raise InvalidOptionType("sources", source, allowed)

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that `register` does not read the store."""
        return ()

    def collect(self) -> Iterator[Metric]:
        families = Families()
        if self._workers:
            _add_workers(families, self._workers)
        for name, side, stats in stats_by_name(self._pools):
            _add_pool(families, name, side, stats)
        if self._store is not None:
            self._store.add_to(families)
        return iter(families.made.values())


class Families:
    """Metrics of one scrape, made when they get their first sample."""

    def __init__(self) -> None:
        self.made: dict[str, Metric] = {}

    def set(self, name: str, labels: Sequence[str], value: float) -> None:
        kind = METRICS[name]
        family = self.made.get(name)
        if family is None:
            make = CounterMetricFamily if kind.type == "counter" else GaugeMetricFamily
            family = self.made[name] = make(name.removesuffix("_total"), kind.help, labels=kind.labels)
        family.add_metric(labels, value)  # type: ignore[attr-defined]

    def set_histogram(self, name: str, labels: Sequence[str], counts: Sequence[int], total: float) -> None:
        kind = METRICS[name]
        family = self.made.get(name)
        if family is None:
            family = self.made[name] = HistogramMetricFamily(name, kind.help, labels=kind.labels)
        buckets = [(str(BOUNDS[place]), float(sum(counts[: place + 1]))) for place in BUCKETS]
        family.add_metric(labels, [*buckets, ("+Inf", float(sum(counts)))], total)  # type: ignore[attr-defined]


# Workers of this process.


def _add_workers(families: Families, workers: Sequence[AsyncWorkerPool]) -> None:
    totals: Totals = {}
    lanes: dict[str, list[int]] = {}
    for worker in workers:
        for names, counts in worker._task_totals().items():
            has_labels = names in totals or len(totals) < MOST_NAMES
            totals.setdefault(names if has_labels else (OTHERS, OTHERS), HistoryCounts()).add(counts)
        for load in worker._lane_loads():
            numbers = (load.lane.concurrency, load.running, load.abandoned, int(load.claims))
            sums = lanes.setdefault(",".join(load.lane.queues), [0, 0, 0, 0])
            sums[:] = map(sum, zip(sums, numbers, strict=True))
    for labels, counts in sorted(totals.items()):
        families.set("bullpen_tasks_started_total", labels, counts.counts[STARTED])
        for outcome, place in PLACE_OF.items():
            families.set("bullpen_task_outcomes_total", (*labels, outcome), counts.counts[place])
        families.set_histogram("bullpen_task_run_seconds", labels, counts.runs, counts.ran)
        families.set_histogram("bullpen_task_wait_seconds", labels, counts.waits, counts.waited)
    for lane, (slots, running, abandoned, claims) in lanes.items():
        families.set("bullpen_worker_slots", (lane,), slots)
        families.set("bullpen_worker_running", (lane,), running)
        families.set("bullpen_worker_abandoned", (lane,), abandoned)
        families.set("bullpen_worker_claiming", (lane,), min(claims, 1))


# Pools.


def _add_pool(families: Families, name: str, side: str, stats: PoolStats) -> None:
    labels = (name, side)
    numbers: dict[str, float] = {
        "submitted_total": stats.submitted,
        "rejected_total": stats.saturated,
        "retried_total": stats.retried,
        "worker_starts_total": stats.spawned,
        "worker_deaths_total": stats.died,
        "worker_recycled_total": stats.recycled,
        "worker_abandoned_total": stats.abandoned,
        "queued": stats.queued,
        "running": stats.running,
        "max_workers": stats.max_workers,
        "healthy": stats.healthy,
    }
    for metric, value in numbers.items():
        families.set(f"bullpen_pool_{metric}", labels, value)
    for outcome, value in {
        "completed": stats.completed,
        "failed": stats.failed,
        "cancelled": stats.cancelled,
        "timed_out": stats.timed_out,
        "queue_timeout": stats.queue_timeouts,
        "lost": stats.lost,
    }.items():
        families.set("bullpen_pool_outcomes_total", (*labels, outcome), value)
    for state in ("idle", "busy", "starting", "tainted"):
        families.set("bullpen_pool_workers", (*labels, state), getattr(stats, state))
    for what, times in (("wait", stats.wait), ("run", stats.run)):
        if times is not None:
            for quantile, value in (("0.5", times.p50), ("0.9", times.p90), ("0.99", times.p99)):
                families.set(f"bullpen_pool_{what}_quantile_seconds", (*labels, quantile), value)


# The store.


class StoreSnapshot(NamedTuple):
    """What a read of the store has found."""

    now: float  # by the store's clock
    counts: Counts
    oldest: Mapping[str, float]  # by queue: seconds since the oldest task that waits was due
    paused: frozenset[str]
    workers: Sequence[WorkerRecord]


async def read_store(queue: TaskQueue) -> StoreSnapshot:
    """Its cost depends on the number of queues, and with some stores on the number of tasks."""
    storage = await queue.astorage()
    now, counts = await storage.now(), await queue.acounts()
    oldest: dict[str, float] = {}
    for task in await storage.first_pending(1):
        oldest[task.queue] = max(oldest.get(task.queue, 0.0), now - task.eta)
    return StoreSnapshot(now, counts, oldest, await queue.apaused(), await queue.aworkers())


class StoreReader:
    """Reads the store on a thread of its own, one read at a time, and keeps the latest values.

    So a store that hangs costs one thread, and holds a scrape up for `PATIENCE` seconds.
    """

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._reading: threading.Event | None = None  # set when the current read has ended
        self._latest: StoreSnapshot | None = None
        self._read_at = 0.0
        self._tried_at: float | None = None
        self._took = 0.0
        self._is_up = False

    def add_to(self, families: Families) -> None:
        reading = self._refresh()
        if reading is not None and not _on_event_loop():
            reading.wait(PATIENCE)
        with self._lock:
            latest, age, took, is_up = self._latest, self._now() - self._read_at, self._took, self._is_up
        if latest is None and reading is not None and not reading.is_set():
            return  # the first read has not ended
        families.set("bullpen_store_up", (), is_up)
        families.set("bullpen_store_read_seconds", (), took)
        if latest is not None:
            families.set("bullpen_store_read_age_seconds", (), age)
            _add_store(families, latest)

    def _refresh(self) -> threading.Event | None:
        """Begin a read if the latest is not fresh. Returns the read that is under way."""
        with self._lock:
            fresh = max(FRESH, self._took * REST)
            if self._reading is None and (self._tried_at is None or self._now() - self._tried_at > fresh):
                self._reading = threading.Event()
                self._tried_at = self._now()
                primitives.start_thread(self._read, "bullpen-metrics-store")
            return self._reading

    def _read(self) -> None:
        began = self._now()
        found: StoreSnapshot | None = None
        try:
            found = self._queue._backend.run("counts", read_store(self._queue))
        except Exception as error:
            logger.warning("the store cannot be read for metrics (%s: %s)", type(error).__name__, error)
        with self._lock:
            self._took = self._now() - began
            self._is_up = found is not None
            if found is not None:
                self._latest, self._read_at = found, began
            reading, self._reading = self._reading, None
        assert reading is not None
        reading.set()

    def _now(self) -> float:
        return primitives.system_clock.monotonic()


def _on_event_loop() -> bool:
    return asyncio._get_running_loop() is not None


def _add_store(families: Families, seen: StoreSnapshot) -> None:
    up = [one for one in seen.workers if not is_dead(one) and seen.now - one.seen_at <= STALE_AFTER]
    stopping = sum(one.stopping for one in up)
    for state, count in {"up": len(up) - stopping, "stopping": stopping, "lost": len(seen.workers) - len(up)}.items():
        families.set("bullpen_workers", (state,), count)
    names = sorted(seen.counts, key=lambda name: (-seen.counts[name].get(TaskStatus.PENDING, 0), name))
    named = names[:MOST_NAMES]
    for queue in sorted({*named, *sorted(seen.paused)[:MOST_NAMES]}):
        families.set("bullpen_queue_paused", (queue,), queue in seen.paused)
    for queue in sorted(named):
        families.set("bullpen_queue_workers", (queue,), sum(one.serves(queue) and not one.stopping for one in up))
        families.set("bullpen_queue_oldest_seconds", (queue,), max(seen.oldest.get(queue, 0.0), 0.0))
        for status in TaskStatus:
            families.set("bullpen_queue_tasks", (queue, str(status)), seen.counts[queue].get(status, 0))
    if others := names[MOST_NAMES:]:
        for status in TaskStatus:
            rest = sum(seen.counts[name].get(status, 0) for name in others)
            families.set("bullpen_queue_tasks", (OTHERS, str(status)), rest)

"""What the dashboard and `bullpen top` read from the store. All open pages share the reads: many tabs cost as much as
one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from bullpen import primitives
from bullpen.cli.commands.doctor import examine, look_at
from bullpen.cli.commands.status import is_up
from bullpen.cli.diagnosis import Look, diagnose
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.failure_groups import FailureGroup
from bullpen.tasks.model.history import HOUR, HistoryPeriod
from bullpen.tasks.model.info import TaskInfo, as_datetime
from bullpen.tasks.model.task import Task, TaskStatus
from bullpen.tasks.storage.port import Counts, HealthFinding, Limit, WorkerRecord

T = TypeVar("T")

FRESH = 0.9  # seconds for which an overview is shown again without another read
FRESH_FINDINGS = 10.0
FRESH_HISTORY = 5.0
DAY = 86_400.0
REST = 10  # a read stays fresh for so many times the time that it took
MOST_COUNTED = 1000  # tasks of one queue and status: more are shown as "1,000+"
LOOKED_AT = 100  # pending tasks of a queue, for the doctor
SAMPLE_EVERY = 5.0  # seconds between two samples …
SAMPLES_KEPT = 720  # … of an hour
RUNNING_SHOWN = 500  # running tasks that are read at once


def count_text(tasks: int) -> str:
    """A number of tasks, as far as they were counted."""
    return f"{MOST_COUNTED:,}+" if tasks > MOST_COUNTED else f"{tasks:,}"


def sum_text(counts: Iterable[int]) -> str:
    """The sum of such numbers: "2,350+" if some of them were not counted to their end."""
    known = list(counts)
    more = "+" if any(tasks > MOST_COUNTED for tasks in known) else ""
    return f"{sum(min(tasks, MOST_COUNTED) for tasks in known):,}{more}"


class StoreOverview(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the queues and workers."""

    now: float  # by the store's clock
    counts: Counts
    paused: frozenset[str]
    limits: Sequence[Limit]
    workers: Sequence[WorkerRecord]
    up: Sequence[WorkerRecord]  # those that are neither dead nor silent
    running: Sequence[TaskInfo]  # the first ones
    oldest: Mapping[str, float]  # by queue: the earliest eta of its pending tasks

    @property
    def queues(self) -> list[str]:
        return sorted({*self.counts, *self.paused, *(limit.queue for limit in self.limits if limit.is_limit)})

    def total(self, status: TaskStatus) -> int:
        return sum(by_status.get(status, 0) for by_status in self.counts.values())

    def total_text(self, status: TaskStatus) -> str:
        return sum_text([by_status.get(status, 0) for by_status in self.counts.values()])


class StoreSample(msgspec.Struct, frozen=True):
    """What an overview has counted: the store itself keeps no history of it."""

    at: float
    pending: int
    busy: float  # the share of slots that run a task
    oldest: float  # seconds for which the oldest due task has waited


class StoreReads:
    """The reads of one dashboard or terminal. It belongs to one event loop."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        self.samples: deque[StoreSample] = deque(maxlen=SAMPLES_KEPT)  # of overviews that were read, oldest first
        self._kept: dict[str, _KeptRead] = {}
        self._reading: set[asyncio.Task[Any]] = set()  # the loop itself would not keep them

    async def overview(self) -> StoreOverview:
        return await self._shared("overview", FRESH, self._read_overview)

    async def findings(self) -> Sequence[HealthFinding]:
        """What the doctor says."""
        return await self._shared("findings", FRESH_FINDINGS, self._examine)

    async def minutes(self) -> Sequence[HistoryPeriod]:
        """The history of the last hour, minute by minute."""
        return await self._shared("minutes", FRESH_HISTORY, self._queue.ahistory)

    async def functions(self, since: int) -> Sequence[HistoryPeriod]:
        """One period for each function."""
        step = since + HOUR if since > HOUR else 2 * HOUR
        read = partial(self._queue.ahistory, since=since, by="function", step=step)
        return await self._shared(f"functions {since}", FRESH_HISTORY, read)

    async def failures(self, days: int) -> Sequence[FailureGroup]:
        return await self._shared(f"failures {days}", FRESH_HISTORY, lambda: self._queue.afailures(since=days * DAY))

    async def _shared(self, name: str, fresh: float, read: Callable[[], Awaitable[T]]) -> T:
        """The latest read, if it is fresh; else a new one. Callers that come meanwhile wait for the same one."""
        kept = self._kept.get(name)
        if kept is None or not kept.is_usable(fresh):
            task = asyncio.get_running_loop().create_task(_await(read))
            kept = self._kept[name] = _KeptRead(task)
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        return cast(T, await asyncio.shield(kept.task))

    async def _read_overview(self) -> StoreOverview:
        queue = self._queue
        storage = await queue.astorage()
        now, workers = await storage.now(), await queue.aworkers()
        seen = StoreOverview(
            now=now,
            up=[worker for worker in workers if is_up(worker, as_datetime(now))],
            counts=await queue.acounts(limit=MOST_COUNTED),
            paused=await queue.apaused(),
            limits=await queue.alimits(),
            workers=workers,
            running=await queue.alist(status="running", limit=RUNNING_SHOWN),
            oldest=_oldest(await storage.first_pending(1)),
        )
        if not self.samples or now - self.samples[-1].at >= SAMPLE_EVERY:
            self.samples.append(sample_of(seen))
        return seen

    async def _examine(self) -> Sequence[HealthFinding]:
        client = self._queue.storage.another()
        if client is not None:
            return await examine(client, LOOKED_AT)
        look: Look = await look_at(await self._queue.astorage(), LOOKED_AT)  # a store in memory has only one client
        return diagnose(look)

    def forget(self) -> None:
        """After a change: the next page reads the store anew."""
        self._kept.clear()

    async def close(self) -> None:
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)


class _KeptRead:
    """A read that runs or has ended. One that takes long stays fresh for longer, because some stores count tasks one by
    one: all open pages together keep the store busy for at most a tenth of the time.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self._began = primitives.system_clock.monotonic()
        self._took = 0.0
        task.add_done_callback(self._end)

    def _end(self, _: asyncio.Task[Any]) -> None:
        self._took = primitives.system_clock.monotonic() - self._began

    def is_usable(self, fresh: float) -> bool:
        if not self.task.done():
            return True
        if self.task.cancelled() or self.task.exception() is not None:
            return False
        return primitives.system_clock.monotonic() - self._began <= max(fresh, self._took * REST)


def sample_of(seen: StoreOverview) -> StoreSample:
    slots = sum(worker.concurrency for worker in seen.up)
    due = [at for queue, at in seen.oldest.items() if queue not in seen.paused]
    return StoreSample(
        at=seen.now,
        pending=seen.total(TaskStatus.PENDING),
        busy=min(seen.total(TaskStatus.RUNNING) / slots, 1.0) if slots else 0.0,
        oldest=max(seen.now - min(due, default=seen.now), 0.0),
    )


def _oldest(pending: Sequence[Task]) -> dict[str, float]:
    oldest: dict[str, float] = {}
    for task in pending:
        oldest[task.queue] = min(oldest.get(task.queue, task.eta), task.eta)
    return oldest


async def _await(read: Callable[[], Awaitable[T]]) -> T:
    return await read()

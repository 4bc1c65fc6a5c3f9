"""Tasks in this process's memory: the readable reference. Nothing survives the process.

One lock makes every method one atomic step, so that any number of threads and event loops may share the store.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bullpen.storage.port import (
    Counts,
    Decide,
    Exchange,
    Hold,
    Limit,
    Renewal,
    TaskFilter,
    WorkerRecord,
)
from bullpen.tasks.task import (
    FINAL,
    PENDING,
    RUNNING,
    Progress,
    Settlement,
    Task,
    applies,
    cancelled_by_operator,
    claimed,
    expired,
    redriven,
    settled,
)

Due = tuple[int, float, str]  # in the order of claims: priority (high first), eta, id


class MemoryStorage:
    """Keeps tasks in dictionaries. `now` is its clock: seconds since the epoch."""

    durable = False
    needs_no_loop = True  # but for the two waits

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._due: dict[str, list[Due]] = defaultdict(list)  # heaps by queue; entries may be stale
        self._later: dict[str, list[tuple[float, str]]] = defaultdict(list)  # heaps by queue, not due yet
        self._running: dict[str, Task] = {}
        self._unique: dict[str, str] = {}  # from a unique key to the id of the task that is alive
        self._workers: dict[str, WorkerRecord] = {}
        self._paused: set[str] = set()
        self._limits: dict[str, Limit] = {}
        self._starts: dict[str, list[float]] = defaultdict(list)  # of queues with a rate, in the last second
        self._wake_ups: set[_WakeUp] = set()

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """Nor to close: others may use it."""

    def another(self) -> MemoryStorage:
        return self  # any loop may use it

    async def now(self) -> float:
        return self._now()

    # Producers.

    async def add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        with self._lock:
            now = self._now()
            kept = [self._add(task, now) for task in tasks]
        self._wake()
        return kept

    def _add(self, task: Task, now: float) -> Task:
        there = self._tasks.get(task.id)
        if there is None and task.unique_key is not None:
            there = self._tasks.get(self._unique.get(task.unique_key, ""))
        if there is not None:
            return there
        task = msgspec.structs.replace(task, created_at=now, eta=max(task.eta, 0.0) or now)
        self._keep(task)
        return task

    # Workers.

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        queues: Sequence[str],
        limit: int,
        lease: float,
        claim_id: str,
    ) -> Exchange:
        with self._lock:
            now = self._now()
            refused = frozenset(
                Hold(settlement.id, settlement.attempt)
                for settlement in settlements
                if not self._settle(settlement, now)
            )
            taken = []
            for task in self._claimable(queues, now, limit):
                mine = claimed(task, worker=worker, claim_id=claim_id, now=now, lease_until=now + lease)
                self._keep(mine)
                taken.append(mine)
        if settlements:
            self._wake()
        return Exchange(tuple(taken), refused)

    def _settle(self, settlement: Settlement, now: float) -> bool:
        task = self._tasks.get(settlement.id)
        if task is None or not applies(task, settlement):
            return False
        self._keep(settled(task, settlement, now))
        return True

    def _claimable(self, queues: Sequence[str], now: float, limit: int) -> Iterator[Task]:
        """The next tasks that may start now. Each has to be kept as running before the next one is asked for."""
        open_queues = [queue for queue in queues if queue not in self._paused]
        for queue in open_queues:
            self._become_due(queue, now)
        passed_over: list[tuple[str, Due]] = []
        found = 0
        while found < limit:
            queue = min(filter(self._due.get, open_queues), key=lambda name: self._due[name][0], default="")
            if not queue:
                break
            entry = heapq.heappop(self._due[queue])
            task = self._tasks.get(entry[2])
            if task is None or task.queue != queue or task.status is not PENDING or entry != _due(task):
                continue  # stale
            if expired(task, now) is not None or not self._within_limits(task, now):
                passed_over.append((queue, entry))
                continue
            found += 1
            yield task
        for queue, entry in passed_over:
            heapq.heappush(self._due[queue], entry)

    def _become_due(self, queue: str, now: float) -> None:
        later = self._later[queue]
        while later and later[0][0] <= now:
            task = self._tasks.get(heapq.heappop(later)[1])
            if task is not None and task.queue == queue and task.status is PENDING and task.eta <= now:
                heapq.heappush(self._due[queue], _due(task))

    def _within_limits(self, task: Task, now: float) -> bool:
        limit = self._limits.get(task.queue)
        if limit is None:
            return True
        running = [other for other in self._running.values() if other.queue == task.queue]
        if limit.max_running is not None and len(running) >= limit.max_running:
            return False
        if limit.max_running_per_key is not None and task.concurrency_key is not None:
            same_key = sum(other.concurrency_key == task.concurrency_key for other in running)
            if same_key >= limit.max_running_per_key:
                return False
        if limit.rate is not None:
            period = max(1.0, 1.0 / limit.rate)
            starts = self._starts[task.queue] = [at for at in self._starts[task.queue] if now - at < period]
            if len(starts) >= limit.rate * period:
                return False
            starts.append(now)
        return True

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        with self._lock:
            return [task for task in self._running.values() if task.claim_id == claim_id]

    async def renew(self, holds: Sequence[Hold], lease: float) -> Renewal:
        lost, cancelled = set(), set()
        with self._lock:
            until = self._now() + lease
            for hold in holds:
                task = self._held(hold)
                if task is None:
                    lost.add(hold)
                    continue
                self._keep(msgspec.structs.replace(task, lease_until=until))
                if task.cancel_requested:
                    cancelled.add(hold)
        return Renewal(frozenset(lost), frozenset(cancelled))

    async def note_progress(self, hold: Hold, progress: Progress) -> bool:
        with self._lock:
            task = self._held(hold)
            if task is None:
                return False
            self._keep(msgspec.structs.replace(task, progress=progress))
            return True

    def _held(self, hold: Hold) -> Task | None:
        task = self._tasks.get(hold.id)
        return task if task is not None and task.status is RUNNING and task.attempt == hold.attempt else None

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        with self._lock:
            now = self._now()
            rescued = []
            for task in list(self._running.values()):
                if task.worker in dead_workers or (task.lease_until is not None and task.lease_until <= now):
                    settlement = decide(task, now)
                    if settlement is not None and self._settle(settlement, now):
                        rescued.append(self._tasks[task.id])
                        if len(rescued) == limit:
                            break
        if rescued:
            self._wake()
        return rescued

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        await self._wait(timeout, lambda: self._something_due(queues))

    def _something_due(self, queues: Sequence[str]) -> bool:
        now = self._now()
        for queue in queues:
            if queue not in self._paused:
                self._become_due(queue, now)
                if self._due[queue]:
                    return True
        return False

    # Results.

    async def wait_for_result(self, task_id: str, runs: int, timeout: float) -> None:
        def is_there() -> bool:
            task = self._tasks.get(task_id)
            return task is None or task.is_final or task.runs > runs

        await self._wait(timeout, is_there)

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        with self._lock:
            return [self._tasks.get(task_id) for task_id in ids]

    async def list(self, which: TaskFilter, *, limit: int, after: str | None = None) -> Sequence[Task]:
        with self._lock:
            fitting = (
                task for task in self._tasks.values() if _fits(task, which) and (after is None or task.id > after)
            )
            return heapq.nsmallest(limit, fitting, key=lambda task: task.id)

    async def counts(self) -> Counts:
        with self._lock:
            counts: dict[str, Counter[object]] = defaultdict(Counter)
            for task in self._tasks.values():
                counts[task.queue][task.status] += 1
        return counts  # type: ignore[return-value]

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return self._change(ids, cancelled_by_operator)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return self._change(ids, redriven)

    async def delete(self, ids: Sequence[str]) -> int:
        with self._lock:
            return self._forget(task_id for task_id in ids if self._is_final(task_id))

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        with self._lock:
            now = self._now()
            late = [task.id for task in self._tasks.values() if expired(task, now) is not None][:limit]
        return self._change(late, expired)

    async def prune(self, *, limit: int) -> int:
        with self._lock:
            now = self._now()
            old = [
                task.id
                for task in self._tasks.values()
                if task.is_final
                and task.finished_at is not None
                and task.result_ttl is not None
                and task.finished_at + task.result_ttl <= now
            ]
            return self._forget(old[:limit])

    # Workers, queues, limits.

    async def note_worker(self, record: WorkerRecord) -> None:
        with self._lock:
            self._workers[record.id] = msgspec.structs.replace(record, seen_at=self._now())

    async def drop_worker(self, worker: str) -> None:
        with self._lock:
            self._workers.pop(worker, None)

    async def workers(self) -> Sequence[WorkerRecord]:
        with self._lock:
            return list(self._workers.values())

    async def pause(self, queue: str) -> None:
        with self._lock:
            self._paused.add(queue)

    async def resume(self, queue: str) -> None:
        with self._lock:
            self._paused.discard(queue)
        self._wake()

    async def paused(self) -> frozenset[str]:
        return frozenset(self._paused)

    async def set_limit(self, limit: Limit) -> None:
        with self._lock:
            self._limits[limit.queue] = limit
        self._wake()

    async def limits(self) -> Sequence[Limit]:
        return list(self._limits.values())

    # With the lock held.

    def _keep(self, task: Task) -> None:
        """The only place where a task changes."""
        self._tasks[task.id] = task
        if task.status is RUNNING:
            self._running[task.id] = task
        else:
            self._running.pop(task.id, None)
        if task.unique_key is not None:
            if task.status in FINAL:
                if self._unique.get(task.unique_key) == task.id:
                    del self._unique[task.unique_key]
            else:
                self._unique[task.unique_key] = task.id
        if task.status is PENDING:
            heapq.heappush(self._later[task.queue], (task.eta, task.id))

    def _lives_elsewhere(self, task: Task) -> bool:
        """Whether another task has its unique key: then it cannot come back to life."""
        return task.unique_key is not None and self._unique.get(task.unique_key, task.id) != task.id

    def _is_final(self, task_id: str) -> bool:
        task = self._tasks.get(task_id)
        return task is not None and task.is_final

    def _forget(self, ids: Iterable[str]) -> int:
        return sum(self._tasks.pop(task_id, None) is not None for task_id in ids)

    # Without it.

    def _change(self, ids: Sequence[str], move: Callable[[Task, float], Task | None]) -> Sequence[Task]:
        changed = []
        with self._lock:
            now = self._now()
            for task_id in ids:
                task = self._tasks.get(task_id)
                after = None if task is None else move(task, now)
                if after is not None and not self._lives_elsewhere(after):
                    self._keep(after)
                    changed.append(after)
        if changed:
            self._wake()
        return changed

    async def _wait(self, timeout: float, is_there: Callable[[], bool]) -> None:
        wake_up = _WakeUp()
        with self._lock:
            if is_there():
                return
            self._wake_ups.add(wake_up)
        try:
            await asyncio.wait_for(wake_up.event.wait(), timeout)
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._wake_ups.discard(wake_up)

    def _wake(self) -> None:
        with self._lock:
            wake_ups = list(self._wake_ups)
        for wake_up in wake_ups:
            wake_up.call()


class _WakeUp:
    """Somebody who waits on an event loop, maybe another thread's."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def call(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.event.set)
        except RuntimeError:  # that loop is closed: nobody waits there any more
            pass


def _due(task: Task) -> Due:
    return (-task.priority, task.eta, task.id)


def _fits(task: Task, which: TaskFilter) -> bool:
    return (
        (which.ids is None or task.id in which.ids)
        and (which.queues is None or task.queue in which.queues)
        and (which.statuses is None or task.status in which.statuses)
        and (which.func_path is None or task.func_path == which.func_path)
        and (which.worker is None or task.worker == which.worker)
    )

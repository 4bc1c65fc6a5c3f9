"""Every worker's part in keeping the store in order: tasks of dead workers, expired and old ones.

Each call to the store is bounded, so that nobody waits for it for long, and so is each step; where there is more to do,
a step says so, and comes again soon.

A task whose worker is dead is taken back at once if that can be known here, on the same host, and otherwise when its
lease is over. What a crash means is decided in `tasks/task.py`. It is counted only if the worker is dead, or has said
nothing for as long as a lease: a store that was away for a while is no crash of anybody.

A worker that is alive on this host, with a lease that is over, gets another `PATIENCE` leases, by this worker's clock:
it may be stopped for a moment, or the store's clock may have been moved. After that its tasks are taken back all the
same: a process that is stopped (SIGSTOP) or hangs would keep them for ever. Should it go on, its writes are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from bullpen import primitives
from bullpen.consumer.identity import is_dead, is_on_this_host
from bullpen.consumer.reports import Reports
from bullpen.storage.port import Storage, WorkerRecord
from bullpen.tasks.task import Settlement, Task, TaskError, crash, release
from bullpen.telemetry.catalogue import Kind

RESCUED, TENDED, ROUNDS = 100, 500, 10
PATIENCE = 2  # leases
FORGOTTEN_AFTER = 3600.0  # seconds that a worker of another host has said nothing


class Upkeep:
    """The steps, for a worker's keeper to take."""

    def __init__(self, storage: Storage, lease: float, reports: Reports) -> None:
        self._storage = storage
        self._lease = lease
        self._reports = reports
        self._overdue: dict[tuple[str, int], float] = {}  # tasks of workers that are alive, and since when

    async def rescue(self) -> bool:
        """Take back what dead workers held, and forget them. True if there is more."""
        records = {record.id: record for record in await self._storage.workers()}
        dead = [record.id for record in records.values() if is_dead(record)]
        decide = self._decide(records, frozenset(dead))
        for _ in range(ROUNDS):
            primitives.failpoint("rescue.before")
            rescued = await self._storage.rescue_expired(decide.of, limit=RESCUED, dead_workers=dead)
            primitives.failpoint("rescue.after")
            for task in rescued:
                owner = decide.owners.get(task.id)
                self._reports.rescued(task, owner, records.get(owner or ""))
            if len(rescued) < RESCUED:
                break
        else:
            return True
        self._overdue = {key: since for key, since in self._overdue.items() if key in decide.spared}
        now = await self._storage.now()
        for record in records.values():
            if record.id in dead or (not is_on_this_host(record) and now - record.seen_at > FORGOTTEN_AFTER):
                await self._storage.drop_worker(record.id)
        return False

    def _decide(self, records: Mapping[str, WorkerRecord], dead: frozenset[str]) -> _Decision:
        clock = asyncio.get_running_loop().time
        return _Decision(records, dead, self._overdue, self._lease, clock)

    async def expire(self) -> bool:
        """Fail what was not started in time. True if there is more."""
        for _ in range(ROUNDS):
            late = await self._storage.expire(limit=TENDED)
            for task in late:
                self._reports.event(Kind.TASK_EXPIRED, task)
            if len(late) < TENDED:
                return False
        return True

    async def prune(self) -> bool:
        """Forget what was kept for long enough. True if there is more."""
        for _ in range(ROUNDS):
            if await self._storage.prune(limit=TENDED) < TENDED:
                return False
        return True


class _Decision:
    """What becomes of a task whose lease is over or whose worker is dead. The store may ask on any thread."""

    def __init__(
        self,
        records: Mapping[str, WorkerRecord],
        dead: frozenset[str],
        overdue: dict[tuple[str, int], float],
        lease: float,
        clock: Callable[[], float],
    ) -> None:
        self._records = records
        self._dead = dead
        self._here = frozenset(record.id for record in records.values() if is_on_this_host(record)) - dead
        self._overdue = overdue
        self._lease = lease
        self._now = clock()
        self.owners: dict[str, str | None] = {}
        self.spared: set[tuple[str, int]] = set()

    def of(self, task: Task, now: float) -> Settlement | None:
        owner = task.worker or ""
        key = (task.id, task.attempt)
        self.owners[task.id] = task.worker
        if owner in self._here and self._now - self._overdue.setdefault(key, self._now) < PATIENCE * self._lease:
            self.spared.add(key)
            return None
        record = self._records.get(owner)
        is_gone = owner in self._dead or record is None or now - record.seen_at >= self._lease
        if not is_gone and not task.at_most_once:
            return release(task)
        error = TaskError(
            kind="crash",
            attempt=task.attempt,
            at=now,
            message=f"worker {owner} {self._what_happened_to(owner, record, now)}",
            worker=owner,
        )
        return crash(task, error)

    def _what_happened_to(self, owner: str, record: WorkerRecord | None, now: float) -> str:
        if owner in self._dead or record is None:
            return "died with it"
        silent = now - record.seen_at
        return "did not renew its lease" if silent < self._lease else f"has said nothing for {silent:.0f} s"

"""Maintenance that every worker shares: rescues tasks of dead workers, fails expired tasks, prunes old ones.

Each call to the store and each step is bounded, so that no other call waits long. A step that leaves work returns
True, and runs again soon.

A worker takes back a task at once if it can see that the owner is dead, on the same host. Otherwise it waits until the
lease has expired. `tasks/model/task.py` decides what a crash means. A crash is counted only if the owner is dead, or
silent for a whole lease: an outage of the store is not a crash.

An owner that is alive on this host gets `PATIENCE` more leases after its lease has expired, by this worker's clock: it
may be suspended for a moment, or the store's clock may have jumped. After that this worker takes its tasks back: a
process that is stopped (SIGSTOP) or hangs would keep them forever. If the owner continues, the store rejects its
writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bullpen import primitives
from bullpen.tasks.model.task import AttemptError, Settlement, Task, crash, release
from bullpen.tasks.storage.port import Storage, WorkerRecord
from bullpen.tasks.worker.fingerprint import fingerprint_of
from bullpen.tasks.worker.history_tally import HistoryTally
from bullpen.tasks.worker.identity import is_dead, is_on_this_host
from bullpen.tasks.worker.reports import Reports

RESCUED, TENDED, ROUNDS = 100, 500, 10
PATIENCE = 2  # leases
SHOWN_FOR = 86_400.0  # seconds for which the record of a lost worker is kept, so that operators see it …
LOST_KEPT = 20  # … and how many of them
RECENT = 3600.0  # seconds after which a dead worker can have no tasks left but those of an expired lease


class Upkeep:
    """The steps that a worker's heartbeat takes."""

    def __init__(self, storage: Storage, lease: float, reports: Reports) -> None:
        self.tally = HistoryTally()
        self._storage = storage
        self._lease = lease
        self._reports = reports
        self._overdue: dict[
            tuple[str, int], float
        ] = {}  # tasks of living workers with an expired lease, and since when

    async def rescue(self) -> bool:
        """Take back tasks of dead workers, and delete old records of lost workers. Returns True if there is more."""
        records = {record.id: record for record in await self._storage.workers()}
        now = await self._storage.now()
        all_dead = [record for record in records.values() if is_dead(record)]
        dead = [record.id for record in all_dead if now - record.seen_at < RECENT]
        decide = self._decide(records, frozenset(record.id for record in all_dead))
        for _ in range(ROUNDS):
            primitives.failpoint("rescue.before")
            rescued = await self._storage.rescue_expired(decide.of, limit=RESCUED, dead_workers=dead)
            primitives.failpoint("rescue.after")
            for task in rescued:
                owner = decide.owners.get(task.id)
                self._rescued(task, owner, records.get(owner or ""))
            if len(rescued) < RESCUED:
                break
        else:
            return True
        self._overdue = {key: since for key, since in self._overdue.items() if key in decide.spared}
        await self._note_lost([record.id for record in all_dead if not record.lost])
        silent = [one for one in records.values() if not is_on_this_host(one) and now - one.seen_at > RECENT]
        lost = sorted([*all_dead, *silent], key=lambda record: record.seen_at, reverse=True)
        for number, record in enumerate(lost):
            if number >= LOST_KEPT or now - record.seen_at > SHOWN_FOR:
                await self._storage.delete_worker(record.id)
        return False

    async def _note_lost(self, dead: Sequence[str]) -> None:
        """Say in the records of dead workers that they are lost; clients on other hosts cannot find out.

        The records are read again, because a worker may have deleted its own before it ended.
        """
        for record in await self._storage.workers() if dead else ():
            if record.id in dead:
                await self._storage.save_worker(msgspec.structs.replace(record, lost=True))

    def _rescued(self, task: Task, owner: str | None, record: WorkerRecord | None) -> None:
        error = task.error
        crashed = error is not None and error.attempt == task.attempt
        self._reports.rescued(task, owner, record, "crashed" if crashed else "released")
        at = error.at if error is not None and crashed else max(task.eta, task.started_at or 0.0)
        self.tally.found(task, "crashed" if crashed else "released", at)

    def _decide(self, records: Mapping[str, WorkerRecord], dead: frozenset[str]) -> _Decision:
        clock = asyncio.get_running_loop().time
        return _Decision(records, dead, self._overdue, self._lease, clock)

    async def expire(self) -> bool:
        """Fail tasks that have expired. Returns True if there is more."""
        for _ in range(ROUNDS):
            late = await self._storage.expire(limit=TENDED)
            for task in late:
                self._reports.expired(task)
                self.tally.found(task, "expired", task.finished_at or task.created_at)
            if len(late) < TENDED:
                return False
        return True

    async def prune(self) -> bool:
        """Delete final tasks after their time to live. Returns True if there is more."""
        for _ in range(ROUNDS):
            if await self._storage.prune(limit=TENDED) < TENDED:
                return False
        return True


class _Decision:
    """Decides about a task with an expired lease or a dead worker. The store may call it on any thread."""

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
        error = AttemptError(
            kind="crash",
            fingerprint=fingerprint_of(task.func_path, "crash"),
            attempt=task.attempt,
            at=now,
            message=f"worker {owner} {self._what_happened_to(owner, record, now)}",
            worker=owner,
            started_at=task.started_at,
            peak_memory=(record.peak_memory or None) if record is not None else None,
        )
        return crash(task, error)

    def _what_happened_to(self, owner: str, record: WorkerRecord | None, now: float) -> str:
        if record is None:
            return "died with it"
        if owner in self._dead:
            return f"died with it, {max(now - record.seen_at, 0.0):.0f} s after its last heartbeat"
        silent = now - record.seen_at
        return "did not renew its lease" if silent < self._lease else f"has been silent for {silent:.0f} s"

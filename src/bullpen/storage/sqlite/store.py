"""The default store: tasks in one SQLite file, for any number of processes of one machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bullpen.errors import InvalidOption, StorageClosed
from bullpen.storage.port import (
    Concern,
    Counts,
    Decide,
    Exchange,
    Hold,
    Limit,
    Move,
    Renewal,
    Schema,
    TaskFilter,
    WorkerRecord,
)
from bullpen.storage.sqlite import shared as files
from bullpen.storage.sqlite.checkup import concerns_of, look_at_schema
from bullpen.storage.sqlite.file import folder_of
from bullpen.storage.sqlite.jobs import Clock, Work
from bullpen.storage.sqlite.shared import SharedFile
from bullpen.storage.sqlite.signals import Ear
from bullpen.storage.sqlite.transaction import add_in, settle_in
from bullpen.tasks.task import Progress, Settlement, Task
from bullpen.tasks.unique import RETURN, Duplicates

T = TypeVar("T")

_A_LITTLE_LATER = 0.001  # than the instant itself: a timer may be early by a hair
_LOOK_AGAIN = 0.5  # seconds, in case that nobody told


class SqliteStorage:
    """Keeps tasks in the file at `path`, which is made if there is none.

    `synchronous`: "full" (what is acknowledged survives a power cut) or "normal" (a power cut, though no crash of a
    process, may take the latest tasks and results with it; many times faster one by one). `busy_timeout`: how long
    to wait for others who write, before `StorageBusy`.
    """

    durable = True
    blocks_without_loop = True  # where no event loop runs, every method but the two waits blocks its thread instead
    busy_timeout = 5.0

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "full",
        busy_timeout: float = busy_timeout,
        clock: Clock | None = None,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise InvalidOption("synchronous", synchronous, '"full" or "normal"')
        self.path = Path(path).absolute()
        self.synchronous = synchronous
        self.busy_timeout = busy_timeout
        self._clock = clock or Clock()
        self._file: SharedFile | None = None
        self._ears: list[Ear] = []  # one for each event loop on which somebody has waited
        self._pid = 0
        self._closed = False

    async def open(self) -> None:
        """Open the file, make it or bring it up to date. Also done by whatever is called first."""
        self._closed = False
        await self._write(lambda _: None)

    async def close(self) -> None:
        """Wait for what was begun, and let go of the file."""
        self._closed = True
        if self._pid != os.getpid():
            return
        shared, self._file = self._file, None
        for ear in self._ears:
            ear.close()
        self._ears.clear()
        if shared is not None:
            await files.release(shared)

    def another(self) -> SqliteStorage:
        """For another event loop; those of one process share the threads and connections."""
        return SqliteStorage(self.path, synchronous=self.synchronous, busy_timeout=self.busy_timeout, clock=self._clock)

    async def now(self) -> float:
        return self._clock.now()

    async def look_at_schema(self) -> Schema:
        return look_at_schema(self.path)

    async def upgrade_schema(self) -> None:
        await self.open()

    async def concerns(self) -> Sequence[Concern]:
        return concerns_of(self.path, self.synchronous)

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        if duplicates is not RETURN:
            return await self._write(lambda ledger: ledger.add(tasks, duplicates))
        return await self._shared().writer.add(tasks, self._clock)

    def add_in(self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[str]:
        return add_in(connection, self.path, tasks, duplicates, self._clock)

    def now_in(self, connection: Any) -> float:  # noqa: ARG002
        return self._clock.now()

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
        return await self._write(
            lambda ledger: ledger.exchange(
                settlements, worker=worker, queues=queues, limit=limit, lease=lease, claim_id=claim_id
            ),
            durable=bool(settlements),
        )

    def settle_in(self, connection: Any, settlement: Settlement) -> None:
        settle_in(connection, self.path, settlement, self._clock)

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        return await self._read(lambda ledger: ledger.find_claim(claim_id))

    async def renew(self, holds: Sequence[Hold], lease: float) -> Renewal:
        return await self._write(lambda ledger: ledger.renew(holds, lease), durable=False)

    async def note_progress(self, hold: Hold, progress: Progress) -> bool:
        return await self._write(lambda ledger: ledger.note_progress(hold, progress), durable=False)

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        if not await self._read(lambda ledger: ledger.to_rescue(dead_workers)):
            return []
        return await self._write(lambda ledger: ledger.rescue_expired(decide, limit, dead_workers))

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        await self._ready()
        with self._own_ear().listening(queues=frozenset(queues)) as waiting:
            left = await self._read(lambda ledger: ledger.next_work(queues) - ledger.now)
            if left > 0 and timeout > 0:
                await waiting.heard(min(left + _A_LITTLE_LATER, timeout))

    # Results.

    async def wait_for_result(self, task_id: str, runs: int, timeout: float) -> None:
        await self._ready()
        deadline = time.monotonic() + timeout
        with self._own_ear().listening(task=task_id) as waiting:
            while not await self._read(lambda ledger: ledger.has_result(task_id, runs)):
                left = deadline - time.monotonic()
                if left <= 0 or await waiting.heard(min(left, _LOOK_AGAIN)):
                    return

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return await self._read(lambda ledger: ledger.find(ids))

    async def list(self, which: TaskFilter, *, limit: int, after: str | None = None) -> Sequence[Task]:
        return await self._read(lambda ledger: ledger.page(which, limit, after))

    async def counts(self) -> Counts:
        return await self._read(lambda ledger: ledger.counts())

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._write(lambda ledger: ledger.cancel(ids))

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._write(lambda ledger: ledger.retry(ids))

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        return await self._write(lambda ledger: ledger.change(ids, move))

    async def delete(self, ids: Sequence[str]) -> int:
        return await self._write(lambda ledger: ledger.delete(ids))

    # Moving tasks between stores.

    async def put(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._write(lambda ledger: ledger.put(tasks))

    async def remove(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._write(lambda ledger: ledger.remove(tasks))

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        if not await self._read(lambda ledger: ledger.to_expire(1)):
            return []
        return await self._write(lambda ledger: ledger.expire(limit))

    async def prune(self, *, limit: int) -> int:
        if not await self._read(lambda ledger: ledger.is_something_to_prune()):
            return 0
        return await self._write(lambda ledger: ledger.prune(limit))

    # Workers, queues, limits.

    async def note_worker(self, record: WorkerRecord) -> None:
        await self._write(lambda ledger: ledger.note_worker(record), durable=False)

    async def drop_worker(self, worker: str) -> None:
        await self._write(lambda ledger: ledger.drop_worker(worker))

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self._read(lambda ledger: ledger.workers())

    async def pause(self, queue: str) -> None:
        await self._write(lambda ledger: ledger.pause(queue))

    async def resume(self, queue: str) -> None:
        await self._write(lambda ledger: ledger.resume(queue))

    async def paused(self) -> frozenset[str]:
        return await self._read(lambda ledger: ledger.paused())

    async def set_limit(self, limit: Limit) -> None:
        await self._write(lambda ledger: ledger.set_limit(limit))

    async def limits(self) -> Sequence[Limit]:
        return await self._read(lambda ledger: ledger.limits())

    # The file.

    async def _write(self, work: Work[T], *, durable: bool = True) -> T:
        return await self._shared().writer.submit(work, self._clock, durable=durable)

    async def _read(self, work: Work[T]) -> T:
        await self._ready()
        return await self._shared().reader.submit(work, self._clock)

    async def _ready(self) -> None:
        if self._file is None or self._pid != os.getpid():
            await self._write(lambda _: None)

    def _shared(self) -> SharedFile:
        if self._closed:
            raise StorageClosed("it was closed", storage=str(self.path))
        shared = self._file
        if shared is None or self._pid != os.getpid():  # the threads of a forked child are gone
            with files.files_lock:  # several threads may be the first
                shared = self._file
                if shared is None or self._pid != os.getpid():
                    self._ears.clear()
                    shared = self._file = files.acquire(self.path, self.synchronous, self.busy_timeout)
                    self._pid = os.getpid()
        return shared

    def _own_ear(self) -> Ear:
        shared = self._shared()
        loop = asyncio.get_running_loop()
        for ear in self._ears[:]:
            if ear.loop is loop:
                return ear
            if ear.loop.is_closed():
                self._ears.remove(ear)
                ear.close()
        ear = Ear(shared.bell, folder_of(shared.path))
        self._ears.append(ear)
        return ear


def storage_clock(now: Callable[[], float]) -> Clock:
    """One clock for everything, for tests."""
    return Clock(now=now, elapsed=now, boot=lambda: "")

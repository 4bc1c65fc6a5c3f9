"""The default store: tasks in one SQLite file, for any number of processes of one machine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bullpen.errors import InvalidOption, StorageClosed
from bullpen.tasks.model.events import Event
from bullpen.tasks.model.failure_groups import FailureRow
from bullpen.tasks.model.history import HistoryRow
from bullpen.tasks.model.task import Progress, Settlement, Step, Task
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage.port import (
    AttemptKey,
    Batch,
    BatchVerb,
    Counts,
    Decide,
    Exchange,
    HealthFinding,
    Limit,
    Move,
    Renewal,
    Schema,
    TaskFilter,
    WorkerRecord,
)
from bullpen.tasks.storage.sqlite import shared as files
from bullpen.tasks.storage.sqlite.file import folder_of, resolve
from bullpen.tasks.storage.sqlite.group_commit import Work, WorkItem
from bullpen.tasks.storage.sqlite.shared import SharedFile
from bullpen.tasks.storage.sqlite.task_table import StoreClock, UnnamedRow, event_wakeup
from bullpen.tasks.storage.sqlite.transaction import add_in, save_step_in, settle_in
from bullpen.tasks.storage.sqlite.upkeep_turns import take_turn
from bullpen.tasks.storage.sqlite.wakeups import WakeupListener

T = TypeVar("T")

_A_LITTLE_LATER = 0.001  # seconds added to a wait, because a timer may fire slightly early
_LOOK_AGAIN = 0.5  # seconds between polls, in case a wake-up was lost


class SqliteStorage:
    """Keeps tasks in the file at `path`, and creates it if there is none.

    `synchronous`: "full" (acknowledged tasks and results survive a power cut) or "normal" (a power cut may lose the
    latest ones, a crash of a process does not; single writes are many times faster). `busy_timeout`: seconds that a
    call waits for other writers before it raises `StorageBusy`. `shared`: other users than this one and root may write
    the file; without it, such a file raises `UnsafeFile`.
    """

    durable = True
    busy_timeout = 5.0

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "full",
        busy_timeout: float = busy_timeout,
        shared: bool = False,
        clock: StoreClock | None = None,
    ) -> None:
        if synchronous not in ("full", "normal"):
            raise InvalidOption("synchronous", synchronous, '"full" or "normal"')
        self.path = Path(path).absolute()
        self.synchronous = synchronous
        self.busy_timeout = busy_timeout
        self.shared = shared
        self._clock = clock or StoreClock()
        self._file: SharedFile | None = None
        self._listeners: list[WakeupListener] = []  # one for each event loop on which a caller has waited
        self._pid = 0
        self._closed = False

    async def open(self) -> None:
        """Open the file; create it, or migrate its tables, if needed. Any other method opens the file, too."""
        self._closed = False
        if not self._shared().writer.is_connected:  # else another store of this process has done so
            await self._write(lambda _: None)

    async def close(self) -> None:
        """Wait for calls in progress, and close the file."""
        shared = self._detach()
        if shared is not None:
            await shared.close()

    def _detach(self) -> SharedFile | None:
        """The file, if this store was the last one of the process that used it."""
        self._closed = True
        if self._pid != os.getpid():
            return None
        shared, self._file = self._file, None
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        return shared if shared is not None and files.release(shared) else None

    def another(self) -> SqliteStorage:
        """For another event loop; those of one process share the threads and connections."""
        return SqliteStorage(
            self.path,
            synchronous=self.synchronous,
            busy_timeout=self.busy_timeout,
            shared=self.shared,
            clock=self._clock,
        )

    async def now(self) -> float:
        return self._clock.now()

    # For blocking callers.

    def another_blocking(self) -> SqliteStorage:
        return self.another()

    def open_blocking(self) -> None:
        self._closed = False
        if not self._shared().writer.is_connected:
            self._write_blocking(lambda _: None)

    def close_blocking(self) -> None:
        shared = self._detach()
        if shared is not None:
            shared.close_blocking()

    def now_blocking(self) -> float:
        return self._clock.now()

    def add_blocking(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        if duplicates is not RETURN:
            return self._write_blocking(lambda table: table.add(tasks, duplicates))
        return self._shared().writer.run_blocking(WorkItem(self._clock, tasks=tasks))  # type: ignore[no-any-return]

    def get_blocking(self, ids: Sequence[str]) -> Sequence[Task | None]:
        if not self._is_ready():
            self.open_blocking()
        return self._shared().reader.run_blocking(WorkItem(self._clock, lambda table: table.find(ids)))  # type: ignore[no-any-return]

    def check_reentry(self) -> None:
        shared = self._shared()
        shared.writer.check_reentry()
        shared.reader.check_reentry()

    def _write_blocking(self, work: Work[T]) -> T:
        return self._shared().writer.run_blocking(WorkItem(self._clock, work))  # type: ignore[no-any-return]

    async def look_at_schema(self) -> Schema:
        from bullpen.tasks.storage.sqlite.health_checks import look_at_schema  # here, because few programs ask

        return look_at_schema(resolve(self.path, shared=self.shared))

    async def upgrade_schema(self) -> None:
        await self.open()

    async def check_health(self) -> Sequence[HealthFinding]:
        from bullpen.tasks.storage.sqlite.health_checks import run_health_checks

        return run_health_checks(self.path, self.synchronous)

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        if duplicates is not RETURN:
            return await self._write(lambda table: table.add(tasks, duplicates))
        return await self._shared().writer.submit(self._clock, tasks=tasks)  # type: ignore[no-any-return]

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
            lambda table: table.exchange(
                settlements, worker=worker, queues=queues, limit=limit, lease=lease, claim_id=claim_id
            ),
            durable=bool(settlements),
        )

    def settle_in(self, connection: Any, settlement: Settlement) -> None:
        settle_in(connection, self.path, settlement, self._clock)

    def is_locked(self) -> bool:
        return self._file is not None and self._file.writer.is_locked

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        return await self._read(lambda table: table.find_claim(claim_id))

    async def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        return await self._write(lambda table: table.renew(holds, lease), durable=False)

    async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        return await self._write(lambda table: table.note_progress(hold, progress), durable=False)

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        """The payload of an event that has come need not wait for the disk: a power cut that takes it takes the claim
        of this attempt too, and leaves the event, so the next attempt keeps the same payload.
        """
        has_come = bool(step.event) and step.result is not None and (step.until is None or step.ended_at < step.until)
        return await self._write(lambda table: table.save_step(hold, step), durable=not has_come)

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> None:
        save_step_in(connection, self.path, hold, step, self._clock)

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        if not await self._read(lambda table: table.to_rescue(dead_workers)):
            return []
        return await self._write(lambda table: table.rescue_expired(decide, limit, dead_workers))

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        if not self._is_ready():
            await self.open()
        with self._own_listener().listening(queues=frozenset(queues)) as waiting:
            left = await self._read(lambda table: table.next_work(queues) - table.now)
            if left > 0 and timeout > 0:
                await waiting.heard(min(left + _A_LITTLE_LATER, timeout))

    # Events.

    async def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        return await self._write(lambda table: table.emit(name, payload, ttl))

    async def wait_for_event(self, name: str, timeout: float) -> Event | None:
        event = await self._read(lambda table: table.find_event(name))
        if event is not None or timeout <= 0:
            return event
        deadline = time.monotonic() + timeout
        with self._own_listener().listening(task=event_wakeup(name)) as waiting:
            while (event := await self._read(lambda table: table.find_event(name))) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                await waiting.heard(min(left, _LOOK_AGAIN))
        return event

    async def events(self, *, limit: int, after: str | None = None) -> Sequence[Event]:
        return await self._read(lambda table: table.events(limit, after))

    # Results.

    async def wait_for_result(self, task_id: str, completed_runs: int, timeout: float) -> None:
        if not self._is_ready():
            await self.open()
        deadline = time.monotonic() + timeout
        with self._own_listener().listening(task=task_id) as waiting:
            while not await self._read(lambda table: table.has_result(task_id, completed_runs)):
                left = deadline - time.monotonic()
                if left <= 0 or await waiting.heard(min(left, _LOOK_AGAIN)):
                    return

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return await self._read(lambda table: table.find(ids))

    async def list(
        self, which: TaskFilter, *, limit: int, after: str | None = None, newest: bool = False
    ) -> Sequence[Task]:
        return await self._read_page(lambda table: table.page(which, limit, after, newest))

    async def counts(self, limit: int | None = None) -> Counts:
        return await self._read(lambda table: table.counts(limit))

    async def first_pending(self, limit: int) -> Sequence[Task]:
        return await self._read_page(lambda table: table.first_pending(limit))

    async def list_pending(
        self, *, limit: int, queue: str | None = None, after: tuple[float, str] | None = None
    ) -> Sequence[Task]:
        return await self._read_page(lambda table: table.list_pending(limit, queue, after))

    async def count(self, which: TaskFilter) -> int:
        return await self._read(lambda table: table.count(which))

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._write(lambda table: table.cancel(ids))

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._write(lambda table: table.retry(ids))

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        return await self._write(lambda table: table.change(ids, move))

    async def delete(self, ids: Sequence[str]) -> int:
        return await self._write(lambda table: table.delete(ids))

    async def change_batch(self, verb: BatchVerb, which: TaskFilter, *, limit: int, cursor: str | None = None) -> Batch:
        ids, following = await self._read_page(lambda table: table.batch(verb, which, limit, cursor))
        changed = await self._write(lambda table: table.change_batch(verb, ids)) if ids else ()
        return Batch(len(ids), tuple(changed), following)

    # Moving tasks between stores.

    async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._write(lambda table: table.import_tasks(tasks))

    async def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._write(lambda table: table.export_tasks(tasks))

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        if not await self._read(lambda table: table.to_expire(1)):
            return []
        return await self._write(lambda table: table.expire(limit))

    async def prune(self, *, limit: int) -> int:
        if not await self._read(lambda table: table.is_something_to_prune()):
            return 0
        return await self._write(lambda table: table.prune(limit))

    def take_upkeep_turn(self, group: str, every: float) -> bool:
        return take_turn(folder_of(self._shared().path), group, every)

    # History.

    async def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow] = ()) -> None:
        await self._write(lambda table: table.add_history(rows, failures), durable=False)

    async def history(
        self, step: int, since: float, until: float, *, queue: str | None = None, function: str | None = None
    ) -> Sequence[HistoryRow]:
        return await self._read(lambda table: table.history(step, since, until, queue, function))

    async def failures(self, since: float) -> Sequence[FailureRow]:
        return await self._read(lambda table: table.failures(since))

    async def delete_failures(self, fingerprint: str, function: str | None = None) -> None:
        await self._write(lambda table: table.delete_failures(fingerprint, function))

    # Workers, queues, limits.

    async def save_worker(self, record: WorkerRecord) -> None:
        await self._write(lambda table: table.save_worker(record), durable=False)

    async def delete_worker(self, worker: str) -> None:
        await self._write(lambda table: table.delete_worker(worker))

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self._read(lambda table: table.workers())

    async def pause(self, queue: str) -> None:
        await self._write(lambda table: table.pause(queue))

    async def resume(self, queue: str) -> None:
        await self._write(lambda table: table.resume(queue))

    async def queues(self) -> frozenset[str]:
        return await self._read(lambda table: table.queues())

    async def paused(self) -> frozenset[str]:
        return await self._read(lambda table: table.paused())

    async def set_limit(self, limit: Limit) -> None:
        await self._write(lambda table: table.set_limit(limit))

    async def limits(self) -> Sequence[Limit]:
        return await self._read(lambda table: table.limits())

    # The file.

    def _write(self, work: Work[T], *, durable: bool = True) -> Awaitable[T]:
        return self._shared().writer.submit(self._clock, work, durable=durable)

    def _read(self, work: Work[T]) -> Awaitable[T]:
        return self._shared().reader.submit(self._clock, work) if self._is_ready() else self._open_and_read(work)

    async def _read_page(self, work: Work[T]) -> T:
        try:
            return await self._read(work)
        except UnnamedRow:
            await self._write(lambda table: table.name_rows())
            return await self._read(work)

    async def _open_and_read(self, work: Work[T]) -> T:
        await self.open()
        return await self._read(work)

    def _is_ready(self) -> bool:
        """Whether the file is open in this process, so that its tables are there."""
        return self._closed or (self._file is not None and self._pid == os.getpid())

    def _shared(self) -> SharedFile:
        if self._closed:
            raise StorageClosed("it was closed", storage=str(self.path))
        shared = self._file
        if shared is None or self._pid != os.getpid():  # the threads of a forked child are gone
            with files.files_lock:  # several threads may be the first
                shared = self._file
                if shared is None or self._pid != os.getpid():
                    self._listeners.clear()
                    shared = self._file = files.acquire(
                        self.path, self.synchronous, self.busy_timeout, with_others=self.shared
                    )
                    self._pid = os.getpid()
        return shared

    def _own_listener(self) -> WakeupListener:
        shared = self._shared()
        loop = asyncio.get_running_loop()
        for listener in self._listeners[:]:
            if listener.loop is loop:
                return listener
            if listener.loop.is_closed():
                self._listeners.remove(listener)
                listener.close()
        listener = WakeupListener(shared.waker, folder_of(shared.path))
        self._listeners.append(listener)
        return listener


def storage_clock(now: Callable[[], float]) -> StoreClock:
    """One clock for everything, for tests."""
    return StoreClock(now=now, elapsed=now, boot=lambda: "")

"""The way of a process to the store, on which requests and answers may be late, or lost.

A request that was sent is applied, or not, whatever becomes of its sender: a worker that has given up waiting, or has
vanished, may have claimed a task after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bullpen.errors import StorageUnavailable
from bullpen.tasks.model.events import Event
from bullpen.tasks.model.failure_groups import FailureRow
from bullpen.tasks.model.history import HistoryRow
from bullpen.tasks.model.task import Progress, Settlement, Step, Task
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import (
    AttemptKey,
    Batch,
    BatchVerb,
    Counts,
    Decide,
    Exchange,
    Limit,
    Move,
    Renewal,
    TaskFilter,
    WorkerRecord,
)
from bullpen.testing.history import Write
from bullpen.testing.recording import RecordingStorage
from bullpen.testing.simulation.world import Loop, SimulatedProcess, World

T = TypeVar("T")


class Network:
    """The faults of requests: each with the probability `trouble`, and all of them while the store is `away`."""

    def __init__(self, world: World, store: MemoryStorage, write: Write) -> None:
        self.world = world
        self.store = store
        self.write = write
        self.trouble = 0.0
        self.patience = 1.0  # seconds; some answers take longer than their worker waits
        self.away_until = -1.0
        self.on_their_way = 0  # requests
        self.home: Loop = world.new_process("store", "store").new_loop()

    def client(self, process: SimulatedProcess, actor: str) -> Client:
        recording = RecordingStorage(
            self.store, self.write, actor, clock=lambda: self.world.now, exact=True, in_transaction=lambda _: False
        )
        return Client(self, process, recording)

    async def call(
        self, process: SimulatedProcess, recording: RecordingStorage, request: Callable[[], Awaitable[T]]
    ) -> T:
        world, random = self.world, self.world.random
        if process.gone:
            raise StorageUnavailable("it is gone", storage="the simulated store")
        if world.now < max(self.away_until, process.cut_off_until):
            await asyncio.sleep(random.random() * self.patience * (1.5 if random.random() < 0.2 else 0.1))
            raise StorageUnavailable("the store cannot be reached", storage="the simulated store")
        if random.random() >= self.trouble:
            result = _at_once(request())
            if random.random() < 0.3:
                await asyncio.sleep(random.random() * 0.02)
            return result
        kind = random.randrange(4)
        if kind == 0:
            await asyncio.sleep(random.random() * 0.1)
            raise StorageUnavailable("the request was lost", storage="the simulated store")
        if kind == 1:
            _at_once(request())
            await asyncio.sleep(random.random() * 0.1)
            raise StorageUnavailable("the answer was lost", storage="the simulated store")
        return await self._slowly(process, recording, request, answered=kind == 2)

    async def _slowly(
        self,
        process: SimulatedProcess,
        recording: RecordingStorage,
        request: Callable[[], Awaitable[T]],
        *,
        answered: bool,
    ) -> T:
        """The request is delayed, and it is applied even if its caller has stopped waiting."""
        random, patience = self.world.random, self.patience
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def apply() -> None:
            self.on_their_way -= 1
            recording.late = answer.done() or process.gone
            try:
                result = _at_once(request())
            finally:
                recording.late = False
            if answered:
                self.home.call_later(random.random() * patience * 0.5, deliver, result)

        def deliver(result: T) -> None:
            loop.call_soon_threadsafe(_set, answer, result)

        self.on_their_way += 1
        self.home.call_later(random.random() * patience * random.choice((0.1, 1.5)), apply)
        return await answer


def _set(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _at_once(request: Awaitable[T]) -> T:
    """The store in memory never waits."""
    coroutine: Coroutine[Any, Any, T] = request  # type: ignore[assignment]
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("the store in memory had to wait")


class Client:
    """The store, as one process reaches it."""

    durable = False

    def __init__(self, network: Network, process: SimulatedProcess, recording: RecordingStorage) -> None:
        self._network = network
        self._process = process
        self._recording = recording

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def another(self) -> Client:
        return Client(self._network, self._process, self._recording)

    async def _call(self, request: Callable[[], Awaitable[T]]) -> T:
        return await self._network.call(self._process, self._recording, request)

    async def now(self) -> float:
        return await self._call(self._recording.now)

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        return await self._call(lambda: self._recording.add(tasks, duplicates))

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
        return await self._call(
            lambda: self._recording.exchange(
                settlements, worker=worker, queues=queues, limit=limit, lease=lease, claim_id=claim_id
            )
        )

    def add_in(
        self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        return self._recording.add_in(connection, tasks, duplicates)

    def now_in(self, connection: Any) -> float | Awaitable[float]:
        return self._recording.now_in(connection)

    def settle_in(self, connection: Any, settlement: Settlement) -> Awaitable[None] | None:
        return self._recording.settle_in(connection, settlement)

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> Awaitable[None] | None:
        return self._recording.save_step_in(connection, hold, step)

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        return await self._call(lambda: self._recording.find_claim(claim_id))

    async def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        return await self._call(lambda: self._recording.renew(holds, lease))

    async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        return await self._call(lambda: self._recording.note_progress(hold, progress))

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        return await self._call(lambda: self._recording.save_step(hold, step))

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        return await self._call(lambda: self._recording.rescue_expired(decide, limit=limit, dead_workers=dead_workers))

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        if self._process.gone:
            raise StorageUnavailable("it is gone", storage="the simulated store")
        if self._network.world.random.random() < self._network.trouble / 10:
            await asyncio.get_running_loop().create_future()  # its answer is lost
        await self._network.store.wait_for_work(queues, timeout)

    async def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        return await self._call(lambda: self._recording.emit(name, payload, ttl))

    async def wait_for_event(self, name: str, timeout: float) -> Event | None:
        return await self._call(lambda: self._recording.wait_for_event(name, timeout))

    async def events(self, *, limit: int, after: str | None = None) -> Sequence[Event]:
        return await self._call(lambda: self._recording.events(limit=limit, after=after))

    async def wait_for_result(self, task_id: str, completed_runs: int, timeout: float) -> None:
        await self._network.store.wait_for_result(task_id, completed_runs, timeout)

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return await self._call(lambda: self._recording.get(ids))

    async def list(
        self, which: TaskFilter, *, limit: int, after: str | None = None, newest: bool = False
    ) -> Sequence[Task]:
        return await self._call(lambda: self._recording.list(which, limit=limit, after=after, newest=newest))

    async def counts(self, limit: int | None = None) -> Counts:
        return await self._call(lambda: self._recording.counts(limit))

    async def first_pending(self, limit: int) -> Sequence[Task]:
        return await self._call(lambda: self._recording.first_pending(limit))

    async def list_pending(
        self, *, limit: int, queue: str | None = None, after: tuple[float, str] | None = None
    ) -> Sequence[Task]:
        return await self._call(lambda: self._recording.list_pending(limit=limit, queue=queue, after=after))

    async def count(self, which: TaskFilter) -> int:
        return await self._call(lambda: self._recording.count(which))

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._call(lambda: self._recording.cancel(ids))

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._call(lambda: self._recording.retry(ids))

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        return await self._call(lambda: self._recording.change(ids, move))

    async def delete(self, ids: Sequence[str]) -> int:
        return await self._call(lambda: self._recording.delete(ids))

    async def change_batch(self, verb: BatchVerb, which: TaskFilter, *, limit: int, cursor: str | None = None) -> Batch:
        return await self._call(lambda: self._recording.change_batch(verb, which, limit=limit, cursor=cursor))

    async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._call(lambda: self._recording.import_tasks(tasks))

    async def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._call(lambda: self._recording.export_tasks(tasks))

    async def expire(self, *, limit: int) -> Sequence[Task]:
        return await self._call(lambda: self._recording.expire(limit=limit))

    async def prune(self, *, limit: int) -> int:
        return await self._call(lambda: self._recording.prune(limit=limit))

    async def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow] = ()) -> None:
        return await self._call(lambda: self._recording.add_history(rows, failures))

    async def history(
        self, step: int, since: float, until: float, *, queue: str | None = None, function: str | None = None
    ) -> Sequence[HistoryRow]:
        return await self._call(lambda: self._recording.history(step, since, until, queue=queue, function=function))

    async def failures(self, since: float) -> Sequence[FailureRow]:
        return await self._call(lambda: self._recording.failures(since))

    async def delete_failures(self, fingerprint: str, function: str | None = None) -> None:
        return await self._call(lambda: self._recording.delete_failures(fingerprint, function))

    async def save_worker(self, record: WorkerRecord) -> None:
        return await self._call(lambda: self._recording.save_worker(record))

    async def delete_worker(self, worker: str) -> None:
        return await self._call(lambda: self._recording.delete_worker(worker))

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self._call(self._recording.workers)

    async def pause(self, queue: str) -> None:
        return await self._call(lambda: self._recording.pause(queue))

    async def resume(self, queue: str) -> None:
        return await self._call(lambda: self._recording.resume(queue))

    async def queues(self) -> frozenset[str]:
        return await self._call(self._recording.queues)

    async def paused(self) -> frozenset[str]:
        return await self._call(self._recording.paused)

    async def set_limit(self, limit: Limit) -> None:
        return await self._call(lambda: self._recording.set_limit(limit))

    async def limits(self) -> Sequence[Limit]:
        return await self._call(self._recording.limits)

"""The heartbeat of a worker: renews leases, notices requests to cancel, saves its record, maintains the store.

It runs on its own thread, with its own connection to the store where the store allows one. So a task that blocks the
worker's loop keeps its lease. If a lease cannot be renewed, the worker interrupts the task before the lease expires,
by its own monotonic clock, counted from before the renewal was sent.

A store that is locked by another process is an exception: no other worker can claim the task either. The task runs on,
and the heartbeat renews its lease when the lock is released. If another worker was faster, the store rejects the
renewal, and the worker interrupts the task then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from bullpen import primitives
from bullpen.errors import StorageError, StorageFull, StorageUnavailable
from bullpen.tasks.model.task import release
from bullpen.tasks.storage.port import (
    STACK_HEADER,
    AttemptKey,
    StackAnswer,
    Storage,
    SupportsLockCheck,
    SupportsUpkeepTurns,
    WorkerRecord,
)
from bullpen.tasks.worker.attempt import Interruption, TaskAttempt
from bullpen.tasks.worker.declarations import DeclaredSchedules
from bullpen.tasks.worker.history_tally import WRITE_EVERY, HistoryBacklog, HistoryTally, TallyCounts
from bullpen.tasks.worker.identity import machine, this_host, unregister_worker
from bullpen.tasks.worker.lane import LaneRunner
from bullpen.tasks.worker.options import WorkerOptions
from bullpen.tasks.worker.reports import Outage, Reports, log_message
from bullpen.tasks.worker.served_queues import ServedQueues
from bullpen.tasks.worker.upkeep import Upkeep

T = TypeVar("T")

UPKEEP_EVERY, UPKEEP_SOON = 1.0, 0.05  # seconds
BATCH = 500
NAMED_ON_THREADS = 100  # tasks that cannot be ended, in the record of a worker
STACKS_KEPT, STACKS_KEPT_FOR = 5, 60.0  # in the record of a worker; seconds
LOOKED_AT = 100  # tasks that one look between renewals reads


class Heartbeat:
    """Renews the leases of one worker, and does its share of maintenance."""

    def __init__(
        self,
        storage: Storage,
        lanes: Iterable[LaneRunner],
        options: WorkerOptions,
        record: WorkerRecord,
        reports: Reports,
        schedules: DeclaredSchedules,
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._home = asyncio.get_running_loop()
        self._lanes = tuple(lanes)
        self._options = options
        self._record = record
        self._reports = reports
        self._schedules = schedules
        self._failed = failed
        self._own = storage.another()
        self._storage = storage if self._own is None else self._own
        self._served_queues = ServedQueues([runner.lane for runner in self._lanes])
        self._upkeep = Upkeep(self._storage, options.lease, reports)
        self._counted: deque[TallyCounts] = deque()  # for the history; lanes hand them over
        self._history = HistoryBacklog()
        self._history_due = 0.0
        self._looks = 0
        self._stopped: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: primitives.Joinable | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._has_to_stop = False
        self._ended: asyncio.Future[None] = self._home.create_future()

    # Its life, on the worker's loop.

    def start(self) -> None:
        if self._own is None:
            self._task = self._home.create_task(self._run())
        else:
            self._thread = primitives.start_loop(self._run, f"{self._options.name}-heartbeat")

    def say_stopping(self) -> None:
        """Mark the worker's record as stopping with the next heartbeat."""
        self._is_stopping = True

    async def stop(self) -> None:
        """End renewal and maintenance, and delete the worker's record."""
        self._has_to_stop = True  # set first: a thread that has just begun sets `_stopped`, then reads this
        if self._loop is not None and self._stopped is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopped.set)
            except RuntimeError:  # its loop is closed
                pass
        await self._ended
        if self._thread is not None:
            self._thread.join()

    async def _run(self) -> None:
        try:
            await self._keep()
        except Exception as error:  # the store cannot be opened, or a defect: renewal has stopped
            self._call_home(self._failed, "the heartbeat", error)
        finally:
            self._call_home(_end, self._ended)

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        if self._has_to_stop:
            self._stopped.set()
        try:
            await self._open()
            keeping = (self._keep_leases(), self._keep_time(), self._maintain())
            await asyncio.gather(*keeping)
            await self._leave()
        finally:
            if self._own is not None:
                await self._own.close()

    async def _open(self) -> None:
        """Open the store and raise its errors. An unreachable or full store is an outage: the next call retries."""
        if self._own is not None:
            with contextlib.suppress(TimeoutError, StorageFull, StorageUnavailable):  # StorageBusy is a TimeoutError
                await self._within(self._own.open())

    @property
    def tallies(self) -> list[HistoryTally]:
        """What the lanes and the upkeep count."""
        return [*(lane.tally for lane in self._lanes), self._upkeep.tally]

    # Leases.

    async def _keep_leases(self) -> None:
        outage = Outage(self._reports, "leases", longest=1.0)
        wait = self._options.renew_every
        while not await self._pause(wait):
            try:
                await self.renew()
                wait = self._options.renew_every
                outage.over()
            except Exception as error:
                wait = outage.failed("renewal", error)

    async def renew(self) -> None:
        """Renew every lease, and save the worker's record."""
        held = self._held()
        for first in range(0, len(held), BATCH):
            attempts = held[first : first + BATCH]
            sent = self._now()
            primitives.failpoint("renew.before")
            renewal = await self._within(
                self._storage.renew([AttemptKey(key[0], key[1]) for key, _ in attempts], self._options.lease)
            )
            primitives.failpoint("renew.after")
            expires_at = sent + self._options.lease - self._options.margin
            for (task_id, number), attempt in attempts:
                hold = AttemptKey(task_id, number)
                if hold in renewal.lost:
                    if not attempt.ended:  # otherwise it is settled, or its settlement will be rejected
                        self._call_home(attempt.interrupt, Interruption.LOST)
                    continue
                attempt.expires_at = expires_at
                if hold in renewal.cancelled:
                    self._call_home(attempt.note_cancel_request)
        oldest = await self._storage.now() - STACKS_KEPT_FOR if self._record.stacks else 0.0
        on_threads = [attempt.task.id for _, attempt in held if attempt.cannot_be_ended]
        self._record = msgspec.structs.replace(
            self._record,
            running=len(held),
            stopping=self._is_stopping,
            on_threads=tuple(on_threads[:NAMED_ON_THREADS]),
            stacks=tuple(answer for answer in self._record.stacks if answer.at >= oldest),
            peak_memory=machine.peak_memory(),
        )
        await self._within(self._storage.save_worker(self._record))

    async def _keep_time(self) -> None:
        """Interrupt attempts with a lease that could not be renewed in time. This needs no answer from the store."""
        lock = self._storage if isinstance(self._storage, SupportsLockCheck) else None
        while not await self._pause(min(self._options.lease / 15, 1.0)):
            for lane in self._lanes:
                self._call_home(lane.release_unstarted)
            if lock is not None and lock.is_locked():
                continue
            now = self._now()
            for _, attempt in self._held():
                if now >= attempt.expires_at and not attempt.ended:
                    self._call_home(attempt.interrupt, Interruption.CUT_OFF)

    # Maintenance.

    async def _maintain(self) -> None:
        outage = Outage(self._reports, "upkeep", self._options.longest_pause, can_wait=True)
        shared = (self._upkeep.rescue, self._upkeep.expire, self._upkeep.prune)
        mine = (
            *(self._look_for_queues, self._look, self._look_at_schedules),
            *(self._write_progress, self._end_doubts, self._write_history),
        )
        wait = 0.0
        while not await self._pause(wait):
            has_turn = wait == UPKEEP_SOON or self._has_turn()
            wait = UPKEEP_EVERY * (0.9 + primitives.random.random() / 5)
            for step in (*shared, *mine) if has_turn else mine:
                try:
                    if await self._within(step()):
                        wait = UPKEEP_SOON
                except Exception as error:
                    wait = max(wait, outage.failed("maintenance", error))
                    break
            else:
                outage.over()

    def _has_turn(self) -> bool:
        """Whether this worker does the shared steps now. Only workers on this host can see each other die, so they
        share them. Each worker asks every second, and a turn is half a second: the steps run at least every 1.6 s.
        """
        storage = self._storage
        if not isinstance(storage, SupportsUpkeepTurns):
            return True
        try:
            return storage.take_upkeep_turn(this_host(), UPKEEP_EVERY / 2)
        except StorageError:  # the first step meets the same error and reports it
            return True

    async def _look_for_queues(self) -> None:
        """Let the lanes serve the queues in the store that match their patterns."""
        if not self._served_queues.has_patterns:
            return
        divided = self._served_queues.divide(await self._storage.queues(), self._now())
        for lane, queues in zip(self._lanes, divided, strict=True):
            if queues != lane.exchange.queues:
                self._call_home(lane.serve_queues, queues)

    async def _look(self) -> None:
        """Notice requests to cancel and lost tasks before the next renewal. Reads only tasks that have run for 1 s."""
        old = self._now() - UPKEEP_EVERY
        asked = [attempt for _, attempt in self._held() if attempt.claimed_at <= old and not attempt.ended]
        self._looks += 1
        if len(asked) > LOOKED_AT:  # others each time
            first = self._looks * LOOKED_AT % len(asked)
            asked = [*asked[first:], *asked[:first]][:LOOKED_AT]
        if not asked:
            return
        requests: list[tuple[TaskAttempt, str]] = []
        for attempt, task in zip(asked, await self._storage.get([one.task.id for one in asked]), strict=True):
            if task is None or task.attempt != attempt.task.attempt:
                self._call_home(attempt.interrupt, Interruption.LOST)
            elif task.cancel_requested:
                self._call_home(attempt.note_cancel_request)
            if task is not None and task.headers and STACK_HEADER in task.headers:
                requests.append((attempt, task.headers[STACK_HEADER]))
        await self._answer([(one, request) for one, request in requests if one.answered != request])

    async def _answer(self, requests: Sequence[tuple[TaskAttempt, str]]) -> None:
        """Write the stacks that clients have asked for to the worker's record."""
        for attempt, request in requests:
            stack = await attempt.stack()
            if not stack:  # the next look asks again
                continue
            attempt.answered = request
            answer = StackAnswer(request=request, at=await self._storage.now(), stack=stack)
            stacks = (*self._record.stacks, answer)[-STACKS_KEPT:]
            self._record = msgspec.structs.replace(self._record, stacks=stacks)
            await self._storage.save_worker(self._record)

    async def _look_at_schedules(self) -> None:
        await self._schedules.look(self._storage)

    async def _write_progress(self) -> None:
        """Write the latest progress of each task, if it is new."""
        for (task_id, number), attempt in self._held():
            latest = attempt.progress
            if latest is None or latest is attempt.written:
                continue
            if await self._storage.note_progress(AttemptKey(task_id, number), latest):
                attempt.written = latest

    async def _write_history(self) -> None:
        """Add to the history what the lanes have handed over, and ask them for more from time to time."""
        await self._add_history()
        if self._now() >= self._history_due:
            self._history_due = self._now() + WRITE_EVERY
            for lane in self._lanes:
                self._call_home(self._collect, lane)

    def _collect(self, lane: LaneRunner) -> None:
        """On the thread of the worker's loop, or when its lanes have ended."""
        if counts := lane.tally.take():
            self._counted.append(counts)

    async def _add_history(self) -> None:
        self._history.add(self._upkeep.tally.take())
        while self._counted:
            self._history.add(self._counted.popleft())
        if self._history:
            rows = self._history.rows(await self._storage.now())
            await self._storage.add_history(rows, self._history.failures())
            self._history.written()

    async def _end_doubts(self) -> None:
        """Release tasks of doubtful claims that the store has made after all."""
        for lane in self._lanes:
            for claim_id, until in lane.exchange.doubtful.copy().items():
                found = await self._storage.find_claim(claim_id)
                strays = [release(task) for task in found if (task.id, task.attempt) not in lane.held]
                if strays:
                    await self._storage.exchange(
                        strays, worker=self._record.id, queues=(), limit=0, lease=0.0, claim_id=""
                    )
                if found or self._now() > until:
                    self._call_home(lane.exchange.doubtful.pop, claim_id, None)

    async def _leave(self) -> None:
        """Delete the worker's record, so that other workers can take back its tasks at once."""
        unregister_worker(self._record.id)
        primitives.failpoint("worker.before_leave")
        with contextlib.suppress(Exception):  # other workers take back the tasks of a worker without a record
            await self._within(self._end_doubts())
        for lane in self._lanes:
            self._collect(lane)
        with contextlib.suppress(Exception):
            await self._within(self._add_history())
        try:
            await self._within(self._storage.delete_worker(self._record.id))
        except Exception as error:
            log_message(logging.WARNING, "%s: the worker's record could not be deleted (%s)", self._reports.name, error)

    # Helpers.

    def _held(self) -> list[tuple[tuple[str, int], TaskAttempt]]:
        return [item for lane in self._lanes for item in lane.held.copy().items()]

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    async def _within(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._options.store_patience):
            return await call

    async def _pause(self, seconds: float) -> bool:
        """Wait. Returns True if the worker stops."""
        assert self._stopped is not None
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass
        return self._stopped.is_set()

    def _call_home(self, call: Callable[..., Any], *args: Any) -> None:
        try:
            self._home.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the worker's loop is closed
            pass


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""What has to go on whatever the tasks do: leases, requests to cancel, the worker's record, and upkeep of the store.

It runs on a thread of its own, with its own client of the store where there can be one, so that a task that blocks the
worker's loop for longer than a lease keeps its lease. A lease that cannot be renewed ends its task before it is over,
by the worker's own monotonic clock, counted from before the renewal was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec

from bullpen import primitives
from bullpen.consumer.attempt import Attempt, Interruption
from bullpen.consumer.identity import bid_farewell
from bullpen.consumer.lane import LaneRunner
from bullpen.consumer.options import WorkerOptions
from bullpen.consumer.outage import Outage
from bullpen.consumer.reports import Reports, say
from bullpen.consumer.schedules import DeclaredSchedules
from bullpen.consumer.upkeep import Upkeep
from bullpen.errors import StorageFull, StorageUnavailable
from bullpen.storage.port import Hold, Storage, WorkerRecord
from bullpen.tasks.task import release

T = TypeVar("T")

UPKEEP_EVERY, UPKEEP_SOON = 1.0, 0.05  # seconds
BATCH = 500
LOOKED_AT = 100  # tasks that are asked about between renewals, each time


class Keeper:
    """Keeps one worker's leases, and its part of the store in order."""

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
        self._upkeep = Upkeep(self._storage, options.lease, reports)
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
            self._thread = primitives.start_loop(self._run, f"{self._options.name}-keeper")

    def say_stopping(self) -> None:
        """The worker's record says so from its next heartbeat on."""
        self._is_stopping = True

    async def stop(self) -> None:
        """Renew and tend no longer; the worker's record is gone then."""
        self._has_to_stop = True  # before a look at what a thread that has just begun sets, and then looks at this
        if self._loop is not None and self._stopped is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopped.set)
            except RuntimeError:  # it has ended already
                pass
        await self._ended
        if self._thread is not None:
            self._thread.join()

    async def _run(self) -> None:
        try:
            await self._keep()
        except Exception as error:  # it could not open the store, or this is a defect: nobody renews leases any more
            self._call_home(self._failed, "the keeper of leases", error)
        finally:
            self._call_home(_end, self._ended)

    async def _keep(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        if self._has_to_stop:
            self._stopped.set()
        try:
            await self._open()
            keeping = (self._keep_leases(), self._keep_time(), self._keep_house())
            await asyncio.gather(*keeping)
            await self._leave()
        finally:
            if self._own is not None:
                await self._own.close()

    async def _open(self) -> None:
        """Raises what the store raises. One that does not answer, or has no room, is an outage: whatever is called next
        tries again.
        """
        if self._own is not None:
            with contextlib.suppress(TimeoutError, StorageFull, StorageUnavailable):  # also StorageBusy, a TimeoutError
                await self._within(self._own.open())

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
                wait = outage.failed("renew leases", error)

    async def renew(self) -> None:
        """Renew every lease, and say that the worker is there."""
        held = self._held()
        for first in range(0, len(held), BATCH):
            attempts = held[first : first + BATCH]
            sent = self._now()
            primitives.failpoint("renew.before")
            renewal = await self._within(
                self._storage.renew([Hold(key[0], key[1]) for key, _ in attempts], self._options.lease)
            )
            primitives.failpoint("renew.after")
            expires_at = sent + self._options.lease - self._options.margin
            for (task_id, number), attempt in attempts:
                hold = Hold(task_id, number)
                if hold in renewal.lost:
                    if not attempt.ended:  # else it has just been settled, or its own write will say so
                        self._call_home(attempt.interrupt, Interruption.LOST)
                    continue
                attempt.expires_at = expires_at
                if hold in renewal.cancelled:
                    self._call_home(attempt.note_cancel_request)
        self._record = msgspec.structs.replace(self._record, running=len(held), stopping=self._is_stopping)
        await self._within(self._storage.note_worker(self._record))

    async def _keep_time(self) -> None:
        """End what could not be renewed in time."""
        while not await self._pause(self._options.lease / 15):
            now = self._now()
            for _, attempt in self._held():
                if now >= attempt.expires_at and not attempt.ended:
                    self._call_home(attempt.interrupt, Interruption.CUT_OFF)

    # The house.

    async def _keep_house(self) -> None:
        outage = Outage(self._reports, "upkeep", self._options.longest_pause)
        mine = (self._look_at_schedules, self._write_progress, self._end_doubts)
        wait = 0.0
        while not await self._pause(wait):
            wait = UPKEEP_EVERY * (0.9 + primitives.random.random() / 5)
            for step in (self._upkeep.rescue, self._upkeep.expire, self._upkeep.prune, self._look, *mine):
                try:
                    if await self._within(step()):
                        wait = UPKEEP_SOON
                except Exception as error:
                    wait = max(wait, outage.failed("be tended", error))
                    break
            else:
                outage.over()

    async def _look(self) -> None:
        """Notice requests to cancel, and losses, before the next renewal: of tasks that have run for a while."""
        old = self._now() - UPKEEP_EVERY
        asked = [attempt for _, attempt in self._held() if attempt.claimed_at <= old and not attempt.ended]
        asked = asked[:LOOKED_AT]
        if not asked:
            return
        for attempt, task in zip(asked, await self._storage.get([one.task.id for one in asked]), strict=True):
            if task is None or task.attempt != attempt.task.attempt:
                self._call_home(attempt.interrupt, Interruption.LOST)
            elif task.cancel_requested:
                self._call_home(attempt.note_cancel_request)

    async def _look_at_schedules(self) -> None:
        await self._schedules.look(self._storage)

    async def _write_progress(self) -> None:
        """The latest of each task, if there is news."""
        for (task_id, number), attempt in self._held():
            if attempt.progress is not None:
                progress, attempt.progress = attempt.progress, None
                await self._storage.note_progress(Hold(task_id, number), progress)

    async def _end_doubts(self) -> None:
        """Release what was claimed after all, when nobody waited for it any more."""
        for lane in self._lanes:
            for claim_id, until in lane.doubtful.copy().items():
                found = await self._storage.find_claim(claim_id)
                strays = [release(task) for task in found if (task.id, task.attempt) not in lane.held]
                if strays:
                    await self._storage.exchange(
                        strays, worker=self._record.id, queues=(), limit=0, lease=0.0, claim_id=""
                    )
                if found or self._now() > until:
                    self._call_home(lane.doubtful.pop, claim_id, None)

    async def _leave(self) -> None:
        """The worker is none any more; what it may have left behind can be taken back at once."""
        bid_farewell(self._record.id)
        primitives.failpoint("worker.before_leave")
        try:
            await self._within(self._storage.drop_worker(self._record.id))
        except Exception as error:
            say(logging.WARNING, "%s: its record stays behind (%s)", self._reports.name, error)

    # Small things.

    def _held(self) -> list[tuple[tuple[str, int], Attempt]]:
        return [item for lane in self._lanes for item in lane.held.copy().items()]

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    async def _within(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._options.store_patience):
            return await call

    async def _pause(self, seconds: float) -> bool:
        """Wait; True if the worker stops."""
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
        except RuntimeError:  # the worker's loop is closed: there is nothing left to end
            pass


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

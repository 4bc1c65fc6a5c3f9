"""A lane at work: permits, claims, and the writes that settle what was claimed.

- A permit comes before a claim: an exchange asks for no more tasks than there are free permits. A task holds its permit
  from the claim to the write that settles it, so the store never shows more running than there are permits.
- One exchange at a time. Whatever ends meanwhile goes with the next one, which begins at once.
- Who holds nothing may be handed a task while it waits, by a store that can do so: that is a claim like others.
- A settlement is kept until the store has it. If nobody knows whether a claim was made, the store is asked by its id
  before anything else is claimed.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from bullpen import primitives
from bullpen.consumer.attempt import UNCOMMITTED, Attempt, Interruption, ProgressOf
from bullpen.consumer.in_process import Outcome, TaskProcess, place_of
from bullpen.consumer.options import Lane, WorkerOptions
from bullpen.consumer.outage import Outage
from bullpen.consumer.reports import Reports, say
from bullpen.consumer.scope import WorkerScope
from bullpen.consumer.suspects import Suspects
from bullpen.errors import PoolFailed
from bullpen.pool.future import PoolFuture
from bullpen.pool.pool import Pool
from bullpen.storage.port import Handed, HandsOver, Hold, Storage
from bullpen.tasks.registry import Registry
from bullpen.tasks.task import Settlement, Task, release
from bullpen.telemetry.catalogue import Kind

Key = tuple[str, int]  # of a task and an attempt
Ended = tuple[Attempt, Settlement]

START_PAUSE = 5.0  # seconds, for a task that no thread could be started for
CLOSE_GRACE = 0.2  # seconds that threads get to end after their functions have
FIRST_PAUSE = 0.01  # seconds, after the second notification in a row that came to nothing


class LaneRunner:
    """Runs the tasks of one lane. All on the loop's thread, apart from what says otherwise."""

    def __init__(
        self,
        lane: Lane,
        options: WorkerOptions,
        registry: Registry,
        scope: WorkerScope,
        storage: Storage,
        worker: str,
        reports: Reports,
        suspects: Suspects,
    ) -> None:
        self.lane = lane
        self.suspects = suspects
        self.options = options
        self.registry = registry
        self.scope = scope
        self.worker = worker
        self.reports = reports
        self.loop = asyncio.get_running_loop()
        self.held: dict[Key, Attempt] = {}  # every permit that is taken; other threads may copy it
        self.abandoned: set[Attempt] = set()  # settled, and still running
        self.doubtful: dict[str, float] = {}  # claims that may still be made, and until when; other threads may copy it
        self._storage = storage
        self._hander = storage if isinstance(storage, HandsOver) else None
        self._outage = Outage(reports, f"lane {lane}", longest=options.longest_pause)
        self._ended: list[Ended] = []
        self._from_threads: collections.deque[tuple[Attempt, Settlement | None]] = collections.deque()
        self._threads_call = False  # a call of `_settle_from_threads` is under way
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False
        self._stuck = False
        self._idle = False  # the last claim got less than it asked for
        self._misses = 0  # notifications in a row that came to nothing
        self._claims = 0
        self._threads = _RenewedPool(self._new_threads)
        self._processes = _RenewedPool(self._new_processes)

    # Its life.

    async def serve(self) -> None:
        """Claim, run and settle until stopped, and then until everything held is settled."""
        while True:
            ended, self._ended = self._ended, []
            limit = self._room(returning=len(ended))
            if ended or (limit and not self._idle):
                await self._exchange(ended, 0 if self._waits_next(ended) else limit)
                await asyncio.sleep(0)  # what was claimed may end at once, and goes with the next exchange then
            elif limit:
                await self._wait_for_work(limit)
                await asyncio.sleep(0)
            elif self._stopping and not self.held:
                return
            else:
                await self._woken()

    def stop_claiming(self) -> None:
        self._stopping = True
        self._wake()

    def interrupt_all(self, why: Interruption) -> None:
        for attempt in list(self.held.values()):
            attempt.interrupt(why)

    def leave_behind(self) -> list[str]:
        """The store does not answer, and the worker has to stop: others take the tasks when their leases are over.
        Which ones.
        """
        for attempt in self.held.values():
            self.reports.lost(attempt.task, "the store does not answer; it is left to run again when its lease is over")
        return [attempt.task.id for attempt in self.held.values()]

    def close(self) -> None:
        """After everything was settled or given up. Threads that still run are left behind."""
        self._threads.close()
        self._processes.close()

    @property
    def claims(self) -> bool:
        """Whether it would claim if it had room."""
        return not self._stopping and not self._stuck

    def _room(self, returning: int) -> int:
        """How many permits are free, with those that return with the next write."""
        if self._stopping or self._stuck:
            return 0
        return self.lane.concurrency - len(self.held) + returning

    # The exchange.

    async def _exchange(self, ended: list[Ended], limit: int) -> None:
        claim_id = self._new_claim_id()
        sent = self.loop.time()
        primitives.failpoint("exchange.before")
        try:
            async with asyncio.timeout(self.options.store_patience):
                exchange = await self._storage.exchange(
                    [settlement for _, settlement in ended],
                    worker=self.worker,
                    queues=self.lane.queues,
                    limit=limit,
                    lease=self.options.lease,
                    claim_id=claim_id,
                )
        except Exception as error:
            for attempt, _ in ended:
                attempt.repeated = True
            self._ended[:0] = ended
            await self._resolve(claim_id, limit, sent, error)
            return
        primitives.failpoint("exchange.after")
        self._outage.over()
        if limit:
            self._idle = len(exchange.claimed) < limit
        if exchange.claimed:
            self._misses = 0
        await self._written(ended, exchange.refused)
        self._take(exchange.claimed, limit, sent)

    def _waits_next(self, ended: list[Ended]) -> bool:
        """Whether nothing waited when the latest task was handed over, and this is its end: whoever waits for that
        hears sooner of a write that claims nothing, and the store says when it is next waited for if something came.
        """
        return self._idle and self._hander is not None and len(ended) == len(self.held)

    def _new_claim_id(self) -> str:
        self._claims += 1
        return f"{self.worker}/{self.lane.queues[0]}/{self._claims}"

    async def _resolve(self, claim_id: str, limit: int, sent: float, error: Exception) -> None:
        """Nobody knows what became of an exchange. Learn whether it claimed anything; settlements are sent again."""
        await asyncio.sleep(self._outage.failed("exchange tasks", error))
        if limit > 0:
            await self._learn(claim_id, limit, sent)

    async def _learn(self, claim_id: str, limit: int, sent: float) -> None:
        """Ask what was claimed, if anything, and take it."""
        while True:
            try:
                async with asyncio.timeout(self.options.store_patience):
                    found = await self._storage.find_claim(claim_id)
            except Exception as again:
                await asyncio.sleep(self._outage.failed("say what was claimed", again))
                continue
            if not found:  # it may be on its way even now; from here on it is the keeper's
                self.doubtful[claim_id] = sent + 4 * self.options.lease
            self._take(found, limit, sent)
            return

    async def _written(self, ended: list[Ended], refused: frozenset[Hold]) -> None:
        """The store has applied what has ended, apart from what it refused."""
        held, reports = self.held, self.reports
        is_told = reports.tells_all()
        for attempt, settlement in ended:
            held.pop(attempt.key, None)
            was_written = not refused or Hold(*attempt.key) not in refused
            if attempt.completion is not None:
                await self._completed(attempt, settlement, attempt.completion, was_written)
            elif was_written or (attempt.repeated and await self._was_written(settlement)):
                if is_told:
                    reports.settled(attempt.task, settlement)
            else:
                reports.lost(attempt.task, f"{settlement.status} was refused, for this attempt is over")

    async def _completed(self, attempt: Attempt, after: Settlement, completion: Settlement, was_written: bool) -> None:
        """A function that completed itself has ended; what it committed, nothing `after` it can change."""
        task = attempt.task
        if was_written:
            if attempt.returned:
                self.reports.log(logging.ERROR, task, "failed: %s, now %s", UNCOMMITTED, after.status)
            self.reports.settled(task, after)
            return
        try:
            async with asyncio.timeout(self.options.store_patience):
                (now,) = await self._storage.get([task.id])
        except Exception:
            now = None
        if now is None or (now.runs > task.runs and (now.attempt == task.attempt or now.interval is not None)):
            if not attempt.returned:
                self.reports.log(logging.WARNING, task, "it had completed itself before: that stands")
            self.reports.settled(task, completion)
        else:
            self.reports.lost(task, f"{after.status} was refused, for this attempt is over")

    async def _was_written(self, settlement: Settlement) -> bool:
        """Whether a settlement that was refused now had been applied when its outcome was not learned."""
        try:
            async with asyncio.timeout(self.options.store_patience):
                (task,) = await self._storage.get([settlement.id])
        except Exception:
            return False
        if task is None:
            return settlement.forgotten
        return task.attempt == settlement.attempt and task.status is settlement.status

    def _take(self, claimed: Sequence[Task], limit: int, sent: float) -> None:
        """Start what was claimed, if there is still a reason to: a stop, or too late an answer, comes first."""
        now = self.loop.time()
        expires_at = sent + self.options.lease - self.options.margin
        for number, task in enumerate(claimed):
            attempt = Attempt(self, task, now, expires_at)
            self.held[attempt.key] = attempt
            if self.reports.watched:
                self.reports.event(Kind.TASK_CLAIMED, task)
            if self._stopping or number >= limit or now >= expires_at:
                self.settle(attempt, release(task))
            else:
                attempt.begin()

    # What ends.

    def settle(self, attempt: Attempt, settlement: Settlement | None) -> None:
        """An attempt has ended, or is given up. None: there is nothing to write, for the task is lost."""
        if attempt.ended:
            self._returned(attempt)
            return
        attempt.ended = True
        if attempt.timer is not None:
            attempt.stop_timer()
        if attempt.began and self.reports.watched:
            self.reports.event(Kind.TASK_ENDED, attempt.task)
        if settlement is None:
            self.held.pop(attempt.key, None)
            self.reports.lost(attempt.task, Interruption.LOST.value)
        else:
            self._ended.append((attempt, settlement))
        if self._waiter is not None:
            self._wake()

    def settle_from_thread(self, attempt: Attempt, settlement: Settlement | None) -> None:
        """On any thread: `settle` on the loop's, all that ends at the same time with one wake-up."""
        self._from_threads.append((attempt, settlement))
        if not self._threads_call:  # only after the append: what is there when the call begins is seen by it
            self._threads_call = True
            try:
                self.loop.call_soon_threadsafe(self._settle_from_threads)
            except RuntimeError:  # the worker has stopped without it, and said so
                pass

    def _settle_from_threads(self) -> None:
        self._threads_call = False
        while self._from_threads:
            self.settle(*self._from_threads.popleft())

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        """Other tasks as they are now."""
        async with asyncio.timeout(self.options.store_patience):
            return await self._storage.get(ids)

    def settle_in(self, connection: Any, settlement: Settlement) -> Awaitable[None] | None:
        """On any thread: in a transaction of the function's own."""
        return self._storage.settle_in(connection, settlement)

    def abandon(self, attempt: Attempt) -> None:
        """It goes on after its end. There is only so much room for that."""
        self.abandoned.add(attempt)
        self.reports.log(
            logging.ERROR,
            attempt.task,
            "abandoned, for it does not end (%s): %d such on lane %s, at most %d are replaced",
            attempt.interruption.value if attempt.interruption is not None else "",
            len(self.abandoned),
            self.lane,
            self.options.max_abandoned,
        )
        self.reports.event(Kind.TASK_ABANDONED, attempt.task)
        if len(self.abandoned) > self.options.max_abandoned and not self._stuck:
            self._stuck = True
            say(
                logging.ERROR,
                "%s: lane %s claims nothing any more: too many tasks do not end",
                self.reports.name,
                self.lane,
            )
            self.reports.event(Kind.CONSUMER_STUCK, detail=len(self.abandoned))

    def _returned(self, attempt: Attempt) -> None:
        """What was abandoned has ended after all."""
        if attempt not in self.abandoned:
            return
        self.abandoned.discard(attempt)
        self.reports.log(logging.WARNING, attempt.task, "has ended, long after it was abandoned")
        self.reports.event(Kind.TASK_RETURNED, attempt.task)
        if self._stuck and len(self.abandoned) <= self.options.max_abandoned:
            self._stuck = False
            say(logging.WARNING, "%s: lane %s claims again", self.reports.name, self.lane)
            self.reports.event(Kind.CONSUMER_RECOVERED, detail=len(self.abandoned))
            self._wake()

    # Where functions run.

    def run_on_thread(self, attempt: Attempt) -> None:
        try:
            started = self._threads.submit(attempt.run_on_thread)
        except Exception as error:
            self.settle(attempt, self._released(attempt, "thread", error))
        else:
            started.add_done_callback(lambda future: self._has_run(attempt, future))

    def _has_run(self, attempt: Attempt, future: Future[None]) -> None:
        """On any thread. An attempt on a thread ends well, unless there was no thread for it."""
        error = None if future.cancelled() else future.exception()
        if error is not None and not attempt.ended:
            self.settle_from_thread(attempt, self._released(attempt, "thread", error))

    def run_in_process(self, attempt: Attempt) -> PoolFuture[Outcome]:
        place = place_of(attempt.definition)
        future = self._processes.submit("run", place, attempt.task, attempt.deadline(), ProgressOf(attempt))
        future.add_done_callback(attempt.has_run_in_process)
        return future

    def no_process(self, attempt: Attempt, error: BaseException) -> Settlement:
        """On any thread: there was no process for it."""
        return self._released(attempt, "process", error)

    def _released(self, attempt: Attempt, missing: str, error: BaseException) -> Settlement:
        """It has not run, which is no fault of its own."""
        message = "released: no %s could be started for it (%s)"
        self.reports.log(logging.ERROR, attempt.task, message, missing, error)
        return release(attempt.task, START_PAUSE)

    def _new_threads(self) -> Pool:
        return Pool(
            self.lane.concurrency + self.options.max_abandoned + 1,
            thread_name_prefix=f"{self.options.name}-{self.lane.queues[0]}",
            name=f"{self.options.name} {self.lane}",
        )

    def _new_processes(self) -> Pool:
        return Pool(
            self.lane.concurrency,
            runtime="process",
            worker=TaskProcess,
            min_workers=0,
            name=f"{self.options.name} {self.lane}",
            log_errors=False,
        )

    # Waiting.

    async def _wait_for_work(self, limit: int) -> None:
        """Until the store says that something may be due, something ends, or `poll_interval` has passed."""
        offer = None if self._hander is None or self.held else self._new_claim_id()
        began = self.loop.time()
        woken = self._wake_up()
        hint = self.loop.create_task(self._hint_and_wake(offer))
        handed: Handed | None = None
        try:
            await woken
        finally:
            self._waiter = None
            if not hint.done():
                hint.cancel()
                await asyncio.wait((hint,))
            if not hint.cancelled():
                handed = hint.result()
        self._idle = handed is not None and bool(handed.claimed)  # what came was for this one alone
        if handed is not None:
            self._take(handed.claimed, limit, began + handed.after)
        elif offer is not None:
            await self._learn(offer, limit, began)

    async def _hint_and_wake(self, offer: str | None) -> Handed | None:
        """Sooner than who waits for a task would hear of its end."""
        try:
            return await self._hint(offer)
        finally:
            self._wake()

    async def _hint(self, offer: str | None) -> Handed | None:
        """What the store has handed over; None if nobody knows."""
        wait = self.options.poll_interval
        if self._misses > 1:  # a store may say so without end, of a queue whose limit is reached
            pause = min(FIRST_PAUSE * 2.0 ** min(self._misses - 2, 20), wait)
            await asyncio.sleep(pause)
            wait -= pause
        if wait <= 0:
            return Handed()
        began = self.loop.time()
        handed: Handed | None = None
        try:
            async with asyncio.timeout(wait + self.options.store_patience):
                handed = await self._wait_in_store(offer, wait)
        except Exception as error:
            await asyncio.sleep(self._outage.failed("wait for work", error))
        if handed is not None and handed.claimed:
            self._misses = 0
        else:
            self._misses = self._misses + 1 if self.loop.time() - began < wait else 0
        return handed

    async def _wait_in_store(self, offer: str | None, seconds: float) -> Handed:
        queues, lease = self.lane.queues, self.options.lease
        if self._hander is not None and offer is not None:
            return await self._hander.wait_to_claim(queues, seconds, worker=self.worker, lease=lease, claim_id=offer)
        await self._storage.wait_for_work(queues, seconds)
        return Handed()

    async def _woken(self) -> None:
        woken = self._wake_up()
        try:
            await woken
        finally:
            self._waiter = None

    def _wake_up(self) -> asyncio.Future[None]:
        """What the next `_wake` ends."""
        self._waiter = self.loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _RenewedPool:
    """A pool that is made when it is needed, and anew if the last one has failed: the next may have more luck."""

    def __init__(self, make: Callable[[], Pool]) -> None:
        self._make = make
        self._pool: Pool | None = None

    def submit(self, fn: Any, /, *args: Any) -> PoolFuture[Any]:
        if self._pool is not None:
            try:
                return self._pool.submit(fn, *args)
            except PoolFailed:
                self.close()
        self._pool = self._make()
        return self._pool.submit(fn, *args)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close(grace=CLOSE_GRACE)
            self._pool = None

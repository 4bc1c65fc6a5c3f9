"""Connects one lane with the store: sends settlements and receives claimed tasks.

- One exchange is in flight at a time. Attempts that end meanwhile go with the next exchange, which begins at once.
- The lane keeps a settlement until the store confirms it. The store rejects a repeated settlement by its attempt
  number, so repeating is safe.
- If the answer to a claim is lost, the store may have made the claim. `StoreExchange` asks the store by the claim's id
  before it claims again. If the store does not know the id, the request may still be on its way: the claim is
  *doubtful* for four leases, and the heartbeat releases its tasks if they appear. So is a claim that has no answer when
  the worker stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from bullpen import primitives
from bullpen.tasks.model.task import Settlement, Task
from bullpen.tasks.storage.port import AttemptKey, Storage
from bullpen.tasks.worker.attempt import UNCOMMITTED, TaskAttempt
from bullpen.tasks.worker.options import Lane, WorkerOptions
from bullpen.tasks.worker.reports import Outage, Reports
from bullpen.tasks.worker.served_queues import named_queues

FIRST_PAUSE = 0.01  # seconds, after the second notification in a row without a claim
IN_A_ROW = 0.1  # seconds between two notifications in a row; a later one is of another task, which others may get
DOUBTFUL_FOR = 4  # leases


class ExchangeAnswer(NamedTuple):
    """`sent`: when the request was sent, on the loop's clock; leases count from there."""

    claimed: Sequence[Task]
    sent: float
    rejected: frozenset[AttemptKey] | None  # of the settlements; None: the store has not confirmed them


class StoreExchange:
    """The store, as one lane sees it. Every method runs on the loop's thread."""

    def __init__(self, storage: Storage, lane: Lane, options: WorkerOptions, worker: str, reports: Reports) -> None:
        self.doubtful: dict[str, float] = {}  # claim ids, and until when; other threads may copy it
        self._storage = storage
        self.queues = named_queues(lane)  # `ServedQueues` adds those that match a pattern
        self._name = lane.queues[0]
        self._lease = options.lease
        self._patience = options.store_patience
        self._poll_interval = options.poll_interval
        self._worker = worker
        self._reports = reports
        self._outage = Outage(reports, f"lane {lane}", longest=options.longest_pause)
        self._loop = asyncio.get_running_loop()
        self._claims = 0
        self._misses = 0  # notifications in a row without a claim or a settlement

    # Settle and claim.

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> ExchangeAnswer:
        """Send settlements and claim at most `limit` tasks, in one transaction of the store."""
        self._claims += 1
        claim_id = f"{self._worker}/{self._name}/{self._claims}"
        sent = self._loop.time()
        try:
            return await self._exchange(settlements, limit, claim_id, sent)
        except asyncio.CancelledError:  # the worker stops, and the store has not answered
            if limit > 0:
                self._doubt(claim_id, sent)
            raise

    async def _exchange(
        self, settlements: Sequence[Settlement], limit: int, claim_id: str, sent: float
    ) -> ExchangeAnswer:
        primitives.failpoint("exchange.before")
        try:
            async with asyncio.timeout(self._patience):
                exchange = await self._storage.exchange(
                    settlements,
                    worker=self._worker,
                    queues=self.queues,
                    limit=limit,
                    lease=self._lease,
                    claim_id=claim_id,
                )
        except Exception as error:
            return ExchangeAnswer(await self._resolve(claim_id, limit, sent, error), sent, None)
        primitives.failpoint("exchange.after")
        self._outage.over()
        if exchange.claimed or settlements:  # a settlement may notify this lane, too
            self._misses = 0
        return ExchangeAnswer(exchange.claimed, sent, exchange.rejected)

    async def _resolve(self, claim_id: str, limit: int, sent: float, error: Exception) -> Sequence[Task]:
        """The answer to an exchange is lost: find out what it has claimed. The lane repeats the settlements."""
        await asyncio.sleep(self._outage.failed("exchange", error))
        return await self._find_claim(claim_id, sent) if limit > 0 else ()

    async def _find_claim(self, claim_id: str, sent: float) -> Sequence[Task]:
        """The tasks that this claim has got. Asks until the store answers."""
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    found = await self._storage.find_claim(claim_id)
            except Exception as error:
                await asyncio.sleep(self._outage.failed("lookup of a claim", error))
                continue
            if not found:
                self._doubt(claim_id, sent)
            return found

    def _doubt(self, claim_id: str, sent: float) -> None:
        self.doubtful[claim_id] = sent + DOUBTFUL_FOR * self._lease

    # Wait for work.

    async def wait_for_work(self) -> None:
        """Wait until a task may be due, at most `poll_interval` seconds."""
        wait = self._poll_interval
        if self._misses > 1:  # the store repeats the notification while the limit of a queue is reached
            pause = min(FIRST_PAUSE * 2.0 ** min(self._misses - 2, 20), wait)
            await asyncio.sleep(pause)
            wait -= pause
        if wait <= 0:
            return
        began = self._loop.time()
        try:
            async with asyncio.timeout(wait + self._patience):
                await self._storage.wait_for_work(self.queues, wait)
        except Exception as error:
            await asyncio.sleep(self._outage.failed("waiting for work", error))
        self._misses = self._misses + 1 if self._loop.time() - began < min(wait, IN_A_ROW) else 0

    # Reports.

    async def report(self, attempt: TaskAttempt, settlement: Settlement, *, rejected: bool) -> Settlement | None:
        """Log the end of an attempt. Returns the settlement that the store has applied; None: another attempt has the
        task. A rejected settlement may have been applied before: then the store is asked.
        """
        if attempt.completion is not None:
            return await self._report_completed(attempt, settlement, attempt.completion, rejected=rejected)
        if not rejected or (attempt.repeated and await self._was_applied(settlement)):
            self._reports.settled(attempt.task, settlement, attempt.ran)
            return settlement
        self._reports.lost(attempt.task, f"the store rejected {settlement.status}: another attempt has the task")
        return None

    async def _report_completed(
        self, attempt: TaskAttempt, after: Settlement, completion: Settlement, *, rejected: bool
    ) -> Settlement | None:
        """The function has called `complete()`. If it has committed, the store rejects the settlement `after` it."""
        task = attempt.task
        if not rejected:
            if attempt.returned:
                self._reports.log(logging.ERROR, task, "failed: %s; now %s", UNCOMMITTED, after.status)
            self._reports.settled(task, after, attempt.ran)
            return after
        now = await self._get(task.id)
        if now is None or (
            now.completed_runs > task.completed_runs and (now.attempt == task.attempt or now.interval is not None)
        ):
            if not attempt.returned:
                self._reports.log(logging.WARNING, task, "raised after complete(): the completion stands")
            self._reports.settled(task, completion, attempt.ran)
            return completion
        self._reports.lost(task, f"the store rejected {after.status}: another attempt has the task")
        return None

    async def _was_applied(self, settlement: Settlement) -> bool:
        """Whether the store has applied a settlement whose first answer was lost."""
        try:
            async with asyncio.timeout(self._patience):
                (task,) = await self._storage.get([settlement.id])
        except Exception:
            return False
        if task is None:
            return settlement.forgotten
        return task.attempt == settlement.attempt and task.status is settlement.status

    async def _get(self, task_id: str) -> Task | None:
        try:
            async with asyncio.timeout(self._patience):
                (task,) = await self._storage.get([task_id])
        except Exception:
            return None
        return task

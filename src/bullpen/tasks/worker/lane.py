"""A lane at work: its permits, the attempts that hold them, and the threads and processes that run functions.

A permit comes before a claim: the lane claims no more tasks than it has free permits. A task holds its permit from the
claim to the confirmed settlement, so the store never shows more running tasks than there are permits. `exchange.py`
talks to the store.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.policies import CallPolicy
from bullpen.pools.pool import Pool
from bullpen.tasks.model.events import Event
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.task import Settlement, Step, Task, release
from bullpen.tasks.storage.port import AttemptKey, Storage
from bullpen.tasks.worker.attempt import AttemptId, Interruption, ProgressOf, TaskAttempt
from bullpen.tasks.worker.exchange import StoreExchange
from bullpen.tasks.worker.history_tally import EndedAttempt, HistoryTally
from bullpen.tasks.worker.in_process import Outcome, TaskProcess, place_of
from bullpen.tasks.worker.lane_threads import LaneThreads, RenewedPool
from bullpen.tasks.worker.options import Lane, WorkerOptions
from bullpen.tasks.worker.poison_isolation import PoisonIsolation
from bullpen.tasks.worker.reports import Reports, log_message
from bullpen.tasks.worker.scope import WorkerScope
from bullpen.telemetry import Kind

T = TypeVar("T")
Ended = tuple[TaskAttempt, Settlement]

START_PAUSE = 5.0  # seconds until a task without a thread is tried again


class LaneRunner:
    """Runs the tasks of one lane. Methods run on the loop's thread unless they say otherwise."""

    def __init__(
        self,
        lane: Lane,
        options: WorkerOptions,
        registry: TaskRegistry,
        scope: WorkerScope,
        storage: Storage,
        worker: str,
        reports: Reports,
        poison_isolation: PoisonIsolation,
    ) -> None:
        self.lane = lane
        self.poison_isolation = poison_isolation
        self.options = options
        self.registry = registry
        self.scope = scope
        self.worker = worker
        self.reports = reports
        self.loop = asyncio.get_running_loop()
        self.loop_thread = threading.get_ident()
        self.held: dict[AttemptId, TaskAttempt] = {}  # one for each permit in use; other threads may copy it
        self.abandoned: set[TaskAttempt] = set()  # settled, and still running
        self.tally = HistoryTally()
        self.exchange = StoreExchange(storage, lane, options, worker, reports)
        self._storage = storage
        self._lease = options.lease - options.margin  # seconds from a claim until its attempts are interrupted
        self._ended: list[Ended] = []
        self._waiter: asyncio.Future[None] | None = None
        self._work: asyncio.Task[None] | None = None  # the wait for work
        self._stopping = False
        self._stuck = False
        self._idle = False  # the last claim got fewer tasks than it asked for
        self._threads = LaneThreads(self._new_threads, self.settle, self._release_without_thread)
        self._processes = RenewedPool(self._new_processes)

    # Its life.

    async def serve(self) -> None:
        """Claim, run and settle until stopped, and then until everything held is settled."""
        try:
            while not (self._stopping and not self.held):
                ended, self._ended = self._ended, []
                limit = self._room(returning=len(ended))
                if ended or (limit and not self._idle):
                    await self._exchange(ended, limit)
                    await asyncio.sleep(0)  # attempts that end at once go with the next exchange
                else:
                    await self._wait(for_work=limit > 0)
        finally:
            if self._work is not None:
                self._work.cancel()
                await asyncio.wait((self._work,))

    def stop_claiming(self) -> None:
        self._stopping = True
        self._wake()

    def serve_queues(self, queues: tuple[str, ...]) -> None:
        """Claim from these queues from now on."""
        self.exchange.queues = queues
        self._idle = False
        if self._work is not None:
            self._work.cancel()  # it waits for work of the queues before
        self._wake()

    def interrupt_all(self, why: Interruption) -> None:
        for attempt in list(self.held.values()):
            attempt.interrupt(why)

    def leave_behind(self) -> list[str]:
        """The store does not answer, and the worker has to stop. Returns the ids of the tasks that it holds.

        Other workers take them when their leases expire.
        """
        for attempt in self.held.values():
            self.reports.lost(attempt.task, "the store does not answer; another worker runs it when its lease expires")
        return [attempt.task.id for attempt in self.held.values()]

    def close(self) -> None:
        """Close the pools after every task is settled or abandoned. Abandoned threads keep running."""
        self._threads.close()
        self._processes.close()

    @property
    def claims(self) -> bool:
        """Whether it claims tasks when it has free permits."""
        return not self._stopping and not self._stuck

    def _room(self, returning: int) -> int:
        """Free permits, with those that the next exchange returns."""
        if self._stopping or self._stuck or not self.exchange.queues:
            return 0
        return self.lane.concurrency - len(self.held) + returning

    # Claims.

    async def _exchange(self, ended: list[Ended], limit: int) -> None:
        """Settle the ended attempts, and start the claimed tasks."""
        answer = await self.exchange.exchange([settlement for _, settlement in ended], limit)
        if answer.rejected is None:
            for attempt, _ in ended:
                attempt.repeated = True
            self._ended[:0] = ended
        else:
            if limit:
                self._idle = len(answer.claimed) < limit
            if ended:
                await self._settled(ended, answer.rejected)
        if answer.claimed:
            self._take(answer.claimed, limit, answer.sent)

    async def _settled(self, ended: list[Ended], rejected: frozenset[AttemptKey]) -> None:
        """The store has applied these settlements, apart from the rejected ones."""
        reports_all = self.reports.tells_all()
        now = self.loop.time()
        applied: list[EndedAttempt] = []
        for attempt, settlement in ended:
            self.held.pop(attempt.key, None)
            if reports_all or rejected or attempt.completion is not None:
                was_rejected = AttemptKey(*attempt.key) in rejected
                kept = await self.exchange.report(attempt, settlement, rejected=was_rejected)
                if kept is None:
                    continue
                settlement = kept  # noqa: PLW2901
            task = attempt.task
            applied.append((task, settlement, attempt.ran, (task.started_at or 0.0) + now - attempt.claimed_at))
        self.tally.ended(applied)

    def _take(self, claimed: Sequence[Task], limit: int, sent: float) -> None:
        """Start claimed tasks. Release them if the worker stops, or if the answer came after the lease's end."""
        now = self.loop.time()
        expires_at = sent + self._lease
        most = 0 if self._stopping or now >= expires_at else limit
        self.tally.begun(claimed[:most])
        for number, task in enumerate(claimed):
            attempt = TaskAttempt(self, task, now, expires_at)
            self.held[attempt.key] = attempt
            if self.reports.watched:
                self.reports.event(Kind.TASK_CLAIMED, task)
            if number < most:
                attempt.begin()
            else:
                self.settle(attempt, release(task))

    # Ended attempts.

    def settle(self, attempt: TaskAttempt, settlement: Settlement | None) -> None:
        """An attempt has ended or is abandoned. None: another worker has the task, and there is nothing to write."""
        if attempt.ended:
            self._returned(attempt)
            return
        attempt.ended = True
        if attempt.timer is not None:
            attempt.stop_timer()
        if attempt.began_at is not None:
            if attempt.ran is None:
                attempt.ran = self.loop.time() - attempt.began_at
            if self.reports.watched:
                self.reports.event(Kind.TASK_ENDED, attempt.task, ran=attempt.ran)
        if settlement is None:
            self.held.pop(attempt.key, None)
            self.reports.lost(attempt.task, Interruption.LOST.value)
        else:
            if attempt.progress is not None:
                settlement = attempt.with_progress(settlement)
            self._ended.append((attempt, settlement))
        if self._waiter is not None:
            self._wake()

    def settle_from_thread(self, attempt: TaskAttempt, settlement: Settlement | None) -> None:
        """On any thread: call `settle` on the loop's thread."""
        self._threads.end(attempt, settlement)

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        """Read other tasks from the store."""
        async with asyncio.timeout(self.options.store_patience):
            return await self._storage.get(ids)

    async def find_event(self, name: str) -> Event | None:
        async with asyncio.timeout(self.options.store_patience):
            return await self._storage.wait_for_event(name, 0.0)

    def settle_in(self, connection: Any, settlement: Settlement) -> Awaitable[None] | None:
        """On any thread: settle in a transaction of the function."""
        return self._storage.settle_in(connection, settlement)

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        async with asyncio.timeout(self.options.store_patience):
            return await self._storage.save_step(hold, step)

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> Awaitable[None] | None:
        """On any thread: in a transaction of the function."""
        return self._storage.save_step_in(connection, hold, step)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """On a thread of the lane: run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def abandon(self, attempt: TaskAttempt) -> None:
        """Count an attempt whose function keeps running. Beyond `max_abandoned` the lane claims nothing."""
        self.abandoned.add(attempt)
        self.reports.log(
            logging.ERROR,
            attempt.task,
            "abandoned: its function keeps running (%s); %d abandoned on lane %s, limit %d",
            attempt.interruption.value if attempt.interruption is not None else "",
            len(self.abandoned),
            self.lane,
            self.options.max_abandoned,
        )
        self.reports.event(Kind.TASK_ABANDONED, attempt.task)
        if len(self.abandoned) > self.options.max_abandoned and not self._stuck:
            self._stuck = True
            log_message(
                logging.ERROR,
                "%s: lane %s claims no tasks: too many abandoned functions keep running",
                self.reports.name,
                self.lane,
            )
            self.reports.event(Kind.TASK_WORKER_STUCK, detail=len(self.abandoned))

    def _returned(self, attempt: TaskAttempt) -> None:
        """The function of an abandoned attempt has ended."""
        if attempt not in self.abandoned:
            return
        self.abandoned.discard(attempt)
        self.reports.log(logging.WARNING, attempt.task, "ended after it was abandoned")
        self.reports.event(Kind.TASK_RETURNED, attempt.task)
        if self._stuck and len(self.abandoned) <= self.options.max_abandoned:
            self._stuck = False
            log_message(logging.WARNING, "%s: lane %s claims again", self.reports.name, self.lane)
            self.reports.event(Kind.TASK_WORKER_RECOVERED, detail=len(self.abandoned))
            self._wake()

    # Where functions run.

    def run_on_thread(self, attempt: TaskAttempt) -> None:
        self._threads.run(attempt)

    def release_unstarted(self) -> None:
        """Release tasks for which the pool could not start a thread. The heartbeat calls this every second."""
        self._threads.release_unstarted()

    def _release_without_thread(self, attempt: TaskAttempt, error: BaseException) -> None:
        self.settle(attempt, self._released(attempt, "thread", error))

    def run_in_process(self, attempt: TaskAttempt) -> PoolFuture[Outcome]:
        place = place_of(attempt.definition)
        future = self._processes.submit("run", place, attempt.task, attempt.deadline(), ProgressOf(attempt))
        future.add_done_callback(attempt.has_run_in_process)
        return future

    def no_process(self, attempt: TaskAttempt, error: BaseException) -> Settlement:
        """On any thread: the pool could not start a process for it."""
        return self._released(attempt, "process", error)

    def _released(self, attempt: TaskAttempt, missing: str, error: BaseException) -> Settlement:
        """The attempt has not run: release it without counting it."""
        message = "released: no %s could be started for it (%s)"
        self.reports.log(logging.ERROR, attempt.task, message, missing, error)
        return release(attempt.task, START_PAUSE)

    def _new_threads(self) -> Pool:
        return Pool(
            self.lane.concurrency + self.options.max_abandoned + 1,
            thread_name_prefix=f"{self.options.name}-{self.lane.queues[0]}",
            name=self._pool_name("thread"),
        )

    def _new_processes(self) -> Pool:
        return Pool(
            self.lane.concurrency,
            runtime="process",
            worker=TaskProcess,
            min_workers=0,
            name=self._pool_name("process"),
            calls=CallPolicy(log_errors=False),
        )

    def _pool_name(self, runtime: str) -> str:
        """A function may choose another runtime than its lane has."""
        return f"{self.options.name} {dataclasses.replace(self.lane, runtime=runtime)}"

    # Waiting.

    async def _wait(self, *, for_work: bool) -> None:
        """Wait until an attempt ends, the lane is to stop or, `for_work`, a task may be due.

        The wait for work goes on while attempts end: the store notifies it of every task that may become due.
        """
        self._work_has_come()  # during the last exchange: a new wait looks again
        if for_work and self._work is None:
            self._work = self.loop.create_task(self._wait_for_work())
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._work_has_come():
            self._idle = False

    def _work_has_come(self) -> bool:
        """Whether the wait for work has ended."""
        if self._work is None or not self._work.done():
            return False
        if not self._work.cancelled():
            self._work.result()
        self._work = None
        return True

    async def _wait_for_work(self) -> None:
        """A done-callback would wake the lane one turn of the loop later."""
        try:
            await self.exchange.wait_for_work()
        finally:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

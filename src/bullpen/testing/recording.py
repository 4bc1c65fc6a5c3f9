"""A store that records every change."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from bullpen.tasks.model.events import Event
from bullpen.tasks.model.failure_groups import FailureRow
from bullpen.tasks.model.history import HistoryRow
from bullpen.tasks.model.schedule_changes import starts_others
from bullpen.tasks.model.task import FINAL, RUNNING, Progress, Settlement, Step, Task
from bullpen.tasks.model.unique import RETURN, Duplicates
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
    Storage,
    TaskFilter,
    WorkerRecord,
    batch_of,
)
from bullpen.testing.history import Op, Record, Terms, Write

_numbers = itertools.count(1)


class _StoreCall(NamedTuple):
    """Something that is asked of the store."""

    op: Op
    actor: str
    since: float | None
    store_at: float
    id: str


class RecordingStorage:
    """Passes everything on to `storage`, and writes a record of every change to the history.

    `exact`: nothing can come between a change and its record, as with a store in memory on one thread. Otherwise what
    is asked is written first, with an unknown outcome, so that a process that is killed leaves a trace.
    `in_transaction` says which tasks commit their effects together with their acknowledgement.
    """

    def __init__(
        self,
        storage: Storage,
        write: Write,
        actor: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        exact: bool = False,
        in_transaction: Callable[[Task], bool] = lambda _: False,
    ) -> None:
        self._storage = storage
        self._write = write
        self._actor = actor
        self._clock = clock
        self._exact = exact
        self._in_transaction = in_transaction
        self._name = "" if exact else f"{actor}/{os.getpid()}/{next(_numbers)}"
        self._calls = itertools.count(1)
        self.late = False  # the caller of this call has stopped waiting
        self.durable = storage.durable

    async def open(self) -> None:
        await self._storage.open()

    async def close(self) -> None:
        await self._storage.close()

    def another(self) -> Storage | None:
        other = self._storage.another()
        if other is None:
            return None
        return RecordingStorage(
            other, self._write, self._actor, clock=self._clock, exact=self._exact, in_transaction=self._in_transaction
        )

    async def now(self) -> float:
        return await self._storage.now()

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        call = await self._ask("enqueue", [(task.id, 0) for task in tasks])
        kept = await self._storage.add(tasks, duplicates)
        for task, existing in zip(tasks, kept, strict=True):
            terms = self._terms(task)
            is_old = existing.attempt > 0 or existing.is_final  # it was there, and stays as it is
            when = {} if is_old else {"eta": _eta_of(existing), "scheduled_at": existing.scheduled_at}
            self._answer(call, task.id, 0, rejected=existing.id != task.id, terms=terms, **when)
        return kept

    def _terms(self, task: Task) -> Terms:
        return Terms(
            queue=task.queue,
            priority=task.priority,
            max_retries=task.max_retries,
            interval=task.interval,
            expires=task.expires,
            at_most_once=task.at_most_once,
            unique_key=task.unique_key if task.unique_scope == "alive" else None,
            concurrency_key=task.concurrency_key,
            in_transaction=self._in_transaction(task),
            schedule=task.id if task.cron is not None else None,
            starts_others=starts_others(task),
        )

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
        settling = await self._ask("settle", [(one.id, one.attempt) for one in settlements], worker)
        born = [child for one in settlements for child in one.children]
        adding = await self._ask("enqueue", [(child.id, 0) for child in born], worker)
        claiming = await self._ask("claim", [("", 0)] if limit else [], worker, permits=limit)
        exchange = await self._storage.exchange(
            settlements, worker=worker, queues=queues, limit=limit, lease=lease, claim_id=claim_id
        )
        after = await self._after(settlements)
        for one in settlements:
            rejected = AttemptKey(one.id, one.attempt) in exchange.rejected
            facts = (
                _facts_of(after[one.id]) if one.id in after and not rejected else _facts_of_settlement(settling, one)
            )
            kind = "" if one.error is None else one.error.kind
            facts["suspended"] = one.suspended
            self._answer(settling, one.id, one.attempt, rejected=rejected, error=kind, **facts)
            for child in one.children:
                eta = None if child.waits_for else child.eta or adding.store_at
                self._answer(
                    adding,
                    child.id,
                    0,
                    rejected=rejected,
                    eta=eta,
                    scheduled_at=child.scheduled_at,
                    terms=self._terms(child),
                )
        for task in exchange.claimed:
            self._answer(claiming, task.id, task.attempt, lease=lease, late=self.late)
        self._answer_nothing(claiming, exchange.claimed)
        return exchange

    async def _after(self, settlements: Sequence[Settlement]) -> dict[str, Task]:
        """Tasks as they are now, where no other client can have changed them since."""
        if not self._exact or not settlements:
            return {}
        tasks = await self._storage.get([one.id for one in settlements])
        return {task.id: task for task in tasks if task is not None and task.status is not RUNNING}

    def add_in(
        self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """Not recorded: only the committing caller learns the outcome."""
        return self._storage.add_in(connection, tasks, duplicates)

    def now_in(self, connection: Any) -> float | Awaitable[float]:
        return self._storage.now_in(connection)

    def settle_in(self, connection: Any, settlement: Settlement) -> Awaitable[None] | None:
        """The outcome stays unknown: only the committing caller learns it."""
        waiting = self._storage.settle_in(connection, settlement)
        asked = Record(
            at=self._clock(),
            actor=self._actor,
            op="settle",
            outcome="unknown",
            task=settlement.id,
            attempt=settlement.attempt,
            status=str(settlement.status),
        )
        self._write(asked)
        return waiting

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        return await self._storage.find_claim(claim_id)

    async def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        call = await self._ask("renew", [(hold.id, hold.attempt) for hold in holds])
        renewal = await self._storage.renew(holds, lease)
        for hold in holds:
            self._answer(call, hold.id, hold.attempt, rejected=hold in renewal.lost, lease=lease)
        return renewal

    async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        call = await self._ask("progress", [(hold.id, hold.attempt)])
        applied = await self._storage.note_progress(hold, progress)
        self._answer(call, hold.id, hold.attempt, rejected=not applied)
        return applied

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        call = await self._ask("step", [(hold.id, hold.attempt)])
        applied = await self._storage.save_step(hold, step)
        has_ended = step.result is not None or step.error is not None
        self._answer(call, hold.id, hold.attempt, rejected=not applied, step=step.name if has_ended else "")
        return applied

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> Awaitable[None] | None:
        return self._storage.save_step_in(connection, hold, step)

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        owners: dict[str, str] = {}

        def noting(task: Task, now: float) -> Settlement | None:
            owners[task.id] = task.worker or ""
            return decide(task, now)

        call = await self._ask("rescue", [("", 0)])
        rescued = await self._storage.rescue_expired(noting, limit=limit, dead_workers=dead_workers)
        for task in rescued:
            kind = task.error.kind if task.error is not None and task.error.attempt == task.attempt else ""
            self._answer(call, task.id, task.attempt, owner=owners[task.id], error=kind, **_facts_of(task))
        self._answer_nothing(call, rescued)
        return rescued

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        await self._storage.wait_for_work(queues, timeout)

    async def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        return await self._storage.emit(name, payload, ttl)

    async def wait_for_event(self, name: str, timeout: float) -> Event | None:
        return await self._storage.wait_for_event(name, timeout)

    async def events(self, *, limit: int, after: str | None = None) -> Sequence[Event]:
        return await self._storage.events(limit=limit, after=after)

    async def wait_for_result(self, task_id: str, completed_runs: int, timeout: float) -> Task | None:
        return await self._storage.wait_for_result(task_id, completed_runs, timeout)

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return await self._storage.get(ids)

    async def list(
        self, which: TaskFilter, *, limit: int, after: str | None = None, newest: bool = False
    ) -> Sequence[Task]:
        return await self._storage.list(which, limit=limit, after=after, newest=newest)

    async def counts(self, limit: int | None = None) -> Counts:
        return await self._storage.counts(limit)

    async def first_pending(self, limit: int) -> Sequence[Task]:
        return await self._storage.first_pending(limit)

    async def list_pending(
        self, *, limit: int, queue: str | None = None, after: tuple[float, str] | None = None
    ) -> Sequence[Task]:
        return await self._storage.list_pending(limit=limit, queue=queue, after=after)

    async def count(self, which: TaskFilter) -> int:
        return await self._storage.count(which)

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change("cancel", ids, self._storage.cancel)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change("redrive", ids, self._storage.retry)

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        revived: set[str] = set()

        def noting(task: Task, now: float) -> Task | None:
            after = move(task, now)
            if task.is_final and after is not None and not after.is_final:
                revived.add(task.id)
            return after

        call = await self._ask("change", [(task_id, 0) for task_id in ids])
        changed = await self._storage.change(ids, noting)
        for task in changed:
            self._answer(
                call._replace(op="redrive") if task.id in revived else call, task.id, task.attempt, **_facts_of(task)
            )
        self._answer_nothing(call, changed)
        return changed

    async def _change(
        self, op: Op, ids: Sequence[str], change: Callable[[Sequence[str]], Awaitable[Sequence[Task]]]
    ) -> Sequence[Task]:
        call = await self._ask(op, [(task_id, 0) for task_id in ids])
        changed = await change(ids)
        for task in changed:
            self._answer(call, task.id, task.attempt, **_facts_of(task))
        existing = {task.id for task in changed}
        for task_id in ids:
            if task_id not in existing:
                self._answer(call, task_id, 0, rejected=True)
        return changed

    async def delete(self, ids: Sequence[str]) -> int:
        return await self._forget(self._storage.delete(ids))

    async def change_batch(self, verb: BatchVerb, which: TaskFilter, *, limit: int, cursor: str | None = None) -> Batch:
        """By id, so that the history has each task."""
        found = await self.list(which, limit=limit, after=cursor)
        if verb == "delete":
            return batch_of(found, [task for task in found if await self.delete([task.id])], limit)
        change = self.cancel if verb == "cancel" else self.retry
        return batch_of(found, await change([task.id for task in found]), limit)

    # Moving tasks between stores, which is no part of a history.

    async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._storage.import_tasks(tasks)

    async def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        return await self._storage.export_tasks(tasks)

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        call = await self._ask("expire", [("", 0)])
        late = await self._storage.expire(limit=limit)
        for task in late:
            self._answer(call, task.id, task.attempt, error="expired", **_facts_of(task))
        self._answer_nothing(call, late)
        return late

    async def prune(self, *, limit: int) -> int:
        return await self._forget(self._storage.prune(limit=limit))

    async def _forget(self, forgetting: Awaitable[int]) -> int:
        call = await self._ask("forget", [("", 0)])
        count = await forgetting
        self._answer(call, "", 0, count=count) if count else self._answer_nothing(call, ())
        return count

    # History.

    async def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow] = ()) -> None:
        await self._storage.add_history(rows, failures)

    async def history(
        self, step: int, since: float, until: float, *, queue: str | None = None, function: str | None = None
    ) -> Sequence[HistoryRow]:
        return await self._storage.history(step, since, until, queue=queue, function=function)

    async def failures(self, since: float) -> Sequence[FailureRow]:
        return await self._storage.failures(since)

    async def delete_failures(self, fingerprint: str, function: str | None = None) -> None:
        await self._storage.delete_failures(fingerprint, function)

    # Workers, queues, limits.

    async def save_worker(self, record: WorkerRecord) -> None:
        await self._storage.save_worker(record)

    async def delete_worker(self, worker: str) -> None:
        await self._storage.delete_worker(worker)

    async def workers(self) -> Sequence[WorkerRecord]:
        return await self._storage.workers()

    async def queues(self) -> frozenset[str]:
        return await self._storage.queues()

    async def pause(self, queue: str) -> None:
        call = await self._ask("pause", [])
        await self._storage.pause(queue)
        self._answer(call, "", 0, queue=queue)

    async def resume(self, queue: str) -> None:
        call = await self._ask("resume", [])
        await self._storage.resume(queue)
        self._answer(call, "", 0, queue=queue)

    async def paused(self) -> frozenset[str]:
        return await self._storage.paused()

    async def set_limit(self, limit: Limit) -> None:
        call = await self._ask("limit", [])
        await self._storage.set_limit(limit)
        self._answer(
            call,
            "",
            0,
            queue=limit.queue,
            permits=limit.max_running or 0,
            per_key=1 if limit.in_order else limit.max_running_per_key or 0,
            rate=limit.rate or 0.0,
        )

    async def limits(self) -> Sequence[Limit]:
        return await self._storage.limits()

    # Records.

    async def _ask(self, op: Op, about: Iterable[tuple[str, int]], actor: str = "", permits: int = 0) -> _StoreCall:
        """Something is asked of the store, and may be done from now on."""
        actor = actor or self._actor
        if self._exact:
            return _StoreCall(op, actor, None, await self._storage.now(), "")
        call = _StoreCall(op, actor, self._clock(), await self._storage.now(), f"{self._name}/{next(self._calls)}")
        for task, attempt in about:
            asked = Record(
                at=self._clock(),
                since=call.since,
                actor=actor,
                op=op,
                outcome="unknown",
                task=task,
                attempt=attempt,
                call=call.id,
                store_at=call.store_at,
                permits=permits,
            )
            self._write(asked)
        return call

    def _answer(self, call: _StoreCall, task: str, attempt: int, *, rejected: bool = False, **facts: Any) -> None:
        """It was done, or rejected."""
        self._write(
            Record(
                at=self._clock(),
                since=call.since,
                actor=call.actor,
                op=call.op,
                outcome="rejected" if rejected else "ok",
                task=task,
                attempt=attempt,
                call=call.id,
                store_at=call.store_at,
                **facts,
            )
        )

    def _answer_nothing(self, call: _StoreCall, done: Sequence[object]) -> None:
        """It was answered, and nothing was done."""
        if not done and not self._exact:
            self._answer(call, "", 0, rejected=True)


def _eta_of(task: Task) -> float | None:
    """None of one that waits for others, or for an event: when it is due is decided by another write."""
    return None if task.waits_for or task.awaits is not None else task.eta


def _facts_of(task: Task) -> dict[str, Any]:
    """The task after a change."""
    return {
        "status": str(task.status),
        "eta": None if task.status in FINAL else _eta_of(task),
        "scheduled_at": task.scheduled_at,
        "failures": task.failures,
        "crashes": task.crashes,
        "completed_runs": task.completed_runs,
    }


def _not_before(settlement: Settlement, now: float) -> float | None:
    """None if an event may make the task due earlier."""
    if settlement.awaits is not None:
        return None
    return settlement.eta if settlement.delay is None else now + settlement.delay


def _facts_of_settlement(call: _StoreCall, one: Settlement) -> dict[str, Any]:
    return {
        "status": str(one.status),
        "eta": _not_before(one, call.store_at),
        "scheduled_at": one.scheduled_at,
        "failures": one.failures,
        "crashes": one.crashes,
        "completed_runs": one.completed_runs,
    }

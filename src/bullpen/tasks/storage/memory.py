"""Tasks in this process's memory: the readable reference. Nothing survives the process.

One lock makes every method one atomic step, so that any number of threads and event loops may share the store.
"""

from __future__ import annotations

import asyncio
import bisect
import heapq
import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec

from bullpen.errors import StorageError
from bullpen.tasks.model.events import Event, ends_at
from bullpen.tasks.model.failure_groups import FAILURES_KEPT, FailureRow, merged
from bullpen.tasks.model.history import KEPT, MINUTE, HistoryRow, sum_of
from bullpen.tasks.model.ids import is_schedule
from bullpen.tasks.model.links import redriven_behind
from bullpen.tasks.model.task import (
    MAX_LEASE,
    NEVER,
    PENDING,
    RUNNING,
    Progress,
    Settlement,
    Step,
    Task,
    applies,
    cancelled_by_operator,
    claimed,
    expired,
    new_as_kept,
    prune_at,
    with_step,
    woken,
)
from bullpen.tasks.model.unique import RETURN, Duplicates, has_key, meet
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
    batch_of,
)
from bullpen.tasks.storage.rules import (
    QueueRoom,
    StoreRules,
    is_unawaited,
    keys_limit,
    most_starts,
    rate_period,
)

Entry = tuple[float, str]  # an instant and an id
_A_HAIR = 1e-6  # seconds that a timer may be early


class MemoryStorage(StoreRules):
    """Keeps tasks in dictionaries. `now` is its clock: seconds since the epoch. `elapsed` is the clock of leases, which
    no adjustment changes; unless it is given, it is the machine's, or `now` if that is given.
    """

    durable = False
    needs_no_loop = True  # except for the two waits

    def __init__(self, now: Callable[[], float] = time.time, elapsed: Callable[[], float] | None = None) -> None:
        self._now = now
        self._elapsed = elapsed or (time.monotonic if now is time.time else now)
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._due: dict[str, dict[int, _WaitingTasks]] = defaultdict(
            dict
        )  # by queue and priority; entries may be stale
        self._later: dict[str, list[Entry]] = defaultdict(list)  # heaps by queue, not due yet
        self._expiring: list[Entry] = []  # a heap of tasks that expire
        self._ending: list[Entry] = []  # a heap of final tasks, by the time at which they are pruned
        self._running: dict[str, Task] = {}
        self._leases: dict[str, float] = {}  # of running tasks: when the lease expires, by the clock of leases
        self._unique: dict[tuple[str, str], str] = {}  # by queue and unique key: the task that had the key last
        self._of_keys: dict[tuple[str, str], list[Entry]] = defaultdict(list)  # heaps, by the time of adding
        self._events: dict[str, Event] = {}
        self._awaiting: dict[str, set[str]] = defaultdict(set)  # by event: the unfinished tasks that await it
        self._workers: dict[str, WorkerRecord] = {}
        self._paused: set[str] = set()
        self._limits: dict[str, Limit] = {}
        self._starts: dict[str, deque[float]] = defaultdict(deque)  # in the current period, of queues with a rate
        self._history: dict[tuple[int, int, str, str], HistoryRow] = {}  # by step, instant, queue and function
        self._failures: dict[tuple[int, str, str, str], FailureRow] = {}
        self._history_looked_at = -math.inf  # the minute of the latest look for old rows
        self._wake_ups: set[_WakeUp] = set()

    async def open(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing: others may use the store."""

    def another(self) -> MemoryStorage:
        return self  # any loop may use it

    async def now(self) -> float:
        return self._now()

    # For blocking callers; `add_blocking` and `get_blocking` are below.

    def another_blocking(self) -> MemoryStorage:
        return self  # any thread may use it

    def open_blocking(self) -> None:
        """Does nothing."""

    def close_blocking(self) -> None:
        """Does nothing: others may use the store."""

    def now_blocking(self) -> float:
        return self._now()

    def check_reentry(self) -> None:
        """Never raises: no call waits for one of another thread."""

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        return self.add_blocking(tasks, duplicates)

    def add_blocking(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        with self._lock:
            now = self._now()
            if duplicates.policy == "reject":
                self._reject(tasks, duplicates, now)
            kept = [self._add_task(new_as_kept(task, now), duplicates, now) for task in tasks]
            kept = [self._tasks.get(task.id, task) for task in kept]  # one may be replaced twice
        self._wake()
        return kept

    def _reject(self, tasks: Sequence[Task], duplicates: Duplicates, now: float) -> None:
        """Raises TaskExists if another task has the unique key of one of them. Then none is added."""
        coming: dict[tuple[str, str | None], Task] = {}
        for task in tasks:
            if task.unique_key is not None and task.id not in self._tasks:
                place = (task.queue, task.unique_key)
                holder = self._holder(task, now) or coming.get(place)
                if holder is not None and holder.id != task.id:
                    meet(task, holder, duplicates, now)
                coming[place] = task

    def _holder(self, task: Task, now: float) -> Task | None:
        """The task that has the unique key of this one."""
        if task.unique_key is None:
            return None
        holder = self._tasks.get(self._unique.get((task.queue, task.unique_key), ""))
        return holder if holder is not None and has_key(holder, now) else None

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
        with self._lock:
            now = self._now()
            rejected = frozenset(
                AttemptKey(settlement.id, settlement.attempt)
                for settlement in settlements
                if not self._settle_task(settlement, now)
            )
            taken = []
            for task in self._claimable(queues, now, limit):
                mine = claimed(task, worker=worker, claim_id=claim_id, now=now, lease_until=now + lease)
                self._write(mine, now)
                if self._limits:
                    self._note_start(mine, now)
                self._leases[mine.id] = self._elapsed() + lease
                taken.append(mine)
        if settlements:
            self._wake()
        return Exchange(tuple(taken), rejected)

    def _claimable(self, queues: Sequence[str], now: float, limit: int) -> Iterator[Task]:
        """The next tasks that may start now. The caller writes each as running before it takes the next one."""
        rooms = self._rooms(queues, now)
        for queue in rooms:
            self._become_due(queue, now)
        if limit <= 0:
            return
        for priority in sorted({priority for queue in rooms for priority in self._due[queue]}, reverse=True):
            open_queues = [queue for queue, room in rooms.items() if room is None or room.left > 0]
            lines = [line for queue in open_queues if (line := self._due[queue].get(priority))]
            for task in self._in_order(lines, priority, rooms, now):
                yield task
                limit -= 1
                if limit <= 0:
                    break
            for line in lines:
                line.drop_while(self._is_stale)
            if limit <= 0:
                return

    def _in_order(
        self, lines: list[_WaitingTasks], priority: int, rooms: dict[str, QueueRoom | None], now: float
    ) -> Iterator[Task]:
        entries = iter(lines[0]) if len(lines) == 1 else heapq.merge(*lines)
        tasks, full = self._tasks, 0
        for entry in entries:
            task = tasks.get(entry[1])
            if task is None or task.status is not PENDING or task.eta != entry[0]:
                continue  # stale
            if task.queue not in rooms or task.priority != priority:
                continue  # of an earlier task with this id
            if task.eta > now:
                return  # it was due, and the clock was set back since
            if task.expires is not None and now >= task.expires:
                continue
            room = rooms[task.queue]
            if room is not None:
                if (room.in_order and not self._is_first(task)) or not room.has(task.concurrency_key):
                    continue
                room.take(task.concurrency_key)
                full += room.left == 0
            yield task
            if full == len(lines):
                return

    def _is_stale(self, entry: Entry) -> bool:
        """Whether an entry is out of date: its task is gone, is running, or is due at another instant."""
        task = self._tasks.get(entry[1])
        return task is None or task.status is not PENDING or task.eta != entry[0]

    def _become_due(self, queue: str, now: float) -> None:
        later = self._later[queue]
        while later and later[0][0] <= now:
            entry = heapq.heappop(later)
            task = self._tasks.get(entry[1])
            if task is not None and task.queue == queue and task.status is PENDING and task.eta == entry[0]:
                self._line(task).add(entry)

    def _line(self, task: Task) -> _WaitingTasks:
        lines = self._due[task.queue]
        line = lines.get(task.priority)
        if line is None:
            line = lines[task.priority] = _WaitingTasks()
        return line

    def _rooms(self, queues: Sequence[str], now: float) -> dict[str, QueueRoom | None]:
        """The queues in which tasks may start, and how many; None without a limit."""
        existing = [queue for queue in dict.fromkeys(queues) if queue not in self._paused]
        if not self._limits:
            return dict.fromkeys(existing)
        rooms = {queue: self._room(queue, now) for queue in existing}
        return {queue: room for queue, room in rooms.items() if room is None or room.left > 0}

    def _room(self, queue: str, now: float) -> QueueRoom | None:
        limit = self._limits.get(queue)
        if limit is None:
            return None
        running = [task for task in self._running.values() if task.queue == queue]
        left = math.inf if limit.max_running is None else limit.max_running - len(running)
        if limit.rate is not None:
            left = min(left, most_starts(limit.rate) - len(self._recent_starts(limit, now)))
        by_key = Counter(task.concurrency_key for task in running if task.concurrency_key is not None)
        return QueueRoom(left, keys_limit(limit), by_key, in_order=limit.in_order)

    def _is_first(self, task: Task) -> bool:
        """Whether every earlier task with its concurrency key is final."""
        if task.concurrency_key is None or is_schedule(task.id):
            return True
        self._tidy_key(task)
        return self._of_keys[task.queue, task.concurrency_key][0][1] == task.id

    def _recent_starts(self, limit: Limit, now: float) -> deque[float]:
        starts = self._starts[limit.queue]
        while starts and limit.rate is not None and now - starts[0] >= rate_period(limit.rate):
            starts.popleft()
        return starts

    def _note_start(self, task: Task, now: float) -> None:
        limit = self._limits.get(task.queue)
        if limit is not None and limit.rate is not None:
            self._starts[task.queue].append(now)

    def add_in(
        self,
        connection: Any,  # noqa: ARG002
        tasks: Sequence[Task],  # noqa: ARG002
        duplicates: Duplicates = RETURN,  # noqa: ARG002
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        raise _no_transaction()

    def now_in(self, connection: Any) -> float | Awaitable[float]:  # noqa: ARG002
        raise _no_transaction()

    def settle_in(self, connection: Any, settlement: Settlement) -> None:  # noqa: ARG002
        raise _no_transaction()

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> None:  # noqa: ARG002
        raise _no_transaction()

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        with self._lock:
            return [task for task in self._running.values() if task.claim_id == claim_id]

    async def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        lost, cancelled = set(), set()
        with self._lock:
            now = self._now()
            for hold in holds:
                task = self._held(hold)
                if task is None:
                    lost.add(hold)
                    continue
                self._write(msgspec.structs.replace(task, lease_until=now + lease), now)
                self._leases[task.id] = self._elapsed() + lease
                if task.cancel_requested:
                    cancelled.add(hold)
        return Renewal(frozenset(lost), frozenset(cancelled))

    async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        with self._lock:
            task = self._held(hold)
            if task is None:
                return False
            self._write(msgspec.structs.replace(task, progress=progress), self._now())
            return True

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        with self._lock:
            task = self._held(hold)
            if task is None:
                return False
            self._write(with_step(task, step), self._now())
            return True

    def _held(self, hold: AttemptKey) -> Task | None:
        task = self._tasks.get(hold.id)
        return task if task is not None and task.status is RUNNING and task.attempt == hold.attempt else None

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        with self._lock:
            now = self._now()
            decisions = []
            for task in list(self._running.values()):
                if task.worker in dead_workers or not 0 < self._leases[task.id] - self._elapsed() <= MAX_LEASE:
                    settlement = decide(task, now)
                    if settlement is not None and applies(task, settlement):
                        decisions.append(settlement)
                        if len(decisions) == limit:
                            break
            for settlement in decisions:
                self._settle_task(settlement, now)
            rescued = [self._tasks[settlement.id] for settlement in decisions]
        if rescued:
            self._wake()
        return rescued

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        await self._wait(timeout, lambda: self._next_work(queues))

    def _next_work(self, queues: Sequence[str]) -> float:
        """When a task may start; infinite for never."""
        now = self._now()
        if any(True for _ in self._claimable(queues, now, 1)):
            return now
        return min((self._next_in(queue, now) for queue in queues if queue not in self._paused), default=math.inf)

    def _next_in(self, queue: str, now: float) -> float:
        """When the next task becomes due, or the rate allows a due task to start."""
        self._become_due(queue, now)
        later, limit = self._later[queue], self._limits.get(queue)
        soonest = later[0][0] if later else math.inf
        if limit is not None and limit.rate is not None and any(self._due[queue].values()):
            starts = self._recent_starts(limit, now)
            if len(starts) >= most_starts(limit.rate):
                soonest = min(soonest, starts[0] + rate_period(limit.rate))
        return soonest

    # Events.

    async def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        with self._lock:
            now = self._now()
            existing = self._events.get(name)
            is_new = existing is None or existing.expires_at <= now
            if is_new:
                self._events[name] = Event(name, payload, now, ends_at(ttl, now))
            for task_id in sorted(self._awaiting.get(name, ())):
                if (task := woken(self._tasks[task_id], now)) is not None:
                    self._write(task, now)
        self._wake()
        return is_new

    async def wait_for_event(self, name: str, timeout: float) -> Event | None:
        if name not in self._events and timeout > 0:
            await self._wait(timeout, lambda: 0.0 if name in self._events else math.inf)
        return self._events.get(name)

    async def events(self, *, limit: int, after: str | None = None) -> Sequence[Event]:
        with self._lock:
            return [self._events[name] for name in sorted(self._events) if after is None or name > after][:limit]

    def _has_event(self, name: str) -> bool:
        return name in self._events

    # Results.

    async def wait_for_result(self, task_id: str, completed_runs: int, timeout: float) -> None:
        def when() -> float:
            task = self._tasks.get(task_id)
            return 0.0 if task is None or task.is_final or task.completed_runs > completed_runs else math.inf

        await self._wait(timeout, when)

    # Operators.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return self.get_blocking(ids)

    def get_blocking(self, ids: Sequence[str]) -> Sequence[Task | None]:
        with self._lock:
            return [self._tasks.get(task_id) for task_id in ids]

    async def list(
        self, which: TaskFilter, *, limit: int, after: str | None = None, newest: bool = False
    ) -> Sequence[Task]:
        with self._lock:
            fitting = [
                task
                for task in self._tasks.values()
                if which.matches(task) and (after is None or (task.id < after if newest else task.id > after))
            ]
            first = heapq.nlargest if newest else heapq.nsmallest
            return first(limit, fitting, key=lambda task: task.id)

    async def counts(self, limit: int | None = None) -> Counts:  # noqa: ARG002 - it counts all
        with self._lock:
            counts: dict[str, Counter[object]] = defaultdict(Counter)
            for task in self._tasks.values():
                counts[task.queue][task.status] += 1
        return counts  # type: ignore[return-value]

    async def first_pending(self, limit: int) -> Sequence[Task]:
        with self._lock:
            pending = [task for task in self._tasks.values() if task.status is PENDING]
        groups: dict[tuple[str, int], list[Task]] = defaultdict(list)
        for task in sorted(pending, key=lambda task: (task.eta, task.id)):
            groups[task.queue, task.priority].append(task)
        return [task for tasks in groups.values() for task in tasks[:limit]]

    async def list_pending(
        self, *, limit: int, queue: str | None = None, after: tuple[float, str] | None = None
    ) -> Sequence[Task]:
        with self._lock:
            pending = [task for task in self._tasks.values() if task.status is PENDING and queue in (None, task.queue)]
        behind = [task for task in pending if after is None or (task.eta, task.id) > after]
        return sorted(behind, key=lambda task: (task.eta, task.id))[:limit]

    async def count(self, which: TaskFilter) -> int:
        with self._lock:
            return sum(map(which.matches, self._tasks.values()))

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return self._change(ids, cancelled_by_operator)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return self._change(ids, lambda task, now: redriven_behind(task, self._members(task), now))

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        return self._change(ids, move)

    async def delete(self, ids: Sequence[str]) -> int:
        with self._lock:
            return self._forget(task_id for task_id in ids if self._may_go(self._tasks.get(task_id)))

    async def change_batch(self, verb: BatchVerb, which: TaskFilter, *, limit: int, cursor: str | None = None) -> Batch:
        with self._lock:
            ids = sorted(self._tasks)
            behind = ids[bisect.bisect(ids, cursor) :] if cursor is not None else ids
            found = list(islice((task for one in behind if which.matches(task := self._tasks[one])), limit))
        if verb == "delete":
            changed = [task for task in found if await self.delete([task.id])]
        else:
            change = self.cancel if verb == "cancel" else self.retry
            changed = list(await change([task.id for task in found]))
        return batch_of(found, changed, limit)

    # Moving tasks between stores.

    async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        with self._lock:
            now = self._now()
            kept = frozenset(task.id for task in tasks if self._import_task(task, now))
        self._wake()
        return kept

    async def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        with self._lock:
            return frozenset(task.id for task in tasks if self._export_task(task))

    def _export_task(self, task: Task) -> bool:
        existing = self._tasks.get(task.id)
        if existing is None or task.status is RUNNING:
            return False
        if any(getattr(existing, name) != getattr(task, name) for name in ("status", "attempt", "eta", "headers")):
            return False
        self._forget([task.id])
        return True

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        with self._lock:
            now = self._now()
            late = _take_due(self._expiring, now, limit, self._is_expiring)
            changed = [after for _, after in self._change_tasks(late, expired, now)]
        if changed:
            self._wake()
        return changed

    def _is_expiring(self, entry: Entry) -> bool:
        task = self._tasks.get(entry[1])
        return task is not None and task.status is PENDING and task.expires == entry[0]

    async def prune(self, *, limit: int) -> int:
        with self._lock:
            now = self._now()
            count = self._forget(_take_due(self._ending, now, limit, self._is_ending))
            self._drop_unused_queues()
            self._drop_old_history(now)
            self._drop_old_events(now)
            return count

    def _drop_unused_queues(self) -> None:
        """Drop what is empty, or has only stale entries."""
        for queue, lines in list(self._due.items()):
            for priority, line in list(lines.items()):
                line.drop_while(self._is_stale)
                if not line:
                    del lines[priority]
            if not lines:
                del self._due[queue]
        for queue, later in list(self._later.items()):
            while later and self._is_stale(later[0]):
                heapq.heappop(later)
            if not later:
                del self._later[queue]

    def _drop_old_history(self, now: float) -> None:
        if self._history_looked_at != now // MINUTE:  # once a minute: it looks at every row
            self._history_looked_at = now // MINUTE
            for key in [key for key in self._history if key[1] < now - KEPT[key[0]]]:
                del self._history[key]
            for of_failures in [of_failures for of_failures in self._failures if of_failures[0] < now - FAILURES_KEPT]:
                del self._failures[of_failures]

    def _drop_old_events(self, now: float) -> None:
        for event in [event for event in self._events.values() if event.expires_at <= now]:
            if event.name not in self._awaiting:
                del self._events[event.name]

    def _is_ending(self, entry: Entry) -> bool:
        task = self._tasks.get(entry[1])
        return task is not None and prune_at(task) == entry[0] and self._may_go(task)

    # History.

    async def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow] = ()) -> None:
        with self._lock:
            for row in rows:
                key = (row.step, row.at, row.queue, row.function)
                there = self._history.get(key, HistoryRow(*key))
                self._history[key] = HistoryRow(
                    *key,
                    sum_of(there.counts, row.counts),
                    sum_of(there.waits, row.waits),
                    sum_of(there.runs, row.runs),
                )
            for failure in failures:
                known = self._failures.get(failure.key)
                self._failures[failure.key] = failure if known is None else merged(known, failure)

    async def failures(self, since: float) -> Sequence[FailureRow]:
        with self._lock:
            return [row for row in self._failures.values() if row.at >= since]

    async def delete_failures(self, fingerprint: str, function: str | None = None) -> None:
        with self._lock:
            for key in [key for key in self._failures if key[3] == fingerprint and function in (None, key[2])]:
                del self._failures[key]

    async def history(
        self, step: int, since: float, until: float, *, queue: str | None = None, function: str | None = None
    ) -> Sequence[HistoryRow]:
        with self._lock:
            return [
                row
                for _, row in sorted(self._history.items())
                if row.step == step
                and since <= row.at < until
                and (queue is None or row.queue == queue)
                and (function is None or row.function == function)
            ]

    # Workers, queues, limits.

    async def save_worker(self, record: WorkerRecord) -> None:
        with self._lock:
            self._workers[record.id] = msgspec.structs.replace(record, seen_at=self._now())

    async def delete_worker(self, worker: str) -> None:
        with self._lock:
            self._workers.pop(worker, None)

    async def workers(self) -> Sequence[WorkerRecord]:
        with self._lock:
            return list(self._workers.values())

    async def pause(self, queue: str) -> None:
        with self._lock:
            self._paused.add(queue)

    async def resume(self, queue: str) -> None:
        with self._lock:
            self._paused.discard(queue)
        self._wake()

    async def queues(self) -> frozenset[str]:
        with self._lock:
            due = {queue for queue, lines in self._due.items() if any(lines.values())}
            return frozenset(due.union(queue for queue, later in self._later.items() if later))

    async def paused(self) -> frozenset[str]:
        return frozenset(self._paused)

    async def set_limit(self, limit: Limit) -> None:
        with self._lock:
            self._limits.pop(limit.queue, None)
            if limit.is_limit:
                self._limits[limit.queue] = limit
            if limit.rate is None:
                self._starts.pop(limit.queue, None)
        self._wake()

    async def limits(self) -> Sequence[Limit]:
        with self._lock:
            return sorted(self._limits.values(), key=lambda limit: limit.queue)

    # The methods that the rules need. The caller holds the lock.

    def _read(self, task_id: str) -> Task | None:
        return self._tasks.get(task_id)

    def _drop(self, task: Task) -> None:
        self._line(task).discard((task.eta, task.id))

    def _insert(self, task: Task, now: float) -> None:
        self._write(task, now)
        if task.unique_key is not None and has_key(task, now):
            self._unique[task.queue, task.unique_key] = task.id

    def _write(self, task: Task, now: float) -> None:
        """The only place where a task changes. A due task takes a shorter path."""
        if task.concurrency_key is not None:
            self._add_to_key(task)
        before = self._tasks.get(task.id)
        if task.awaits is not None or (before is not None and before.awaits is not None):
            self._note_wait(before, task)
        self._tasks[task.id] = task
        status = task.status
        if status is RUNNING:
            self._running[task.id] = task
        else:
            self._running.pop(task.id, None)
            self._leases.pop(task.id, None)
            if status is PENDING:
                entry = (task.eta, task.id)
                if task.eta <= now:
                    self._line(task).add(entry)
                elif task.eta < NEVER:
                    heapq.heappush(self._later[task.queue], entry)
                if task.expires is not None:
                    heapq.heappush(self._expiring, (task.expires, task.id))
            else:
                self._note_end(task)
                self._tidy_key(task)
                for member in self._members(task):  # they stayed because of this task
                    if member is not None:
                        self._note_end(member)
        if task.unique_key is not None and has_key(task, math.inf):
            self._unique[task.queue, task.unique_key] = task.id

    def _note_wait(self, before: Task | None, task: Task) -> None:
        for one in (before, task):
            if one is not None and one.awaits is not None:
                ids = self._awaiting[one.awaits]
                (ids.add if one is task and not task.is_final else ids.discard)(task.id)
                if not ids:
                    del self._awaiting[one.awaits]

    def _add_to_key(self, task: Task) -> None:
        """Add it to the tasks with its concurrency key, unless it is among them."""
        before = self._tasks.get(task.id)
        is_there = before is not None and not before.is_final and before.concurrency_key == task.concurrency_key
        if task.concurrency_key is not None and not (is_there or task.is_final or is_schedule(task.id)):
            heapq.heappush(self._of_keys[task.queue, task.concurrency_key], (task.created_at, task.id))

    def _tidy_key(self, task: Task) -> None:
        """Drop tasks in front that are final, have another key, or are gone."""
        place = (task.queue, task.concurrency_key or "")
        line = self._of_keys.get(place)
        if line is None:
            return
        while line and (
            (first := self._tasks.get(line[0][1])) is None
            or first.is_final
            or first.concurrency_key != task.concurrency_key
        ):
            heapq.heappop(line)
        if not line:
            del self._of_keys[place]

    def _note_end(self, task: Task) -> None:
        if (ends := prune_at(task)) is not None and ends < math.inf:
            heapq.heappush(self._ending, (ends, task.id))

    def _may_go(self, task: Task | None) -> bool:
        """Whether it is final, and no task needs its result."""
        if task is None:
            return False
        follower = None if task.next_task_id is None else self._tasks.get(task.next_task_id)
        return is_unawaited(task, follower)

    def _forget(self, ids: Iterable[str]) -> int:
        gone = [task for task_id in ids if (task := self._tasks.pop(task_id, None)) is not None]
        for task in gone:
            self._tidy_key(task)
            self._note_wait(task, msgspec.structs.replace(task, awaits=None))
            if task.unique_key is not None and self._unique.get((task.queue, task.unique_key)) == task.id:
                del self._unique[task.queue, task.unique_key]
        return len(gone)

    # The caller does not hold the lock.

    def _change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        with self._lock:
            changed = [after for _, after in self._change_tasks(ids, move, self._now())]
        if changed:
            self._wake()
        return changed

    async def _wait(self, timeout: float, when: Callable[[], float]) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        wake_up = _WakeUp(when)
        try:
            while True:
                with self._lock:
                    wake_up.at = when()
                    until_then, left = wake_up.at - self._now(), deadline - clock()
                    if until_then <= 0 or left <= _A_HAIR:
                        return
                    self._wake_ups.add(wake_up)
                await wake_up.wait(min(until_then + _A_HAIR, left))
        finally:
            with self._lock:
                self._wake_ups.discard(wake_up)

    def _wake(self) -> None:
        if self._wake_ups:
            with self._lock:
                wake_ups = [wake_up for wake_up in self._wake_ups if wake_up.when() < wake_up.at]
            for wake_up in wake_ups:
                wake_up.call()


class _WakeUp:
    """A caller that waits on an event loop, maybe on another thread."""

    def __init__(self, when: Callable[[], float]) -> None:
        self.when = when  # the instant from which it need not wait; called with the store's lock held
        self.at = math.inf  # the latest result of `when`
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def wait(self, seconds: float) -> None:
        """Wait until `call`, or for `seconds`."""
        try:
            await asyncio.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            pass
        self._event.clear()

    def call(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # that loop is closed, so the caller does not wait there
            pass


class _WaitingTasks:
    """Sorted entries, taken from the front. Nearly all are added in order, at the back."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()

    def add(self, entry: Entry) -> None:
        if not self._entries or self._entries[-1] <= entry:
            self._entries.append(entry)
        else:
            bisect.insort(self._entries, entry)

    def discard(self, entry: Entry) -> None:
        if entry in self._entries:
            self._entries.remove(entry)

    def drop_while(self, is_stale: Callable[[Entry], bool]) -> None:
        """Drop entries from the front as long as they are stale."""
        entries = self._entries
        while entries and is_stale(entries[0]):
            entries.popleft()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)


def _take_due(heap: list[Entry], now: float, limit: int, still: Callable[[Entry], bool]) -> list[str]:
    """Pop entries up to `now`, earliest first. Returns at most `limit` ids of those for which `still` is true."""
    taken: dict[str, None] = {}
    while heap and heap[0][0] <= now and len(taken) < limit:
        entry = heapq.heappop(heap)
        if still(entry):
            taken[entry[1]] = None
    return list(taken)


def _no_transaction() -> StorageError:
    why = "tasks in memory share no transaction with anything; use sqlite:/// or postgresql://"
    return StorageError(why, storage="memory://")

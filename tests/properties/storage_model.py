"""A store as plainly as it can be said: a list of tasks, gone through from the beginning for every question.

It shares nothing with the stores, nor with the moves in `tasks/model/task.py`: it states again what a settlement does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from bullpen.tasks.model.ids import is_schedule
from bullpen.tasks.model.store_move import HEADER, mark_of
from bullpen.tasks.model.task import NEVER, UNPLANNED, Progress, Settlement, Step, Task
from bullpen.tasks.storage.port import AttemptKey, Limit, TaskFilter

WAITS, RUNS, DONE, FAILED, CANCELLED = "pending", "running", "success", "failed", "cancelled"
OVER = (DONE, FAILED, CANCELLED)


@dataclass
class Row:
    """A task: how it was added, and what has changed since."""

    given: Task
    eta: float
    created_at: float
    expires: float | None
    status: str = WAITS
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    completed_runs: int = 0
    scheduled_at: float | None = None
    hold: str = ""
    worker: str | None = None
    claim_id: str | None = None
    lease_until: float | None = None
    cancel_requested: bool = False
    waits_for: int = 0
    mark: tuple[float, float | None] | None = None  # on its way to another store: what it was before
    progress: Progress | None = None
    steps: tuple[Step, ...] = ()
    awaits: str | None = None
    result: bytes | None = None
    result_dropped: str = ""
    errors: list[str] = field(default_factory=list)
    started_at: float | None = None
    finished_at: float | None = None

    @classmethod
    def of(cls, task: Task) -> Row:
        """A task that comes from another store, as it is."""
        found = seen(task)
        mark = mark_of(task)
        headers = {name: value for name, value in task.headers.items() if name != HEADER}
        changing = {name: found[name] for name in cls.__dataclass_fields__ if name not in ("given", "mark")}
        before = None if mark is None else (mark.eta, mark.expires)
        return cls(given=replace(task, headers=headers), mark=before, **changing)  # type: ignore[arg-type]

    @property
    def id(self) -> str:
        return self.given.id

    @property
    def lives(self) -> bool:
        return self.status in (WAITS, RUNS)

    @property
    def linked(self) -> list[str]:
        """Those that it depends on, and the one that depends on it."""
        before = () if self.given.depends_on is None else self.given.depends_on.ids
        return [*before, *([] if self.given.next_task_id is None else [self.given.next_task_id])]

    def is_held_as(self, task_id: str, attempt: int) -> bool:
        return (self.id, self.status, self.attempt) == (task_id, RUNS, attempt)

    def as_seen(self) -> dict[str, object]:
        """What a task of a store has to be like."""
        seen = {name: getattr(self.given, name) for name in UNCHANGING}
        return seen | {name: value for name, value in vars(self).items() if name != "given"}


UNCHANGING = (
    "id func_path payload codec queue priority interval schedule max_retries backoff timeout at_most_once on_failure "
    "result_ttl failure_ttl unique_key unique_scope unique_until concurrency_key headers next_task_id depends_on "
    "format unreadable"
).split()


def seen(task: Task) -> dict[str, object]:
    """A task of a store, to compare with `Row.as_seen`."""
    fields = {name: getattr(task, name) for name in task.__struct_fields__}
    mark = mark_of(task)
    return fields | {
        "status": task.status.value,
        "errors": [error.kind for error in task.errors],
        "headers": {name: value for name, value in task.headers.items() if name != HEADER},
        "mark": None if mark is None else (mark.eta, mark.expires),
    }


class Model:
    def __init__(self, now: float) -> None:
        self.now = now
        self.rows: list[Row] = []
        self.events: dict[str, float] = {}  # by name: the end of their time to live
        self.paused: set[str] = set()
        self.limits: dict[str, Limit] = {}
        self.starts: list[tuple[str, float]] = []  # in queues that had a rate then

    def row(self, task_id: str) -> Row | None:
        return next((row for row in self.rows if row.id == task_id), None)

    def has_key(self, row: Row) -> bool:
        """Whether nobody else may have its unique key."""
        if row.given.unique_key is None:
            return False
        in_time = row.given.unique_until is not None and row.given.unique_until > self.now
        return in_time or self.would_have_key(row, row.status)

    def would_have_key(self, row: Row, status: str) -> bool:
        if row.given.unique_key is None or row.given.unique_scope == "waiting":
            return row.given.unique_key is not None and status == WAITS and row.attempt == 0
        return status in (WAITS, RUNS)

    def holder(self, task: Task) -> Row | None:
        place = (task.queue, task.unique_key)
        rows = (row for row in self.rows if (row.given.queue, row.given.unique_key) == place)
        return next((row for row in rows if self.has_key(row)), None)

    # Producers.

    def add(self, tasks: Sequence[Task], policy: str = "return", push_limit: float | None = None) -> list[Row] | None:
        """What is kept; None if all are rejected."""
        before = list(self.rows)
        kept = []
        for task in tasks:
            eta = task.eta if task.eta > 0 else self.now
            row, holder = self.row(task.id), self.holder(task)
            if row is None and holder is not None:
                row = holder
                if policy == "reject":
                    self.rows = before
                    return None
                if policy == "replace" and row.status == WAITS:
                    latest = math.inf if push_limit is None else row.created_at + push_limit
                    row.given = replace(
                        task, id=row.id, next_task_id=row.given.next_task_id, depends_on=row.given.depends_on
                    )
                    if row.waits_for > 0:
                        eta = latest = row.eta
                    row.eta, row.expires, row.failures, row.crashes = min(eta, latest), task.expires, 0, 0
                    row.scheduled_at, row.mark, row.steps = task.scheduled_at, None, ()
                    row.awaits = None
            if row is None:
                row = Row(task, eta=eta, created_at=self.now, expires=task.expires, scheduled_at=task.scheduled_at)
                if task.waits_for:
                    row.eta, row.waits_for = NEVER, task.waits_for
                self.rows.append(row)
            kept.append(row)
        return kept

    # Workers.

    def settle(self, settlements: Iterable[Settlement]) -> set[AttemptKey]:
        rejected = set()
        for one in settlements:
            row = next((row for row in self.rows if row.is_held_as(one.id, one.attempt)), None)
            if row is None:
                rejected.add(AttemptKey(one.id, one.attempt))
            else:
                self._apply(row, one)
        return rejected

    def _apply(self, row: Row, one: Settlement) -> None:
        has_run = one.completed_runs > row.completed_runs
        row.status = one.status.value
        if row.cancel_requested and row.status == WAITS:  # its worker had not heard
            row.status = "success" if has_run else "cancelled"
        row.failures, row.crashes, row.completed_runs = one.failures, one.crashes, one.completed_runs
        if has_run:
            row.result, row.result_dropped = one.result, one.result_dropped
        if one.error is not None:
            row.errors = [*row.errors, one.error.kind][-10:]
        row.progress = one.progress or row.progress
        row.expires = None if one.suspended else row.expires
        row.claim_id = row.lease_until = None
        if row.status == WAITS:
            row.eta, row.scheduled_at = (
                self.now + one.delay if one.delay is not None else one.eta or 0.0,
                one.scheduled_at,
            )
            if row.hold == "paused":
                row.eta = NEVER
            elif row.hold == "changed" and one.next_run:
                row.eta, row.scheduled_at, row.hold = self.now, UNPLANNED, ""
            row.worker, row.awaits = None, one.awaits
            if one.suspended and one.awaits in self.events and row.hold != "paused":
                row.eta = min(row.eta, self.now)
            row.steps = () if one.next_run else row.steps
            row.finished_at = self.now if has_run else None
        else:
            row.finished_at = self.now
            self._has_ended(row)
        self.add(one.children)

    # Events.

    def emit(self, name: str, ttl: float) -> bool:
        is_new = self.events.get(name, 0.0) <= self.now
        if is_new:
            self.events[name] = self.now + ttl
        for row in self.rows:
            if (row.awaits, row.status) == (name, WAITS) and row.hold != "paused":
                row.eta = min(row.eta, self.now)
        return is_new

    def prune_events(self) -> None:
        awaited = {row.awaits for row in self.rows if row.lives}
        self.events = {name: end for name, end in self.events.items() if end > self.now or name in awaited}

    # Those behind a task.

    def _behind(self, row: Row) -> Row | None:
        return None if row.given.next_task_id is None else self.row(row.given.next_task_id)

    def _has_ended(self, row: Row) -> None:
        behind = self._behind(row)
        if behind is None or behind.status != WAITS or behind.waits_for <= 0:
            return
        assert behind.given.depends_on is not None
        if row.status == DONE or behind.given.depends_on.run_always:
            behind.waits_for -= 1
            if behind.waits_for == 0:
                behind.eta = self.now
        else:
            behind.status, behind.finished_at, behind.waits_for = CANCELLED, self.now, -1
            behind.errors = [*behind.errors, "upstream"][-10:]
            self._has_ended(behind)

    def _is_back(self, row: Row, was: str) -> None:
        behind = self._behind(row)
        if behind is None or behind.given.depends_on is None:
            return
        if behind.status == WAITS and behind.waits_for > 0:
            behind.waits_for += was == DONE or behind.given.depends_on.run_always
        elif behind.status == CANCELLED and behind.waits_for == -1:
            self._run_again(behind)

    def _run_again(self, row: Row) -> bool:
        """If nothing is in its way: another one with its unique key, or one before it that has not succeeded."""
        was, depends_on = row.status, row.given.depends_on
        before = [] if depends_on is None else self._rows(depends_on.ids)
        holder = self.holder(row.given) if self.would_have_key(row, WAITS) else None
        bad = (
            depends_on is not None
            and not depends_on.run_always
            and any(one.status in (FAILED, CANCELLED) for one in before)
        )
        if row.lives or bad or (holder is not None and holder is not row):
            return False
        row.status, row.expires = WAITS, None
        row.failures = row.crashes = 0
        row.cancel_requested = False
        row.worker = row.finished_at = None
        row.steps, row.awaits = () if was == DONE else row.steps, None
        row.waits_for = len([one for one in before if one.lives])
        row.eta = NEVER if row.waits_for else self.now
        self._is_back(row, was)
        return True

    def claim(self, worker: str, queues: Sequence[str], limit: int, lease: float, claim_id: str) -> list[Row]:
        taken: list[Row] = []
        waiting = sorted(self.rows, key=lambda row: (-row.given.priority, row.eta, row.id))
        for row in waiting:
            if len(taken) < limit and row.given.queue in queues and self._may_start(row):
                row.status, row.attempt = RUNS, row.attempt + 1
                row.worker, row.claim_id, row.lease_until = worker, claim_id, self.now + lease
                row.started_at = self.now
                taken.append(row)
                limits = self.limits.get(row.given.queue)
                if limits is not None and limits.rate is not None:
                    self.starts.append((row.given.queue, self.now))
        return taken

    def may_start(self, queues: Sequence[str]) -> bool:
        return any(row.given.queue in queues and self._may_start(row) for row in self.rows)

    def _may_start(self, row: Row) -> bool:
        queue, key = row.given.queue, row.given.concurrency_key
        if row.status != WAITS or row.eta > self.now or queue in self.paused:
            return False
        if row.expires is not None and row.expires <= self.now:
            return False
        limit = self.limits.get(queue)
        if limit is None:
            return True
        if limit.in_order and key is not None:
            place = (queue, key)
            alive = [one for one in self.rows if one.lives and (one.given.queue, one.given.concurrency_key) == place]
            in_line = [one for one in alive if not is_schedule(one.id)]
            is_first = is_schedule(row.id) or min(in_line, key=lambda one: (one.created_at, one.id)) is row
            if not is_first or any(one.status == RUNS for one in alive):
                return False
            limit = replace(limit, max_running_per_key=None)
        return self._has_room(row, limit)

    def _has_room(self, row: Row, limit: Limit) -> bool:
        queue, key = row.given.queue, row.given.concurrency_key
        running = [other for other in self.rows if other.status == RUNS and other.given.queue == queue]
        with_key = [other for other in running if key is not None and other.given.concurrency_key == key]
        period = 1.0 if limit.rate is None else max(1.0, 1.0 / limit.rate)
        lately = [at for started, at in self.starts if started == queue and at > self.now - period]
        return (
            len(running) < (math.inf if limit.max_running is None else limit.max_running)
            and len(with_key) < (math.inf if limit.max_running_per_key is None else limit.max_running_per_key)
            and len(lately) < (math.inf if limit.rate is None else limit.rate * period)
        )

    def find_claim(self, claim_id: str) -> list[Row]:
        return [row for row in self.rows if row.status == RUNS and row.claim_id == claim_id]

    def held(self, hold: AttemptKey) -> Row | None:
        return next((row for row in self.rows if row.is_held_as(hold.id, hold.attempt)), None)

    def overdue(self, dead_workers: Collection[str | None]) -> list[Row]:
        """Running tasks that a rescue may take back."""
        return [
            row
            for row in self.rows
            if row.status == RUNS
            and (row.worker in dead_workers or (row.lease_until is not None and row.lease_until <= self.now))
        ]

    # People.

    def cancel(self, ids: Iterable[str]) -> list[Row]:
        changed = []
        for row in self._rows(ids):
            if row.status == WAITS:
                row.status, row.finished_at = CANCELLED, self.now
                self._has_ended(row)
                changed.append(row)
            elif row.status == RUNS:
                row.cancel_requested = True
                changed.append(row)
        return changed

    def retry(self, ids: Iterable[str]) -> list[Row]:
        return [row for row in self._rows(ids) if self._run_again(row)]

    def change(self, ids: Iterable[str], payload: bytes | None, hold: str) -> list[Row]:
        """Give schedules another payload and priority, or pause them."""
        changed = [row for row in self._rows(ids) if row.lives]
        on_their_way = [row for row in changed if row.mark is not None]
        self._take_off_marks(on_their_way)
        for row in changed:
            row.hold = hold
            if payload is not None:
                row.given = replace(row.given, payload=payload, priority=9, headers={}, max_retries=2)
            if row.status == WAITS:
                row.eta, row.scheduled_at = NEVER, 7.0
        self.mark([row.id for row in on_their_way])
        return changed

    # Moves to other stores.

    def mark(self, ids: Iterable[str]) -> list[Row]:
        rows = [row for row in self._rows(ids) if row.status == WAITS and row.mark is None]
        for row in rows:
            row.mark = (row.eta if row.awaits is None else min(row.eta, 1.0), row.expires)
            row.awaits = None
            row.eta, row.expires = NEVER, None
        return rows

    def unmark(self, ids: Iterable[str]) -> list[Row]:
        rows = [row for row in self._rows(ids) if row.status == WAITS and row.mark is not None]
        self._take_off_marks(rows)
        return rows

    def _take_off_marks(self, rows: Iterable[Row]) -> None:
        for row in rows:
            assert row.mark is not None
            eta, row.expires = row.mark
            row.eta = eta if row.eta == NEVER else row.eta
            row.mark = None

    def export_tasks(self, tasks: Sequence[Task]) -> set[str]:
        fence = ("status", "attempt", "eta", "mark", "headers")
        there = {row.id: row.as_seen() for row in self._rows([task.id for task in tasks]) if row.status != RUNS}
        given = [task for task in tasks if task.id in there]
        gone = {task.id for task in given if all(there[task.id][name] == seen(task)[name] for name in fence)}
        self.rows = [row for row in self.rows if row.id not in gone]
        return gone

    def import_tasks(self, tasks: Sequence[Task]) -> set[str]:
        kept = set()
        for task in tasks:
            row = Row.of(task)
            if self.row(task.id) is None and not (self.has_key(row) and self.holder(task) is not None):
                self.rows.append(row)
                kept.add(task.id)
        return kept

    def forget(self, gone: Callable[[Row], bool]) -> int:
        before = len(self.rows)
        self.rows = [row for row in self.rows if self.is_needed(row) or not gone(row)]
        return before - len(self.rows)

    def is_needed(self, row: Row) -> bool:
        """Because it is not over, or for one that waits for its result."""
        behind = self._behind(row)
        return row.lives or (behind is not None and behind.lives)

    def is_old(self, row: Row) -> bool:
        return self.ends_at(row) <= self.now and not self.is_needed(row)

    def ends_at(self, row: Row) -> float:
        """When it may be forgotten."""
        ttl = row.given.failure_ttl if row.status == FAILED else row.given.result_ttl
        if row.lives or ttl is None or row.finished_at is None:
            return math.inf
        return max(row.finished_at + ttl, row.given.unique_until or 0.0)

    def is_late(self, row: Row) -> bool:
        return row.status == WAITS and row.expires is not None and row.expires <= self.now

    def expire(self, ids: Iterable[str]) -> None:
        for row in self._rows(ids):
            assert self.is_late(row)
            row.status, row.finished_at = FAILED, self.now
            row.errors = [*row.errors, "expired"][-10:]
            self._has_ended(row)

    def fitting(self, which: TaskFilter) -> list[Row]:
        return sorted((row for row in self.rows if _fits(row, which)), key=lambda row: row.id)

    def counts(self) -> dict[tuple[str, str], int]:
        places = [(row.given.queue, row.status) for row in self.rows]
        return {place: places.count(place) for place in places}

    def _rows(self, ids: Iterable[str]) -> list[Row]:
        found = [self.row(task_id) for task_id in ids]
        return [row for row in found if row is not None]


def _fits(row: Row, which: TaskFilter) -> bool:
    asked: list[tuple[object, Sequence[object] | None]] = [
        (row.id, which.ids),
        (row.given.queue, which.queues),
        (row.status, None if which.statuses is None else [status.value for status in which.statuses]),
        (row.given.func_path, None if which.func_path is None else [which.func_path]),
        (row.worker, None if which.worker is None else [which.worker]),
    ]
    return all(allowed is None or value in allowed for value, allowed in asked)

"""The moves of tasks, as statements inside a transaction that the caller begins and commits."""

from __future__ import annotations

import heapq
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import msgspec

from bullpen import primitives
from bullpen.tasks.model.events import Event
from bullpen.tasks.model.failure_groups import FailureRow
from bullpen.tasks.model.history import HistoryRow
from bullpen.tasks.model.links import redriven_behind
from bullpen.tasks.model.task import (
    FAILED,
    FINAL,
    MAX_LEASE,
    RUNNING,
    SUCCESS,
    AttemptError,
    Progress,
    Settlement,
    Step,
    Task,
    TaskStatus,
    cancelled_by_operator,
    claimed,
    expired,
)
from bullpen.tasks.model.task_batch import RowReader, TaskBatch, batches_of
from bullpen.tasks.model.unique import RETURN, Duplicates, has_key
from bullpen.tasks.storage.port import (
    AttemptKey,
    BatchVerb,
    ChangedTask,
    Decide,
    Exchange,
    Limit,
    Move,
    Renewal,
    TaskFilter,
    WorkerRecord,
    readable_workers,
)
from bullpen.tasks.storage.rules import StoreRules
from bullpen.tasks.storage.sqlite import claims, event_table, history_table
from bullpen.tasks.storage.sqlite.rows import (
    CHANGING,
    COLUMNS,
    DECODING_ERRORS,
    PLAIN,
    SHARED,
    STEPS,
    TERMS,
    Row,
    changes_of,
    changes_of_unreadable,
    encode_step,
    has_error,
    has_header,
    headers_of,
    is_of_group,
    is_plain,
    read_again,
    readable_rows,
    row_of,
    shared_of,
    status_of,
    task_of,
    terms_of,
    with_steps,
)

T = TypeVar("T")

_GET = f"SELECT {COLUMNS} FROM bullpen_task WHERE id = ?"
_WITH_KEY = (
    f"SELECT {COLUMNS} FROM bullpen_task INDEXED BY bullpen_unique WHERE unique_key = ? AND queue = ? "
    "AND (status IN ('pending', 'running') OR unique_until IS NOT NULL)"
)
_ADD = (
    f"INSERT INTO bullpen_task ({COLUMNS}, prune_at) VALUES ({', '.join('?' * (COLUMNS.count(',') + 2))}) "
    "ON CONFLICT DO NOTHING"
)


@cache
def _add_statement(count: int) -> str:
    """Many rows that have all but their ids and payloads in common."""
    template = ", ".join("?" * (SHARED.count(",") + 1))
    own = ", ".join(["(?, ?)"] * count)
    return (
        f"INSERT INTO bullpen_task ({PLAIN}) SELECT {template}, column1, column2 FROM (VALUES {own}) "
        "WHERE true ON CONFLICT DO NOTHING"  # the condition, because ON might belong to the FROM
    )


# Many at once, for every statement that this thread executes gives others the chance to hold up the next one. Each
# number of rows is a statement of its own, which SQLite prepares once.
MOST_TOGETHER = 50
_KEEP = f"UPDATE bullpen_task SET ({CHANGING}) = ({', '.join('?' * (CHANGING.count(',') + 1))}) WHERE id = ?"
_KEEP_TERMS = f"UPDATE bullpen_task SET ({TERMS}) = ({', '.join('?' * (TERMS.count(',') + 1))}) WHERE id = ?"
_CLAIM = (
    "UPDATE bullpen_task SET status = 'running', attempt = attempt + 1, worker = ?, claim_id = ?, lease_until = ?, "
    "started_at = ? WHERE rowid IN (SELECT value FROM json_each(?))"
)
# A row whose id is no text: no verb could name it.
_NAME = "UPDATE bullpen_task SET id = 'unreadable-' || hex(id) WHERE rowid = ?"
_SET_ASIDE = (
    "UPDATE bullpen_task SET status = 'failed', finished_at = ?, prune_at = ? + ifnull(failure_ttl, 9e999), "
    "errors = ?, claim_id = NULL, lease_until = NULL WHERE rowid = ? AND status IN ('pending', 'running')"
)
# No unfinished task still needs its result.
_UNAWAITED = (
    "(next_task_id IS NULL OR NOT EXISTS (SELECT 1 FROM bullpen_task AS f WHERE f.id = bullpen_task.next_task_id "
    "AND f.status IN ('pending', 'running')))"
)
_FINISHED = "FROM bullpen_task INDEXED BY bullpen_finished WHERE prune_at IS NOT NULL"
# The queues and statuses of final tasks: one step in the index for each.
_ENDED = (
    f"WITH RECURSIVE named(name) AS (SELECT min(queue) {_FINISHED} "
    f"UNION ALL SELECT (SELECT min(queue) {_FINISHED} AND queue > name) FROM named WHERE name IS NOT NULL), "
    f"ended(name, state) AS (SELECT name, (SELECT min(status) {_FINISHED} AND queue = name) FROM named "
    "WHERE name IS NOT NULL UNION ALL "
    f"SELECT name, (SELECT min(status) {_FINISHED} AND queue = name AND status > state) FROM ended "
    "WHERE state IS NOT NULL)"
)
_PRUNABLE = (
    "FROM ended CROSS JOIN bullpen_task INDEXED BY bullpen_finished "
    "ON queue = ended.name AND status = ended.state AND prune_at <= ?"
)
# The indexes that have all tasks, each once; the condition of each, and its first columns.
_COUNTED = (
    ("bullpen_ready", "status = 'pending' AND concurrency_key IS NULL", ("queue",)),
    ("bullpen_ready_keyed", "status = 'pending' AND concurrency_key IS NOT NULL", ("queue",)),
    ("bullpen_running", "status IN ('running')", ("queue",)),
    ("bullpen_finished", "prune_at IS NOT NULL", ("queue", "status")),
)
_PENDING = TaskStatus.PENDING
_STATUS_OF = {"bullpen_ready": _PENDING, "bullpen_ready_keyed": _PENDING, "bullpen_running": RUNNING}
_AMONG = "WHERE id IN (SELECT value FROM json_each(?))"
_LOOK_AT = f"SELECT id, queue, attempt, status FROM bullpen_task {_AMONG}"
_ALONE = "next_task_id IS NULL AND depends_on IS NULL"
# The same as `cancelled_by_operator` and `redriven` make of many tasks, without reading them first.
_CANCEL_TOGETHER = (
    "UPDATE bullpen_task SET cancel_requested = cancel_requested OR status = 'running', "
    "status = iif(status = 'running', status, 'cancelled'), finished_at = iif(status = 'running', finished_at, ?), "
    "prune_at = iif(status = 'running', prune_at, max(? + ifnull(result_ttl, 9e999), ifnull(unique_until, 0))) "
    f"{_AMONG}"
)
_RETRY_TOGETHER = (
    "UPDATE bullpen_task SET status = 'pending', eta = ?, failures = 0, crashes = 0, expires = NULL, "
    "cancel_requested = 0, finished_at = NULL, prune_at = NULL, worker = NULL, awaits = NULL, "
    f"steps = iif(status = 'success', 0, steps) {_AMONG}"
)
_STEPS_OF = "SELECT record FROM bullpen_step WHERE task_id = ?"
_SAVE_STEP = "INSERT OR REPLACE INTO bullpen_step VALUES (?, ?, ?)"
_HELD = "WHERE id = ? AND attempt = ? AND status = 'running'"
_RENEW = f"UPDATE bullpen_task SET lease_until = ? {_HELD}"

# The same as `settled` makes of a success, without reading the task first.
_SUCCEED = """
UPDATE bullpen_task SET status = 'success', failures = done.column3, crashes = done.column4,
    completed_runs = done.column5, result = done.column6, result_dropped = done.column7,
    claim_id = NULL, lease_until = NULL, finished_at = done.column8,
    prune_at = max(done.column8 + ifnull(result_ttl, 9e999), ifnull(unique_until, 0))
FROM (VALUES {values}) AS done
WHERE id = done.column1 AND attempt = done.column2 AND status = 'running'
"""


@cache
def _success_statement(count: int) -> str:
    """The successes of so many tasks."""
    return _SUCCEED.format(values=", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * count))


_decode_worker = msgspec.msgpack.Decoder(WorkerRecord).decode


# Seconds since this machine was booted, its sleep included: leases are measured in them, because no adjustment of a
# clock changes them. Where that clock does not exist, the wall clock has to do.
_elapsed: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time
)


class UnnamedRow(Exception):
    """A page has a row whose id is no text. `name_rows` gives it one."""


class StoreClock(msgspec.Struct, frozen=True):
    """The store's clocks: since the epoch, for people, and since the boot, for leases."""

    now: Callable[[], float] = time.time
    elapsed: Callable[[], float] = _elapsed
    boot: Callable[[], str] = primitives.machine_boot

    def table(self, db: sqlite3.Connection) -> SqliteTaskTable:
        """The tables, at this instant."""
        return SqliteTaskTable(db, self.now(), self.elapsed())


class SqliteTaskTable(StoreRules):
    """The tables of one transaction, at one instant: `now` by the wall clock, `elapsed` by the clock of leases."""

    __slots__ = ("_ahead", "_db", "_limits", "changed_queues", "elapsed", "must_last", "now", "settled")

    def __init__(self, db: sqlite3.Connection, now: float, elapsed: float) -> None:
        self._db = db
        self.now = now
        self.elapsed = elapsed
        self._ahead = now - elapsed
        self._limits: Sequence[Limit] | None = None  # once they were asked for
        self.changed_queues: set[str] = set()  # queues in which something may be due now
        self.settled: set[str] = set()  # tasks whose result a caller may wait for
        self.must_last = False  # a claim was made that must not be lost in a power cut

    # Producers.

    def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        new = [batch.kept(self.now) for batch in batches_of(tasks)]
        if all(is_plain(batch.template) for batch in new):
            return self.add_plain(new[0]) if len(new) == 1 else [task for one in new for task in self.add_plain(one)]
        self.changed_queues.update([batch.template.queue for batch in new])
        kept = [task for batch in new for task in batch]
        if all(batch.template.unique_key is None for batch in new):
            added = self._db.executemany(_ADD, [row_of(task, self._ahead) for task in kept]).rowcount
            return kept if added == len(kept) else [self.get(task.id) or task for task in kept]
        existing = [self._add_task(task, duplicates, self.now) for task in kept]
        latest = {task.id: task for task in existing}  # one may be replaced twice
        return [latest[task.id] for task in existing]

    def add_plain(self, kept: TaskBatch) -> Sequence[Task]:
        """`add` for plain tasks, which are as they are kept already. Returns `kept` itself if all of them are new.

        `sqlite3` looks for adapters of a value that is bytes, which takes longer than to store it; not of a bytearray.
        """
        self.changed_queues.add(kept.template.queue)
        shared = shared_of(kept.template)
        ids, payloads = kept.ids, kept.payloads
        added = 0
        for first in range(0, len(ids), MOST_TOGETHER):
            some = ids[first : first + MOST_TOGETHER]
            values = list(shared)
            for own in zip(some, map(bytearray, payloads[first : first + MOST_TOGETHER]), strict=True):
                values += own
            added += self._db.execute(_add_statement(len(some)), values).rowcount
        return kept if added == len(ids) else [self.get(task.id) or task for task in kept]

    # Workers.

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        queues: Sequence[str],
        limit: int,
        lease: float,
        claim_id: str,
    ) -> Exchange:
        rejected = self.settle(settlements) if settlements else ()
        taken = self._claim(worker, queues, limit, lease, claim_id) if limit > 0 else ()
        return Exchange(taken, frozenset(rejected))

    def settle(self, settlements: Sequence[Settlement]) -> set[AttemptKey]:
        """Apply them; those that were rejected."""
        successes = list(filter(_is_plain_success, settlements))
        rejected = self._succeed(successes)
        if len(successes) < len(settlements):
            for settlement in settlements:
                if not _is_plain_success(settlement) and not self._settle_task(settlement, self.now):
                    rejected.add(AttemptKey(settlement.id, settlement.attempt))
        self.settled.update([settlement.id for settlement in settlements])
        self.changed_queues.update([limit.queue for limit in self.limits()])  # there may be room again
        return rejected

    def _succeed(self, successes: Sequence[Settlement]) -> set[AttemptKey]:
        rejected = set()
        for some in _in_portions(successes):
            if not self._succeed_together(some):
                rejected |= {AttemptKey(one.id, one.attempt) for one in some if not self._succeed_together([one])}
        return rejected

    def _succeed_together(self, some: Sequence[Settlement]) -> bool:
        """All of them or none."""
        values = [value for one in some for value in self._success(one)]
        if len(some) == 1:
            return self._db.execute(_success_statement(1), values).rowcount == 1
        self._db.execute("SAVEPOINT together")
        all_applied = self._db.execute(_success_statement(len(some)), values).rowcount == len(some)
        if not all_applied:
            self._db.execute("ROLLBACK TO together")
        self._db.execute("RELEASE together")
        return all_applied

    def _success(self, one: Settlement) -> Row:
        return (
            one.id,
            one.attempt,
            one.failures,
            one.crashes,
            one.completed_runs,
            one.result,
            one.result_dropped,
            self.now,
        )

    def _claim(self, worker: str, queues: Sequence[str], limit: int, lease: float, claim_id: str) -> tuple[Task, ...]:
        now, elapsed = self.now, self.elapsed
        rows = self._may_start(queues, limit)

        def read(row: Sequence[Any]) -> Task:
            task = self._task_of(tuple(row))
            return claimed(task, worker=worker, claim_id=claim_id, now=now, lease_until=now + lease)

        reader = RowReader(read)
        taken = [reader.task_of(row[1:]) for row in rows]
        has_unreadable = True in [bool(task.unreadable) for task in taken]
        if has_unreadable and any(type(row[1]) is not str for row in rows):
            self.name_rows()
            return self._claim(worker, queues, limit, lease, claim_id)
        if rows:
            rowids = str([row[0] for row in rows])
            self._db.execute(_CLAIM, (worker, claim_id, elapsed + lease, now, rowids))
            claims.note_starts(self._db, rows, self.limits(), elapsed)
            self.must_last |= True in [task.at_most_once for task in taken]
            if has_unreadable:  # each with the attempt that the task has: the stored one may be no number
                attempts = [(task.attempt, row[0]) for row, task in zip(rows, taken, strict=True) if task.unreadable]
                self._db.executemany("UPDATE bullpen_task SET attempt = ? WHERE rowid = ?", attempts)
        return tuple(taken)

    def name_rows(self) -> None:
        """Give every row whose id is no text an id with the same bytes in hexadecimal, so that verbs can name it. Its
        task fails, unless it is final.
        """
        error = AttemptError(kind="poison", attempt=0, at=self.now, message="its stored id was no text")
        for rowid, stored in readable_rows(self._db, "SELECT rowid, id FROM bullpen_task"):
            if type(stored) is not str:
                self._db.execute(_NAME, (rowid,))
                self._db.execute(_SET_ASIDE, (self.now, self.now, msgspec.msgpack.encode([error]), rowid))

    def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        lost, cancelled = set(), set()
        for hold in holds:
            if self._db.execute(_RENEW, (self.elapsed + lease, hold.id, hold.attempt)).rowcount == 0:
                lost.add(hold)
                continue
            wanted = "SELECT cancel_requested FROM bullpen_task WHERE id = ?"
            if self._db.execute(wanted, (hold.id,)).fetchone()[0]:
                cancelled.add(hold)
        return Renewal(frozenset(lost), frozenset(cancelled))

    def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        note = f"UPDATE bullpen_task SET progress = ? {_HELD}"
        return self._db.execute(note, (msgspec.msgpack.encode(progress), hold.id, hold.attempt)).rowcount > 0

    def save_step(self, hold: AttemptKey, step: Step) -> bool:
        held = self._db.execute(f"SELECT steps FROM bullpen_task {_HELD}", (hold.id, hold.attempt)).fetchone()
        if held is None:
            return False
        if held[0] == 0:
            self._db.execute("UPDATE bullpen_task SET steps = 1 WHERE id = ?", (hold.id,))
        self._db.execute(_SAVE_STEP, (hold.id, step.name, encode_step(step)))
        return True

    def rescue_expired(self, decide: Decide, limit: int, dead_workers: Sequence[str]) -> Sequence[Task]:
        rescued: list[Task] = []
        to_rescue = self.to_rescue(dead_workers)
        if any(type(task_id) is not str for task_id in to_rescue):
            self.name_rows()
            to_rescue = self.to_rescue(dead_workers)
        for task_id in to_rescue:
            task = self.get(task_id)
            settlement = None if task is None else decide(task, self.now)
            if settlement is not None and not self.settle([settlement]):
                rescued += [after for after in self.find([task_id]) if after is not None]
                if len(rescued) >= limit:
                    break
        return rescued

    def to_rescue(self, dead_workers: Sequence[str]) -> list[str]:
        """The ids of running tasks without a living worker, and every id that is no text but a BLOB."""
        dead = set(dead_workers)
        running = "FROM bullpen_task INDEXED BY bullpen_running WHERE status IN ('running')"
        unnamed = [task_id for (task_id,) in readable_rows(self._db, "SELECT id FROM bullpen_task WHERE id >= x''")]
        return unnamed + [
            task_id
            for task_id, worker, lease_until in readable_rows(self._db, f"SELECT id, worker, lease_until {running}")
            if worker in dead or type(lease_until) is not float or not 0 < lease_until - self.elapsed <= MAX_LEASE
        ]

    # People and upkeep.

    def change(self, ids: Iterable[str], move: Move) -> list[Task]:
        changed = []
        for before, after in self._change_tasks(ids, move, self.now):
            if terms_of(after) != terms_of(before):
                self._db.execute(_KEEP_TERMS, (*terms_of(after), after.id))
            changed.append(after)
        self.settled.update(task.id for task in changed if task.is_final)
        self.changed_queues.update(
            task.queue for task in changed if task.concurrency_key is not None
        )  # one less before others
        return changed

    def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return self.change(ids, cancelled_by_operator)

    def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        """Not those whose unique key another task has."""
        return self.change(ids, lambda task, now: redriven_behind(task, self._members(task), now))

    def delete(self, ids: Sequence[str]) -> int:
        delete = f"DELETE FROM bullpen_task WHERE id = ? AND status NOT IN ('pending', 'running') AND {_UNAWAITED}"
        return self._db.executemany(delete, [(task_id,) for task_id in ids]).rowcount if ids else 0

    def batch(self, verb: BatchVerb, which: TaskFilter, limit: int, after: str | None) -> tuple[list[str], str | None]:
        """The ids of one batch, and where the next one starts."""
        if verb == "retry":
            tasks = self.page(which, limit, after)
            return [task.id for task in tasks if not task.unreadable], tasks[-1].id if len(tasks) == limit else None
        ids = [task_id for (task_id,) in self._page("id", which, limit, after)]
        return ids, ids[-1] if len(ids) == limit else None

    def change_batch(self, verb: BatchVerb, ids: Sequence[str]) -> list[ChangedTask]:
        """A task that depends on no other, and on which none depends, changes in one statement with the others."""
        packed = msgspec.json.encode(ids).decode()
        if verb == "delete":
            gone = self._changed(f"{_LOOK_AT} AND status NOT IN ('pending', 'running') AND {_UNAWAITED}", packed)
            self._db.execute(f"DELETE FROM bullpen_task {_AMONG}", (_ids_of(gone),))
            return gone
        if verb == "cancel":
            alone = self._changed(f"{_LOOK_AT} AND status IN ('pending', 'running') AND {_ALONE}", packed)
            self._db.execute(_CANCEL_TOGETHER, (self.now, self.now, _ids_of(alone)))
        else:
            final = "status IN ('success', 'failed', 'cancelled')"
            alone = self._changed(f"{_LOOK_AT} AND {final} AND {_ALONE} AND unique_key IS NULL", packed)
            self._db.execute(_RETRY_TOGETHER, (self.now, _ids_of(alone)))
        done = {task.id for task in alone}
        self.settled |= done
        self.changed_queues |= {task.queue for task in alone}
        change = self.cancel if verb == "cancel" else self.retry
        others = change([task_id for task_id in ids if task_id not in done])
        after = self._changed(_LOOK_AT, _ids_of(alone))
        return after + [ChangedTask(task.id, task.queue, task.attempt, task.status) for task in others]

    def _changed(self, statement: str, packed: str) -> list[ChangedTask]:
        return [
            ChangedTask(task_id, queue, attempt, status_of(status))
            for task_id, queue, attempt, status in readable_rows(self._db, statement, (packed,))
        ]

    def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        return frozenset(task.id for task in tasks if self._import_task(task, self.now))

    def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        remove = "DELETE FROM bullpen_task WHERE id = ? AND status = ? AND attempt = ? AND eta = ? AND headers IS ?"
        gone = set()
        for task in tasks:
            as_given = (task.id, task.status.value, task.attempt, task.eta, headers_of(task))
            if task.status is not RUNNING and self._db.execute(remove, as_given).rowcount == 1:
                gone.add(task.id)
        return frozenset(gone)

    def expire(self, limit: int) -> Sequence[Task]:
        return self.change(self.to_expire(limit), expired)

    def to_expire(self, limit: int) -> list[str]:
        late = (
            "SELECT id FROM bullpen_task INDEXED BY bullpen_expiring WHERE status = 'pending' AND expires <= ? "
            "ORDER BY expires LIMIT ?"
        )
        return [task_id for (task_id,) in self._db.execute(late, (self.now, limit)).fetchall()]

    def prune(self, limit: int) -> int:
        prune = (
            f"DELETE FROM bullpen_task WHERE rowid IN ({_ENDED} SELECT bullpen_task.rowid {_PRUNABLE} "
            f"WHERE {_UNAWAITED} LIMIT ?)"
        )
        count = self._db.execute(prune, (self.now, limit)).rowcount
        history_table.prune_rows(self._db, self.now)
        event_table.prune(self._db, self.now)
        return count

    def is_something_to_prune(self) -> bool:
        if self._db.execute(f"{_ENDED} SELECT 1 {_PRUNABLE} LIMIT 1", (self.now,)).fetchone() is not None:
            return True
        if event_table.is_something_to_prune(self._db, self.now):
            return True
        return history_table.is_something_to_prune(self._db, self.now)

    # Events.

    def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        is_new, queues = event_table.emit(self._db, name, payload, ttl, self.now)
        self.changed_queues.update(queues)
        self.settled.add(event_wakeup(name))
        return is_new

    def find_event(self, name: str) -> Event | None:
        return event_table.find(self._db, name)

    def events(self, limit: int, after: str | None) -> Sequence[Event]:
        return event_table.read_events(self._db, limit, after)

    def _has_event(self, name: str) -> bool:
        return self.find_event(name) is not None

    # History.

    def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow]) -> None:
        history_table.add_rows(self._db, rows)
        history_table.add_failures(self._db, failures)

    def failures(self, since: float) -> Sequence[FailureRow]:
        return history_table.read_failures(self._db, since)

    def delete_failures(self, fingerprint: str, function: str | None) -> None:
        history_table.delete_failures(self._db, fingerprint, function)

    def history(
        self, step: int, since: float, until: float, queue: str | None, function: str | None
    ) -> Sequence[HistoryRow]:
        return history_table.read_rows(self._db, step, since, until, queue, function)

    # Workers, queues, limits.

    def save_worker(self, record: WorkerRecord) -> None:
        record = msgspec.structs.replace(record, seen_at=self.now)
        note = "INSERT OR REPLACE INTO bullpen_worker VALUES (?, ?, ?)"
        self._db.execute(note, (record.id, record.seen_at, msgspec.msgpack.encode(record)))

    def delete_worker(self, worker: str) -> None:
        self._db.execute("DELETE FROM bullpen_worker WHERE id = ?", (worker,))

    def workers(self) -> list[WorkerRecord]:
        return readable_workers(readable_rows(self._db, "SELECT record FROM bullpen_worker"), _decode_worker)

    def pause(self, queue: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO bullpen_paused VALUES (?)", (queue,))

    def resume(self, queue: str) -> None:
        self._db.execute("DELETE FROM bullpen_paused WHERE queue = ?", (queue,))
        self.changed_queues.add(queue)

    def paused(self) -> frozenset[str]:
        return frozenset(queue for (queue,) in readable_rows(self._db, claims.PAUSED) if type(queue) is str)

    def set_limit(self, limit: Limit) -> None:
        self._limits = None
        self._db.execute("DELETE FROM bullpen_limit WHERE queue = ?", (limit.queue,))
        if limit.is_limit:
            put = "INSERT INTO bullpen_limit VALUES (?, ?)"
            self._db.execute(put, (limit.queue, msgspec.msgpack.encode(limit)))
        if limit.rate is None:
            self._db.execute("DELETE FROM bullpen_start WHERE queue = ?", (limit.queue,))
        self.changed_queues.add(limit.queue)

    def limits(self) -> Sequence[Limit]:
        if self._limits is None:
            self._limits = claims.read_limits(self._db)
        return self._limits

    # Reading.

    def get(self, task_id: str) -> Task | None:
        rows = readable_rows(self._db, _GET, (task_id,))
        return self._task_of(rows[0]) if rows else None

    def find(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return [self.get(task_id) for task_id in ids]

    def find_claim(self, claim_id: str) -> Sequence[Task]:
        running = "FROM bullpen_task INDEXED BY bullpen_running WHERE status IN ('running') AND claim_id = ?"
        return self._tasks(f"SELECT {COLUMNS} {running} ORDER BY priority DESC, eta, id", (claim_id,))

    def page(self, which: TaskFilter, limit: int, after: str | None, newest: bool = False) -> Sequence[Task]:
        return [self._task_of(row) for row in self._page(COLUMNS, which, limit, after, newest)]

    def _page(self, columns: str, which: TaskFilter, limit: int, after: str | None, newest: bool = False) -> list[Row]:
        conditions, values = self._conditions(which)
        if after is not None:
            conditions.append("id < ?" if newest else "id > ?")
            values.append(after)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        table = f"bullpen_task {_index_for(which)}"
        order = "ORDER BY id DESC" if newest else "ORDER BY id"
        rows = readable_rows(self._db, f"SELECT {columns} FROM {table} {where} {order} LIMIT ?", (*values, limit))
        if any(type(row[0]) is not str for row in rows):
            raise UnnamedRow
        return rows

    def count(self, which: TaskFilter) -> int:
        conditions, values = self._conditions(which)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        (count,) = self._db.execute(f"SELECT count(*) FROM bullpen_task {where}", values).fetchone()
        return int(count)

    def _conditions(self, which: TaskFilter) -> tuple[list[str], list[object]]:
        if which.error is not None:
            self._db.create_function("has_error", 2, has_error, deterministic=True)
        if which.fingerprint is not None:
            self._db.create_function("is_of_group", 2, is_of_group, deterministic=True)
        if which.header is not None:
            self._db.create_function("has_header", 3, has_header, deterministic=True)
        return _conditions(which)

    def counts(self, limit: int | None) -> dict[str, dict[TaskStatus, int]]:
        """Each from the index that has just those tasks, at most `limit` + 1 of them."""
        counts: dict[str, dict[TaskStatus, int]] = {}
        most = -1 if limit is None else limit + 1
        for index, condition, groups in _COUNTED:
            counted = f"SELECT count(*) FROM (SELECT 1 FROM bullpen_task INDEXED BY {index} WHERE {condition} "
            counted += f"AND {' AND '.join(f'{name} = ?' for name in groups)} LIMIT ?)"
            for values in self._groups(index, condition, groups):
                (count,) = self._db.execute(counted, (*values, most)).fetchone()
                queue, *rest = values
                of_queue = counts.setdefault(queue if type(queue) is str else repr(queue), {})
                status = status_of(rest[0]) if rest else _STATUS_OF[index]
                of_queue[status] = of_queue.get(status, 0) + count
        return counts

    def _groups(self, index: str, condition: str, names: Sequence[str], *before: Any) -> Iterator[tuple[Any, ...]]:
        """The different values of the first columns of an index, of those that begin with the values `before`: one step
        in the index for each.
        """
        name = names[len(before)]
        first = f"SELECT {name} FROM bullpen_task INDEXED BY {index} WHERE {condition} "
        first += "".join(f"AND {known} = ? " for known in names[: len(before)])
        found = self._db.execute(f"{first} ORDER BY {name} LIMIT 1", before).fetchone()
        while found is not None:
            values = (*before, found[0])
            if len(values) == len(names):
                yield values
            else:
                yield from self._groups(index, condition, names, *values)
            found = self._db.execute(f"{first} AND {name} > ? ORDER BY {name} LIMIT 1", values).fetchone()

    def first_pending(self, limit: int) -> list[Task]:
        found: list[Task] = []
        for index, condition, _ in _COUNTED[:2]:
            first = f"SELECT {COLUMNS} FROM bullpen_task INDEXED BY {index} WHERE {condition} "
            first += "AND queue = ? AND priority = ? ORDER BY eta, id LIMIT ?"
            for values in self._groups(index, condition, ("queue", "priority")):
                found += self._tasks(first, (*values, limit))
        return found

    def list_pending(self, limit: int, queue: str | None, after: tuple[float, str] | None) -> list[Task]:
        """The first ids of each queue and priority are read from their index, and only those of the page as tasks."""
        found: list[Row] = []
        for index, condition, _ in _COUNTED[:2]:
            first = f"SELECT eta, id FROM bullpen_task INDEXED BY {index} WHERE {condition} "
            first += "AND queue = ? AND priority = ? AND (eta, id) > (?, ?) ORDER BY eta, id LIMIT ?"
            for values in self._groups(index, condition, ("queue", "priority"), *([] if queue is None else [queue])):
                found += readable_rows(self._db, first, (*values, *(after or (-math.inf, "")), limit))
        if any(type(row[1]) is not str for row in found):
            raise UnnamedRow
        chosen = heapq.nsmallest(limit, (row for row in found if type(row[0]) is float))
        return [task for task in self.find([task_id for _, task_id in chosen]) if task is not None]

    def queues(self) -> frozenset[str]:
        """Those with pending tasks: one step in the index for each queue."""
        found: set[str] = set()
        for index, keyed in (("bullpen_ready", "IS NULL"), ("bullpen_ready_keyed", "IS NOT NULL")):
            first = f"SELECT min(queue) FROM bullpen_task INDEXED BY {index} WHERE status = 'pending' "
            first += f"AND concurrency_key {keyed}"
            rows = self._db.execute(
                f"WITH RECURSIVE each_queue(name) AS ({first} UNION ALL "
                f"SELECT ({first} AND queue > name) FROM each_queue WHERE name IS NOT NULL) SELECT name FROM each_queue"
            )
            found.update(name for (name,) in rows if type(name) is str)
        return frozenset(found)

    def next_work(self, queues: Sequence[str]) -> float:
        """When something may be due: now, later or never (infinity)."""
        if self._may_start(queues, 1):
            return self.now
        opened = claims.open_queues(self._db, queues)
        limits = self.limits()
        in_room = self.now + claims.next_room(self._db, opened, limits, self.elapsed) if limits else math.inf
        return min(claims.next_eta(self._db, opened, self.now), in_room)

    def has_result(self, task_id: str, completed_runs: int) -> bool:
        """Whether it is final, or gone, or has completed more than `completed_runs` runs."""
        waits = "SELECT status IN ('pending', 'running') AND completed_runs <= ? FROM bullpen_task WHERE id = ?"
        found = self._db.execute(waits, (completed_runs, task_id)).fetchone()
        return found is None or not found[0]

    def _tasks(self, statement: str, values: Sequence[object]) -> list[Task]:
        return [self._task_of(row) for row in readable_rows(self._db, statement, values)]

    def _task_of(self, row: Row) -> Task:
        task = task_of(row, self._ahead)
        if not row[STEPS]:
            return task
        return with_steps(task, [record for (record,) in readable_rows(self._db, _STEPS_OF, (task.id,))])

    def _may_start(self, queues: Sequence[str], limit: int) -> list[Row]:
        terms = (self._db, queues, self.limits(), self.now, self.elapsed, limit)
        try:
            return claims.claimable(*terms)
        except DECODING_ERRORS as error:
            return read_again(self._db, error, lambda: claims.claimable(*terms))

    # How the rules read and write.

    def _read(self, task_id: str) -> Task | None:
        return self.get(task_id)

    def _insert(self, task: Task, now: float) -> None:  # noqa: ARG002
        self._db.execute(_ADD, row_of(task, self._ahead))
        for step in task.steps:
            self._db.execute(_SAVE_STEP, (task.id, step.name, encode_step(step)))
        self.changed_queues.add(task.queue)

    def _add_child(self, task: Task, now: float) -> None:  # noqa: ARG002
        self.add([task])

    def _write(self, task: Task, now: float) -> None:  # noqa: ARG002
        if task.unreadable:
            self._write_unreadable(task)
        else:
            self._db.execute(_KEEP, (*changes_of(task, self._ahead), task.id))
        if task.is_final:
            self.settled.add(task.id)
        else:
            self.changed_queues.add(task.queue)

    def _write_unreadable(self, task: Task) -> None:
        for row in readable_rows(self._db, _GET, (task.id,)):
            if not (changes := changes_of_unreadable(row, task, self._ahead)):
                continue
            columns = ", ".join(f"{name} = ?" for name in changes)
            self._db.execute(f"UPDATE bullpen_task SET {columns} WHERE id = ?", (*changes.values(), task.id))

    def _drop(self, task: Task) -> None:
        self._db.execute("DELETE FROM bullpen_task WHERE id = ?", (task.id,))

    def _holder(self, task: Task, now: float) -> Task | None:
        if task.unique_key is None:
            return None
        others = self._tasks(_WITH_KEY, (task.unique_key, task.queue))
        return next((other for other in others if has_key(other, now)), None)


def event_wakeup(name: str) -> str:
    """The name of an event in wake-ups, beside those of tasks, which have no space."""
    return f"event {name}"


def _is_plain_success(one: Settlement) -> bool:
    """Whether it is of no concern to any other task, and brings nothing but a result."""
    has_more = one.error is not None or one.progress is not None or one.linked or one.children
    return one.status is SUCCESS and not has_more


def _ids_of(tasks: Iterable[ChangedTask]) -> str:
    return msgspec.json.encode([task.id for task in tasks]).decode()


def _in_portions(all_of_them: Sequence[T]) -> Iterator[Sequence[T]]:
    return (all_of_them[first : first + MOST_TOGETHER] for first in range(0, len(all_of_them), MOST_TOGETHER))


def _conditions(which: TaskFilter) -> tuple[list[str], list[object]]:
    conditions, values = [], list[object]()
    for column, allowed in (("id", which.ids), ("queue", which.queues)):
        if allowed is not None:
            conditions.append(f"{column} IN (SELECT value FROM json_each(?))")
            values.append(msgspec.json.encode(allowed).decode())
    if which.statuses is not None and FINAL.issubset(which.statuses):  # also a status that does not exist
        statuses = ", ".join(f"'{status.value}'" for status in TaskStatus if status not in which.statuses)
        conditions.append(f"status NOT IN ({statuses})")
    elif which.statuses is not None:
        statuses = ", ".join(f"'{status.value}'" for status in which.statuses)
        conditions.append(f"status IN ({statuses})")
    if which.func_path is not None:
        conditions.append("(func_path = ? OR substr(func_path, -1 - length(?)) = '.' || ?)")
        values += [which.func_path] * 3
    if which.key is not None:
        conditions.append("(unique_key = ? OR concurrency_key = ?)")
        values += [which.key] * 2
    if which.header is not None:
        conditions.append("has_header(headers, ?, ?)")
        values += which.header
    if which.awaits is not None:
        conditions.append("status = 'pending' AND " + ("awaits = ?" if which.awaits else "awaits IS NOT NULL"))
        values += [which.awaits] if which.awaits else []
    if which.worker is not None:
        conditions.append("worker = ?")
        values.append(which.worker)
    if which.error is not None:
        conditions.append("has_error(errors, ?)")
        values.append(which.error)
    if which.fingerprint is not None:
        conditions.append("is_of_group(errors, ?)")
        values.append(which.fingerprint)
    at = "iif(status NOT IN ('pending', 'running'), ifnull(finished_at, created_at), created_at)"
    for comparison, instant in ((">", which.since), ("<=", which.until)):
        if instant is not None:
            conditions.append(f"{at} {comparison} ?")
            values.append(instant)
    return conditions, values


def _index_for(which: TaskFilter) -> str:
    """Those that are few among many have an index of their own."""
    if which.awaits is not None:
        return "INDEXED BY bullpen_awaiting"
    if which.statuses == (RUNNING,):
        return "INDEXED BY bullpen_running"
    return "INDEXED BY bullpen_failed" if which.statuses == (FAILED,) else ""

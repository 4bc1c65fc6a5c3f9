"""The moves of tasks, as statements inside a transaction that somebody else begins and commits."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TypeVar

import msgspec

from bullpen.storage.port import Decide, Exchange, Hold, Limit, Move, Renewal, TaskFilter, WorkerRecord
from bullpen.storage.sqlite import claims
from bullpen.storage.sqlite.rows import (
    CHANGING,
    COLUMNS,
    PLAIN,
    SHARED,
    TERMS,
    Row,
    changes_of,
    headers_of,
    is_plain,
    row_of,
    shared_of,
    task_of,
    terms_of,
)
from bullpen.tasks.alike import Alike, runs
from bullpen.tasks.links import called_back, followed, has_come_back, has_ended, redriven_behind
from bullpen.tasks.task import (
    FAILED,
    RUNNING,
    SUCCESS,
    Progress,
    Settlement,
    Task,
    TaskStatus,
    applies,
    cancelled_by_operator,
    claimed,
    expired,
    settled,
)
from bullpen.tasks.unique import RETURN, Duplicates, has_key, meet

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
def _add_together(count: int) -> str:
    """Many rows that have all but their ids and payloads in common."""
    same = ", ".join("?" * (SHARED.count(",") + 1))
    own = ", ".join(["(?, ?)"] * count)
    return (
        f"INSERT INTO bullpen_task ({PLAIN}) SELECT {same}, column1, column2 FROM (VALUES {own}) "
        "WHERE true ON CONFLICT DO NOTHING"  # the condition, because ON might belong to the FROM
    )


# Many at once, for every statement that this thread executes gives others the chance to hold up the next one. Each
# number of rows is a statement of its own, which SQLite prepares once.
_MOST_TOGETHER = 50
_KEEP = f"UPDATE bullpen_task SET ({CHANGING}) = ({', '.join('?' * (CHANGING.count(',') + 1))}) WHERE id = ?"
_KEEP_TERMS = f"UPDATE bullpen_task SET ({TERMS}) = ({', '.join('?' * (TERMS.count(',') + 1))}) WHERE id = ?"
_CLAIM = (
    "UPDATE bullpen_task SET status = 'running', attempt = attempt + 1, worker = ?, claim_id = ?, lease_until = ?, "
    "started_at = ?, progress = NULL WHERE rowid IN (SELECT value FROM json_each(?))"
)
# Nobody who waits still needs its result.
_UNAWAITED = (
    "(then_id IS NULL OR NOT EXISTS (SELECT 1 FROM bullpen_task AS f WHERE f.id = bullpen_task.then_id "
    "AND f.status IN ('pending', 'running')))"
)
_HELD = "WHERE id = ? AND attempt = ? AND status = 'running'"
_RENEW = f"UPDATE bullpen_task SET lease_until = ? {_HELD}"

# The same as `settled` makes of a success, without reading the task first.
_SUCCEED = """
UPDATE bullpen_task SET status = 'success', failures = done.column3, crashes = done.column4, runs = done.column5,
    result = done.column6, result_dropped = done.column7, claim_id = NULL, lease_until = NULL,
    finished_at = done.column8, prune_at = max(done.column8 + ifnull(result_ttl, 9e999), ifnull(unique_until, 0))
FROM (VALUES {values}) AS done
WHERE id = done.column1 AND attempt = done.column2 AND status = 'running'
"""


@cache
def _succeed_together(count: int) -> str:
    return _SUCCEED.format(values=", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * count))


_decode_worker = msgspec.msgpack.Decoder(WorkerRecord).decode


def is_one_statement(alike: Alike) -> bool:
    """Whether one statement adds all of them."""
    return len(alike) <= _MOST_TOGETHER and is_plain(alike.same)


class Ledger:
    """The tables of one transaction, at one instant: `now` by the wall clock, `elapsed` by the clock of leases."""

    __slots__ = ("_ahead", "_db", "_limits", "elapsed", "heard", "must_last", "now", "settled")

    def __init__(self, db: sqlite3.Connection, now: float, elapsed: float) -> None:
        self._db = db
        self.now = now
        self.elapsed = elapsed
        self._ahead = now - elapsed
        self._limits: Sequence[Limit] | None = None  # once they were asked for
        self.heard: set[str] = set()  # queues in which something may be due now
        self.settled: set[str] = set()  # tasks whose result somebody may wait for
        self.must_last = False  # a claim was made that must not be lost in a power cut

    # Producers.

    def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        now = self.now
        new = [alike.kept(now) for alike in runs(tasks)]
        self.heard.update([alike.same.queue for alike in new])
        kept = new[0] if len(new) == 1 else [task for alike in new for task in alike]
        if all(is_plain(alike.same) for alike in new):
            added = sum(map(self._add_alike, new))
        elif all(alike.same.unique_key is None for alike in new):
            added = self._db.executemany(_ADD, [row_of(task, self._ahead) for task in kept]).rowcount
        else:
            there = [self._add(task, duplicates) for task in kept]
            latest = {task.id: task for task in there}  # one may be replaced twice
            return [latest[task.id] for task in there]
        return self._there(kept, added)

    def add_alike(self, kept: Alike) -> Sequence[Task]:
        """`add` for tasks that are plain."""
        self.heard.add(kept.same.queue)
        return self._there(kept, self._add_alike(kept))

    def _there(self, kept: Sequence[Task], added: int) -> Sequence[Task]:
        """Those that were added, or, if some were there already, what is there."""
        return kept if added == len(kept) else [self.get(task.id) or task for task in kept]

    def _add(self, task: Task, duplicates: Duplicates) -> Task:
        there = self.get(task.id)
        if there is not None:
            return there
        holder = self._holder(task)
        if holder is not None:
            task = meet(task, holder, duplicates, self.now)
            if task is holder:
                return holder
            self._db.execute("DELETE FROM bullpen_task WHERE id = ?", (holder.id,))
        self._db.execute(_ADD, row_of(task, self._ahead))
        return task

    def _holder(self, task: Task) -> Task | None:
        """Which task has the unique key of this one."""
        if task.unique_key is None:
            return None
        others = self._tasks(_WITH_KEY, (task.unique_key, task.queue))
        return next((other for other in others if has_key(other, self.now)), None)

    def _add_alike(self, alike: Alike) -> int:
        """Add plain tasks; how many were not there yet.

        For a value that is bytes, and not for a bytearray, `sqlite3` looks for adapters, which takes longer than to
        store it.
        """
        shared = shared_of(alike.same)
        added = 0
        for first in range(0, len(alike), _MOST_TOGETHER):
            ids = alike.ids[first : first + _MOST_TOGETHER]
            values = list(shared)
            for own in zip(ids, map(bytearray, alike.payloads[first : first + _MOST_TOGETHER]), strict=True):
                values += own
            added += self._db.execute(_add_together(len(ids)), values).rowcount
        return added

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
        refused = self.settle(settlements)
        taken = self._claim(worker, queues, limit, lease, claim_id) if limit > 0 else ()
        return Exchange(taken, frozenset(refused))

    def settle(self, settlements: Sequence[Settlement]) -> set[Hold]:
        """Apply them; those that were refused."""
        successes = list(filter(_is_plain_success, settlements))
        refused = self._succeed(successes)
        if len(successes) < len(settlements):
            for settlement in settlements:
                if not _is_plain_success(settlement) and not self._settle(settlement):
                    refused.add(Hold(settlement.id, settlement.attempt))
        if settlements:
            self.settled.update(settlement.id for settlement in settlements)
            self.heard.update(limit.queue for limit in self.limits())  # there may be room again
        return refused

    def _succeed(self, successes: Sequence[Settlement]) -> set[Hold]:
        refused = set()
        for some in _in_portions(successes):
            if not self._succeed_together(some):
                refused |= {Hold(one.id, one.attempt) for one in some if not self._succeed_together([one])}
        return refused

    def _succeed_together(self, some: Sequence[Settlement]) -> bool:
        """All of them or none."""
        values = [value for one in some for value in self._success(one)]
        if len(some) == 1:
            return self._db.execute(_succeed_together(1), values).rowcount == 1
        self._db.execute("SAVEPOINT together")
        all_applied = self._db.execute(_succeed_together(len(some)), values).rowcount == len(some)
        if not all_applied:
            self._db.execute("ROLLBACK TO together")
        self._db.execute("RELEASE together")
        return all_applied

    def _success(self, one: Settlement) -> Row:
        return (one.id, one.attempt, one.failures, one.crashes, one.runs, one.result, one.result_dropped, self.now)

    def _settle(self, settlement: Settlement) -> bool:
        task = self.get(settlement.id)
        if task is None or not applies(task, settlement):
            return False
        self._keep(settled(task, settlement, self.now), task)
        if settlement.children:
            self.add(settlement.children)
        return True

    def _claim(self, worker: str, queues: Sequence[str], limit: int, lease: float, claim_id: str) -> tuple[Task, ...]:
        now, elapsed, ahead = self.now, self.elapsed, self._ahead
        rows = claims.claimable(self._db, queues, self.limits(), now, elapsed, limit)
        taken = tuple(
            claimed(task_of(row[1:], ahead), worker=worker, claim_id=claim_id, now=now, lease_until=now + lease)
            for row in rows
        )
        if rows:
            rowids = str([row[0] for row in rows])
            self._db.execute(_CLAIM, (worker, claim_id, elapsed + lease, now, rowids))
            claims.note_starts(self._db, rows, self.limits(), elapsed)
            self.must_last |= any(task.at_most_once for task in taken)
        return taken

    def renew(self, holds: Sequence[Hold], lease: float) -> Renewal:
        lost, cancelled = set(), set()
        for hold in holds:
            if self._db.execute(_RENEW, (self.elapsed + lease, hold.id, hold.attempt)).rowcount == 0:
                lost.add(hold)
                continue
            wanted = "SELECT cancel_requested FROM bullpen_task WHERE id = ?"
            if self._db.execute(wanted, (hold.id,)).fetchone()[0]:
                cancelled.add(hold)
        return Renewal(frozenset(lost), frozenset(cancelled))

    def note_progress(self, hold: Hold, progress: Progress) -> bool:
        note = f"UPDATE bullpen_task SET progress = ? {_HELD}"
        return self._db.execute(note, (msgspec.msgpack.encode(progress), hold.id, hold.attempt)).rowcount > 0

    def rescue_expired(self, decide: Decide, limit: int, dead_workers: Sequence[str]) -> Sequence[Task]:
        rescued: list[Task] = []
        for task_id in self.to_rescue(dead_workers):
            task = self.get(task_id)
            settlement = None if task is None else decide(task, self.now)
            if settlement is not None and not self.settle([settlement]):
                rescued += [after for after in self.find([task_id]) if after is not None]
                if len(rescued) >= limit:
                    break
        return rescued

    def to_rescue(self, dead_workers: Sequence[str]) -> list[str]:
        dead = set(dead_workers)
        running = "FROM bullpen_task INDEXED BY bullpen_running WHERE status IN ('running')"
        return [
            task_id
            for task_id, worker, lease_until in self._db.execute(f"SELECT id, worker, lease_until {running}").fetchall()
            if worker in dead or lease_until <= self.elapsed
        ]

    # People and upkeep.

    def change(self, ids: Iterable[str], move: Move) -> list[Task]:
        changed = []
        for task_id in ids:
            task = self.get(task_id)
            after = None if task is None else move(task, self.now)
            if task is not None and after is not None and self._keep(after, task):
                if terms_of(after) != terms_of(task):
                    self._db.execute(_KEEP_TERMS, (*terms_of(after), task_id))
                changed.append(after)
        self.settled.update(task.id for task in changed if task.is_final)
        self.heard.update(task.queue for task in changed if task.concurrency_key is not None)  # one less before others
        return changed

    def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return self.change(ids, cancelled_by_operator)

    def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        """Not those whose unique key another task has."""
        return self.change(ids, lambda task, now: redriven_behind(task, self._members(task), now))

    def delete(self, ids: Sequence[str]) -> int:
        delete = (
            f"DELETE FROM bullpen_task WHERE id = ? AND status IN ('success', 'failed', 'cancelled') AND {_UNAWAITED}"
        )
        return self._db.executemany(delete, [(task_id,) for task_id in ids]).rowcount if ids else 0

    def put(self, tasks: Sequence[Task]) -> frozenset[str]:
        kept = [task for task in tasks if self._put(task)]
        self.heard.update(task.queue for task in kept)
        return frozenset(task.id for task in kept)

    def _put(self, task: Task) -> bool:
        if task.status is RUNNING or (has_key(task, self.now) and self._holder(task) is not None):
            return False
        return self._db.execute(_ADD, row_of(task, self._ahead)).rowcount == 1

    def remove(self, tasks: Sequence[Task]) -> frozenset[str]:
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
            "DELETE FROM bullpen_task WHERE rowid IN (SELECT rowid FROM bullpen_task INDEXED BY bullpen_finished "
            f"WHERE prune_at <= ? AND {_UNAWAITED} ORDER BY prune_at LIMIT ?)"
        )
        return self._db.execute(prune, (self.now, limit)).rowcount

    def is_something_to_prune(self) -> bool:
        oldest = "SELECT min(prune_at) FROM bullpen_task INDEXED BY bullpen_finished WHERE prune_at IS NOT NULL"
        (prune_at,) = self._db.execute(oldest).fetchone()
        return prune_at is not None and bool(prune_at <= self.now)

    # Workers, queues, limits.

    def note_worker(self, record: WorkerRecord) -> None:
        record = msgspec.structs.replace(record, seen_at=self.now)
        note = "INSERT OR REPLACE INTO bullpen_worker VALUES (?, ?, ?)"
        self._db.execute(note, (record.id, record.seen_at, msgspec.msgpack.encode(record)))

    def drop_worker(self, worker: str) -> None:
        self._db.execute("DELETE FROM bullpen_worker WHERE id = ?", (worker,))

    def workers(self) -> list[WorkerRecord]:
        return [_decode_worker(record) for (record,) in self._db.execute("SELECT record FROM bullpen_worker")]

    def pause(self, queue: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO bullpen_paused VALUES (?)", (queue,))

    def resume(self, queue: str) -> None:
        self._db.execute("DELETE FROM bullpen_paused WHERE queue = ?", (queue,))
        self.heard.add(queue)

    def paused(self) -> frozenset[str]:
        return frozenset(queue for (queue,) in self._db.execute("SELECT queue FROM bullpen_paused"))

    def set_limit(self, limit: Limit) -> None:
        self._limits = None
        put = "INSERT OR REPLACE INTO bullpen_limit VALUES (?, ?)"
        self._db.execute(put, (limit.queue, msgspec.msgpack.encode(limit)))
        self.heard.add(limit.queue)

    def limits(self) -> Sequence[Limit]:
        if self._limits is None:
            self._limits = claims.read_limits(self._db)
        return self._limits

    # Reading.

    def get(self, task_id: str) -> Task | None:
        row = self._db.execute(_GET, (task_id,)).fetchone()
        return None if row is None else task_of(row, self._ahead)

    def find(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return [self.get(task_id) for task_id in ids]

    def find_claim(self, claim_id: str) -> Sequence[Task]:
        running = "FROM bullpen_task INDEXED BY bullpen_running WHERE status IN ('running') AND claim_id = ?"
        return self._tasks(f"SELECT {COLUMNS} {running} ORDER BY priority DESC, eta, id", (claim_id,))

    def page(self, which: TaskFilter, limit: int, after: str | None) -> Sequence[Task]:
        conditions, values = _conditions(which)
        if after is not None:
            conditions.append("id > ?")
            values.append(after)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        table = f"bullpen_task {_index_for(which)}"
        return self._tasks(f"SELECT {COLUMNS} FROM {table} {where} ORDER BY id LIMIT ?", (*values, limit))

    def counts(self) -> dict[str, dict[TaskStatus, int]]:
        """Each from the index that has just those tasks."""
        pending = "FROM bullpen_task INDEXED BY {} WHERE status = 'pending' AND concurrency_key {} GROUP BY queue"
        parts = (
            f"SELECT queue, 'pending', count(*) {pending.format('bullpen_ready', 'IS NULL')}",
            f"SELECT queue, 'pending', count(*) {pending.format('bullpen_ready_keyed', 'IS NOT NULL')}",
            "SELECT queue, status, count(*) FROM bullpen_task INDEXED BY bullpen_running WHERE status IN ('running') "
            "GROUP BY queue",
            "SELECT queue, status, count(*) FROM bullpen_task INDEXED BY bullpen_finished WHERE prune_at IS NOT NULL "
            "GROUP BY queue, status",
        )
        counts: dict[str, dict[TaskStatus, int]] = {}
        for queue, status, count in self._db.execute(" UNION ALL ".join(parts)):
            of_queue = counts.setdefault(queue, {})
            of_queue[TaskStatus(status)] = of_queue.get(TaskStatus(status), 0) + count
        return counts

    def next_work(self, queues: Sequence[str]) -> float:
        """When something may be due: now, later or never (infinity)."""
        if claims.claimable(self._db, queues, self.limits(), self.now, self.elapsed, 1):
            return self.now
        in_room = self.now + claims.next_room(self._db, queues, self.elapsed)
        return min(claims.next_eta(self._db, queues, self.now), in_room)

    def has_result(self, task_id: str, runs: int) -> bool:
        """Whether it is final, or gone, or has completed more than `runs` runs."""
        found = self._db.execute("SELECT status, runs FROM bullpen_task WHERE id = ?", (task_id,)).fetchone()
        return found is None or found[0] not in ("pending", "running") or found[1] > runs

    def _tasks(self, statement: str, values: Sequence[object]) -> list[Task]:
        return [task_of(row, self._ahead) for row in self._db.execute(statement, values)]

    def _keep(self, task: Task, before: Task) -> bool:
        """Write what may have changed, there and in those behind it; False if another task has its unique key."""
        if self._is_taken(task):
            return False
        self._write(task)
        while task.then is not None:
            follower = self.get(task.then)
            after = None if follower is None else self._behind(before, task, follower)
            if follower is None or after is None:
                break
            before, task = follower, after
            self._write(task)
            if task.is_final:
                self.settled.add(task.id)
        return True

    def _write(self, task: Task) -> None:
        self._db.execute(_KEEP, (*changes_of(task, self._ahead), task.id))
        if not task.is_final:
            self.heard.add(task.queue)

    def _behind(self, before: Task, after: Task, follower: Task) -> Task | None:
        """What becomes of a task because the one before it is another now."""
        if has_ended(before, after):
            return followed(follower, after, self.now)
        if has_come_back(before, after):
            back = called_back(follower, before, self._members(follower), self.now)
            return None if back is None or self._is_taken(back) else back
        return None

    def _members(self, follower: Task) -> Iterator[Task | None]:
        ids = follower.follows.ids if follower.follows is not None else ()
        return (self.get(task_id) for task_id in reversed(ids))

    def _is_taken(self, task: Task) -> bool:
        """Whether another task has its unique key: then it cannot come back to life."""
        holder = self._holder(task) if has_key(task, math.inf) else None
        return holder is not None and holder.id != task.id


def _is_plain_success(one: Settlement) -> bool:
    """Whether it is of no concern to any other task."""
    return one.status is SUCCESS and one.error is None and not one.linked and not one.children


def _in_portions(all_of_them: Sequence[T]) -> Iterator[Sequence[T]]:
    return (all_of_them[first : first + _MOST_TOGETHER] for first in range(0, len(all_of_them), _MOST_TOGETHER))


def _conditions(which: TaskFilter) -> tuple[list[str], list[object]]:
    conditions, values = [], list[object]()
    for column, allowed in (("id", which.ids), ("queue", which.queues)):
        if allowed is not None:
            conditions.append(f"{column} IN (SELECT value FROM json_each(?))")
            values.append(msgspec.json.encode(allowed).decode())
    if which.statuses is not None:
        statuses = ", ".join(f"'{status.value}'" for status in which.statuses)
        conditions.append(f"status IN ({statuses})")
    for column, value in (("func_path", which.func_path), ("worker", which.worker)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    return conditions, values


def _index_for(which: TaskFilter) -> str:
    """Those that are few among many have an index of their own."""
    if which.statuses == (RUNNING,):
        return "INDEXED BY bullpen_running"
    return "INDEXED BY bullpen_failed" if which.statuses == (FAILED,) else ""

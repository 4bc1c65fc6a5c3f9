"""The two connections of a file: one that writes, in groups, and one that reads.

A group is one transaction. If one item of it fails, nothing has happened, and each item gets a transaction of its own:
no caller fails because of another one's work. Callers are told of success only after the commit. Only then, and still
with the lock, the writer may checkpoint.

A commit waits for the disk if one item of the group has to survive a power cut: adding, settling, and what people
change. Claims and heartbeats need not, because a claim that is lost only means that the task runs again; the claim of a
task that may run only once does.
"""

from __future__ import annotations

import math
import sqlite3

from bullpen import primitives
from bullpen.errors import StorageBusy, StorageError
from bullpen.tasks.model.task_batch import TaskBatch, join_batches
from bullpen.tasks.storage.sqlite import file, schema
from bullpen.tasks.storage.sqlite.file import DatabaseFile
from bullpen.tasks.storage.sqlite.group_commit import (
    GroupCommit,
    WorkItem,
    is_busy,
    is_lost,
    is_of_store,
    log,
    tell_callers,
)
from bullpen.tasks.storage.sqlite.rows import is_plain
from bullpen.tasks.storage.sqlite.task_table import MOST_TOGETHER, SqliteTaskTable, StoreClock
from bullpen.tasks.storage.sqlite.wakeups import Waker

CHECKPOINT_PAGES = 1000
_PAGES_PER_COMMIT, _PAGES_PER_CHANGE = 4, 0.5  # roughly: SQLite does not tell how long the log is


class SqliteWriter(GroupCommit):
    def __init__(self, place: DatabaseFile, waker: Waker) -> None:
        self._waker = waker
        self._write_lock: file.WriteLock | None = None  # among processes
        self._pages = 0.0  # in the log, as far as this process has filled it
        self._waits_for_disk = True  # whether a commit does, at the moment; if the store ever waits
        self._was_locked = False  # the last transaction could not begin
        super().__init__("writer", place)

    @property
    def is_locked(self) -> bool:
        return self._was_locked or self._leader != 0

    def _run(self, group: list[WorkItem]) -> None:
        try:
            lock = self._write_lock or self._open_lock()
        except (StorageError, OSError) as error:
            self.fail_all(group, error)
            return
        try:
            if not lock.acquire(self._place.busy_timeout):
                self._was_locked = True
                waited = f"others wrote for longer than {self._place.busy_timeout:g} s"
                self.fail_all(group, StorageBusy(waited, storage=self._storage))
                return
            self._write(group)
            if self._pages >= CHECKPOINT_PAGES and self._db is not None:
                tell_callers(group)  # they need not wait for it
                self._announce(group)
                self._checkpoint(self._db)
        finally:
            lock.release()

    def _write(self, group: list[WorkItem]) -> None:
        """In one transaction if it succeeds; else each item in its own.

        An error that is not the store's, and that no item has when it is alone, is none of theirs: this thread was
        interrupted.
        """
        error = self._transact(group, takes_more=True)
        if error is None:
            return
        for item in group:
            alone = self._transact([item])
            if alone is not None:
                item.fail(alone, self._storage)
        if not is_of_store(error) and not any(item.error is not None for item in group):
            raise error

    def _open_lock(self) -> file.WriteLock:
        file.check_file(self._place.path)
        self._write_lock = file.WriteLock(file.create_folder(self._place.path))
        return self._write_lock

    def _connection(self, clock: StoreClock) -> sqlite3.Connection:
        place = self._place
        if self._db is not None and self._db.in_transaction:  # its leader was interrupted
            self.disconnect()
        if self._db is None:
            place.check_unchanged()
            file.check_file(place.path)
            file.create_file(place.path)
            with place.connecting(self._name) as db:
                self._prepare(db, clock.boot())
            self._db = db
        else:
            place.check_before()
        return self._db

    def _prepare(self, db: sqlite3.Connection, boot: str) -> None:
        """With the lock, so that only one process makes or migrates the tables."""
        schema.check(db, self._storage)
        if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StorageError(
                "its file system cannot share memory between processes; use a local disk", storage=self._storage
            )
        if schema.check(db, self._storage) < schema.VERSION or not schema.is_current_boot(db, boot):
            db.execute("BEGIN IMMEDIATE")
            schema.migrate(db, self._storage, boot)
            primitives.failpoint("sqlite.before_migration_commit")
            db.execute("COMMIT")

    def _transact(self, items: list[WorkItem], *, takes_more: bool = False) -> BaseException | None:
        """One transaction for all items, and with `takes_more` for those that come until it begins. Returns the error
        if one of several failed: then nothing has happened, and each is to be tried alone.

        A single statement is a transaction by itself: it needs no BEGIN and COMMIT, each of which lets other threads
        run first.
        """
        db: sqlite3.Connection | None = None
        begun = committing = False
        changes = 0
        plain: TaskBatch | None = None
        try:
            db = self._connection(items[0].clock)
            changes = db.total_changes
            durable = True in [item.durable for item in items]
            if durable != self._waits_for_disk:
                self._wait_for_disk(db, durable)
            if takes_more and self._items:  # the later, the more items share the commit
                self._take(items, durable=durable)
            plain = None if items[0].tasks is None else _plain_batch(items, MOST_TOGETHER)
            if plain is not None:
                primitives.failpoint("sqlite.before_commit")
                committing = True
                _add_for_all(db, plain, items)
            else:
                db.execute("BEGIN IMMEDIATE")
                begun = True
                if takes_more and self._items:
                    self._take(items, durable=durable)
                _run_in_order(db, items)
                primitives.failpoint("sqlite.before_commit")
                committing = True
                db.execute("COMMIT")
            begun = False
            primitives.failpoint("sqlite.after_commit")
            if not durable and _must_last(items):
                self._make_durable(db)
            self._place.check_unchanged()  # else the commit is in a file that no process can find
            self._pages += _PAGES_PER_COMMIT + (db.total_changes - changes) * _PAGES_PER_CHANGE
        except BaseException as error:
            self._was_locked = is_busy(error)
            committed = committing and db is not None and self._db is db and not db.in_transaction
            if plain is not None:
                committed = committed and db is not None and db.total_changes - changes == len(plain)
                begun = committing and not is_busy(error)
            if committed and not is_of_store(error) and (durable or not _must_last(items)):
                for item in items:
                    item.is_answered = True
                raise  # this thread was interrupted
            self._roll_back(error)
            if len(items) > 1 and not committed and (begun or not is_of_store(error)):
                return error
            self.fail_all(items, error)
        else:
            self._was_locked = False
            for item in items:
                item.is_answered = True
        return None

    def _wait_for_disk(self, db: sqlite3.Connection, wait: bool) -> None:
        """Have the commits that follow wait for the disk, or not. A store with synchronous="normal" never waits."""
        if self._place.synchronous == "full":
            db.executescript(f"PRAGMA synchronous = {'full' if wait else 'normal'}")  # not from the statement cache
        self._waits_for_disk = wait

    def _make_durable(self, db: sqlite3.Connection) -> None:
        """A commit that waits for the disk takes all before it along."""
        self._wait_for_disk(db, True)
        db.execute("UPDATE bullpen_boot SET boot = boot")

    def _roll_back(self, error: BaseException) -> None:
        """A connection that has seen the disk fail is opened, and its file checked, anew."""
        if isinstance(error, StorageError) or is_lost(error):
            self.disconnect()
        elif self._db is not None and self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:  # SQLite has done so itself, or cannot
                self.disconnect()

    def _checkpoint(self, db: sqlite3.Connection) -> None:
        """Write the log back into the file, as far as readers allow; again later if they do not.

        No connection may commit meanwhile. Processes of ours wait for the lock. FULL keeps a connection of the user's
        own out, because it takes SQLite's lock too; but it goes on without that lock if it cannot have it at once,
        hence the BEGIN before.
        """
        primitives.failpoint("sqlite.before_checkpoint")
        self._pages = CHECKPOINT_PAGES / 2
        db.execute("PRAGMA busy_timeout = 0")
        try:
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
            busy, _, _ = db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            if not busy:
                self._pages = 0.0
        except sqlite3.Error as error:  # another one writes, or the disk is full; the log is safe
            self._roll_back(error)
        if self._db is not None:
            db.execute(f"PRAGMA busy_timeout = {round(self._place.busy_timeout * 1000)}")

    def _announce(self, group: list[WorkItem]) -> None:
        table: SqliteTaskTable | None = None
        for item in group:
            if item.error is None and item.table is not None and item.table is not table:
                table = item.table  # which the items of one transaction share
                if table.changed_queues or table.settled:
                    try:
                        self._waker.wake_all(table.changed_queues, table.settled)
                    except Exception:  # waiting workers and callers poll, too
                        log.exception("%s: cannot wake waiting workers and callers; they poll", self._storage)

    def disconnect(self) -> None:
        super().disconnect()
        self._pages = 0.0
        self._waits_for_disk = True

    def let_go(self) -> None:
        super().let_go()
        if self._write_lock is not None:
            self._write_lock.close()
            self._write_lock = None


class SqliteReader(GroupCommit):
    def __init__(self, place: DatabaseFile) -> None:
        super().__init__("reader", place)

    def _run(self, group: list[WorkItem]) -> None:
        for item in group:
            error = self._read(item)
            if error is not None and not is_of_store(error):  # if it fails only once, this thread was interrupted
                again = self._read(item)
                if again is None:
                    raise error
            if error is not None:
                item.fail(error, self._storage)

    def _read(self, item: WorkItem) -> BaseException | None:
        """Returns the error that it failed with."""
        try:
            db = self._connection()
            db.execute("BEGIN")
            try:
                item.run(item.clock.table(db))
            finally:
                if db.in_transaction:  # SQLite ends it after some errors
                    db.execute("COMMIT")
            item.is_answered = True
        except BaseException as error:
            if isinstance(error, StorageError) or is_lost(error):
                self.disconnect()
            return error
        return None

    def _connection(self) -> sqlite3.Connection:
        self._place.check_unchanged()
        if self._db is not None and self._db.in_transaction:  # its leader was interrupted
            self.disconnect()
        if self._db is None:
            with self._place.connecting(self._name) as db:
                schema.check(db, self._storage)
            self._db = db
        return self._db


def _plain_batch(items: list[WorkItem], most: float) -> TaskBatch | None:
    """The tasks of all items, if all of them add plain tasks that differ in their ids and payloads only, at most so
    many.
    """
    first = items[0].tasks
    if type(first) is not TaskBatch or not is_plain(first.template):
        return None
    joined: TaskBatch | None = first
    if len(items) > 1:
        batches = [item.tasks for item in items if type(item.tasks) is TaskBatch and item.clock is items[0].clock]
        joined = join_batches(batches) if len(batches) == len(items) else None
    return None if joined is None or len(joined.ids) > most else joined


def _add_for_all(db: sqlite3.Connection, plain: TaskBatch, items: list[WorkItem]) -> None:
    """Add the tasks of all items together, and give each item its own."""
    table = items[0].clock.table(db)
    kept = plain.kept(table.now)
    for item in items:  # before the statement, because this thread may be interrupted right after it
        item.table = table
        item.result = kept if item.tasks is plain else item.tasks.with_template(kept.template)  # type: ignore[union-attr]
    existing = table.add_plain(kept)
    if existing is not kept:
        first = 0
        for item in items:
            last = first + len(item.result)
            item.result = existing[first:last]
            first = last


def _run_in_order(db: sqlite3.Connection, items: list[WorkItem]) -> None:
    plain = None if items[0].tasks is None else _plain_batch(items, math.inf)
    if plain is not None:
        _add_for_all(db, plain, items)
        return
    table: SqliteTaskTable | None = None
    clock: StoreClock | None = None
    for item in items:
        if table is None or item.clock is not clock:
            clock = item.clock
            table = clock.table(db)
        item.run(table)


def _must_last(items: list[WorkItem]) -> bool:
    """Whether one of them has claimed a task that may run only once."""
    for item in items:
        if item.table is not None and item.table.must_last:
            return True
    return False

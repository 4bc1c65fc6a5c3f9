"""The lines of a file: one that writes, in groups, and one that reads.

If one of a group fails, nothing has happened, and each gets a transaction of its own: nobody fails for another.
A caller hears of success only after the commit; only then, and still with the lock, the writer may checkpoint.

A commit waits for the disk if one of the group has to survive a power cut: what is added, settled or changed by people
does. Claims and signs of life do not, for a claim that is lost only means that the task runs again; that of a task
which may run only once does.
"""

from __future__ import annotations

import sqlite3

from bullpen import primitives
from bullpen.errors import StorageBusy, StorageError
from bullpen.storage.sqlite import file, schema
from bullpen.storage.sqlite.file import Place
from bullpen.storage.sqlite.jobs import Addition, Clock, Job, addition_of, deliver, is_of_store, run_together
from bullpen.storage.sqlite.ledger import Ledger
from bullpen.storage.sqlite.line import Line, is_busy, is_lost, log
from bullpen.storage.sqlite.signals import Bell

CHECKPOINT_PAGES = 1000
_PAGES_PER_COMMIT, _PAGES_PER_CHANGE = 4, 0.5  # roughly; nobody tells how long the log is


class Writer(Line):
    def __init__(self, place: Place, bell: Bell) -> None:
        self._place = place
        self._bell = bell
        self._write_lock: file.WriteLock | None = None
        self._pages = 0.0  # in the log, as far as this process has filled it
        self._waits_for_disk = True  # whether a commit does, at the moment
        super().__init__("writer", str(place.path))

    def _run(self, group: list[Job]) -> None:
        try:
            lock = self._lock()
        except (StorageError, OSError) as error:
            self.fail_all(group, error)
            return
        try:
            if not lock.acquire(self._place.busy_timeout):
                waited = f"others wrote for longer than {self._place.busy_timeout:g} s"
                self.fail_all(group, StorageBusy(waited, storage=self._storage))
                return
            self._write(group)
            if self._pages >= CHECKPOINT_PAGES and self._db is not None:
                deliver(group)  # who would else wait for it
                self._announce(group)
                self._checkpoint(self._db)
        finally:
            lock.release()

    def _write(self, group: list[Job]) -> None:
        """In one transaction, if that can be; else each in its own.

        An error that is not the store's, and that none of them has when it is alone, was none of theirs: something has
        interrupted this thread.
        """
        error = self._transact(group, takes_more=True)
        if error is None:
            return
        group[:] = [one for job in group for one in job.split()]
        for job in group:
            alone = self._transact([job])
            if alone is not None:
                job.fail(alone, self._storage)
        if not is_of_store(error) and not any(job.error is not None for job in group):
            raise error

    def _lock(self) -> file.WriteLock:
        if self._write_lock is None:
            file.check_file(self._place.path)
            self._write_lock = file.WriteLock(file.create_folder(self._place.path))
        return self._write_lock

    def _connection(self, clock: Clock) -> sqlite3.Connection:
        place = self._place
        if self._db is not None and self._db.in_transaction:  # it belonged to somebody who was interrupted
            self.disconnect()
        if self._db is None:
            if place.was_opened:
                place.check_still_there()
            file.check_file(place.path)
            file.create_file(place.path)
            db = place.connect()
            try:
                self._prepare(db, clock.boot())
            except BaseException:
                db.close()
                raise
            self._db = db
        place.check_still_there()
        return self._db

    def _prepare(self, db: sqlite3.Connection, boot: str) -> None:
        """With the lock, so that only one process makes or migrates the tables."""
        schema.check(db, self._storage)
        if db.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            raise StorageError("its file system cannot share memory between processes", storage=self._storage)
        if schema.check(db, self._storage) < schema.VERSION or not schema.is_current_boot(db, boot):
            db.execute("BEGIN IMMEDIATE")
            schema.migrate(db, self._storage, boot)
            primitives.failpoint("sqlite.before_migration_commit")
            db.execute("COMMIT")

    def _transact(self, jobs: list[Job], *, takes_more: bool = False) -> BaseException | None:
        """One transaction for all, and for those who come until it begins. What one of several failed with: then
        nothing has happened, and it is worth while to try each alone.

        A single statement is a transaction by itself, which saves two more, and the changes of threads around them.
        """
        db: sqlite3.Connection | None = None
        begun = committing = False
        changes = 0
        addition: Addition | None = None
        try:
            db = self._connection(jobs[0].clock)
            changes = db.total_changes
            durable = _has_durable(jobs)
            self._wait_for_disk(db, durable)
            if takes_more and self._jobs:  # the later, the more there are to share the commit
                self._take(jobs, durable=durable)
            addition = addition_of(db, jobs)
            if addition is not None:
                primitives.failpoint("sqlite.before_commit")
                committing = True
                addition.run()
            else:
                db.execute("BEGIN IMMEDIATE")
                begun = True
                if takes_more:
                    self._take(jobs, durable=durable)
                run_together(db, jobs)
                primitives.failpoint("sqlite.before_commit")
                committing = True
                db.execute("COMMIT")
            begun = False
            primitives.failpoint("sqlite.after_commit")
            if not durable and _must_last(jobs):
                self._make_durable(db)
            self._pages += _PAGES_PER_COMMIT + (db.total_changes - changes) * _PAGES_PER_CHANGE
        except BaseException as error:
            committed = committing and db is not None and self._db is db and not db.in_transaction
            if addition is not None:
                committed = committed and db is not None and db.total_changes - changes == len(addition.tasks)
                begun = committing and not is_busy(error)
            if committed and not is_of_store(error) and (durable or not _must_last(jobs)):
                _confirm(jobs)
                raise  # this thread was interrupted
            self._roll_back(error)
            has_several = len(jobs) > 1 or jobs[0].has_several
            if has_several and not committed and (begun or not is_of_store(error)):
                return error
            self.fail_all(jobs, error)
        else:
            _confirm(jobs)
        return None

    def _wait_for_disk(self, db: sqlite3.Connection, wait: bool) -> None:
        """Whether the commits that follow do. Where the store never does, nothing changes."""
        if wait != self._waits_for_disk and self._place.synchronous == "full":
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
        """Write the log back into the file, as far as those who read allow; again later if they do not.

        Nobody may commit meanwhile. Processes of ours wait for the lock. A connection of the user's own is kept out by
        FULL, which takes SQLite's lock too, but goes on without it when it cannot have it at once; hence the look
        before.
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
        except sqlite3.Error as error:  # somebody writes, or the disk is full: what is in the log is safe there
            self._roll_back(error)
        if self._db is not None:
            db.execute(f"PRAGMA busy_timeout = {round(self._place.busy_timeout * 1000)}")

    def _announce(self, group: list[Job]) -> None:
        """What has changed, to whoever waits for that."""
        ledger: Ledger | None = None
        for job in group:
            if job.error is None and job.ledger is not None and job.ledger is not ledger:
                ledger = job.ledger  # which jobs of one transaction share
                if ledger.heard or ledger.settled:
                    self._ring(ledger)

    def _ring(self, ledger: Ledger) -> None:
        try:
            self._bell.ring(ledger.heard, ledger.settled)
        except Exception:  # they look again by themselves
            log.exception("%s: an unexpected error", self._storage)

    def disconnect(self) -> None:
        super().disconnect()
        self._pages = 0.0
        self._waits_for_disk = True

    def let_go(self) -> None:
        super().let_go()
        if self._write_lock is not None:
            self._write_lock.close()
            self._write_lock = None


class Reader(Line):
    def __init__(self, place: Place) -> None:
        self._place = place
        super().__init__("reader", str(place.path))

    def _run(self, group: list[Job]) -> None:
        for job in group:
            error = self._read(job)
            if error is not None and not is_of_store(error):  # if only once, this thread was interrupted
                again = self._read(job)
                if again is None:
                    raise error
            if error is not None:
                job.fail(error, self._storage)

    def _read(self, job: Job) -> BaseException | None:
        """What it failed with."""
        try:
            db = self._connection()
            db.execute("BEGIN")
            try:
                job.run(job.clock.ledger(db))
            finally:
                db.execute("COMMIT")
            job.is_answered = True
        except BaseException as error:
            if isinstance(error, StorageError) or is_lost(error):
                self.disconnect()
            return error
        return None

    def _connection(self) -> sqlite3.Connection:
        self._place.check_still_there()
        if self._db is not None and self._db.in_transaction:  # it belonged to somebody who was interrupted
            self.disconnect()
        if self._db is None:
            self._db = self._place.connect()
            schema.check(self._db, self._storage)
        return self._db


def _has_durable(jobs: list[Job]) -> bool:
    for job in jobs:
        if job.durable:
            return True
    return False


def _confirm(jobs: list[Job]) -> None:
    for job in jobs:
        job.is_answered = True


def _must_last(jobs: list[Job]) -> bool:
    """Whether one of them has claimed what may run only once."""
    for job in jobs:
        if job.ledger is not None and job.ledger.must_last:
            return True
    return False

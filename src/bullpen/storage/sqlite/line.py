"""The threads that own the connections to a file: one that writes and one that reads, per process and file.

Group commit: whatever waits when the writer is free goes into one transaction, so that many callers share one wait for
the disk. If one of them fails, nothing has happened, and each gets a transaction of its own: nobody fails for another.
A caller hears of success only after the commit; only then, and still with the lock, the writer may checkpoint.

A commit waits for the disk if one of the group has to survive a power cut: what is added, settled or changed by people
does. Claims and signs of life do not, for a claim that is lost only means that the task runs again; that of a task
which may run only once does.

Nothing of SQLite may live through a fork: a connection that a child opens would believe that it holds the locks of its
parent's, and hold none. So before a fork the threads stop between two transactions and their connections are closed;
the parent opens them again when they are needed, and the child begins anew.
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from bullpen import primitives
from bullpen.errors import StorageBusy, StorageClosed, StorageCorrupt, StorageError
from bullpen.storage.sqlite import file, schema
from bullpen.storage.sqlite.jobs import Clock, Job, Work, deliver, run_together
from bullpen.storage.sqlite.ledger import Ledger
from bullpen.storage.sqlite.signals import Bell

log = logging.getLogger("bullpen.storage")

T = TypeVar("T")

LARGEST_GROUP = 1000
CHECKPOINT_PAGES = 1000
_PAGES_PER_COMMIT, _PAGES_PER_CHANGE = 4, 0.5  # roughly; nobody tells how long the log is
_LOST_CONNECTION = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}


def is_lost(error: BaseException) -> bool:
    """Whether the connection that raised it is of no use any more."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOST_CONNECTION


class Line:
    """A thread and its connection. Subclasses say how jobs are run."""

    def __init__(self, name: str, shared: SharedFile) -> None:
        self._shared = shared
        self._storage = str(shared.path)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._db: sqlite3.Connection | None = None
        self.lock = threading.RLock()  # held while the connection is used; reentrant
        self._farewells: list[Job] = []
        self._has_ended = False
        self._thread = primitives.start_thread(self._work, f"bullpen-sqlite-{name}")

    def submit(self, work: Work[T], clock: Clock, *, durable: bool = True) -> Awaitable[T]:
        job = Job(work, clock, durable=durable)
        self._jobs.put(job)
        if self._has_ended:  # only after the put: what is there when the thread ends is refused by it
            self._refuse_latecomers()
        return job.future

    def _work(self) -> None:
        stopping = False
        while not stopping:
            first = self._jobs.get()
            group = [] if first is None else [first]
            stopping = first is None
            while not stopping and len(group) < LARGEST_GROUP:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    stopping = True
                else:
                    group.append(job)
            group = [job for job in group if not job.future.cancelled()]
            if group:
                with self.lock:
                    self._run_safely(group)
        with self.lock:
            self.let_go()
        self._has_ended = True
        self._refuse_latecomers()
        deliver(self._farewells)

    def _refuse_latecomers(self) -> None:
        """Another thread has closed the store meanwhile."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self._fail_all([job], StorageClosed("it was closed", storage=self._storage))

    def _run_safely(self, group: list[Job]) -> None:
        """Whatever happens, the callers hear of it and the thread goes on."""
        try:
            self._run(group)
        except BaseException as error:
            log.exception("%s: an unexpected error", self._storage)
            self.disconnect()
            self._fail_all(group, error)  # those who have their answer keep it

    def _run(self, group: list[Job]) -> None:
        raise NotImplementedError

    def disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def let_go(self) -> None:
        """Close whatever is open. It is opened again when it is needed."""
        self.disconnect()

    def _fail_all(self, group: list[Job], error: BaseException) -> None:
        for job in group:
            job.fail(error, self._storage)
        deliver(group)

    def stop(self) -> Awaitable[None]:
        """When all that was submitted is done. The future ends when the thread is about to; then it can be joined."""
        farewell = Job(lambda _: None, Clock())
        self._farewells.append(farewell)
        self._jobs.put(None)
        return farewell.future

    def join(self) -> None:
        """After `stop`: the thread has nothing left to do but to end."""
        self._thread.join()


class Writer(Line):
    def __init__(self, shared: SharedFile) -> None:
        self._write_lock: file.WriteLock | None = None
        self._pages = 0.0  # in the log, as far as this process has filled it
        self._waits_for_disk = True  # whether a commit does, at the moment
        super().__init__("writer", shared)

    def _run(self, group: list[Job]) -> None:
        shared = self._shared
        try:
            lock = self._lock()
        except (StorageError, OSError) as error:
            self._fail_all(group, error)
            return
        if not lock.acquire(shared.busy_timeout):
            waited = f"others wrote for longer than {shared.busy_timeout:g} s"
            self._fail_all(group, StorageBusy(waited, storage=self._storage))
            return
        delivered = False
        try:
            if not self._transact(group):
                for job in group:
                    self._transact([job])
            if self._pages >= CHECKPOINT_PAGES and self._db is not None:
                deliver(group)  # who would else wait for it
                delivered = True
                self._checkpoint(self._db)
        finally:
            lock.release()
        try:
            self._ring(group)
        finally:
            if not delivered:  # last, for whoever hears of it takes the interpreter from this thread
                deliver(group)

    def _lock(self) -> file.WriteLock:
        if self._write_lock is None:
            file.check_file(self._shared.path)
            self._write_lock = file.WriteLock(file.create_folder(self._shared.path))
        return self._write_lock

    def _connection(self, clock: Clock) -> sqlite3.Connection:
        shared = self._shared
        if self._db is None:
            if shared.was_opened:
                shared.check_still_there()
            file.check_file(shared.path)
            file.create_file(shared.path)
            db = shared.connect()
            try:
                self._prepare(db, clock.boot())
            except BaseException:
                db.close()
                raise
            self._db = db
        shared.check_still_there()
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

    def _transact(self, jobs: list[Job]) -> bool:
        """One transaction for all. False if one of several failed: then nothing has happened."""
        may_repeat = False
        try:
            db = self._connection(jobs[0].clock)
            changes = db.total_changes
            durable = any(job.durable for job in jobs)
            self._wait_for_disk(db, durable)
            db.execute("BEGIN IMMEDIATE")
            may_repeat = len(jobs) > 1
            run_together(db, jobs)
            primitives.failpoint("sqlite.before_commit")
            db.execute("COMMIT")
            may_repeat = False
            primitives.failpoint("sqlite.after_commit")
            if not durable and any(job.ledger is not None and job.ledger.must_last for job in jobs):
                self._make_durable(db)
            self._pages += _PAGES_PER_COMMIT + (db.total_changes - changes) * _PAGES_PER_CHANGE
        except BaseException as error:
            self._roll_back(error)
            if may_repeat:
                return False
            for job in jobs:
                job.fail(error, self._storage)
        return True

    def _wait_for_disk(self, db: sqlite3.Connection, wait: bool) -> None:
        """Whether the commits that follow do. Where the store never does, nothing changes."""
        if wait != self._waits_for_disk and self._shared.synchronous == "full":
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
            db.execute(f"PRAGMA busy_timeout = {round(self._shared.busy_timeout * 1000)}")

    def _ring(self, group: list[Job]) -> None:
        queues: set[str] = set()
        tasks: set[str] = set()
        ledger: Ledger | None = None
        for job in group:
            if job.error is None and job.ledger is not None and job.ledger is not ledger:
                ledger = job.ledger  # which jobs of one transaction share
                queues |= ledger.heard
                tasks |= ledger.settled
        if queues or tasks:
            self._shared.bell.ring(queues, tasks)

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
    def __init__(self, shared: SharedFile) -> None:
        super().__init__("reader", shared)

    def _run(self, group: list[Job]) -> None:
        for job in group:
            try:
                db = self._connection()
                db.execute("BEGIN")
                try:
                    job.run(db)
                finally:
                    db.execute("COMMIT")
            except BaseException as error:
                job.fail(error, self._storage)
                if isinstance(error, StorageError) or is_lost(error):
                    self.disconnect()
        deliver(group)

    def _connection(self) -> sqlite3.Connection:
        self._shared.check_still_there()
        if self._db is None:
            self._db = self._shared.connect()
            schema.check(self._db, self._storage)
        return self._db


class SharedFile:
    """What all stores of this process that use one file share."""

    def __init__(self, path: Path, synchronous: str, busy_timeout: float) -> None:
        self.path = path
        self.synchronous = synchronous
        self.busy_timeout = busy_timeout
        self.users = 0
        self.bell = Bell(file.folder_of(path))
        self._identity: tuple[int, int] | None = None
        self._writer: Writer | None = None
        self._reader: Reader | None = None

    def write(self, work: Work[T], clock: Clock, *, durable: bool = True) -> Awaitable[T]:
        writer = self._writer
        if writer is None:
            with files_lock:
                writer = self._writer = self._writer or Writer(self)
        return writer.submit(work, clock, durable=durable)

    def read(self, work: Work[T], clock: Clock) -> Awaitable[T]:
        reader = self._reader
        if reader is None:
            with files_lock:
                reader = self._reader = self._reader or Reader(self)
        return reader.submit(work, clock)

    def connect(self) -> sqlite3.Connection:
        return file.connect(self.path, synchronous=self.synchronous, busy_timeout=self.busy_timeout)

    @property
    def was_opened(self) -> bool:
        return self._identity is not None

    def check_still_there(self) -> None:
        """What is written into a file that was removed would be lost without a word."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise StorageCorrupt("the file was removed while it was in use", storage=str(self.path)) from error
        identity = (found.st_dev, found.st_ino)
        if self._identity is None:
            self._identity = identity
        elif self._identity != identity:
            raise StorageCorrupt("the file was replaced while it was in use", storage=str(self.path))

    def lines(self) -> list[Line]:
        return [line for line in (self._writer, self._reader) if line is not None]

    async def close(self) -> None:
        lines = self.lines()
        for stopped in [line.stop() for line in lines]:
            await stopped
        for line in lines:
            line.join()
        self.bell.close()

    # Around a fork.

    def pause(self) -> None:
        for line in self.lines():
            line.lock.acquire()
            line.let_go()

    def go_on(self) -> None:
        for line in self.lines():
            line.lock.release()


files_lock = threading.RLock()
_files: dict[tuple[str, str], SharedFile] = {}


def acquire(path: Path, synchronous: str, busy_timeout: float) -> SharedFile:
    """The file, for one more store of this process."""
    real = file.resolve(path)
    key = (str(real), synchronous)
    with files_lock:
        shared = _files.get(key)
        if shared is None:
            shared = _files[key] = SharedFile(real, synchronous, busy_timeout)
        shared.users += 1
        return shared


async def release(shared: SharedFile) -> None:
    """One store less; with the last one the threads end."""
    with files_lock:
        shared.users -= 1
        if shared.users > 0:
            return
        for key in [key for key, other in _files.items() if other is shared]:
            del _files[key]
    await shared.close()


def _before_fork() -> None:
    files_lock.acquire()
    for shared in _files.values():
        shared.pause()


def _after_fork_in_parent() -> None:
    for shared in _files.values():
        shared.go_on()
    files_lock.release()


def _after_fork_in_child() -> None:
    for shared in _files.values():
        shared.bell.forget()
    _files.clear()
    primitives.renew_lock(files_lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

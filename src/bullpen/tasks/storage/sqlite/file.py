"""The database file: which files the store rejects, how it opens one, the lock of writers, and the errors it raises.

Beside `jobs.db` SQLite keeps `jobs.db-wal` and `jobs.db-shm`; Bullpen keeps the folder `jobs.db-bullpen`, with the lock
that writers take and the sockets on which processes wake each other. Only the owner may read or write them.

Why a lock of our own, when SQLite has one: before SQLite 3.51.3 a checkpoint that runs while another connection commits
can lose that commit (https://sqlite.org/wal.html#the_wal_reset_bug). So no connection of Bullpen checkpoints by itself;
the writer does it after a commit, before it releases the lock. A process that waits for this lock polls it every two
milliseconds; SQLite's own waiting sleeps for up to a hundred.
"""

from __future__ import annotations

import errno
import math
import os
import re
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bullpen.errors import (
    NotABullpenFile,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageGone,
    StorageReadOnly,
    UnsafeFile,
)
from bullpen.trusted_files import why_untrusted

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows: SQLite's own lock has to do
    fcntl = None  # type: ignore[assignment]

OLDEST_SQLITE = (3, 35, 0)
_NETWORK = frozenset(
    "9p afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.s3fs fuse.sshfs glusterfs gpfs lustre ncpfs nfs nfs4 "
    "ocfs2 smb3 smbfs".split()
)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_LONGEST_NAP = 0.002
_AT_ONCE = 0.001  # seconds
_MISSING = re.compile(r"^no such (table|column)|has no column named")
_TICK = 100_000_000  # nanoseconds; the clocks of Linux file systems advance every 1 to 10 ms


def resolve(path: Path, *, shared: bool = False) -> Path:
    """The path without links, which is the same for all processes that share the file.

    Raises UnsafeFile if other users can write it, unless it is `shared` with them.
    """
    real = Path(os.path.realpath(path))
    if not shared:
        check_trust(path)
        check_trust(real)
    return real


def check_trust(path: Path) -> None:
    """Raise UnsafeFile if other users can write the file, or what SQLite and Bullpen keep beside it."""
    beside = (path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal", "-bullpen"))
    for why in map(why_untrusted, (path, *beside)):
        if why:
            advice = "change that, or add ?shared=true to the address if you trust all users who can write there"
            raise UnsafeFile(f"{why}, so that they decide which functions run here; {advice}", storage=str(path))


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translated_error(error, str(path)) from error


def check_file(path: Path, mounts: Path = Path("/proc/mounts")) -> None:
    """Raise if the file is unsafe or not Bullpen's, before SQLite opens it. An absent or empty file is fine."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise StorageError(f"needs SQLite {needed}, this Python has {sqlite3.sqlite_version}", storage=str(path))
    folder = path.parent
    if not folder.is_dir():
        raise StorageError(f"there is no folder {folder}; create it first", storage=str(path))
    _check_kind(path)
    kind = _file_system(folder, mounts)
    if kind in _NETWORK:
        raise UnsafeFile(
            f"it is on a network file system ({kind}), where SQLite can corrupt it; "
            "use a local disk, or postgresql:// for several machines",
            storage=str(path),
        )
    _check_lost(path)


def _check_kind(path: Path) -> None:
    found = _stat(path)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise NotABullpenFile("it is not a file", storage=str(path))
    if found.st_nlink > 1:
        raise UnsafeFile(
            "it has several names (hard links), and SQLite would use one log for each; remove the other names",
            storage=str(path),
        )


def _file_system(folder: Path, mounts: Path) -> str:
    """The kind of the file system that `folder` is on, "" if it is unknown."""
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        _, place, this_kind, *_ = line.split(" ")
        place = place.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
        if folder.is_relative_to(place) and len(place) >= best:  # a later mount hides an earlier one
            best, kind = len(place), this_kind
    return kind


def _check_lost(path: Path) -> None:
    """Raise StorageCorrupt if only the log is left. SQLite itself finds out whether the file is a database.

    This must not open the file: a process that closes any descriptor of a file loses all its POSIX locks on it. Another
    process would then delete the log under the open connections of this one.
    """
    found = _stat(path)
    if found is not None and not os.access(path, os.R_OK):
        raise StorageReadOnly("this user may not read it", storage=str(path))
    if found is None or not found.st_size:
        log = _stat(path.with_name(path.name + "-wal"))
        if log is not None and log.st_size:
            raise StorageCorrupt(f"it is empty, but {path.name}-wal is not: the file has been lost", storage=str(path))


def create_file(path: Path) -> None:
    """Create the file for its owner alone. An existing file keeps its permissions."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise translated_error(error, str(path)) from error


def folder_of(path: Path) -> Path:
    """The folder with the lock and the sockets."""
    return path.with_name(path.name + "-bullpen")


def create_folder(path: Path) -> Path:
    """With the group of the file, if that may write the file."""
    folder, file = folder_of(path), _stat(path)
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
            if file is not None and file.st_mode & stat.S_IWGRP:
                _give_to_group(folder, file.st_gid, 0o770)
        found = folder.lstat()
    except OSError as error:
        raise translated_error(error, str(path)) from error
    owners = {0, *([os.geteuid()] if hasattr(os, "geteuid") else []), *([] if file is None else [file.st_uid])}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
        raise UnsafeFile(f"{folder.name} beside it is not a folder of this user or of the file's", storage=str(path))
    return folder


def let_group_in(path: Path) -> None:
    """Give a new file of the folder to the group that may write the folder, and to no other user."""
    folder, found = path.parent.stat(), path.lstat()
    if folder.st_mode & stat.S_IWGRP and hasattr(os, "geteuid") and found.st_uid == os.geteuid():
        _give_to_group(path, folder.st_gid, 0o660)


def _give_to_group(path: Path, gid: int, mode: int) -> None:
    with suppress(PermissionError):  # not a group of this user: then it stays the user's alone
        os.chown(path, -1, gid)
        path.chmod(mode)


def connect(path: Path, *, synchronous: str, busy_timeout: float) -> sqlite3.Connection:
    """A connection that commits only when told, never checkpoints by itself, and may move between threads."""
    db = sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("PRAGMA cache_size = -16384")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        db.close()
        raise
    return db


Identity = tuple[int, int]  # the device and the inode of a file


class DatabaseFile:
    """A file that is in use, and the check that it is still the file at its path.

    A commit into a file that was removed or replaced would be lost silently. The same goes for its log and the index of
    the log (`-wal`, `-shm`): a process that starts later creates new ones, and a process that still uses the old ones
    can overwrite its commits. So a writer compares device and inode of each file before a transaction, to protect the
    new files, and again before it acknowledges the commit, because only then the acknowledgement is true. The check
    after one commit also serves a transaction that follows within `_AT_ONCE` seconds.

    Every removal and every rename changes the time of the folder. If that time is the same as in the last check, the
    files are the same, and only the size of the file is looked at: a file that was emptied would be written from the
    log again, without the pages that are not in the log. The clock of a file system is coarse and may hide a second
    change: a folder that was changed less than `_TICK` before the check proves nothing.

    The path has no links: SQLite would use another log for the file behind a link.
    """

    def __init__(self, path: Path, synchronous: str, busy_timeout: float, *, with_others: bool) -> None:
        self.path = path
        self.with_others = with_others
        self.synchronous = synchronous
        self.busy_timeout = busy_timeout
        self._folder = str(path.parent)
        self._main = str(path)
        self._beside = (f"{path}-wal", f"{path}-shm", str(folder_of(path)))
        self._identities: dict[str, Identity] = {}
        self._folder_seen: tuple[int, int, int] | None = None  # with all files as they were
        self._users: set[str] = set()  # "writer" and "reader", as long as each has a connection
        self._connecting = threading.RLock()  # reentrant, for signal handlers
        self._checked_at = -math.inf
        self._gone = ""  # how the file was lost

    @contextmanager
    def connecting(self, user: str) -> Iterator[sqlite3.Connection]:
        """Connect. The caller reads from the connection inside `with`, so that SQLite opens the log."""
        with self._connecting:
            self._closed(user)  # an interrupt may have left it in `_users`
            before = self._identify(self._main)
            try:
                db = connect(self.path, synchronous=self.synchronous, busy_timeout=self.busy_timeout)
            except sqlite3.Error as error:
                raise open_error(error, self._main) from error
            try:
                yield db
                if not self.with_others:  # in a folder such as /tmp another user may have made the log first
                    check_trust(self.path)
                self._identities.setdefault(self._main, before)
                for name in self._beside:
                    self._identities.setdefault(name, self._identify(name))
                self._compare()
            except BaseException:
                db.close()
                raise
            self._users.add(user)

    def disconnect(self, user: str, db: sqlite3.Connection) -> None:
        """Close a connection. SQLite deletes the log with the last connection, and the next one creates a new log."""
        with self._connecting:
            db.close()
            self._closed(user)

    def _closed(self, user: str) -> None:
        self._users.discard(user)
        if not self._users:
            for name in self._beside:
                self._identities.pop(name, None)
            self._folder_seen = None

    def check_before(self) -> None:
        """Run `check_unchanged`, unless it has run within `_AT_ONCE` seconds."""
        if time.monotonic() - self._checked_at > _AT_ONCE:
            self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise StorageGone if the file was removed, replaced or emptied. Every later check raises it too."""
        try:
            folder = os.stat(self._folder)
        except OSError as error:
            raise self._missing(self._folder, error) from error
        seen = (folder.st_mtime_ns, folder.st_ino, folder.st_dev)
        if seen != self._folder_seen:
            self._compare()
            self._folder_seen = seen if abs(time.time_ns() - folder.st_mtime_ns) > _TICK else None
        if self._main in self._identities:
            try:
                found = os.stat(self._main)
            except OSError as error:
                raise self._missing(self._main, error) from error
            if found.st_size == 0:
                raise self._lost(self._main, "emptied")
        self._checked_at = time.monotonic()

    def _compare(self) -> None:
        if self._gone:
            raise StorageGone(self._gone, storage=self._main)
        for name, identity in list(self._identities.items()):  # the other connection may change them
            if self._identify(name) != identity:
                raise self._lost(name, "replaced")

    def _identify(self, name: str) -> Identity:
        try:
            found = os.lstat(name)
        except OSError as error:
            raise self._missing(name, error) from error
        return found.st_dev, found.st_ino

    def _missing(self, name: str, error: OSError) -> StorageError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return self._lost(name, "removed")
        return translated_error(error, self._main)

    def _lost(self, name: str, how: str) -> StorageGone:
        self._checked_at = -math.inf
        if not self._gone:
            what = "the file" if name == self._main else os.path.basename(name)
            advice = "restart this process, or close the store and open it again"
            self._gone = f"{what} was {how} while it was in use; {advice}"
        return StorageGone(self._gone, storage=self._main)


class WriteLock:
    """The lock that allows one writer among all processes that use the file."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | _NO_LINK, 0o600)
        let_group_in(path)

    def acquire(self, timeout: float) -> bool:
        if fcntl is None:  # pragma: no cover - Windows
            return True
        deadline, nap = 0.0, _LONGEST_NAP / 16
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + timeout
                if now >= deadline:
                    return False
            time.sleep(nap)
            nap = min(nap * 2, _LONGEST_NAP)

    def release(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)


def translated_error(error: sqlite3.Error | OSError, storage: str) -> StorageError:
    """The same fault as a `StorageError`."""
    if isinstance(error, OSError):
        return _OS_KINDS.get(error.errno or 0, StorageError)(str(error), storage=storage)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the extended part
    if code == sqlite3.SQLITE_ERROR and _MISSING.search(str(error)):
        return StorageCorrupt(f"another program has dropped or changed its tables ({error})", storage=storage)
    kind, text = _KINDS.get(code, (StorageError, "the store failed"))
    return kind(f"{text} ({error})", storage=storage)


def open_error(error: sqlite3.Error, storage: str) -> StorageError:
    """The error for a file that SQLite cannot open."""
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
        return NotABullpenFile("it is not a database", storage=storage)
    return translated_error(error, storage)


_OS_KINDS: dict[int, type[StorageError]] = {
    errno.EROFS: StorageReadOnly,
    errno.EACCES: StorageReadOnly,
    errno.EPERM: StorageReadOnly,
    errno.ENOSPC: StorageFull,
    errno.EDQUOT: StorageFull,
}
_KINDS: dict[int, tuple[type[StorageError], str]] = {
    sqlite3.SQLITE_BUSY: (StorageBusy, "another connection locked the file for too long"),
    sqlite3.SQLITE_LOCKED: (StorageBusy, "another connection locked a table for too long"),
    sqlite3.SQLITE_FULL: (StorageFull, "there is no space left"),
    sqlite3.SQLITE_READONLY: (StorageReadOnly, "it cannot be written"),
    sqlite3.SQLITE_PERM: (StorageReadOnly, "this user may not write it"),
    sqlite3.SQLITE_CANTOPEN: (StorageError, "it cannot be opened"),
    sqlite3.SQLITE_IOERR: (StorageError, "reading or writing the disk failed"),
    sqlite3.SQLITE_CORRUPT: (StorageCorrupt, "it is damaged"),
    sqlite3.SQLITE_NOTADB: (StorageCorrupt, "it is damaged, or not a database"),
}

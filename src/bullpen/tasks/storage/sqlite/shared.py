"""What all stores of this process that use one file share: its writer, its reader and its waker.

Nothing of SQLite may live through a fork: a connection that a child opens would believe that it holds the locks of its
parent's, and hold none. So before a fork the writer and the reader stop between two transactions and close their
connections. The parent opens them again when they are needed, and the child begins anew.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from bullpen import primitives
from bullpen.tasks.storage.sqlite import file
from bullpen.tasks.storage.sqlite.group_commit import GroupCommit
from bullpen.tasks.storage.sqlite.wakeups import Waker
from bullpen.tasks.storage.sqlite.writer import SqliteReader, SqliteWriter


class SharedFile:
    """One open file: its writer, its reader and its waker, for all stores of this process that use it."""

    def __init__(self, path: Path, synchronous: str, busy_timeout: float, *, with_others: bool) -> None:
        self.path = path
        self.users = 0
        self.waker = Waker(file.folder_of(path))
        place = file.DatabaseFile(path, synchronous, busy_timeout, with_others=with_others)
        self.writer = SqliteWriter(place, self.waker)
        self.reader = SqliteReader(place)
        self._group_commits: tuple[GroupCommit, ...] = (self.writer, self.reader)

    async def close(self) -> None:
        for group_commit in self._group_commits:
            await group_commit.close()
        self.waker.close()

    def close_blocking(self) -> None:
        for group_commit in self._group_commits:
            group_commit.close_blocking()
        self.waker.close()

    # Around a fork.

    def pause(self) -> None:
        for group_commit in self._group_commits:
            group_commit.lock.acquire()
            group_commit.let_go()

    def go_on(self) -> None:
        for group_commit in self._group_commits:
            group_commit.lock.release()


files_lock = threading.RLock()
_files: dict[tuple[str, str], SharedFile] = {}


def acquire(path: Path, synchronous: str, busy_timeout: float, *, with_others: bool) -> SharedFile:
    """The file, for one more store of this process. `with_others`: other users may write it."""
    real = file.resolve(path, shared=with_others)
    key = (str(real), synchronous)
    with files_lock:
        shared = _files.get(key)
        if shared is None:
            shared = _files[key] = SharedFile(real, synchronous, busy_timeout, with_others=with_others)
        shared.users += 1
        return shared


def release(shared: SharedFile) -> bool:
    """One store less. True if it was the last one: then the file is to be closed."""
    with files_lock:
        shared.users -= 1
        if shared.users > 0:
            return False
        for key in [key for key, other in _files.items() if other is shared]:
            del _files[key]
        return True


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
        shared.waker.forget()
    _files.clear()
    primitives.renew_lock(files_lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

"""Tasks in the user's own transaction: tasks enqueued there exist once the user commits, and the effects of a task
commit together with its settlement.

    with sqlite3.connect("jobs.db") as connection:
        current_task().complete(connection)     # first: it raises LeaseLost if another worker has the task
        connection.execute("UPDATE account SET ...")

The connection is one of `sqlite3`, or a connection or session of SQLAlchemy on top of one. It has to be to the file
that the tasks are in: SQLite commits one file atomically, not two.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bullpen.errors import InvalidOptionType, LeaseLost, StorageError
from bullpen.tasks.model.task import Settlement, Step, Task
from bullpen.tasks.model.unique import Duplicates
from bullpen.tasks.model.user_connection import sqlite3_connection
from bullpen.tasks.storage.port import AttemptKey
from bullpen.tasks.storage.sqlite import schema
from bullpen.tasks.storage.sqlite.file import translated_error
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable, StoreClock


def add_in(
    connection: Any,
    path: Path,
    tasks: Sequence[Task],
    duplicates: Duplicates,
    clock: StoreClock | None = None,
) -> list[str]:
    """Add `tasks` in the transaction of `connection`, which the caller commits or rolls back; their ids there.

    A transaction is begun if there is none. On a connection that commits every statement by itself, it is committed
    here. No worker is woken, because the store does not see the commit: workers find the tasks with their next poll.
    """
    with _table(connection, path, clock or StoreClock(), may_commit=True) as table:
        return [task.id for task in table.add(tasks, duplicates)]


def settle_in(connection: Any, path: Path, settlement: Settlement, clock: StoreClock | None = None) -> None:
    """Apply `settlement` in the transaction of `connection`, which the caller commits or rolls back.

    A transaction is begun if there is none. Raises `LeaseLost` if the task does not run in that attempt any more:
    then nothing of it may be committed.
    """
    with _table(connection, path, clock or StoreClock()) as table:
        if table.settle([settlement]):
            raise LeaseLost(task=settlement.id, attempt=settlement.attempt)


def save_step_in(connection: Any, path: Path, hold: AttemptKey, step: Step, clock: StoreClock | None = None) -> None:
    """`save_step` in the transaction of `connection`, as `settle_in` settles there."""
    with _table(connection, path, clock or StoreClock()) as table:
        if not table.save_step(hold, step):
            raise LeaseLost(task=hold.id, attempt=hold.attempt)


@contextmanager
def _table(owner: Any, path: Path, clock: StoreClock, *, may_commit: bool = False) -> Iterator[SqliteTaskTable]:
    """The task table in the transaction of `owner`, which is begun if there is none.

    `may_commit`: in autocommit mode, commit a transaction that is begun here. After an error it is rolled back, so that
    it locks no file.
    """
    connection = sqlite3_connection(owner)
    if connection is None:
        accepted = f"a sqlite3.Connection, or a sync connection or session of SQLAlchemy (pysqlite), to {path}"
        raise InvalidOptionType("connection", owner, accepted)
    _check_same_file(connection, path)
    begun = False
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints are left to Bullpen; file.py says why
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
            begun = True
        schema.check(connection, str(path))
        yield clock.table(connection)
        if begun and may_commit and _commits_by_itself(connection):
            connection.execute("COMMIT")
    except BaseException as error:
        if begun:
            with suppress(sqlite3.Error):  # SQLite has done so itself
                connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise translated_error(error, str(path)) from error
        raise


def _commits_by_itself(connection: object) -> bool:
    """Whether `connection` is in autocommit mode. Its user may then never call `commit`."""
    autocommit = getattr(connection, "autocommit", None)  # Python 3.12
    return autocommit is True or getattr(connection, "isolation_level", "") is None


def _check_same_file(connection: sqlite3.Connection, path: Path) -> None:
    files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
    try:
        same = bool(files["main"]) and os.path.samefile(files["main"], path)
    except OSError:
        same = False
    if not same:
        raise StorageError(
            f"the connection is to {files['main'] or 'a database in memory'}; "
            "effects and acknowledgement commit together only in the file that has the tasks",
            storage=str(path),
        )

"""Tasks in a transaction of the user's own: what is enqueued there counts when the user commits, and the effects of a
task and its end commit together.

    with sqlite3.connect("jobs.db") as connection:
        current_task().complete(connection)     # first: LeaseLost if the task is in other hands
        connection.execute("UPDATE account SET ...")

The connection has to be one to the very file that the tasks are in: SQLite commits one file atomically, not two.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bullpen.errors import InvalidOptionType, LeaseLost, StorageError
from bullpen.tasks.model.task import Settlement, Task
from bullpen.tasks.model.unique import Duplicates
from bullpen.tasks.storage.sqlite import schema
from bullpen.tasks.storage.sqlite.file import translated_error
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable, StoreClock


def add_in(
    connection: sqlite3.Connection,
    path: Path,
    tasks: Sequence[Task],
    duplicates: Duplicates,
    clock: StoreClock | None = None,
) -> list[str]:
    """Add `tasks` in the transaction of `connection`, which the caller commits or rolls back; their ids there.

    A transaction is begun if there is none; one that commits every statement by itself has committed this too. Nobody
    can be told of the commit: workers see the tasks when they look.
    """
    with _table(connection, path, clock or StoreClock(), commits=_commits_by_itself(connection)) as table:
        return [task.id for task in table.add(tasks, duplicates)]


def settle_in(
    connection: sqlite3.Connection, path: Path, settlement: Settlement, clock: StoreClock | None = None
) -> None:
    """Apply `settlement` in the transaction of `connection`, which the caller commits or rolls back.

    A transaction is begun if there is none. Raises `LeaseLost` if the task does not run in that attempt any more:
    then nothing of it may be committed.
    """
    with _table(connection, path, clock or StoreClock()) as table:
        if table.settle([settlement]):
            raise LeaseLost(task=settlement.id, attempt=settlement.attempt)


@contextmanager
def _table(
    connection: sqlite3.Connection, path: Path, clock: StoreClock, *, commits: bool = False
) -> Iterator[SqliteTaskTable]:
    """`commits`: the transaction, if it is begun here. What is raised leaves none behind: it would hold the file."""
    _check_same_file(connection, path)
    begun = False
    try:
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints are left to Bullpen; file.py says why
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
            begun = True
        schema.check(connection, str(path))
        yield clock.table(connection)
        if begun and commits:
            connection.execute("COMMIT")
    except BaseException as error:
        if begun:
            with suppress(sqlite3.Error):  # SQLite has done so itself
                connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise translated_error(error, str(path)) from error
        raise


def _commits_by_itself(connection: object) -> bool:
    """Every statement, where no transaction is begun. Whoever uses it so may never commit."""
    autocommit = getattr(connection, "autocommit", None)  # Python 3.12
    return autocommit is True or getattr(connection, "isolation_level", "") is None


def _check_same_file(connection: object, path: Path) -> None:
    if not isinstance(connection, sqlite3.Connection):
        raise InvalidOptionType("connection", connection, f"a sqlite3.Connection to {path}")
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

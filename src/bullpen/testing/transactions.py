"""The store of a test, which takes tasks of the caller's own transaction: `using(connection=…)`.

A connection or session of SQLAlchemy reports its commits and rollbacks. The store keeps the tasks of its transaction
when that commits, and drops them with a rollback, also one to a savepoint. Other connections report no commit: their
tasks are kept at once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.tasks.model.task import Task
from bullpen.tasks.model.unique import RETURN, Duplicates, meet
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Storage
from bullpen.tasks.storage.postgres.user_transaction import ACCEPTED, is_async


class IsolatedStorage(MemoryStorage):
    """A store in memory in place of `own`. It takes the connections that `own` takes, to any database."""

    def __init__(self, own: Storage, now: Callable[[], float] = time.time) -> None:
        super().__init__(now)
        self._own = own
        self._transactions: list[_UserTransaction] = []

    def now_in(self, connection: Any) -> float | Awaitable[float]:
        return self.now() if self._needs_await(connection) else self._now()

    def add_in(
        self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        needs_await = self._needs_await(connection)
        if duplicates.policy == "replace" and not _is_sqlite(connection):
            raise InvalidOption("on_duplicate", "replace", "'return' or 'reject', with a connection of PostgreSQL")
        if needs_await:
            return self._aadd_in(_of_scope(connection), tasks, duplicates)
        return self._add_in(_of_scope(connection), tasks, duplicates)

    async def _aadd_in(self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[str]:
        if _is_sqlalchemy(connection):
            return await connection.run_sync(self._add_in, tasks, duplicates)  # type: ignore[no-any-return]
        return self._add_in(connection, tasks, duplicates)

    def _add_in(self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[str]:
        transaction = self._transaction(connection) if _is_sqlalchemy(connection) else None
        if transaction is None:
            return [task.id for task in self.add_blocking(tasks, duplicates)]
        with self._lock:
            now = self._now()
            added: list[_AddedTask] = []
            ids = []
            for task in tasks:
                holder = self._holder(task, now) or _holder_in([*transaction.added, *added], task)
                if holder is None:
                    added.append(_AddedTask(task, duplicates, transaction.current()))
                ids.append(task.id if holder is None else meet(task, holder, duplicates, now).id)
            transaction.added += added
        return ids

    def forget_connections(self) -> None:
        """Listen no longer to the connections of the test."""
        for transaction in self._transactions:
            transaction.stop_listening()
        self._transactions.clear()

    def _needs_await(self, connection: Any) -> bool:
        """Raises for a connection that the own store does not take."""
        own = type(self._own).__module__
        if own.startswith("bullpen.tasks.storage.redis"):
            self._own.now_in(connection)  # it raises
        if _is_sqlite(connection) and "postgres" not in own:
            return False
        on_sqlite = own.startswith("bullpen.tasks.storage.sqlite")
        try:
            needs_await = is_async(connection)
            if not on_sqlite or (_is_sqlalchemy(connection) and not needs_await):
                return needs_await
        except InvalidOptionType:
            pass
        accepted = ACCEPTED if "postgres" in own else f"a sqlite3.Connection, or {ACCEPTED}"
        if on_sqlite:
            accepted = "a sqlite3.Connection, or a sync connection or session of SQLAlchemy"
        raise InvalidOptionType("connection", connection, accepted)

    def _transaction(self, connection: Any) -> _UserTransaction | None:
        """The transaction of a connection or session of SQLAlchemy, which is begun if there is none; in autocommit
        mode none.
        """
        is_session = not hasattr(connection, "dialect")
        of_session = connection.connection() if is_session else connection
        if getattr(of_session.connection.dbapi_connection, "autocommit", False) is True:
            return None
        if not connection.in_transaction():
            connection.begin()
        for transaction in self._transactions:
            if transaction.source is connection:
                return transaction
        kind = _SessionTransaction if is_session else _CoreTransaction
        new = kind(connection, self._add_committed)
        self._transactions.append(new)
        return new

    def _add_committed(self, added: Sequence[_AddedTask]) -> None:
        for one in added:
            self.add_blocking([one.task], one.duplicates)


class _AddedTask(NamedTuple):
    """A task that waits for the commit. `part`: the transaction or savepoint that it was added in."""

    task: Task
    duplicates: Duplicates
    part: Any


Keep = Callable[[Sequence[_AddedTask]], None]


class _UserTransaction(Protocol):
    source: Any
    added: list[_AddedTask]

    def current(self) -> Any:
        """The innermost transaction or savepoint."""

    def stop_listening(self) -> None: ...


class _CommitListener:
    """Listens to the events of one connection or session."""

    def __init__(self, source: Any, keep: Keep) -> None:
        self.source = source
        self.added: list[_AddedTask] = []
        self._keep = keep
        from sqlalchemy import event

        self._event = event
        for name, listener in self._listeners().items():
            event.listen(source, name, listener)

    def _listeners(self) -> dict[str, Callable[..., None]]:
        raise NotImplementedError

    def stop_listening(self) -> None:
        for name, listener in self._listeners().items():
            self._event.remove(self.source, name, listener)

    def _commit(self) -> None:
        added, self.added = self.added, []
        self._keep(added)


class _SessionTransaction(_CommitListener):
    """Of a session. Its own commit counts, also if the session has joined a transaction that a test rolls back."""

    def _listeners(self) -> dict[str, Callable[..., None]]:
        return {
            "after_commit": self._on_commit,
            "after_soft_rollback": self._on_rollback,
            "after_transaction_end": self._on_end,
        }

    def current(self) -> Any:
        return self.source.get_nested_transaction() or self.source.get_transaction()

    def _on_commit(self, session: Any) -> None:
        if not session.in_nested_transaction():
            self._commit()

    def _on_rollback(self, _: Any, rolled_back: Any) -> None:
        self.added = [one for one in self.added if rolled_back not in _lineage(one.part)]

    def _on_end(self, _: Any, ended: Any) -> None:
        if ended.parent is None:  # closed without a commit
            self.added = []


def _lineage(transaction: Any) -> list[Any]:
    """The transaction of a session, and those around it."""
    around = []
    while transaction is not None:
        around.append(transaction)
        transaction = transaction.parent
    return around


class _CoreTransaction(_CommitListener):
    """Of a connection without a session."""

    def __init__(self, source: Any, keep: Keep) -> None:
        super().__init__(source, keep)
        self._marks: dict[str, int] = {}  # by savepoint: how many tasks had been added before it

    def _listeners(self) -> dict[str, Callable[..., None]]:
        return {
            "commit": self._on_commit,
            "rollback": self._on_rollback,
            "before_cursor_execute": self._on_statement,
            "rollback_savepoint": self._on_rollback_to_savepoint,
        }

    def current(self) -> Any:
        return None

    def _on_commit(self, _: Any) -> None:
        self._commit()

    def _on_rollback(self, _: Any) -> None:
        self.added = []

    def _on_statement(self, _: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("SAVEPOINT "):  # the event of a new savepoint does not name it
            self._marks[statement.split()[1]] = len(self.added)

    def _on_rollback_to_savepoint(self, _: Any, name: str, __: Any) -> None:
        del self.added[self._marks.get(name, 0) :]  # one that is older than the first task has no mark


def _is_sqlalchemy(connection: Any) -> bool:
    return any(kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(connection).__mro__)


def _is_sqlite(connection: Any) -> bool:
    """By name: the module may be missing."""
    return any(kind.__module__ == "sqlite3" for kind in type(connection).__mro__)


def _of_scope(connection: Any) -> Any:
    """The session of a scoped session, else the connection itself."""
    return connection() if _is_sqlalchemy(connection) and hasattr(connection, "registry") else connection


def _holder_in(added: Sequence[_AddedTask], task: Task) -> Task | None:
    """The task of the same transaction that has the unique key of this one."""
    if task.unique_key is None:
        return None
    place = (task.queue, task.unique_key)
    return next((one.task for one in added if (one.task.queue, one.task.unique_key) == place), None)

"""The transaction in which a function completes itself. On SQLite it holds the whole file: none is left open."""

from __future__ import annotations

import contextlib
from typing import Any


class OwnTransaction:
    """One of the user's, after the task has been ended in it. On the thread of the function.

    A savepoint ends with its transaction, so it tells whether that is still open: the connection may be in a later
    one, or somebody else's, by then.
    """

    __slots__ = ("_connection", "_name")

    def __init__(self, connection: Any) -> None:
        self._connection = connection if _is_sqlite(connection) else None
        self._name = f"bullpen_{id(self):x}"
        if self._connection is not None:
            self._connection.execute(f"SAVEPOINT {self._name}")

    def leave(self) -> None:
        """Roll it back, if nobody has committed it or rolled it back."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with contextlib.suppress(Exception):  # it is over, or the connection is closed, or of another thread
            connection.execute(f"RELEASE {self._name}")
            if getattr(connection, "autocommit", None) is True:  # Python 3.12: rollback() does nothing then
                connection.execute("ROLLBACK")
            else:
                connection.rollback()


def _is_sqlite(connection: Any) -> bool:
    """Without the module, which may not be there."""
    return any(kind.__module__ == "sqlite3" for kind in type(connection).__mro__)

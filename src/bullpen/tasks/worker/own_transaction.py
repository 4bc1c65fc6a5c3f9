"""Ends the transaction in which a function has called `complete()`. On SQLite an open one locks the whole file."""

from __future__ import annotations

import contextlib
from typing import Any

from bullpen.tasks.model.user_connection import sqlite3_connection


class OwnTransaction:
    """A transaction of the user's own, after the task was settled in it. Methods run on the thread of the function.

    A savepoint ends with its transaction, so it tells whether the transaction is still open. By then the connection may
    be in a later transaction, or other code may use it.
    """

    __slots__ = ("_connection", "_name")

    def __init__(self, connection: Any) -> None:
        self._connection = sqlite3_connection(connection)
        self._name = f"bullpen_{id(self):x}"
        if self._connection is not None:
            self._connection.execute(f"SAVEPOINT {self._name}")

    def leave(self) -> None:
        """Roll the transaction back if it is still open."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        # An error means: the transaction is over, or the connection is closed or belongs to another thread.
        with contextlib.suppress(Exception):
            connection.execute(f"RELEASE {self._name}")
            if getattr(connection, "autocommit", None) is True:  # Python 3.12: rollback() does nothing then
                connection.execute("ROLLBACK")
            else:
                connection.rollback()

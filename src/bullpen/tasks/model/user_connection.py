"""The `sqlite3` connection that a user passes as `connection=…`: directly, or below SQLAlchemy."""

from __future__ import annotations

from typing import Any


def sqlite3_connection(owner: Any) -> Any | None:
    """`owner` itself, or the connection below a sync connection or session of SQLAlchemy, whose transaction is begun:
    otherwise its `commit` would do nothing. None for any other object.

    Modules are compared by name: `sqlite3` may be missing, and SQLAlchemy is not imported for users without it.
    """
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(owner).__mro__}
    if "sqlite3.Connection" in names:
        return owner
    is_session = not names.isdisjoint({"sqlalchemy.Session", "sqlalchemy.scoped_session"})
    if not is_session and "sqlalchemy.Connection" not in names:
        return None
    connection = owner.connection() if is_session else owner
    if connection.dialect.driver != "pysqlite":
        return None
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.dbapi_connection

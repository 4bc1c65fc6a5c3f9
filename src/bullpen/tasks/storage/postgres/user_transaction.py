"""Tasks in a transaction of the user's own: they are enqueued or settled when the user commits.

    with psycopg.connect(...) as connection:                       # commits at the end
        connection.execute("INSERT INTO customer ...")
        send_welcome.using(connection=connection).enqueue(customer)

Every operation is one statement with one text parameter and one text result, so that any driver can execute it. The
class of the connection names the driver; no driver is imported that the user does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bullpen.errors import InvalidOptionType, StorageError

ACCEPTED = (
    "a connection of asyncpg or psycopg (sync or async), or a connection or session of SQLAlchemy (sync or async, "
    "scoped or not), to the database that the tasks are in"
)
_NO_SUCH_OBJECT = {"3F000", "42883", "42P01"}  # no such schema, function or table


def is_async(connection: Any) -> bool:
    """Whether the connection needs `aask`. Raises InvalidOptionType for an object that is no known connection."""
    names = _names(connection)
    if not any(name in _SYNC or name in _ASYNC for name in names):
        raise InvalidOptionType("connection", connection, ACCEPTED)
    return any(name in _ASYNC for name in names)


def ask(connection: Any, statement: str, parameter: str, schema: str) -> str:
    """Execute the statement, with `parameter` for `{}`, and return its one value."""
    execute = next(_SYNC[name] for name in _names(connection) if name in _SYNC)
    with _explained_errors(schema):
        return execute(connection, statement, parameter)


async def aask(connection: Any, statement: str, parameter: str, schema: str) -> str:
    execute = next(_ASYNC[name] for name in _names(connection) if name in _ASYNC)
    with _explained_errors(schema):
        return await execute(connection, statement, parameter)


def check_in_transaction(connection: Any) -> None:
    """Raises InvalidOptionType if the connection is in autocommit mode and outside a transaction."""
    is_outside = next(_OUTSIDE[name] for name in _names(connection) if name in _OUTSIDE)
    _check(connection, is_outside(connection))


async def acheck_in_transaction(connection: Any) -> None:
    names = _names(connection)
    if any(name in _OUTSIDE for name in names):
        return check_in_transaction(connection)
    of_sqlalchemy = connection if "sqlalchemy.AsyncConnection" in names else await connection.connection()
    return _check(connection, await of_sqlalchemy.run_sync(_is_outside_sqlalchemy))


def _check(connection: Any, is_outside: bool) -> None:
    if is_outside:
        raise InvalidOptionType("connection", connection, "a connection in a transaction: begin one first")


def _names(connection: Any) -> list[str]:
    return [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__]


def _psycopg(connection: Any, statement: str, parameter: str) -> str:
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(statement.format("%s"), (parameter,))
        return str(cursor.fetchone()[0])


async def _apsycopg(connection: Any, statement: str, parameter: str) -> str:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement.format("%s"), (parameter,))
        return str((await cursor.fetchone())[0])


async def _asyncpg(connection: Any, statement: str, parameter: str) -> str:
    return str(await connection.fetchval(statement.format("$1"), parameter))


def _sqlalchemy(connection: Any, statement: str, parameter: str) -> str:
    from sqlalchemy import text

    return str(connection.execute(text(statement.format(":parameter")), {"parameter": parameter}).scalar_one())


async def _asqlalchemy(connection: Any, statement: str, parameter: str) -> str:
    from sqlalchemy import text

    return str((await connection.execute(text(statement.format(":parameter")), {"parameter": parameter})).scalar_one())


def _is_outside_asyncpg(connection: Any) -> bool:
    return not connection.is_in_transaction()


def _is_outside_psycopg(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status.name == "IDLE"


def _is_outside_sqlalchemy(connection: Any) -> bool:
    """SQLAlchemy begins a transaction by itself, except in autocommit mode."""
    return bool(connection.connection.dbapi_connection.autocommit)


def _is_outside_session(session: Any) -> bool:
    return _is_outside_sqlalchemy(session.connection())


_SYNC: dict[str, Callable[[Any, str, str], str]] = {
    "psycopg.Connection": _psycopg,
    "sqlalchemy.Connection": _sqlalchemy,
    "sqlalchemy.Session": _sqlalchemy,
    "sqlalchemy.scoped_session": _sqlalchemy,
}
_ASYNC: dict[str, Callable[[Any, str, str], Awaitable[str]]] = {
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    "psycopg.AsyncConnection": _apsycopg,
    "sqlalchemy.AsyncConnection": _asqlalchemy,
    "sqlalchemy.AsyncSession": _asqlalchemy,
    "sqlalchemy.async_scoped_session": _asqlalchemy,
}
_OUTSIDE: dict[
    str, Callable[[Any], bool]
] = {  # the connections that know without a round trip whether they are outside a transaction
    "asyncpg.Connection": _is_outside_asyncpg,
    "asyncpg.PoolConnectionProxy": _is_outside_asyncpg,
    "psycopg.Connection": _is_outside_psycopg,
    "psycopg.AsyncConnection": _is_outside_psycopg,
    "sqlalchemy.Connection": _is_outside_sqlalchemy,
    "sqlalchemy.Session": _is_outside_session,
    "sqlalchemy.scoped_session": _is_outside_session,
}


@contextmanager
def _explained_errors(schema: str) -> Iterator[None]:
    """Raises the errors of the driver as they are, because the transaction is the user's. Only a missing schema is
    explained.
    """
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps the error of its driver
        if getattr(cause, "sqlstate", None) in _NO_SUCH_OBJECT:
            why = f"the database of this connection has no schema {schema!r}, or an older one; use a connection to the "
            why += "database of the queue, and run `bullpen migrate` or a worker first"
            raise StorageError(why, storage=f"PostgreSQL schema {schema!r}") from error
        raise

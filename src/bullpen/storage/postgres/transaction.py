"""Tasks in a transaction of the user's own: what is enqueued or ended there counts if and when the user commits.

    with psycopg.connect(...) as connection:                       # commits at the end
        connection.execute("INSERT INTO customer ...")
        send_welcome.using(connection=connection).enqueue(customer)

Any driver will do: there is one statement, with one text, and it answers one text. Which driver it is, is told by the
class of the connection, so none is imported that the user does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bullpen.errors import InvalidOptionType, StorageError

KINDS = (
    "a connection of asyncpg or psycopg (sync or async), or a connection or session of SQLAlchemy (sync or async, "
    "scoped or not), to the database that the tasks are in"
)
_NOT_THERE = {"3F000", "42883", "42P01"}  # no such schema, function or table


def is_async(connection: Any) -> bool:
    """Whether it is one for `aask`. Raises InvalidOptionType for what is no connection that is known here."""
    names = _names(connection)
    if not any(name in _SYNC or name in _ASYNC for name in names):
        raise InvalidOptionType("connection", connection, KINDS)
    return any(name in _ASYNC for name in names)


def ask(connection: Any, statement: str, word: str, schema: str) -> str:
    """What the statement answers, with `word` for `{}`."""
    how = next(_SYNC[name] for name in _names(connection) if name in _SYNC)
    with _explained(schema):
        return how(connection, statement, word)


async def aask(connection: Any, statement: str, word: str, schema: str) -> str:
    how = next(_ASYNC[name] for name in _names(connection) if name in _ASYNC)
    with _explained(schema):
        return await how(connection, statement, word)


def check_in_transaction(connection: Any) -> None:
    """Refuse a connection that would commit by itself what is to be committed together with other things."""
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
        raise InvalidOptionType("connection", connection, "in a transaction: begin one first")


def _names(connection: Any) -> list[str]:
    return [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__]


def _psycopg(connection: Any, statement: str, word: str) -> str:
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(statement.format("%s"), (word,))
        return str(cursor.fetchone()[0])


async def _apsycopg(connection: Any, statement: str, word: str) -> str:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement.format("%s"), (word,))
        return str((await cursor.fetchone())[0])


async def _asyncpg(connection: Any, statement: str, word: str) -> str:
    return str(await connection.fetchval(statement.format("$1"), word))


def _sqlalchemy(connection: Any, statement: str, word: str) -> str:
    from sqlalchemy import text

    return str(connection.execute(text(statement.format(":word")), {"word": word}).scalar_one())


async def _asqlalchemy(connection: Any, statement: str, word: str) -> str:
    from sqlalchemy import text

    return str((await connection.execute(text(statement.format(":word")), {"word": word})).scalar_one())


def _is_outside_asyncpg(connection: Any) -> bool:
    return not connection.is_in_transaction()


def _is_outside_psycopg(connection: Any) -> bool:
    return bool(connection.autocommit) and connection.info.transaction_status.name == "IDLE"


def _is_outside_sqlalchemy(connection: Any) -> bool:
    """It begins a transaction by itself, unless its driver was told otherwise."""
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
_OUTSIDE: dict[str, Callable[[Any], bool]] = {  # a transaction; those that know it without asking
    "asyncpg.Connection": _is_outside_asyncpg,
    "asyncpg.PoolConnectionProxy": _is_outside_asyncpg,
    "psycopg.Connection": _is_outside_psycopg,
    "psycopg.AsyncConnection": _is_outside_psycopg,
    "sqlalchemy.Connection": _is_outside_sqlalchemy,
    "sqlalchemy.Session": _is_outside_session,
    "sqlalchemy.scoped_session": _is_outside_session,
}


@contextmanager
def _explained(schema: str) -> Iterator[None]:
    """Errors are the driver's own, for it is the user's transaction; but not the one that says nothing."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps its driver's
        if getattr(cause, "sqlstate", None) in _NOT_THERE:
            why = f"the database of this connection has no tasks in the schema {schema!r}, or older ones; use a "
            why += "connection to the database of the queue, which a worker, or any other call, has opened before"
            raise StorageError(why, storage=f"PostgreSQL schema {schema!r}") from error
        raise

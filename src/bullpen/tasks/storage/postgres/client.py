"""A client of a PostgreSQL server: connections, transactions, retries, and the check of the schema."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from bullpen.errors import InvalidOption, StorageError, UnknownOption
from bullpen.tasks.storage.notifications import Hear
from bullpen.tasks.storage.port import HealthFinding, Schema
from bullpen.tasks.storage.postgres import schema as schemas
from bullpen.tasks.storage.postgres import statements
from bullpen.tasks.storage.postgres.connection_pool import ConnectionPool
from bullpen.tasks.storage.postgres.failures import is_lost, is_undone, translated_errors
from bullpen.tasks.storage.postgres.health_checks import run_health_checks
from bullpen.tasks.storage.postgres.statements import in_schema
from bullpen.tasks.storage.postgres.task_table import PostgresTaskTable
from bullpen.tasks.storage.server import ServerStorage, server_hosts

T = TypeVar("T")

LOCK_TIMEOUT = "10s"  # while a migration waits for a lock on a table, all workers wait behind it
MIGRATION_TIMEOUT = 86_400.0  # seconds
CLOSE_TIMEOUT = 1.0  # seconds to close a connection, or to roll back
MAX_TRIES = 5  # of a transaction that the server rolls back


class PostgresClient(ServerStorage[ConnectionPool]):
    """A client of one schema of a PostgreSQL database.

    `schema`: the schema with the tables. `open` creates and migrates it, unless `migrate` is false. `notify`: use
    LISTEN and NOTIFY. `listen_url`: the address for LISTEN, if `url` leads to a transaction pooler. `prepared`: use
    prepared statements, which some transaction poolers do not support. `connections`: the maximum number. `timeout`:
    seconds for a statement, and for a new connection unless `connect_timeout` is given.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "bullpen",
        notify: bool = True,
        listen_url: str | None = None,
        prepared: bool = True,
        migrate: bool = True,
        connections: int = 10,
        timeout: float = 10.0,
        connect_timeout: float | None = None,
    ) -> None:
        super().__init__(f"PostgreSQL schema {schema!r} at {', '.join(server_hosts(url)) or 'the default host'}")
        self.url = url
        self.schema = schemas.checked_name(schema)
        self.notify = notify
        self.listen_url = listen_url
        self.prepared = prepared
        self.migrate = migrate
        self.connections = connections
        self.timeout = timeout
        self.connect_timeout = connect_timeout

    def another(self) -> Self:
        return type(self)(
            self.url,
            schema=self.schema,
            notify=self.notify,
            listen_url=self.listen_url,
            prepared=self.prepared,
            migrate=self.migrate,
            connections=self.connections,
            timeout=self.timeout,
            connect_timeout=self.connect_timeout,
        )

    async def _connect(self) -> ConnectionPool:
        connections = ConnectionPool(self._connect_once, most=self.connections, timeout=self.timeout)
        async with translated_errors(self.name):
            try:
                connection = await connections.acquire()
                await self._check_schema(connection)
                connections.release(connection)
            except BaseException:
                await connections.close(within=0)
                raise
        return connections

    async def _connect_once(self) -> Any:
        """A new connection with the settings that the statements need."""
        import asyncpg

        try:
            connection = await asyncpg.connect(self.url, **self._connect_options())
        except asyncpg.UndefinedObjectError as error:  # the driver sends options that it does not know as settings
            raise self._unknown_option(error) from error
        try:
            await self._set_up(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _unknown_option(self, error: Exception) -> InvalidOption:
        names = [name for name, _ in parse_qsl(urlsplit(self.url).query, keep_blank_values=True)]
        unknown = [name for name in names if f'"{name}"' in str(error)]
        known = [*inspect.signature(PostgresClient).parameters][1:]
        if unknown:
            return UnknownOption("postgresql://", unknown[0], [*known, "sslmode", "application_name"])
        allowed = f"an address with the options {', '.join(known)}, options of asyncpg and settings of the server"
        return InvalidOption("url", f"?{', '.join(names)}", allowed)

    async def _disconnect(self, client: ConnectionPool) -> None:
        await client.close(within=CLOSE_TIMEOUT)

    def _connect_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "server_settings": {"application_name": f"bullpen:{self.schema}"},
            "timeout": self.connect_timeout or self.timeout,
            "command_timeout": self.timeout,
        }
        if not self.prepared:
            options["statement_cache_size"] = 0
        return options

    async def _set_up(self, connection: Any) -> None:
        """Make the settings that the statements need. Behind a transaction pooler, other clients would get them too."""
        if self.prepared:  # first, so that no statement calls a function or an operator of another role
            await connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)")
        else:
            await self._check_search_path(connection)
        for name, value in await connection.fetch(statements.WRONG_SETTINGS):
            if not self.prepared:
                message = f"{name} must be {value!r}, and a client behind a transaction pooler cannot set it"
                raise StorageError(f"{message}; run ALTER ROLE … SET {name} = {value!r}", storage=self.name)
            await connection.execute("SELECT pg_catalog.set_config($1, $2, false)", name, value)

    async def _check_search_path(self, connection: Any) -> None:
        """Raise if a schema comes before `pg_catalog`: its owner could replace functions and operators."""
        path = await connection.fetchval("SELECT pg_catalog.array_to_string(pg_catalog.current_schemas(true), ',')")
        first = next((name for name in path.split(",") if not name.startswith("pg_temp")), "")
        if first != "pg_catalog":
            message = f"the search_path has {first!r} before pg_catalog, so its owner could replace functions"
            advice = "a client behind a transaction pooler cannot set it; run ALTER ROLE … SET search_path = public"
            raise StorageError(f"{message}; {advice}", storage=self.name)

    async def _check_schema(self, connection: Any) -> None:
        found = await self._find_schema(connection)
        found.check(self.name)
        if found.version >= schemas.VERSION:
            return
        if not self.migrate:
            message = f"its schema has version {found.version}, and this client needs version {schemas.VERSION}"
            raise StorageError(f"{message}; run `bullpen migrate` as a role that may change it", storage=self.name)
        await self._upgrade(connection)

    async def _upgrade(self, connection: Any) -> None:
        async with connection.transaction():
            # One client at a time migrates.
            lock = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 1))"
            await connection.execute(lock, self.schema, timeout=MIGRATION_TIMEOUT)
            found = await self._find_schema(connection)
            found.check(self.name)
            if await connection.fetchval(statements.IS_SQL_KEYWORD, self.schema):
                raise InvalidOption("schema", self.schema, "another name: this one is a keyword of SQL")
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            for migration in schemas.pending_migrations(found.version, self.schema):
                await connection.execute(migration, timeout=MIGRATION_TIMEOUT)

    async def look_at_schema(self) -> Schema:
        async with self._single_connection() as connection:
            found = await self._find_schema(connection)
        pending = schemas.pending_migrations(found.version, self.schema)
        return Schema(found=found.version, oldest=found.oldest, known=schemas.VERSION, migrations=pending)

    async def upgrade_schema(self) -> None:
        async with self._single_connection() as connection:
            await self._upgrade(connection)

    async def check_health(self) -> Sequence[HealthFinding]:
        async with self._single_connection() as connection:
            return await run_health_checks(connection, self.url)

    @asynccontextmanager
    async def _single_connection(self) -> AsyncIterator[Any]:
        """A connection outside the pool, for calls that do not need the tables."""
        async with translated_errors(self.name):
            connection = await self._connect_once()
            try:
                yield connection
            finally:
                await connection.close()

    async def _find_schema(self, connection: Any) -> schemas.FoundSchema:
        if await connection.fetchval(statements.HAS_VERSION_TABLE, self.schema) is None:
            return schemas.FoundSchema()
        row = await connection.fetchrow(f"SELECT version, oldest FROM {self.schema}.version")
        if row is None:
            message = f"the table {self.schema}.version is empty, so the version of the schema is unknown"
            raise StorageError(f"{message}; restore its row, or name another ?schema=", storage=self.name)
        return schemas.FoundSchema(*row)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with translated_errors(self.name):
            connections = await self._connected()
            connection = await connections.acquire()
            try:
                yield connection
            except (asyncio.CancelledError, TimeoutError):
                await _cancel_statement(connection)
                raise
            finally:
                connections.release(connection)

    @asynccontextmanager
    async def _transaction_on(self, connection: Any) -> AsyncIterator[PostgresTaskTable]:
        transaction = connection.transaction()
        try:
            await transaction.start()
            yield self._table(connection)
            await transaction.commit()
        except asyncio.CancelledError:
            connection.terminate()  # the server rolls back; to wait for that would delay the cancellation
            raise
        except BaseException:
            await _roll_back(connection, transaction)
            raise

    def _table(self, connection: Any) -> PostgresTaskTable:
        """The operations on the task table, on this connection."""
        return PostgresTaskTable(connection, self.schema, notify=self.notify, timeout=self.timeout)

    async def _fetch(self, statement: str, *values: Any, again: bool = False) -> list[Any]:
        sql = in_schema(statement, self.schema)
        return await self._ask(lambda connection: connection.fetch(sql, *values), again=again)

    async def _fetchval(self, statement: str, *values: Any, again: bool = False) -> Any:
        sql = in_schema(statement, self.schema)
        return await self._ask(lambda connection: connection.fetchval(sql, *values), again=again)

    async def _transact(self, work: Callable[[PostgresTaskTable], Awaitable[T]], *, again: bool = False) -> T:
        """Run `work` in a transaction and return its result."""

        async def ask(connection: Any) -> T:
            async with self._transaction_on(connection) as table:
                return await work(table)

        return await self._ask(ask, again=again)

    async def _ask(self, ask: Callable[[Any], Awaitable[T]], *, again: bool) -> T:
        """Run `ask` on a connection. Repeat it if the server has rolled it back because of a deadlock or a
        serialization failure. If the connection breaks, repeat it only with `again`, which says that
        repeating is safe.
        """
        for left in reversed(range(MAX_TRIES)):
            try:
                async with self._connection() as connection:
                    return await ask(connection)
            except StorageError as error:
                if not (left and (is_undone(error) or (again and is_lost(error)))):
                    raise
        raise AssertionError("unreachable")

    async def _listen(self, begin: Callable[[], None], hear: Hear) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.listen_url or self.url, **self._connect_options())
        try:
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(schemas.channel(self.schema), lambda *news: hear(news[3]))
            begin()
            await lost.wait()
        finally:
            connection.terminate()

    async def now(self) -> float:
        return float(await self._fetchval("SELECT {schema}.now()", again=True))


async def _cancel_statement(connection: Any) -> None:
    """Wait until the server has processed the cancel request that the driver has sent; cut the connection if it takes
    too long.
    """
    if connection.is_closed():
        return
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await connection.execute("SELECT 1")
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, Exception):
            raise


async def _roll_back(connection: Any, transaction: Any) -> None:
    """Roll back, or cut the connection: then the server rolls back."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await transaction.rollback()
    except Exception:
        connection.terminate()

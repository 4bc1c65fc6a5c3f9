"""The way to a server: connections, transactions, and the schema that must be there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from bullpen.errors import InvalidOption, StorageError
from bullpen.storage.ear import Hear
from bullpen.storage.port import Concern, Schema
from bullpen.storage.postgres import schema as schemas
from bullpen.storage.postgres.checkup import concerns_of
from bullpen.storage.postgres.connections import Connections
from bullpen.storage.postgres.failures import is_lost, is_undone, told
from bullpen.storage.postgres.ledger import Ledger
from bullpen.storage.server import ServerStorage

T = TypeVar("T")

LOCK_TIMEOUT = "10s"  # workers stand behind a migration that waits for a table
A_DAY = 86_400.0  # seconds that a step of a migration may take
PARTING = 1.0  # seconds that a server has to say goodbye
TRIES = 5

# What statements rely on, and a server, a database or a role may have set otherwise: whoever has waited for a lock sees
# what was committed meanwhile.
_NEEDED = {"default_transaction_isolation": "read committed", "array_nulls": "on"}
_UNLIKE = (
    f"FROM (VALUES {', '.join(map(str, _NEEDED.items()))}) AS needed (name, value) WHERE current_setting(name) <> value"
)
_IS_OF_SQL = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_get_keywords() WHERE word = $1 AND catcode <> 'U')"


class Link(ServerStorage[Connections]):
    """A client of one schema of a PostgreSQL database.

    `schema`: where its tables are; it is made by `open`, unless `migrate` is false. `notify`: whether to use LISTEN and
    NOTIFY; `listen_url`: another address for that, where `url` leads through a pooler of transactions. `prepared`:
    whether statements may be prepared, which such poolers may not allow. `connections`: how many at most. `timeout`:
    seconds that the answer to a statement may take, and a new connection, if there is no `connect_timeout`.
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
        super().__init__(f"PostgreSQL schema {schema!r}")
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

    async def _connect(self) -> Connections:
        connections = Connections(self._connect_once, most=self.connections, timeout=self.timeout)
        async with told(self.name):
            try:
                connection = await connections.take()
                await self._bring_up_to_date(connection)
                connections.give_back(connection)
            except BaseException:
                await connections.close(within=0)
                raise
        return connections

    async def _connect_once(self) -> Any:
        """A connection to the server, as statements need it."""
        import asyncpg

        connection = await asyncpg.connect(self.url, **self._manners())
        try:
            await self._set_up(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _disconnect(self, client: Connections) -> None:
        await client.close(within=PARTING)

    def _manners(self) -> dict[str, Any]:
        manners: dict[str, Any] = {
            "server_settings": {"application_name": f"bullpen:{self.schema}"},
            "timeout": self.connect_timeout or self.timeout,
            "command_timeout": self.timeout,
        }
        if not self.prepared:
            manners["statement_cache_size"] = 0
        return manners

    async def _set_up(self, connection: Any) -> None:
        """A pooler of transactions would give the settings of one client to others."""
        if self.prepared:
            await connection.execute(f"SELECT set_config(name, value, false) {_UNLIKE}")
            return
        for name, value in await connection.fetch(f"SELECT name, value {_UNLIKE}"):
            message = f"{name} has to be {value!r}, and cannot be set for one client behind a pooler"
            raise StorageError(f"{message}; ALTER ROLE … SET {name} = {value!r}", storage=self.name)

    async def _bring_up_to_date(self, connection: Any) -> None:
        found = await self._found(connection)
        found.check(self.name)
        if found.version >= schemas.VERSION:
            return
        if not self.migrate:
            message = f"its schema has version {found.version}, and version {schemas.VERSION} is needed"
            raise StorageError(f"{message}; run `bullpen migrate` as a role that may", storage=self.name)
        await self._upgrade(connection)

    async def _upgrade(self, connection: Any) -> None:
        async with connection.transaction():
            turn = "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))"
            await connection.execute(turn, self.schema, timeout=A_DAY)
            found = await self._found(connection)
            found.check(self.name)
            if await connection.fetchval(_IS_OF_SQL, self.schema):
                raise InvalidOption("schema", self.schema, "another name: this one is a word of SQL's own")
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            for step in schemas.steps(found.version, self.schema):
                await connection.execute(step, timeout=A_DAY)

    async def look_at_schema(self) -> Schema:
        async with self._alone() as connection:
            found = await self._found(connection)
        steps = schemas.steps(found.version, self.schema)
        return Schema(found=found.version, oldest=found.oldest, known=schemas.VERSION, steps=steps)

    async def upgrade_schema(self) -> None:
        async with self._alone() as connection:
            await self._upgrade(connection)

    async def concerns(self) -> Sequence[Concern]:
        async with self._alone() as connection:
            return await concerns_of(connection, self.url)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Any]:
        """A connection of its own, for what may not need the tables."""
        async with told(self.name):
            connection = await self._connect_once()
            try:
                yield connection
            finally:
                await connection.close()

    async def _found(self, connection: Any) -> schemas.Found:
        # A table, not `to_regclass`: that would answer from a cache of what was so before a lock was waited for.
        is_there = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'version'"
        if await connection.fetchval(is_there, self.schema) is None:
            return schemas.Found()
        row = await connection.fetchrow(f"SELECT version, oldest FROM {self.schema}.version")
        if row is None:
            message = f"the table {self.schema}.version is empty, so nobody knows what is in the others"
            raise StorageError(f"{message}; restore it, or name another ?schema=", storage=self.name)
        return schemas.Found(*row)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with told(self.name):
            connections = await self._connected()
            connection = await connections.take()
            try:
                yield connection
            except (asyncio.CancelledError, TimeoutError):
                await _give_up(connection)
                raise
            finally:
                connections.give_back(connection)

    @asynccontextmanager
    async def _transaction_on(self, connection: Any) -> AsyncIterator[Ledger]:
        transaction = connection.transaction()
        try:
            await transaction.start()
            yield self._ledger(connection)
            await transaction.commit()
        except asyncio.CancelledError:
            connection.terminate()  # which is known at once, and rolls it back
            raise
        except BaseException:
            await _roll_back(connection, transaction)
            raise

    def _ledger(self, connection: Any) -> Ledger:
        """What can be done on a connection, or on any of the pool."""
        return Ledger(connection, self.schema, notify=self.notify, timeout=self.timeout)

    async def _fetch(self, statement: str, *values: Any, again: bool = False) -> list[Any]:
        said = statement.replace("{s}", self.schema)
        return await self._ask(lambda connection: connection.fetch(said, *values), again=again)

    async def _fetchval(self, statement: str, *values: Any, again: bool = False) -> Any:
        said = statement.replace("{s}", self.schema)
        return await self._ask(lambda connection: connection.fetchval(said, *values), again=again)

    async def _transact(self, work: Callable[[Ledger], Awaitable[T]], *, again: bool = False) -> T:
        """What `work` gets in a transaction."""

        async def ask(connection: Any) -> T:
            async with self._transaction_on(connection) as ledger:
                return await work(ledger)

        return await self._ask(ask, again=again)

    async def _ask(self, ask: Callable[[Any], Awaitable[T]], *, again: bool) -> T:
        """What `ask` gets on a connection. It is done once more if the server has undone it, because two were in each
        other's way; and if the connection breaks, where to do it `again` is no harm.
        """
        for left in reversed(range(TRIES)):
            try:
                async with self._connection() as connection:
                    return await ask(connection)
            except StorageError as error:
                if not (left and (is_undone(error) or (again and is_lost(error)))):
                    raise
        raise AssertionError("unreachable")

    async def _listen(self, begin: Callable[[], None], hear: Hear) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.listen_url or self.url, **self._manners())
        try:
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(schemas.channel(self.schema), lambda *news: hear(news[3], b""))
            begin()
            await lost.wait()
        finally:
            connection.terminate()

    async def now(self) -> float:
        return float(await self._fetchval("SELECT {s}.now()", again=True))


async def _give_up(connection: Any) -> None:
    """Nobody wants the answer any more. Whether the server agrees to that is not waited for for long."""
    if connection.is_closed():
        return
    try:
        async with asyncio.timeout(PARTING):
            await connection.execute("SELECT 1")
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, Exception):
            raise


async def _roll_back(connection: Any, transaction: Any) -> None:
    """Where that is not possible, the server does so when it finds nobody there."""
    try:
        async with asyncio.timeout(PARTING):
            await transaction.rollback()
    except Exception:
        connection.terminate()

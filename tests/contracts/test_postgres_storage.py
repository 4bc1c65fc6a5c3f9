"""The contract of stores, kept by a PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import ClassVar

import asyncpg
import pytest

from bullpen.tasks.storage.port import Storage
from bullpen.tasks.storage.postgres.store import PostgresStorage
from bullpen.testing import StorageContract
from tests.postgres import new_schema, run

_TABLES = ("task", "worker", "queue", "start")


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[str]:
    """One for all tests here: it takes long to make."""

    async def make() -> None:
        store = PostgresStorage(postgres_url, schema=name)
        await store.open()
        await store.close()

    with new_schema(postgres_url) as name:
        asyncio.run(make())
        yield name


class TestPostgresStorage(StorageContract):
    url: str
    schema: str

    @pytest.fixture(autouse=True)
    def _empty(self, postgres_url: str, schema: str) -> None:
        self.url, self.schema = postgres_url, schema
        emptied = "; ".join(f"DELETE FROM {schema}.{table}" for table in _TABLES)
        run(postgres_url, lambda connection: connection.execute(emptied))

    _GARBAGE: ClassVar = {
        "backoff": "'{'",
        "backoff.base": """'{"base": -1}'""",
        "headers": "'[1]'",
        "schedule": """'{"cron": "no cron"}'""",
        "schedule.timezone": """'{"cron": "* * * * *", "timezone": "No/Where"}'""",
        "errors": "ARRAY['{']",
        "errors.null": "ARRAY[NULL]",
        "errors.nested": "ARRAY[ARRAY['a'], ARRAY['b']]",
        "depends_on": "'no json'",
        "timeout": "'NaN'",
        "result_ttl": "-1",
        "failure_ttl": "-1",
        "on_failure": "'whatever'",
        "unique_scope": "'whatever'",
        "hold": "'whatever'",
        "created_at": "'infinity'",
        "unique_until": "'NaN'",
        "repeats": "'infinity'",
    }
    damages_claimed = tuple(_GARBAGE)
    damages_other = ("attempt", "attempt.high", "attempt.negative", "eta", "priority", "status", "progress")

    async def damage(self, task_id: str, kind: str) -> Callable[[], Awaitable[object]]:
        garbage = {
            **self._GARBAGE,
            "attempt": "2147483647",
            "attempt.high": "2000000001",
            "attempt.negative": "-7",
            "eta": "'NaN'",
            "priority": "77",
            "status": "'whatever'",
            "progress": "'{'",
            "newer": "2",
        }
        column = {"newer": "format"}.get(kind, kind.partition(".")[0])
        connection = await asyncpg.connect(self.url)
        statement = f"UPDATE {self.schema}.task SET {column} = {garbage[kind]} WHERE id = $1"
        assert await connection.execute(statement, task_id) == "UPDATE 1"
        await connection.close()

        async def stored() -> object:
            connection = await asyncpg.connect(self.url)
            value = await connection.fetchval(f"SELECT {column}::text FROM {self.schema}.task WHERE id = $1", task_id)
            await connection.close()
            return value if column != "errors" else value[:2]  # a settlement may add one

        return stored

    async def damage_worker(self, worker: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(f"UPDATE {self.schema}.worker SET record = '[' WHERE id = $1", worker)
        await connection.close()

    def make_storage(self) -> PostgresStorage:
        return PostgresStorage(self.url, schema=self.schema)

    async def queue_names(self, store: Storage) -> set[str]:
        columns = {"task": "queue", "queue": "name", "start": "queue"}
        names = " UNION ".join(f"SELECT {column} FROM {self.schema}.{table}" for table, column in columns.items())
        connection = await asyncpg.connect(self.url)
        try:
            return {name for (name,) in await connection.fetch(names)}
        finally:
            await connection.close()

    def address(self) -> str:
        return f"{self.url}?schema={self.schema}"

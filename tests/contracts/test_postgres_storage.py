"""The contract of stores, kept by a PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import ClassVar

import asyncpg
import pytest
from msgspec.structs import replace

from bullpen.tasks.storage.port import Storage
from bullpen.tasks.storage.postgres.store import PostgresStorage
from bullpen.testing import StorageContract
from bullpen.testing.storage_contract.unreadable import WORKER
from tests.postgres import new_schema, run

_TABLES = ("task", "worker", "queue", "start", "history", "failure", "event")


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

    _LIMITS: ClassVar = {
        "rate zero": "rate = 0",
        "rate negative": "rate = -1",
        "rate nan": "rate = 'NaN'",
        "rate infinite": "rate = 'infinity'",
        "rate small": "rate = -1e-300",
        "most zero": "max_running = 0",
        "most negative": "max_running = -1",
        "most huge": "max_running = 2147483647",
        "per key zero": "max_running_per_key = 0",
    }
    _SETTINGS: ClassVar = {
        "starts to come": "INSERT INTO {}.start SELECT 'other', 'infinity' FROM generate_series(1, 5000)",
        "starts no time": "INSERT INTO {}.start SELECT 'other', 'NaN' FROM generate_series(1, 5000)",
        "alien queue": "INSERT INTO {}.queue (name, paused) VALUES (E'\\x1a9 \n', true)",
        "rewound to come": "UPDATE {}.queue SET rewound_at = 'NaN'",
    }
    damages_limit = tuple(_LIMITS)
    damages_settings = tuple(_SETTINGS)

    async def damage_settings(self, kind: str) -> None:
        of_limit = f"UPDATE {self.schema}.queue SET {self._LIMITS.get(kind)} WHERE name = 'other'"
        connection = await asyncpg.connect(self.url)
        await connection.execute(self._SETTINGS.get(kind, of_limit).format(self.schema))
        await connection.close()

    damages_history = ("{NULL}", "{-1}", "{9223372036854775807}", "{{1,2},{3,4}}", "{}")

    async def damage_history(self, value: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(f"UPDATE {self.schema}.history SET counts = '{value}'")
        damaged = f"count = 9223372036854775807, first = 'NaN', example = '{value}'"
        await connection.execute(f"UPDATE {self.schema}.failure SET {damaged}")
        await connection.close()

    async def test_a_worker_that_was_seen_at_no_time_hides_no_other(self, store: Storage) -> None:
        for seen in ("NaN", "infinity", "1e300"):
            await store.save_worker(WORKER)
            await store.save_worker(replace(WORKER, id="v"))
            connection = await asyncpg.connect(self.url)
            await connection.execute(f"UPDATE {self.schema}.worker SET seen_at = '{seen}' WHERE id = 'v'")
            await connection.close()
            assert [record.id for record in await store.workers()] == ["w"]

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

    async def stored_steps(self, store: Storage) -> int:
        connection = await asyncpg.connect(self.url)
        try:
            return int(await connection.fetchval(f"SELECT count(*) FROM {self.schema}.step"))
        finally:
            await connection.close()

    async def lose_steps(self, store: Storage) -> bool:
        connection = await asyncpg.connect(self.url)
        try:
            return bool(await connection.execute(f"DELETE FROM {self.schema}.step") != "DELETE 0")
        finally:
            await connection.close()

    def address(self) -> str:
        return f"{self.url}?schema={self.schema}"

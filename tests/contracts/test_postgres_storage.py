"""The contract of stores, kept by a PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

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

    def make_storage(self) -> PostgresStorage:
        return PostgresStorage(self.url, schema=self.schema)

    def address(self) -> str:
        return f"{self.url}?schema={self.schema}"

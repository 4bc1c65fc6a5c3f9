"""The stores on servers against the plain model of a store; the server's clock is moved by hand, as the others' are."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Iterator, Sequence
from random import Random
from typing import Any, TypeVar, cast

import asyncpg
import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from bullpen.tasks.model.task import Settlement, Task
from bullpen.tasks.storage.port import Storage, TaskFilter
from bullpen.tasks.storage.postgres.store import PostgresStorage
from bullpen.tasks.storage.redis.connection import RedisConnection
from bullpen.tasks.storage.redis.loop_connection import LoopConnection
from bullpen.tasks.storage.redis.scripts import Script
from bullpen.tasks.storage.redis.store import RedisStorage
from tests.postgres import new_schema, run
from tests.properties.test_storage_model import StorageMachine

T = TypeVar("T")
_profile = settings()
_lives = settings(
    max_examples=max(_profile.max_examples // 12, 3),
    stateful_step_count=_profile.stateful_step_count,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to find the shortest life that fails would take minutes
)
_TABLES = ("task", "worker", "queue", "start", "event")
_CLOCK = """
    CREATE TABLE {s}.clock (at float8);
    INSERT INTO {s}.clock VALUES (0);
    CREATE OR REPLACE FUNCTION {s}.now() RETURNS float8 LANGUAGE sql VOLATILE AS $$ SELECT at FROM {s}.clock $$;
"""
_TIME = "local t = redis.call('TIME')\n    return tonumber(t[1]) + tonumber(t[2]) / 1000000"


# PostgreSQL: its clock is a function of the schema.


@pytest.fixture(scope="module")
def schema(postgres_url: str) -> Iterator[str]:
    async def make() -> None:
        store = PostgresStorage(postgres_url, schema=name)
        await store.open()
        await store.close()

    with new_schema(postgres_url) as name:
        asyncio.run(make())
        run(postgres_url, lambda connection: connection.execute(_CLOCK.format(s=name)))
        yield name


class PostgresMachine(StorageMachine):
    url: str
    schema: str
    connection: Any = None

    def make_store(self) -> Storage:
        self.connection = self.runner.run(asyncpg.connect(self.url))
        emptied = "; ".join(f"DELETE FROM {self.schema}.{table}" for table in _TABLES)
        self.runner.run(self.connection.execute(emptied))
        return PostgresStorage(self.url, schema=self.schema, connections=2)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        moved = f"UPDATE {self.schema}.clock SET at = {self.model.now!r} WHERE at <> {self.model.now!r}"
        self.runner.run(self.connection.execute(moved))
        return super().run(call)

    def exchange(self, dice: Random, settlements: list[Settlement], limit: int) -> Sequence[Task]:
        for line in cast(PostgresStorage, self.store).claim_cursors.values():
            line.sweeps_at = 0.0  # by the wall clock, which stands still for the model
        return super().exchange(dice, settlements, limit)

    def teardown(self) -> None:
        self.runner.run(self.connection.close())
        self.connection = None
        self.runner.run(self.store.close())
        self.runner.close()


@pytest.mark.timeout(600)
def test_postgresql_does_what_the_model_says(postgres_url: str, schema: str) -> None:
    machine = type("Machine", (PostgresMachine,), {"url": postgres_url, "schema": schema})
    run_state_machine_as_test(machine, settings=_lives)


# Redis: the scripts are told another clock.


class ClockedLink(LoopConnection):
    def __init__(self, url: str, key: str) -> None:
        super().__init__(url)
        self._key = key

    async def _run(self, script: Script, keys: Sequence[str], words: Sequence[Any]) -> Any:
        text = script.text.replace(_TIME, f"return tonumber(redis.call('GET', '{self._key}'))")
        assert "'TIME'" not in text
        return await self.execute("EVAL", text, len(keys), *keys, *words)

    async def run_each(self, script: Script, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        return [await self.run(script, [key], words) for key, words in calls]


class ClockedRedis(RedisStorage):
    async def _connect(self) -> RedisConnection:
        return ClockedLink(self.url, f"{self.prefix}:clock")

    async def now(self) -> float:
        return float(await self._execute("GET", f"{self.prefix}:clock"))


class RedisMachine(StorageMachine):
    url: str

    def make_store(self) -> Storage:
        self.client = redis.Redis.from_url(self.url)
        self.prefix = f"bullpen-test-{secrets.token_hex(6)}"
        return ClockedRedis(self.url, prefix=self.prefix)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        self.client.set(f"{self.prefix}:clock", repr(self.model.now))
        return super().run(call)

    def queue_for_another(self, task_id: str) -> str:
        """An id is looked for in its own queue only."""
        return next((row.given.queue for row in self.model.rows if row.id == task_id), "default")

    def prune(self, limit: int) -> None:
        """Queue by queue, so the oldest of all need not be among them."""
        old = {row.id for row in self.model.rows if self.model.is_old(row)}
        count = self.run(self.store.prune(limit=limit))
        assert count == min(limit, len(old))
        left = {task.id for task in self.run(self.store.list(TaskFilter(), limit=10_000))}
        gone = {row.id for row in self.model.rows} - left
        assert gone <= old
        assert self.model.forget(lambda row: row.id in gone) == count
        self.model.prune_events()

    def teardown(self) -> None:
        super().teardown()
        keys = list(self.client.scan_iter(match=f"*{self.prefix}:*", count=1000))
        self.client.delete(*keys, f"{self.prefix}:clock")
        self.client.close()


@pytest.mark.timeout(600)
def test_redis_does_what_the_model_says(redis_url: str) -> None:
    machine = type("Machine", (RedisMachine,), {"url": redis_url})
    run_state_machine_as_test(machine, settings=_lives)

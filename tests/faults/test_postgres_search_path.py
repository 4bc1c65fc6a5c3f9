"""A role that may create functions in a schema of the search path cannot run SQL as the role of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from bullpen.errors import StorageError
from bullpen.tasks.model.task import AttemptError, DependsOn, Step, Task, fail, release, succeed
from bullpen.tasks.storage.port import AttemptKey, Limit, TaskFilter
from bullpen.tasks.storage.postgres.store import COPIED, PostgresStorage
from tests.postgres import new_schema, run

pytestmark = pytest.mark.anyio

# Each fits some call better than the function or operator of pg_catalog: its types are exact, not polymorphic.
TRAPS = {
    "hashtextextended(text, integer)": ("bigint", "1::bigint"),
    "cardinality(text[])": ("integer", "pg_catalog.cardinality($1)"),
    "unnest(text[])": ("SETOF text", None),
    "array_position(text[], text)": ("integer", "pg_catalog.array_position($1, $2)"),
    "array_remove(text[], text)": ("text[]", "pg_catalog.array_remove($1, $2)"),
    "array_append(integer[], integer)": ("integer[]", "pg_catalog.array_append($1, $2)"),
    "append(text[], text)": ("text[]", "pg_catalog.array_append($1, $2)"),
    "jsonb_build_object(text, text)": ("jsonb", "pg_catalog.jsonb_build_object($1, $2)"),
    "differs(text, text)": ("boolean", "pg_catalog.textne($1, $2)"),
    "set_config(text, text, boolean)": ("text", "pg_catalog.set_config($1, $2, $3)"),
}


@pytest.fixture
def schema(postgres_url: str) -> Iterator[str]:
    with new_schema(postgres_url) as name:
        yield name


@pytest.fixture
def trap(postgres_url: str, schema: str) -> Iterator[str]:
    """A schema in which another role has created functions. Each of their calls leaves a row in the table `caught`."""
    name, mallory = f"{schema}_open", f"{schema}_mallory"
    made = [
        f"CREATE ROLE {mallory}; CREATE SCHEMA {name}; GRANT ALL ON SCHEMA {name} TO {mallory}; SET ROLE {mallory}",
        f"CREATE TABLE {name}.caught (by text, function text)",
        f"GRANT INSERT ON {name}.caught TO PUBLIC",
    ]
    for function, (returns, value) in TRAPS.items():
        note = f"INSERT INTO {name}.caught VALUES (current_user, '{function}');"
        then = "RETURN QUERY SELECT pg_catalog.unnest($1);" if value is None else f"RETURN {value};"
        made.append(
            f"CREATE FUNCTION {name}.{function} RETURNS {returns} LANGUAGE plpgsql AS $$BEGIN {note} {then} END$$"
        )
    made.append(f"CREATE OPERATOR {name}.|| (leftarg = text[], rightarg = text, function = {name}.append)")
    made.append(f"CREATE OPERATOR {name}.<> (leftarg = text, rightarg = text, function = {name}.differs)")
    made.append("RESET ROLE")
    run(postgres_url, lambda connection: connection.execute("; ".join(made)))
    yield name
    dropped = f"DROP SCHEMA {name} CASCADE; DROP ROLE {mallory}"
    run(postgres_url, lambda connection: connection.execute(dropped))


def through(url: str, trap: str, then: str = "public") -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}search_path={trap},{then}"


async def caught(url: str, trap: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(f"SELECT DISTINCT function FROM {trap}.caught")
    await connection.close()
    return [function for (function,) in rows]


async def test_the_traps_work(postgres_url: str, trap: str) -> None:
    connection = await asyncpg.connect(through(postgres_url, trap))
    await connection.fetch("SELECT hashtextextended('a', 1), ARRAY['a'] || 'b'::text, cardinality(ARRAY['a'])")
    await connection.close()
    expected = {"hashtextextended(text, integer)", "append(text[], text)", "cardinality(text[])"}
    assert set(await caught(postgres_url, trap)) == expected


@pytest.mark.parametrize(("then", "prepared"), [("public", True), ("public", False), ("pg_catalog", True)])
async def test_a_client_calls_no_function_of_another_role(
    postgres_url: str, schema: str, trap: str, then: str, prepared: bool
) -> None:
    store = PostgresStorage(through(postgres_url, trap, then), schema=schema, prepared=prepared)
    await store.open()
    try:
        await _use(store)
    finally:
        await store.close()
    assert await caught(postgres_url, trap) == []


async def test_behind_a_pooler_a_schema_before_pg_catalog_is_rejected(
    postgres_url: str, schema: str, trap: str
) -> None:
    """There a client cannot set its search path."""
    store = PostgresStorage(through(postgres_url, trap, "pg_catalog"), schema=schema, prepared=False)
    with pytest.raises(StorageError, match=f"'{trap}' before pg_catalog"):
        await store.open()
    await store.close()
    assert await caught(postgres_url, trap) == []


async def _use(store: PostgresStorage) -> None:
    async def exchange(limit: int, *settlements: Any) -> list[Task]:
        names = ("default", "limited")
        answer = await store.exchange(
            settlements, worker="w", queues=names, limit=limit, lease=60.0, claim_id=str(settlements)
        )
        return list(answer.claimed)

    await store.set_limit(Limit(queue="limited", max_running=5, max_running_per_key=1, rate=100.0))
    first, second = (
        Task(id="a1", func_path="f", payload=b"", next_task_id="a2"),
        Task(id="a2", func_path="f", payload=b""),
    )
    await store.add([first, replace(second, waits_for=1, depends_on=DependsOn(ids=("a1",)))])
    await store.add([Task(id=f"b{n}", func_path="f", payload=b"", unique_key=str(n % 2)) for n in range(4)])
    await store.add([Task(id=f"c{n:04}", func_path="f", payload=b"", eta=1.0) for n in range(COPIED + 1)])
    await store.add(
        [Task(id=f"d{n}", func_path="f", payload=b"", queue="limited", concurrency_key="k") for n in range(3)]
    )
    await store.wait_for_work(["default", "limited"], 0.0)
    tasks = await exchange(400)
    error = AttemptError(kind="exception", attempt=1, at=1.0)
    await exchange(
        5, *(fail(one, error, 0.0) if number % 2 else succeed(one, b"") for number, one in enumerate(tasks[4:]))
    )
    await store.rescue_expired(lambda task, _: release(task), limit=9, dead_workers=["w"])
    await store.wait_for_result("b0", 0, 0.0)
    everything = await store.list(TaskFilter(), limit=500)
    ids = [task.id for task in everything]
    await store.cancel(ids)
    await store.retry(ids)
    await store.expire(limit=9)
    await store.pause("default")
    await store.resume("default")
    some = (await store.list(TaskFilter(queues=("limited",)), limit=5))[:2]
    await store.export_tasks(some)
    await store.import_tasks(some)
    await store.delete(ids)
    await store.prune(limit=9)
    await store.counts()
    await store.check_health()


async def test_a_transaction_of_the_user_calls_no_function_of_another_role(
    postgres_url: str, schema: str, trap: str
) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    connection = await asyncpg.connect(through(postgres_url, trap))
    try:
        task = Task(id="a", func_path="f", payload=b"", unique_key="k")
        assert await store.add_in(connection, [task, replace(task, id="b")]) == ["a", "a"]  # type: ignore[misc]
        assert isinstance(await store.now_in(connection), float)  # type: ignore[misc]
        assert await connection.fetchval(f"SELECT {schema}.enqueue('f', unique_key => 'k')") == "a"
        (mine,) = await claim_one(store)
        async with connection.transaction():
            step = Step(name="charge", number=1, attempt=1)
            await store.save_step_in(connection, AttemptKey(mine.id, mine.attempt), step)  # type: ignore[misc]
            await store.settle_in(connection, succeed(mine, b"1"))  # type: ignore[misc]
    finally:
        await connection.close()
        await store.close()
    assert await caught(postgres_url, trap) == []


async def claim_one(store: PostgresStorage) -> tuple[Task, ...]:
    answer = await store.exchange([], worker="w", queues=["default"], limit=1, lease=60.0, claim_id="c")
    return tuple(answer.claimed)


async def test_every_function_sets_its_search_path_or_names_the_schema_of_each_call(
    postgres_url: str, schema: str
) -> None:
    store = PostgresStorage(postgres_url, schema=schema)
    await store.open()
    await store.close()
    functions = (
        "SELECT p.proname, coalesce(array_to_string(p.proconfig, ' '), '') FROM pg_proc p "
        "JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1"
    )
    rows = await asyncio.to_thread(run, postgres_url, lambda connection: connection.fetch(functions, schema))
    assert len(rows) > 10
    assert {name for name, settings in rows if "search_path=pg_catalog, pg_temp" not in settings} == {"now"}

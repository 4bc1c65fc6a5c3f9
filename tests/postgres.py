"""What tests on PostgreSQL share: a schema of their own, and plain statements."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg


def run(url: str, ask: Callable[[Any], Awaitable[Any]]) -> Any:
    """What `ask` gets on a connection that lasts for it."""

    async def ask_once() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await ask(connection)
        finally:
            await connection.close()

    return asyncio.run(ask_once())


@contextmanager
def new_schema(url: str) -> Iterator[str]:
    """A name, under which nothing is there yet, and nothing is left."""
    name = f"bullpen_test_{secrets.token_hex(6)}"
    try:
        yield name
    finally:
        run(url, lambda connection: connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE"))

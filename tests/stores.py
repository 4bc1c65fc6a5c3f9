"""An empty store of each kind for a test, of which nothing is left."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.postgres import new_schema

SERVERS = ("postgres", "redis")
KINDS = ("sqlite", *SERVERS)


@contextmanager
def new_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Its address."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/{secrets.token_hex(4)}.db?synchronous=normal"
    elif kind == "postgres":
        server = request.getfixturevalue("postgres_url")
        with new_schema(server) as schema:
            yield f"{server}?schema={schema}"
    else:
        server, prefix = request.getfixturevalue("redis_url"), f"bullpen-test-{secrets.token_hex(6)}"
        try:
            yield f"{server}?prefix={prefix}"
        finally:
            _drop_keys(server, prefix)


def _drop_keys(server: str, prefix: str) -> None:
    with redis.Redis.from_url(server) as client:
        keys = list(client.scan_iter(match=f"*{prefix}:*", count=1000))
        if keys:
            client.delete(*keys)

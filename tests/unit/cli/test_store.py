from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bullpen.cli.store import address_of, is_same_store
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.sqlite.store import SqliteStorage


class Elsewhere:
    def __init__(self, url: str) -> None:
        self.url = url


@pytest.mark.parametrize(
    ("storage", "address"),
    [
        (MemoryStorage(), "memory://"),
        (SqliteStorage("/var/lib/jobs.db"), "sqlite:////var/lib/jobs.db"),
        (SqliteStorage("jobs.db"), f"sqlite:///{Path.cwd()}/jobs.db"),
        (Elsewhere("postgresql://ada:s3cret@db:5433/shop?sslpassword=s3cret"), "postgresql://db:5433/shop"),
        (Elsewhere("postgresql:///shop"), "postgresql:///shop"),
        (Elsewhere("postgresql://ada:s3cret@db,[::1]:5433/shop"), "postgresql://db,[::1]:5433/shop"),
        (open_storage("redis+cluster://:s3cret@a:17501,b:17502"), "redis+cluster://a:17501,b:17502"),
        (open_storage("valkeys+cluster://A:1,b/?prefix={x}"), "valkeys+cluster://a:1,b/?prefix={x}"),
        (open_storage("valkey://:s3cret@a/0"), "valkey://a/0"),
        (open_storage("redis://:s3cret@a/0"), "redis://a/0"),
        (object(), "object"),
    ],
)
def test_a_store_is_named_without_its_secrets(storage: Any, address: str) -> None:
    assert address_of(storage) == address


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("redis://a/0", "redis://:s3cret@A/0", True),
        ("redis://a/0", "valkey://a/0", True),
        ("rediss+cluster://a,b", "valkeys+cluster://a,b", True),
        ("redis://a/0", "redis://a/1", False),
        ("redis://a/0", "redis://a/0?prefix=valkey", False),
    ],
)
def test_a_store_is_known_under_each_of_its_addresses(one: str, other: str, is_same: bool) -> None:
    assert is_same_store(open_storage(one), open_storage(other)) is is_same

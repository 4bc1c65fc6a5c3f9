from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bullpen.cli.store import address_of
from bullpen.storage.memory import MemoryStorage
from bullpen.storage.sqlite.store import SqliteStorage


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
        (object(), "object"),
    ],
)
def test_a_store_is_named_without_its_secrets(storage: Any, address: str) -> None:
    assert address_of(storage) == address

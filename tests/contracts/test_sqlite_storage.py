"""The contract of stores, kept in an SQLite file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.testing import StorageContract


class TestSqliteStorage(StorageContract):
    path: Path

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "jobs.db"

    def make_storage(self) -> SqliteStorage:
        return SqliteStorage(self.path, synchronous="normal")

    def address(self) -> str:
        return f"sqlite:///{self.path}?synchronous=normal"

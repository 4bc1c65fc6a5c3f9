"""The contract of stores, kept in memory."""

from __future__ import annotations

import pytest

from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.testing import StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def _memory(self) -> None:
        self._store = MemoryStorage()

    def make_storage(self) -> MemoryStorage:
        return self._store

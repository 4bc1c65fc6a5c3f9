"""The contract of stores, kept in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import FORMAT
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Storage
from bullpen.testing import StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def _memory(self) -> None:
        self._store = MemoryStorage()

    damages_claimed = ("headers",)

    async def damage(self, task_id: str, kind: str) -> Callable[[], Awaitable[object]]:
        """Memory has no rows: the task becomes what a store makes of a damaged one."""
        task = self._store._tasks[task_id]
        self._store._tasks[task_id] = replace(task, unreadable=kind, format=FORMAT + (kind == "newer"))
        if task_id in self._store._running:
            self._store._running[task_id] = self._store._tasks[task_id]

        async def stored() -> object:
            return self._store._tasks[task_id].headers

        return stored

    async def damage_worker(self, worker: str) -> None:
        del self._store._workers[worker]

    def make_storage(self) -> MemoryStorage:
        return self._store

    async def queue_names(self, store: Storage) -> set[str]:
        kept = self._store
        of_keys = {queue for queue, _ in [*kept._unique, *kept._of_keys]}
        shown = await super().queue_names(store)
        return shown | of_keys | kept._due.keys() | kept._later.keys() | kept._starts.keys() | kept._limits.keys()

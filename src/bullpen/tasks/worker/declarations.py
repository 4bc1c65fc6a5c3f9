"""Schedules and limits that the code declares. A worker writes them into the store when it starts.

It does so only then: while old and new code run side by side, the code that was started last decides, and the two do
not overwrite each other in turn. Later a worker only adds schedules that are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bullpen import primitives
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.port import Limit, Storage
from bullpen.tasks.storage.schedules import declare
from bullpen.tasks.worker.reports import log_message

LOOK_EVERY = 60.0  # seconds


class DeclaredSchedules:
    """The declared schedules of one worker, which calls `declare` once, and `look` at every maintenance."""

    def __init__(self, registry: TaskRegistry, name: str) -> None:
        self._registry = registry
        self._name = name
        self._is_waiting = False  # some schedules were running, and could not be changed
        self._looked_at = 0.0

    async def declare(self, storage: Storage) -> None:
        """Write the declared schedules. A schedule that is running changes after its run."""
        now = await storage.now()
        wanted = self._wanted(now)
        primitives.failpoint("schedules.before_declare")
        waiting = await declare(storage, wanted, self._registry.all_names())
        primitives.failpoint("schedules.after_declare")
        if waiting and not self._is_waiting:
            said = ", ".join(waiting)
            log_message(logging.INFO, "%s: running, so their schedules change after the run: %s", self._name, said)
        self._is_waiting = bool(waiting)
        self._looked_at = now

    async def look(self, storage: Storage) -> None:
        """Change schedules that were running, and add missing ones."""
        if self._is_waiting:
            await self.declare(storage)
            return
        now = await storage.now()
        if 0.0 <= now - self._looked_at < LOOK_EVERY:
            return
        wanted = self._wanted(now)
        existing = await storage.get(
            [task.id for task in wanted]
        )  # maybe in another queue, if other code was started later
        missing = [task for task, kept in zip(wanted, existing, strict=True) if kept is None]
        if missing:
            await storage.add(missing)
        self._looked_at = now

    def _wanted(self, now: float) -> list[Task]:
        return [task for definition in self._registry if (task := definition.scheduled(now)) is not None]


async def declare_limits(storage: Storage, declared: Sequence[Limit]) -> None:
    """Set the declared limits. A limit that an operator has set stays."""
    if not declared:
        return
    existing = {limit.queue: limit for limit in await storage.limits()}
    for limit in declared:
        now = existing.get(limit.queue)
        if now is None or not now.is_limit or (now.declared and now != limit):
            await storage.set_limit(limit)

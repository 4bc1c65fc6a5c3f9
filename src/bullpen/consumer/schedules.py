"""The schedules that a worker's functions are declared with.

They are brought into the store when a worker starts, and only then: while old and new code run side by side, the code
that was started last decides, and nobody goes back and forth. Later a worker only looks after what is missing.
"""

from __future__ import annotations

import logging

from bullpen import primitives
from bullpen.consumer.reports import say
from bullpen.storage.port import Storage
from bullpen.storage.schedules import declare
from bullpen.tasks.registry import Registry
from bullpen.tasks.task import Task

LOOK_EVERY = 60.0  # seconds


class DeclaredSchedules:
    """Of one worker. `declare` first, then `look` every now and then, from wherever the store is at hand."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        self._name = name
        self._is_waiting = False  # some could not be changed, for they ran
        self._looked_at = 0.0

    async def declare(self, storage: Storage) -> None:
        """Have what the code says, as soon as what runs is over."""
        now = await storage.now()
        wanted = self._wanted(now)
        primitives.failpoint("schedules.before_declare")
        waiting = await declare(storage, wanted, self._registry.names())
        primitives.failpoint("schedules.after_declare")
        if waiting and not self._is_waiting:
            said = ", ".join(waiting)
            say(logging.INFO, "%s: %s run; their schedules change when that is over", self._name, said)
        self._is_waiting = bool(waiting)
        self._looked_at = now

    async def look(self, storage: Storage) -> None:
        """Go on with what had to wait, and add what is missing."""
        if self._is_waiting:
            await self.declare(storage)
            return
        now = await storage.now()
        if 0.0 <= now - self._looked_at < LOOK_EVERY:
            return
        wanted = self._wanted(now)
        there = await storage.get(
            [task.id for task in wanted]
        )  # maybe in another queue, if other code was started later
        missing = [task for task, kept in zip(wanted, there, strict=True) if kept is None]
        if missing:
            await storage.add(missing)
        self._looked_at = now

    def _wanted(self, now: float) -> list[Task]:
        return [task for definition in self._registry if (task := definition.scheduled(now)) is not None]

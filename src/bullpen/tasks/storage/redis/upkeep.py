"""Upkeep: tasks that were not started in time, and finished tasks that are kept no longer."""

from __future__ import annotations

from collections.abc import Sequence

from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.reading import TaskReading


class TaskUpkeep(TaskReading):
    """Verbs that workers call at intervals."""

    async def expire(self, *, limit: int) -> Sequence[Task]:
        late: list[Task] = []
        for queue in await self._queues_with(":expiring"):
            if len(late) >= limit:
                break
            words = [self._channel, str(limit - len(late))]
            late += self._changed([queue], await self._run(scripts.EXPIRE, queue, words))
        return late

    async def prune(self, *, limit: int) -> int:
        count = 0
        for queue in await self._queues_with(":finished"):
            if count >= limit:
                break
            count += await self._run(scripts.PRUNE, queue, [str(limit - count)])
        return count

"""Upkeep: tasks that were not started in time, and finished tasks that are kept no longer."""

from __future__ import annotations

from collections.abc import Sequence

from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.events import TaskEvents
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.reading import TaskReading


class TaskUpkeep(TaskReading, TaskEvents):
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
        await self._tend_events()
        if self.cluster:
            await self._unlist_unused()
        return count

    async def _unlist_unused(self) -> None:
        """On a cluster, scripts may not reach the list of queues. A queue that another client writes to meanwhile is
        listed again: by that client after its write, or here if the write came first.
        """
        names = await self._unused(await self._queues())
        if names:
            await self._execute("SREM", self._list_of_queues, *names)
            self._listed.difference_update(names)
            if used := set(names).difference(await self._unused(names)):
                await self._list_queues(used)

    async def _unused(self, queues: Sequence[str]) -> list[str]:
        with translated_errors(self.name):
            connection = await self._connected()
            tags = [self._tag(queue) for queue in queues]
            counts = await connection.execute_many([("EXISTS", f"{tag}:ids", f"{tag}:limits") for tag in tags])
        return [queue for queue, count in zip(queues, counts, strict=True) if not count]

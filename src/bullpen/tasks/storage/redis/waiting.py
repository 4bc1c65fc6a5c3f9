"""Waiting for work and for results, by publish and subscribe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.notifications import RESULT, WORK
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.reading import TaskReading


class TaskWaiting(TaskReading):
    """Each wait reads the store first, and again when a notification or its time comes."""

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        names = list(dict.fromkeys(queues))
        tags = [self._tag(name) for name in names]

        async def soonest() -> float | None:
            with translated_errors(self.name):
                connection = await self._connected()
                answers = [await connection.run(scripts.NEXT_START, some, []) for some in self._within_reach(tags)]
            return min((float(answer) for answer in answers if answer), default=None)

        await self._wait(self._listen_for_work, timeout, [WORK + name for name in names], soonest)

    async def wait_for_result(self, task_id: str, completed_runs: int, timeout: float) -> Task | None:
        queue = (await self._find_queues([task_id])).get(task_id)
        if queue is None:
            return None
        existing: Sequence[Any] = ()

        async def look() -> float | None:
            nonlocal existing
            words = [task_id, str(completed_runs), self._channel_of_ends]
            answer = await self._run(scripts.WAIT_FOR_RESULT, queue, words)
            existing = answer or ()
            return None if answer == 0 else 0.0

        await self._wait(self._listen_for_ends, timeout, [RESULT + task_id], look)
        if not existing:  # anyone may publish a notification, so only the store says that the task has ended
            await look()
        (task,) = self._tasks(queue, existing) or (None,)
        return task

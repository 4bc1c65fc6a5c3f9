"""Waiting for work and for results, by publish and subscribe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.notifications import RESULT, WORK
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.reading import TaskReading
from bullpen.tasks.storage.redis.rows import words_in


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
        self._expected_result.awaits(task_id)
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

        listener = await self._listening(self._listen_for_ends)
        expected = self._expected_result.take(task_id, listener)
        subscription = expected or listener.expect([RESULT + task_id])
        try:
            news = await listener.wait(timeout, subscription, look, look_first=expected is None)
        finally:
            listener.forget(subscription)
        (task,) = self._tasks(queue, existing or words_in(news)) or (None,)
        return task

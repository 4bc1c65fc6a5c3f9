"""Moving tasks between stores."""

from __future__ import annotations

from collections.abc import Sequence

from bullpen.tasks.model.task import RUNNING, Task
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.client import RedisClient
from bullpen.tasks.storage.redis.rows import body_of, dependency_ids, pack, state_of, step_of


class TaskMoving(RedisClient):
    """Import and export of whole tasks that do not run."""

    async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        existing = await self._find_queues(task.id for task in tasks)
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            if task.id not in existing and task.status is not RUNNING:
                by_queue.setdefault(task.queue, []).append(task)
        if by_queue:
            await self._list_first(by_queue)
        calls = [(queue, [self._channel, queue, *_whole(given)]) for queue, given in by_queue.items()]
        imported = await self._run_each(scripts.IMPORT_TASKS, calls)
        if by_queue:
            await self._list_again(by_queue)
        return frozenset(task_id.decode() for some in imported for task_id in some)

    async def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            if task.status is not RUNNING:
                by_queue.setdefault(task.queue, []).append(task)
        calls = [
            (queue, [pack([_state_before(task) for task in given]), *map(body_of, given)])
            for queue, given in by_queue.items()
        ]
        exported = await self._run_each(scripts.EXPORT_TASKS, calls)
        gone = [task_id.decode() for some in exported for task_id in some]
        for task_id in gone:
            self._queue_of.pop(task_id, None)
        return frozenset(gone)


def _state_before(task: Task) -> tuple[str, str, int, float]:
    """How `export_tasks.lua` recognises a task that has not changed."""
    return task.id, task.status.value, task.attempt, task.eta


def _whole(tasks: Sequence[Task]) -> list[str | bytes]:
    """The arguments of `import_tasks.lua` after the queue."""
    return [
        word
        for task in tasks
        for word in (
            *(task.id, state_of(task), body_of(task), task.result or b"", pack(dependency_ids(task))),
            pack([word for step in task.steps for word in (step.name, step_of(step))]),
        )
    ]

"""Adding tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from bullpen.errors import StorageError, TaskExists
from bullpen.tasks.model.ids import is_schedule
from bullpen.tasks.model.task import Task, new_as_kept
from bullpen.tasks.model.task_batch import TaskBatch, part_of, payloads_of, templates_of
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.moving import TaskMoving
from bullpen.tasks.storage.redis.reading import TaskReading
from bullpen.tasks.storage.redis.rows import NEW_STATE, body_of, ids_and_bodies, new_task, pack, plain_state

STEP, STEP_BYTES = 5_000, 16 * 2**20  # the most tasks that one script adds, and bytes of their arguments


class TaskAdding(TaskReading, TaskMoving):
    """`add`, by the shortest of three scripts that fits the tasks."""

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        count = len(tasks)
        if count == 0:
            return []
        if duplicates is not RETURN or any(task.next_task_id is not None for task in templates_of(tasks)):
            return await self._add_together(tasks, duplicates)
        if count > STEP or self._is_blocking:
            return await self._add(tasks)
        return await super().add(tasks)

    async def _add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Add to each queue by itself, because queues may be on different nodes."""
        if len(tasks) == 1:
            return await self._add_to_queue(tasks)
        if type(tasks) is TaskBatch:
            return await self._add_in_steps(tasks)
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            by_queue.setdefault(task.queue, []).append(task)
        kept = {queue: iter(await self._add_in_steps(some)) for queue, some in by_queue.items()}
        return [next(kept[task.queue]) for task in tasks]

    async def _add_in_steps(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Add many tasks in several scripts, because a server does nothing else while it runs one. If a later script
        fails, the tasks of the earlier ones are removed, unless they have started.
        """
        steps = list(_steps(tasks))
        if len(steps) == 1:
            return await self._add_to_queue(tasks)
        kept: list[Task] = []
        for step in steps:
            try:
                kept += await self._add_to_queue(step)
            except Exception:
                with suppress(StorageError):
                    for some in _steps(
                        [is_kept for new, is_kept in zip(tasks, kept, strict=False) if new.id == is_kept.id]
                    ):
                        await self.export_tasks(some)
                raise
        return kept

    async def _add_to_queue(self, tasks: Sequence[Task]) -> Sequence[Task]:
        plain = plain_state(tasks)
        if plain is None:
            return await self._add_together(tasks, RETURN)
        queue = templates_of(tasks)[0].queue
        await self._list_first([queue])
        words = [self._channel, queue, *plain, *ids_and_bodies(tasks)]
        script = scripts.ADD_ONE if len(tasks) == 1 else scripts.ADD_PLAIN
        return await self._kept(tasks, [queue], await self._run(script, queue, words))

    async def _add_together(self, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        """Add tasks of any kind in one script, all or none of them."""
        numbers: dict[str, int] = {}
        for task in tasks:
            numbers.setdefault(task.queue, len(numbers) + 1)
        names = list(numbers)
        await self._list_first(names)
        self.check_reach(names)
        push_limit = -1.0 if duplicates.push_limit is None else duplicates.push_limit
        new = [new_task(task, numbers[task.queue], body) for body, task in enumerate(tasks, start=3)]
        words = [pack((self._channel, duplicates.policy, push_limit, new)), NEW_STATE, *map(body_of, tasks)]
        with translated_errors(self.name):
            connection = await self._connected()
            tags = [self._tag(name) for name in names]
            answer = await connection.run(scripts.ADD, tags, words)
        if answer[0] == -1:
            _, place, other = answer
            raise TaskExists(key=tasks[place - 1].unique_key or "", task=other.decode())
        return await self._kept(tasks, names, answer)

    async def _kept(self, tasks: Sequence[Task], names: Sequence[str], answer: Sequence[Any]) -> Sequence[Task]:
        """New tasks as the server has kept them, from the reply of `add.lua`. `names`: of their queues."""
        now, unlisted, others = answer
        if unlisted:  # on a cluster
            await self._list_queues([names[number - 1] for number in unlisted])
        if type(tasks) is TaskBatch and not others:
            self._remember(dict.fromkeys(tasks.ids, names[0]))
            return tasks.kept(float(now))
        kept = [new_as_kept(task, float(now)) for task in tasks]
        if others:
            places = [place - 1 for place in others[::2]]
            existing = await self._existing(places, others[1::2], kept)
            latest = {task.id: task for task in existing.values()}  # one of the new tasks may have replaced another
            kept = [existing.get(place) or latest.get(task.id, task) for place, task in enumerate(kept)]
        self._remember({task.id: task.queue for task in kept})
        return kept

    async def _existing(self, places: Sequence[int], ids: Sequence[bytes], kept: Sequence[Task]) -> dict[int, Task]:
        """The tasks that exist already, by their id or their unique key."""
        by_queue: dict[str, list[bytes]] = {}
        for place, task_id in zip(places, ids, strict=True):
            by_queue.setdefault(kept[place].queue, []).append(task_id)
        found: dict[str, Task] = {}
        rows = await self._run_each(scripts.GET_TASKS, list(by_queue.items()))
        for queue, words in zip(by_queue, rows, strict=True):
            found |= {task.id: task for task in self._tasks(queue, words)}
        schedules = [task_id.decode() for task_id in ids if is_schedule(task_id.decode())]  # maybe of another queue
        found |= {task.id: task for task in await self.get(schedules) if task is not None}
        answer = {}
        for place, task_id in zip(places, ids, strict=True):
            task = found.get(task_id.decode())
            if task is None:
                why = f"task {task_id.decode()} was deleted in the meantime; add {kept[place].id} again"
                raise StorageError(why, storage=self.name)
            answer[place] = task
        return answer


def _steps(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    """Cut tasks into parts that one script adds in some 100 ms."""
    payloads = payloads_of(tasks)
    first = size = 0
    for place, payload in enumerate(payloads):
        if place > first and (place - first >= STEP or size + len(payload) > STEP_BYTES):
            yield part_of(tasks, first, place)
            first, size = place, 0
        size += len(payload)
    if first < len(payloads):
        yield part_of(tasks, first, len(payloads))

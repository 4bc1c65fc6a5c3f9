"""Reading tasks: by id, by filter, by claim, and how many there are."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from bullpen.tasks.model.task import FAILED, NEVER, RUNNING, Task, TaskStatus
from bullpen.tasks.storage.port import Counts, TaskFilter
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.client import RedisClient
from bullpen.tasks.storage.redis.rows import task_of

Tasks = list[Task]  # because `list` is a verb of the store
ROW = 7  # words of a row
PAGE = 200  # tasks that one script reads
ALL = TaskFilter()


class TaskReading(RedisClient):
    """The verbs that change nothing."""

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        by_queue = await self._by_queue(ids)
        found: dict[str, Task] = {}
        for queue, words in zip(by_queue, await self._run_each(scripts.GET_TASKS, list(by_queue.items())), strict=True):
            found |= {task.id: task for task in self._tasks(queue, words)}
        return [found.get(task_id) for task_id in ids]

    async def list(
        self, which: TaskFilter, *, limit: int, after: str | None = None, newest: bool = False
    ) -> Sequence[Task]:
        if which.ids is not None:
            tasks = [task for task in await self.get(list(dict.fromkeys(which.ids))) if task is not None]
            fitting = [task for task in tasks if which.matches(task) and _is_behind(task.id, after, newest)]
            return sorted(fitting, key=lambda task: task.id, reverse=newest)[:limit]
        found: Tasks = []
        for queue in await self._queues():
            if which.queues is None or queue in which.queues:
                found += await self._list_queue(queue, which, limit, after, newest)
        first = heapq.nlargest if newest else heapq.nsmallest
        return first(limit, found, key=lambda task: task.id)

    async def _list_queue(self, queue: str, which: TaskFilter, limit: int, after: str | None, newest: bool) -> Tasks:
        found: Tasks = []
        while len(found) < limit:
            page, last = await self._page(queue, PAGE, after or "", which=which, newest=newest)
            found += filter(which.matches, page)
            if not last:
                break
            after = last
        return found[:limit]

    async def _page(
        self, queue: str, size: int, after: str, *, which: TaskFilter = ALL, newest: bool = False
    ) -> tuple[Tasks, str]:
        """One page of the index of a queue that has the tasks of a filter, and the id to go on after; "" if it is the
        last page.
        """
        words = [str(size), after, _index_for(which), "1" if newest else "0", which.awaits or ""]
        last, rows = await self._run(scripts.LIST_TASKS, queue, words)
        if await self._gave_names(queue, rows[::ROW]):
            last, rows = await self._run(scripts.LIST_TASKS, queue, words)
        return self._tasks(queue, rows), last.decode()

    async def counts(self, limit: int | None = None) -> Counts:  # noqa: ARG002 - each queue has its counts
        queues = await self._queues()
        answers = await self._run_each(scripts.COUNT, [(queue, list(TaskStatus)) for queue in queues])
        counts = {}
        for queue, found in zip(queues, answers, strict=True):
            of_queue = {status: int(count) for status, count in zip(TaskStatus, found, strict=True) if int(count or 0)}
            if of_queue:
                counts[queue] = of_queue
        return counts

    async def first_pending(self, limit: int) -> Sequence[Task]:
        queues = await self._queues()
        answers = await self._run_each(scripts.FIRST_PENDING, [(queue, [str(limit)]) for queue in queues])
        return [task for queue, words in zip(queues, answers, strict=True) for task in self._tasks(queue, words)]

    async def list_pending(
        self, *, limit: int, queue: str | None = None, after: tuple[float, str] | None = None
    ) -> Sequence[Task]:
        queues = [name for name in await self._queues() if queue in (None, name)]
        words = [str(limit)] if after is None else [str(limit), repr(after[0]), after[1]]
        answers = await self._run_each(scripts.LIST_PENDING, [(name, words) for name in queues])
        found = [task for name, rows in zip(queues, answers, strict=True) for task in self._tasks(name, rows)]
        return heapq.nsmallest(limit, found, key=lambda task: (task.eta, task.id))

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        queues = await self._queues()
        answers = await self._run_each(scripts.FIND_CLAIM, [(queue, [claim_id]) for queue in queues])
        found = [task for queue, words in zip(queues, answers, strict=True) for task in self._tasks(queue, words)]
        return sorted(found, key=lambda task: (-task.priority, task.eta, task.id))

    def _tasks(self, queue: str, words: Sequence[Any]) -> Tasks:
        """The tasks of rows, as `parts/task_rows.lua` has them."""
        tasks = []
        for at in range(0, len(words), ROW):
            *stored, lease = words[at : at + ROW]
            lease_until = None if lease is None else min(max(float(lease), 0.0), NEVER)  # another program may write it
            tasks.append(task_of(queue, lease_until, *stored))
        return tasks

    def _changed(self, queues: Sequence[str], words: Sequence[Any]) -> Tasks:
        """The tasks of rows with the number of their queue before each, as `parts/change_each.lua` has them."""
        return [
            task
            for at in range(0, len(words), 1 + ROW)
            for task in self._tasks(queues[int(words[at]) - 1], words[at + 1 : at + 1 + ROW])
        ]


def _index_for(which: TaskFilter) -> str:
    """Those that are few among many have an index of their own."""
    if which.awaits is not None:
        return ":awaiting"
    if which.statuses == (RUNNING,):
        return ":running"
    return ":failed" if which.statuses == (FAILED,) else ":ids"


def _is_behind(task_id: str, after: str | None, newest: bool) -> bool:
    return after is None or (task_id < after if newest else task_id > after)

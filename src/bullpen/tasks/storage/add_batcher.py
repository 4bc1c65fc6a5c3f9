"""Batches concurrent adds: tasks that are added while a batch is on its way go in the next batch, in one round trip.

For stores on a server. A single caller is not delayed. Callers of one batch are likely to come back together, so after
a batch with several callers the next one starts in a task of its own, when the event loop has run all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from bullpen.errors import StorageBusy, StorageUnavailable
from bullpen.tasks.model.task import Task
from bullpen.tasks.model.task_batch import concatenate, split_by_part

MAX_BATCH = 1000  # tasks; a single caller may add more

Add = Callable[[Sequence[Task]], Awaitable[Sequence[Task]]]
Caller = tuple[Sequence[Task], "asyncio.Future[Sequence[Task]]"]


class AddBatcher:
    """Adds the tasks of many callers through `add`."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._callers: deque[Caller] = deque()
        self._alone: asyncio.Future[None] | None = None  # done when the single caller is done
        self._going: asyncio.Task[None] | None = None
        self._is_crowd = False  # the last batch had several callers

    async def add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Add tasks, alone or in a batch. If the tasks of one caller are rejected, the others do not fail."""
        loop = asyncio.get_running_loop()
        if self._going is None and self._alone is None and not self._is_crowd:
            self._alone = loop.create_future()
            try:
                return await self._add(tasks)
            finally:
                self._alone.set_result(None)
                self._alone = None
                if self._callers:
                    self._start(loop)
        answer: asyncio.Future[Sequence[Task]] = loop.create_future()
        self._callers.append((tasks, answer))
        if self._going is None and self._alone is None:
            self._start(loop)
        return await answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._going = loop.create_task(self._go(), name="bullpen add batcher")

    async def close(self) -> None:
        """Wait for the adds that have begun."""
        while (begun := self._alone or self._going) is not None:
            await asyncio.wait([begun])

    async def _go(self) -> None:
        while callers := self._take():
            self._is_crowd = len(callers) > 1
            parts = [tasks for tasks, _ in callers]
            try:
                kept = await self._add(concatenate(parts))
            except BaseException as error:
                if len(callers) == 1 or not _may_be_due_to_one(error):
                    _fail(callers, error)
                else:
                    await self._add_each(callers)
                continue
            for (_, answer), share in zip(callers, split_by_part(kept, parts), strict=True):
                _answer(answer, share)
        self._going = None

    def _take(self) -> list[Caller]:
        callers: list[Caller] = []
        count = 0
        while self._callers and (not callers or count + len(self._callers[0][0]) <= MAX_BATCH):
            tasks, answer = self._callers.popleft()
            if not answer.done():  # else the caller was cancelled before its tasks were sent
                callers.append((tasks, answer))
                count += len(tasks)
        return callers

    async def _add_each(self, callers: Sequence[Caller]) -> None:
        """Add each caller's tasks alone. To add them again is safe: an existing id is not changed."""
        for caller in callers:
            try:
                _answer(caller[1], await self._add(caller[0]))
            except Exception as error:
                _fail([caller], error)


def _may_be_due_to_one(error: BaseException) -> bool:
    """Whether the others may succeed without one caller. If the server is unavailable, each would wait in turn."""
    return isinstance(error, Exception) and not isinstance(error, StorageUnavailable | StorageBusy)


def _answer(answer: asyncio.Future[Sequence[Task]], kept: Sequence[Task]) -> None:
    if not answer.done():
        answer.set_result(kept)


def _fail(callers: Sequence[Caller], error: BaseException) -> None:
    for _, answer in callers:
        if not answer.done():
            answer.set_exception(error)

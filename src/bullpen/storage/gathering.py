"""Many callers, one round trip: what comes while an earlier batch is on its way goes together with the next.

For stores on a server. A caller who is alone goes at once. Those who have just gone together are likely to come
together again, so they go when the loop has let all of them run that it is about to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from bullpen.errors import StorageBusy, StorageUnavailable
from bullpen.tasks.alike import shares, together
from bullpen.tasks.task import Task

MOST = 1000  # tasks in one batch; a single caller may have more

Add = Callable[[Sequence[Task]], Awaitable[Sequence[Task]]]
Caller = tuple[Sequence[Task], "asyncio.Future[Sequence[Task]]"]


class Gathering:
    """Adds tasks of many callers, with `add`."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._callers: deque[Caller] = deque()
        self._alone: asyncio.Future[None] | None = None  # until whoever goes alone is back
        self._going: asyncio.Task[None] | None = None
        self._is_crowd = False  # several went together just now

    async def add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """As `add`, alone or with others. What fails for one fails for that one alone."""
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
        self._going = loop.create_task(self._go(), name="bullpen adds")

    async def close(self) -> None:
        """Wait for what was begun."""
        while (begun := self._alone or self._going) is not None:
            await asyncio.wait([begun])

    async def _go(self) -> None:
        while callers := self._take():
            self._is_crowd = len(callers) > 1
            parts = [tasks for tasks, _ in callers]
            try:
                kept = await self._add(together(parts))
            except BaseException as error:
                if len(callers) == 1 or not _may_be_due_to_one(error):
                    _fail(callers, error)
                else:
                    await self._add_each(callers)
                continue
            for (_, answer), share in zip(callers, shares(kept, parts), strict=True):
                _answer(answer, share)
        self._going = None

    def _take(self) -> list[Caller]:
        callers: list[Caller] = []
        count = 0
        while self._callers and (not callers or count + len(self._callers[0][0]) <= MOST):
            tasks, answer = self._callers.popleft()
            if not answer.done():  # else its caller was cancelled, before anything was sent
                callers.append((tasks, answer))
                count += len(tasks)
        return callers

    async def _add_each(self, callers: Sequence[Caller]) -> None:
        """Adding again is safe, for an id that is there stays as it is."""
        for caller in callers:
            try:
                _answer(caller[1], await self._add(caller[0]))
            except Exception as error:
                _fail([caller], error)


def _may_be_due_to_one(error: BaseException) -> bool:
    """Whether others may succeed without one of them. A server that is away would let each wait in turn."""
    return isinstance(error, Exception) and not isinstance(error, StorageUnavailable | StorageBusy)


def _answer(answer: asyncio.Future[Sequence[Task]], kept: Sequence[Task]) -> None:
    if not answer.done():
        answer.set_result(kept)


def _fail(callers: Sequence[Caller], error: BaseException) -> None:
    for _, answer in callers:
        if not answer.done():
            answer.set_exception(error)

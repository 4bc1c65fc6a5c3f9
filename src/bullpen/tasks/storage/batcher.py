"""Batches concurrent calls: what is given while a batch is on its way goes in the next batch, in one round trip.

For stores on a server. A single caller is not delayed. Callers of one batch are likely to come back together, so after
a batch with several callers the next one starts in a task of its own, when the event loop has run all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from bullpen.errors import StorageBusy, StorageUnavailable

MAX_BATCH = 1000  # items; a single caller may give more

Given = TypeVar("Given")
Answer = TypeVar("Answer")
Send = Callable[[Sequence[Sequence[Given]]], Awaitable[Sequence[Sequence[Answer]]]]
Caller = tuple[Sequence[Given], "asyncio.Future[Sequence[Answer]]"]


class Batcher(Generic[Given, Answer]):
    """`send` sends the items of one or more callers in one step, and returns the answers of each. To send an item again
    must be safe.
    """

    def __init__(self, send: Send[Given, Answer]) -> None:
        self._send = send
        self._callers: deque[Caller[Given, Answer]] = deque()
        self._alone: asyncio.Future[None] | None = None  # done when the single caller is done
        self._going: asyncio.Task[None] | None = None
        self._is_crowd = False  # the last batch had several callers

    async def send(self, items: Sequence[Given]) -> Sequence[Answer]:
        """Send items, alone or in a batch. If the items of one caller are rejected, the others do not fail."""
        loop = asyncio.get_running_loop()
        if self._going is None and self._alone is None and not self._is_crowd:
            self._alone = loop.create_future()
            try:
                return (await self._send([items]))[0]
            finally:
                self._alone.set_result(None)
                self._alone = None
                if self._callers:
                    self._start(loop)
        answer: asyncio.Future[Sequence[Answer]] = loop.create_future()
        self._callers.append((items, answer))
        if self._going is None and self._alone is None:
            self._start(loop)
        return await answer

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._going = loop.create_task(self._go(), name="bullpen batcher")

    async def close(self) -> None:
        """Wait for the calls that have begun."""
        while (begun := self._alone or self._going) is not None:
            await asyncio.wait([begun])

    async def _go(self) -> None:
        while callers := self._take():
            self._is_crowd = len(callers) > 1
            try:
                answers = await self._send([items for items, _ in callers])
            except BaseException as error:
                if len(callers) == 1 or not _may_be_due_to_one(error):
                    _fail(callers, error)
                else:
                    await self._send_each(callers)
                continue
            for (_, answer), share in zip(callers, answers, strict=True):
                _answer(answer, share)
        self._going = None

    def _take(self) -> list[Caller[Given, Answer]]:
        callers: list[Caller[Given, Answer]] = []
        count = 0
        while self._callers and (not callers or count + len(self._callers[0][0]) <= MAX_BATCH):
            items, answer = self._callers.popleft()
            if not answer.done():  # else the caller was cancelled before its items were sent
                callers.append((items, answer))
                count += len(items)
        return callers

    async def _send_each(self, callers: Sequence[Caller[Given, Answer]]) -> None:
        for caller in callers:
            try:
                _answer(caller[1], (await self._send([caller[0]]))[0])
            except Exception as error:
                _fail([caller], error)


def _may_be_due_to_one(error: BaseException) -> bool:
    """Whether the others may succeed without one caller. If the server is unavailable, each would wait in turn."""
    return isinstance(error, Exception) and not isinstance(error, StorageUnavailable | StorageBusy)


def _answer(answer: asyncio.Future[Sequence[Answer]], share: Sequence[Answer]) -> None:
    if not answer.done():
        answer.set_result(share)


def _fail(callers: Sequence[Caller[Given, Answer]], error: BaseException) -> None:
    for _, answer in callers:
        if not answer.done():
            answer.set_exception(error)

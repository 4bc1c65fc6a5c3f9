"""A store whose clients belong to one event loop each, as those of databases do; and a worker of few lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bullpen.tasks.client import clients
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.context import CurrentTask, running
from bullpen.tasks.model.task import AttemptError, Settlement, Task, fail, succeed
from bullpen.tasks.storage.memory import MemoryStorage

ADDRESS = "test://"


class LoopBound:
    """A client of a store in memory that may only be used on the loop that opened it."""

    def __init__(self, server: MemoryStorage, made: list[LoopBound]) -> None:
        self._server = server
        self._made = made
        self.loop: asyncio.AbstractEventLoop | None = None
        self.opens = self.closes = 0
        self.refuse_to_open = False
        made.append(self)

    durable = True

    def another(self) -> LoopBound:
        return LoopBound(self._server, self._made)

    async def open(self) -> None:
        await asyncio.sleep(0)
        self.loop = asyncio.get_running_loop()
        if self.refuse_to_open:
            raise ConnectionRefusedError
        self.opens += 1

    async def close(self) -> None:
        assert self.loop is asyncio.get_running_loop()
        self.closes += 1

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._server, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            assert self.loop is asyncio.get_running_loop(), f"{name} was called on the wrong loop"
            await asyncio.sleep(0)
            return await method(*args, **kwargs)

        return call


class Server:
    """Stands for a database: `made` are its clients."""

    def __init__(self) -> None:
        self.memory = MemoryStorage()
        self.made: list[LoopBound] = []

    @property
    def opened(self) -> list[LoopBound]:
        return [client for client in self.made if client.opens]

    def open_storage(self, url: str) -> LoopBound:
        assert url == ADDRESS
        return LoopBound(self.memory, self.made)

    @contextmanager
    def reachable(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
        with monkeypatch.context() as patch:
            patch.setattr(clients, "open_storage", self.open_storage)
            yield self


async def work(queue: TaskQueue, limit: int = 10, worker: str = "w-1") -> int:
    """Claim what is due, run it, settle it; how many."""
    storage = await queue.astorage()
    got = await storage.exchange(
        (), worker=worker, queues=("default", "mail"), limit=limit, lease=15, claim_id=f"{worker}-claim"
    )
    settlements = [await _attempt(queue, task) for task in got.claimed]
    await storage.exchange(settlements, worker=worker, queues=(), limit=0, lease=15, claim_id="")
    return len(got.claimed)


async def _attempt(queue: TaskQueue, task: Task) -> Settlement:
    definition = queue.registry.get(task.func_path)
    assert definition is not None
    args, kwargs = definition.decode(task.payload)
    try:
        with running(CurrentTask(task)):
            value = definition.function(*args, **kwargs)
            if definition.is_async:
                value = await value
    except Exception as error:
        now = await (await queue.astorage()).now()
        data = AttemptError(
            kind="exception",
            attempt=task.attempt,
            at=now,
            type=type(error).__name__,
            message=str(error),
            traceback="Traceback: line 5",
        )
        return fail(task, data, 0.0, retry=definition.options.may_retry(error))
    return succeed(task, *definition.keep_result(value))


def work_now(queue: TaskQueue, limit: int = 10) -> int:
    """The same, from sync code."""
    return asyncio.run(work(queue, limit))


Work = Callable[[TaskQueue], int]

"""What the scenarios of workers share: a queue by hand, stores that fail as told, and an event loop in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bullpen.tasks.model.options import FUNCTION_NAMES, TaskOptions
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.task import RUNNING, Settlement, Task, TaskStatus
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Exchange, TaskFilter
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool
from tests.scenarios.support import PATIENCE

T = TypeVar("T")

NO_WAIT: dict[str, Any] = {"poll_interval": 0.01}


class Desk:
    """A queue by hand: a store, functions by name, and short words for tests."""

    def __init__(self, storage: MemoryStorage | None = None) -> None:
        self.storage = MemoryStorage() if storage is None else storage
        self.registry = TaskRegistry()
        self._numbers = itertools.count(1)

    def task(self, function: Callable[..., Any], name: str | None = None, **options: Any) -> str:
        """Let a function run; its name."""
        name = name or function.__name__
        self.registry.register(function, TaskOptions().using(FUNCTION_NAMES, "task()", options), name=name)
        return name

    async def add(self, name: str, *args: Any, **fields: Any) -> str:
        """Put a task into the store; its id."""
        definition = self.registry.get(name)
        payload = fields.pop("payload", None)
        if payload is None:
            payload = b'{"args":[],"kwargs":{}}' if definition is None else definition.codec.encode(args, {})
        task = Task(id=f"{next(self._numbers):06d}", func_path=name, payload=payload, **fields)
        await self.storage.add([task])
        return task.id

    async def get(self, task_id: str) -> Task:
        (task,) = await self.storage.get([task_id])
        assert task is not None
        return task

    async def ended(self, task_id: str) -> Task:
        """The task once it is final."""
        await until(lambda: self.storage._tasks[task_id].is_final)
        return await self.get(task_id)

    async def running(self, worker: str | None = None) -> int:
        """How many tasks the store shows running."""
        return len(await self.storage.list(TaskFilter(statuses=(RUNNING,), worker=worker), limit=10_000))

    def worker(self, concurrency: int = 10, **options: Any) -> AsyncWorkerPool:
        return AsyncWorkerPool(self, concurrency, **{**NO_WAIT, **options})


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds; only a defect makes this last. In virtual time it costs nothing."""
    deadline = time.monotonic() + PATIENCE
    loop = asyncio.get_running_loop()
    virtual_deadline = loop.time() + 10_000
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        assert loop.time() < virtual_deadline, "it never came true"
        await asyncio.sleep(0.05 if isinstance(loop, VirtualLoop) else 0.002)


def statuses(tasks: Sequence[Task | None]) -> list[TaskStatus]:
    return [task.status for task in tasks if task is not None]


# Virtual time: a loop whose clock jumps to the next timer when there is nothing else to do.


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now = 1000.0

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(0.01)
        self._loop.now += timeout
        return []


class OneLoopStorage(MemoryStorage):
    """A store with one client only, so that the heartbeat shares the worker's loop and its virtual time.

    The store's clock is the loop's, and `skew` seconds more. Calls can be made to fail, before or after they are done.
    """

    def __init__(self) -> None:
        super().__init__(now=self._read_clock)
        self.skew = 1_000_000.0
        self.away = False  # nothing gets through
        self.fail_before: dict[str, int] = {}  # how many of the next calls fail, undone
        self.fail_after: dict[str, int] = {}  # … or done
        self.calls: list[tuple[str, float]] = []  # and when
        self.most_running = 0

    def _read_clock(self) -> float:
        return asyncio.get_running_loop().time() + self.skew

    def another(self) -> Any:
        return None

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append((name, asyncio.get_running_loop().time()))
        if self.away or self._fails(self.fail_before, name):
            raise ConnectionError("the store is away")
        result = await call()
        self.most_running = max(self.most_running, len(self._running))
        if self._fails(self.fail_after, name):
            raise ConnectionError("the answer was lost")
        return result

    @staticmethod
    def _fails(times: dict[str, int], name: str) -> bool:
        if times.get(name, 0) > 0:
            times[name] -= 1
            return True
        return False

    def times(self, name: str) -> list[float]:
        return [at for called, at in self.calls if called == name]

    async def exchange(self, settlements: Sequence[Settlement], **kwargs: Any) -> Exchange:
        await asyncio.sleep(0)
        return await self._call("exchange", lambda: super(OneLoopStorage, self).exchange(settlements, **kwargs))

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        return await self._call("find_claim", lambda: super(OneLoopStorage, self).find_claim(claim_id))

    async def renew(self, *args: Any) -> Any:
        return await self._call("renew", lambda: super(OneLoopStorage, self).renew(*args))

    async def get(self, *args: Any) -> Any:
        return await self._call("get", lambda: super(OneLoopStorage, self).get(*args))

    async def workers(self) -> Any:
        return await self._call("workers", super().workers)

    async def save_worker(self, *args: Any) -> None:
        return await self._call("save_worker", lambda: super(OneLoopStorage, self).save_worker(*args))

    async def delete_worker(self, *args: Any) -> None:
        return await self._call("delete_worker", lambda: super(OneLoopStorage, self).delete_worker(*args))

    async def wait_for_work(self, *args: Any) -> None:
        return await self._call("wait_for_work", lambda: super(OneLoopStorage, self).wait_for_work(*args))


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


@contextlib.asynccontextmanager
async def killed_at_end(pool: AsyncWorkerPool) -> AsyncIterator[AsyncWorkerPool]:
    """A worker that is stopped without mercy, whatever the test does."""
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop(grace=0)

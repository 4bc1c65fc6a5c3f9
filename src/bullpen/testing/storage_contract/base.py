"""Shared by the tests: a store, tasks for it, and short names for its verbs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import AttemptError, Settlement, Task, crash
from bullpen.tasks.storage.port import AttemptKey, Storage, TaskFilter

T = TypeVar("T")

FAR = 3600.0
"""Seconds: a time that does not come while a test runs."""
SOON = 0.03
"""… and one that does."""
A_MOMENT = 1e-6
"""… and one that is over at once."""
PATIENCE = 30.0
"""Seconds after which something that has to happen has not."""
RESOLUTION = 0.005
"""Seconds that a store's clock may be rounded by."""

_numbers = itertools.count(1)


class StoreTests:
    """Tests of one store, which is empty at the beginning of each."""

    pytestmark = pytest.mark.anyio

    def make_storage(self) -> Storage:
        """A client of this test's store, not open yet. Another call makes another client of the same store, also on
        another thread.
        """
        raise NotImplementedError

    def address(self) -> str | None:
        """Where another process finds the store, for `open_storage`; None if it cannot."""
        return None

    # For `unreadable.py`: what `damage` can do to a stored task. After the first kinds, a claim gets an unreadable
    # task; after the others it gets none, or overwrites the damage.
    damages_claimed: Sequence[str] = ()
    damages_other: Sequence[str] = ()

    async def damage(self, task_id: str, kind: str) -> Callable[[], Awaitable[object]]:
        """Write garbage into the row of a task of the queue `default`, past the store. `kind`: one of the two lists
        above, or "newer", for a row of a newer version. Returns a function that reads what was overwritten.
        """
        pytest.skip("the store has no way to damage a row")

    async def damage_worker(self, worker: str) -> None:
        """Write garbage into the record of a worker."""
        pytest.skip("the store has no way to damage a record")

    # What `damage_settings` can do to the limit and the pauses of the queue `other`.
    damages_limit: Sequence[str] = ()  # then the limit cannot be read
    damages_settings: Sequence[str] = ()

    async def damage_settings(self, kind: str) -> None:
        """Write garbage beside the tasks: into limits, pauses, and the times of recent starts."""
        pytest.skip("the store has no way to damage a setting")

    damages_history: Sequence[str] = ()  # values

    async def damage_history(self, value: str) -> None:
        """Write a value into all rows of the history and of failures: as counts, and as the example."""
        pytest.skip("the store has no way to damage the history")

    async def queue_names(self, store: Storage) -> set[str]:
        """Every name of a queue that the store keeps. Override it if the store keeps names that no verb shows."""
        tasks = await store.list(TaskFilter(), limit=1000)
        limits, paused, counts = await store.limits(), await store.paused(), await store.counts()
        return {task.queue for task in tasks} | {limit.queue for limit in limits} | paused | set(counts)

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def store(self) -> AsyncIterator[Storage]:
        store = self.make_storage()
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def new_task(**fields: Any) -> Task:
    """Ids rise in the order in which they are made."""
    fields.setdefault("id", f"task-{next(_numbers):08d}")
    return Task(**{"func_path": "app.send", "payload": b"[]", **fields})


def new_tasks(count: int, **fields: Any) -> list[Task]:
    return [new_task(**fields) for _ in range(count)]


async def added(store: Storage, **fields: Any) -> Task:
    (task,) = await store.add([new_task(**fields)])
    return task


async def claim(
    store: Storage,
    limit: int = 1,
    *settlements: Settlement,
    worker: str = "w",
    queues: Sequence[str] = ("default",),
    lease: float = FAR,
    claim_id: str | None = None,
) -> list[Task]:
    """What an exchange has claimed."""
    claim_id = f"claim-{next(_numbers)}" if claim_id is None else claim_id
    exchange = await store.exchange(
        settlements, worker=worker, queues=queues, limit=limit, lease=lease, claim_id=claim_id
    )
    return list(exchange.claimed)


async def claimed_one(store: Storage, **fields: Any) -> Task:
    """A new task, in the hands of worker `w`."""
    task = await added(store, **fields)
    (mine,) = await claim(store, queues=(task.queue,))
    assert mine.id == task.id
    return mine


async def settle(store: Storage, *settlements: Settlement) -> frozenset[AttemptKey]:
    """Those that were rejected."""
    exchange = await store.exchange(settlements, worker="w", queues=(), limit=0, lease=FAR, claim_id="none")
    assert exchange.claimed == ()
    return exchange.rejected


async def get(store: Storage, task: Task | str) -> Task:
    (found,) = await store.get([task if isinstance(task, str) else task.id])
    assert found is not None
    return found


def still(task: Task | None) -> Task | None:
    """A task to compare with: the end of its lease may be kept by another clock, and is never twice the same."""
    return None if task is None else replace(task, lease_until=None)


def hold(task: Task) -> AttemptKey:
    return AttemptKey(task.id, task.attempt)


def ids(tasks: Sequence[Task]) -> list[str]:
    return [task.id for task in tasks]


def error_of(task: Task, message: str = "it broke") -> AttemptError:
    return AttemptError(kind="exception", attempt=task.attempt, at=1.5, type="ValueError", message=message, worker="w")


def take_back(task: Task, now: float) -> Settlement:
    """The task after upkeep has rescued it from a dead worker."""
    return crash(
        task, AttemptError(kind="crash", attempt=task.attempt, at=now, message="gone", worker=task.worker or "")
    )


class Span:
    """The time that passes, by the store's clock, while a block runs: `instant in span`."""

    def __init__(self, store: Storage) -> None:
        self._store = store
        self.begin = 0.0
        self.end = 0.0

    async def __aenter__(self) -> Span:
        self.begin = await self._store.now()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end = await self._store.now()

    def __contains__(self, instant: object) -> bool:
        return isinstance(instant, float) and self.begin - RESOLUTION <= instant <= self.end + RESOLUTION

    def later(self, seconds: float) -> Span:
        moved = Span(self._store)
        moved.begin, moved.end = self.begin + seconds, self.end + seconds
        return moved


async def eventually(ask: Callable[[], Awaitable[T]]) -> T:
    """The first answer that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := await ask()):
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(SOON / 6)
    return answer

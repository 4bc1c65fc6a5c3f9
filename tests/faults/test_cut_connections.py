"""Connections break at each byte of a request or of its answer: no task is lost, and no operation happens twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bullpen.errors import StorageError
from bullpen.tasks.model.task import PENDING, SUCCESS, Task, succeed
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Storage, TaskFilter
from tests.faults.proxy import ANSWER, REQUEST, Proxy
from tests.stores import SERVERS

pytestmark = pytest.mark.anyio

LONGEST = 1200  # bytes; no request or answer here is longer


@pytest.fixture
def cuts(thorough: bool) -> list[int]:
    """The numbers of bytes after which the connection breaks: 0, some in between (thorough: each), and the end."""
    return [*range(LONGEST)] if thorough else [0, 1, 7, *range(17, LONGEST, 23), 100_000]


@asynccontextmanager
async def stores(proxy: Proxy, address: str) -> AsyncIterator[tuple[Storage, Storage]]:
    """A store whose connections break, and one whose connections do not."""
    broken, sound = open_storage(proxy.address), open_storage(address)
    await sound.open()
    await broken.open()
    try:
        yield broken, sound
    finally:
        proxy.mend()
        await broken.close()
        await sound.close()


@pytest.mark.parametrize("address", SERVERS, indirect=True)
@pytest.mark.parametrize("direction", [REQUEST, ANSWER])
async def test_a_claim_and_a_settlement_are_made_once_wherever_the_connection_breaks(
    address: str, direction: str, cuts: list[int]
) -> None:
    async with Proxy(address) as proxy, stores(proxy, address) as (broken, sound):
        ids = [f"{number:04d}" for number in range(2 * len(cuts))]
        await sound.add([Task(id=task_id, func_path="f", payload=b"[]") for task_id in ids])
        for number, count in enumerate(cuts):
            await connected(broken)
            proxy.cut_after(direction, count)
            claimed = await exchange(broken, f"c{number}", limit=1)
            proxy.mend()
            found = await settled_view(sound, f"c{number}")
            assert len(found) <= 1, "claimed twice"
            assert claimed is None or [task.id for task in claimed] == [task.id for task in found]
            if not found:
                continue
            (task,) = found
            assert task.attempt == 1
            await connected(broken)
            proxy.cut_after(direction, count)
            was_answered = await exchange(broken, "", succeed(task, b"1")) is not None
            proxy.mend()
            again = await sound.exchange([succeed(task, b"2")], worker="w", queues=(), limit=0, lease=60.0, claim_id="")
            (after,) = await sound.get([task.id])
            assert after is not None
            assert after.status is SUCCESS
            assert after.result == (b"1" if again.rejected else b"2")
            assert again.rejected or not was_answered
        kept = await sound.get(ids)
        assert {task.status for task in kept if task is not None} <= {PENDING, SUCCESS}
        assert all(task is not None and task.attempt <= 1 for task in kept)
        assert sum(task is not None and task.status is SUCCESS for task in kept) >= len(cuts) / 4
        await sound.delete([task.id for task in kept if task is not None and task.status is SUCCESS])


@pytest.mark.parametrize("address", SERVERS, indirect=True)
@pytest.mark.parametrize("direction", [REQUEST, ANSWER])
async def test_added_tasks_are_stored_once_wherever_the_connection_breaks(
    address: str, direction: str, cuts: list[int]
) -> None:
    """One call adds all of its tasks or none. It has added all of them if it succeeds, also when it is repeated."""
    async with Proxy(address) as proxy, stores(proxy, address) as (broken, sound):
        every: list[str] = []
        for number, count in enumerate(cuts):
            tasks = [Task(id=f"{number:04d}-{place}", func_path="f", payload=b"[]") for place in range(2)]
            every += [task.id for task in tasks]
            await connected(broken)
            proxy.cut_after(direction, count)
            try:
                kept = [task.id for task in await broken.add(tasks)]
            except StorageError:
                kept = []
            proxy.mend()
            there = [task.id for task in await sound.get([task.id for task in tasks]) if task is not None]
            assert there in ([], every[-2:])
            assert kept in ([], there)
            assert [task.id for task in await sound.add(tasks)] == every[-2:]
        listed = await sound.list(TaskFilter(queues=("default",)), limit=len(every) + 1)
        assert [task.id for task in listed] == every
        await sound.delete(every)


async def connected(store: Storage) -> None:
    """Make the same requests once before, so that the fault hits the request and not the handshake."""
    known, unknown = (
        Task(id="known", func_path="f", payload=b"[]", queue="known"),
        Task(id="?", func_path="f", payload=b""),
    )
    await store.add([known, known])
    answer = await store.exchange(
        [succeed(unknown, b"1")], worker="w", queues=("nothing",), limit=1, lease=60.0, claim_id="nothing"
    )
    assert len(answer.rejected) == 1


async def exchange(store: Storage, claim_id: str, *settlements: Any, limit: int = 0) -> Any:
    """The claimed tasks. None if the answer was lost."""
    try:
        answer = await store.exchange(
            settlements, worker="w", queues=("default",), limit=limit, lease=60.0, claim_id=claim_id
        )
    except StorageError:
        return None
    assert not answer.rejected
    return answer.claimed


async def settled_view(store: Storage, claim_id: str) -> list[Task]:
    """The claimed tasks, after the server has finished the request of the lost connection."""
    found: list[Task] = []
    for _ in range(3):
        await asyncio.sleep(0.01)
        found = list(await store.find_claim(claim_id))
    return found

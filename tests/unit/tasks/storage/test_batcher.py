"""Callers that add at the same time share a round trip, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bullpen.errors import StorageBusy, StorageError, StorageUnavailable
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage import batcher
from bullpen.tasks.storage.batcher import Batcher

pytestmark = pytest.mark.anyio


def task(name: str) -> Task:
    return Task(id=name, func_path="f", payload=b"")


class Server:
    """Answers when it is told to; rejects a batch with a task called "bad", and any other while it is `away`."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go_on = asyncio.Event()
        self.away: Exception | None = None

    async def send(self, parts: Sequence[Sequence[Task]]) -> Sequence[Sequence[Task]]:
        tasks = [task for part in parts for task in part]
        self.batches.append([one.id for one in tasks])
        await self.go_on.wait()
        if self.away is not None:
            raise self.away
        if any(one.id == "bad" for one in tasks):
            raise ValueError("bad")
        return parts


async def begin(gathered: Batcher[Task, Task], *batches: str) -> list[asyncio.Task[Sequence[Task]]]:
    """Callers, each with as many tasks as its word has letters, all of them waiting."""
    callers = [asyncio.ensure_future(gathered.send([task(letter) for letter in word])) for word in batches]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return callers


async def test_a_single_caller_is_sent_at_once_and_later_callers_are_sent_together() -> None:
    server = Server()
    gathered = Batcher(server.send)
    first = await begin(gathered, "a")
    others = await begin(gathered, "bc", "d")
    server.go_on.set()
    kept = [[one.id for one in await caller] for caller in (*first, *others)]
    assert kept == [["a"], ["b", "c"], ["d"]]
    assert server.batches == [["a"], ["b", "c", "d"]]
    await gathered.close()


async def test_the_error_of_one_caller_reaches_only_that_caller() -> None:
    server = Server()
    gathered = Batcher(server.send)
    first = await begin(gathered, "a")
    bad = asyncio.ensure_future(gathered.send([task("bad")]))
    good = await begin(gathered, "b")
    server.go_on.set()
    with pytest.raises(ValueError, match="bad"):
        await bad
    assert [one.id for one in await good[0]] == ["b"]
    assert await first[0]
    assert server.batches == [["a"], ["bad", "b"], ["bad"], ["b"]]


@pytest.mark.parametrize("kind", [StorageUnavailable, StorageBusy])
async def test_a_server_that_is_away_is_waited_for_once_not_by_each(kind: type[StorageError]) -> None:
    server = Server()
    gathered = Batcher(server.send)
    callers = [*await begin(gathered, "a"), *await begin(gathered, "b", "c", "d")]
    server.away = kind("no answer", storage="s")
    server.go_on.set()
    for caller in callers:
        with pytest.raises(kind):
            await caller
    assert server.batches == [["a"], ["b", "c", "d"]]


async def test_a_caller_that_is_cancelled_before_its_turn_adds_nothing() -> None:
    server = Server()
    gathered = Batcher(server.send)
    first = await begin(gathered, "a")
    (gone, stays) = await begin(gathered, "b", "c")
    gone.cancel()
    await asyncio.wait([gone])
    server.go_on.set()
    assert [one.id for one in await stays] == ["c"]
    assert await first[0]
    assert server.batches == [["a"], ["c"]]


async def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "MAX_BATCH", 3)
    server = Server()
    gathered = Batcher(server.send)
    callers = [*await begin(gathered, "a"), *await begin(gathered, "bc", "d", "efghi", "j")]
    server.go_on.set()
    for caller in callers:
        await caller
    assert server.batches == [["a"], ["b", "c", "d"], ["e", "f", "g", "h", "i"], ["j"]]


async def test_closing_waits_for_calls_in_progress() -> None:
    server = Server()
    gathered = Batcher(server.send)
    callers = await begin(gathered, "a", "b")
    closing = asyncio.ensure_future(gathered.close())
    await asyncio.sleep(0)
    assert not closing.done()
    server.go_on.set()
    await closing
    assert [[one.id for one in await caller] for caller in callers] == [["a"], ["b"]]


async def test_callers_that_were_sent_together_are_sent_together_again_also_the_first() -> None:
    batches: list[list[str]] = []

    async def send(parts: Sequence[Sequence[Task]]) -> Sequence[Sequence[Task]]:
        batches.append([one.id for part in parts for one in part])
        await asyncio.sleep(0)
        return parts

    gathered = Batcher(send)

    async def add_twice(first: str, second: str) -> None:
        await gathered.send([task(first)])
        await gathered.send([task(second)])

    await asyncio.gather(add_twice("a", "b"), add_twice("c", "d"), add_twice("e", "f"))
    assert batches == [["a"], ["c", "e", "b"], ["d", "f"]]
    await gathered.send([task("g")])
    await gathered.send([task("h")])
    assert batches[-2:] == [["g"], ["h"]]
    await gathered.close()

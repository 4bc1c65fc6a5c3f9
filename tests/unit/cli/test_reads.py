"""The reads of the dashboard are shared by all open pages."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bullpen import TaskQueue, primitives
from bullpen.cli.reads import FRESH_HISTORY, StoreReads
from bullpen.testing import ManualClock


class SlowQueue:
    """A queue whose reads take a while, by the clock of the test."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.reads = 0
        self.takes = 0.0
        self.problem: Exception | None = None

    async def afailures(self, *, since: float) -> list[Any]:
        self.reads += 1
        await asyncio.sleep(0)  # others ask meanwhile
        self.clock.advance(self.takes)
        if self.problem is not None:
            raise self.problem
        return [self.reads]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> SlowQueue:
    clock = ManualClock()
    monkeypatch.setattr(primitives, "system_clock", clock)
    return SlowQueue(clock)


def reads_of(queue: SlowQueue) -> StoreReads:
    return StoreReads(cast(TaskQueue, queue))


async def ask(reads: StoreReads, days: int = 1) -> Any:
    return await reads.failures(days)


@pytest.mark.anyio
async def test_pages_that_ask_at_once_share_a_read_for_as_long_as_it_is_fresh(queue: SlowQueue) -> None:
    reads = reads_of(queue)
    assert await asyncio.gather(*(ask(reads) for _ in range(20))) == [[1]] * 20
    queue.clock.advance(FRESH_HISTORY)
    assert await ask(reads) == [1]
    queue.clock.advance(0.1)
    assert await ask(reads) == [2]
    assert await ask(reads, 7) == [3]  # another question


@pytest.mark.anyio
async def test_a_slow_store_is_read_at_most_a_tenth_of_the_time(queue: SlowQueue) -> None:
    reads, queue.takes = reads_of(queue), 3.0
    await ask(reads)
    queue.clock.advance(26.9)
    assert await ask(reads) == [1]
    queue.clock.advance(0.2)
    assert await ask(reads) == [2]


@pytest.mark.anyio
async def test_after_a_change_and_after_an_error_the_store_is_read_anew(queue: SlowQueue) -> None:
    reads = reads_of(queue)
    await ask(reads)
    reads.forget()
    assert await ask(reads) == [2]
    reads.forget()
    queue.problem = OSError("away")
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await ask(reads)
    queue.problem = None
    assert await ask(reads) == [5]

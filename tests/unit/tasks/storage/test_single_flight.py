from __future__ import annotations

import asyncio

import pytest

from bullpen.tasks.storage.single_flight import SingleFlight

pytestmark = pytest.mark.anyio


class Door:
    """Which many want opened."""

    def __init__(self) -> None:
        self.shared = SingleFlight()
        self.tried = 0
        self.goes_on = asyncio.Event()
        self.error: Exception | None = None

    async def open(self) -> None:
        self.tried += 1
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error

    async def callers(self, count: int) -> list[asyncio.Task[None]]:
        callers = [asyncio.create_task(self.shared.run(self.open)) for _ in range(count)]
        for _ in range(5):
            await asyncio.sleep(0)
        return callers


async def test_callers_that_arrive_meanwhile_have_the_same_outcome() -> None:
    door = Door()
    for error in (ConnectionError("away"), None):
        door.tried, door.error = 0, error
        door.goes_on.clear()
        callers = await door.callers(3)
        door.goes_on.set()
        assert await asyncio.gather(*callers, return_exceptions=True) == [error] * 3
        assert door.tried == 1


async def test_if_the_trying_caller_is_cancelled_the_next_one_tries_and_a_waiting_one_may_be_cancelled_alone() -> None:
    door = Door()
    first, second, third = await door.callers(3)
    second.cancel()
    first.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (first.cancelled(), second.cancelled(), door.tried) == (True, True, 2)
    door.goes_on.set()
    await third

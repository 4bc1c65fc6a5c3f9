"""How long a lane pauses after notifications that bring it no task."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from bullpen.tasks.storage.port import Exchange
from bullpen.tasks.worker.exchange import StoreExchange
from bullpen.tasks.worker.options import Lane
from bullpen.tasks.worker.reports import Reports
from tests.scenarios.task_worker_support import in_virtual_time

OPTIONS: Any = SimpleNamespace(lease=15.0, store_patience=5.0, poll_interval=1.0, longest_pause=5.0)


class OthersAreFaster:
    """A store in which a task comes every `seconds`, and another worker claims it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.claims = 0

    async def wait_for_work(self, queues: object, timeout: float) -> None:
        await asyncio.sleep(min(self.seconds, timeout))

    async def exchange(self, settlements: object, **options: object) -> Exchange:
        self.claims += 1
        return Exchange(())


def claims_after(waits: int, seconds: float) -> float:
    """The time until a lane has waited and claimed so often."""

    async def work() -> float:
        storage: Any = OthersAreFaster(seconds)
        exchange = StoreExchange(storage, Lane(("default",), 1), OPTIONS, "w", Reports("w", "w", None, lambda: 0.0))
        began = asyncio.get_running_loop().time()
        for _ in range(waits):
            await exchange.wait_for_work()
            await exchange.exchange([], 1)
        return asyncio.get_running_loop().time() - began

    return in_virtual_time(work)


def test_a_worker_whose_tasks_others_get_claims_at_each_notification() -> None:
    assert round(claims_after(40, seconds=0.2), 6) == 40 * 0.2


def test_notifications_that_repeat_without_a_task_are_followed_ever_more_rarely() -> None:
    assert claims_after(40, seconds=0.0) > 30.0

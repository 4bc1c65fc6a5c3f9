"""The cost of one claim, called on the store directly, with few and with many waiting tasks."""

from __future__ import annotations

import asyncio
import statistics
from time import perf_counter, time
from typing import Any

from benchmarks.model import Measure
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.open import open_storage

from .measures import Place
from .raw import PAYLOAD
from .settings import Sizes

COST = "cost"
CLAIMED = 10
PAGE = 10_000


def claims(place: Place, backlog: str) -> Measure:
    """`backlog` names the field of the sizes with the number of waiting tasks."""

    async def timed(sizes: Sizes) -> list[float]:
        waiting = max(getattr(sizes, backlog), sizes.claims * CLAIMED)
        async with place() as address:
            storage = open_storage(address)
            await storage.open()
            later = time() + 1e6
            await storage.add([_task(-number - 1, eta=later, priority=9) for number in range(1000)])
            for first in range(0, waiting, PAGE):
                await storage.add([_task(number) for number in range(first, min(first + PAGE, waiting))])
            spans = []
            for number in range(sizes.claims):
                began = perf_counter()
                exchange = await storage.exchange(
                    [], worker="w", queues=["default"], limit=CLAIMED, lease=60.0, claim_id=str(number)
                )
                spans.append(perf_counter() - began)
                assert len(exchange.claimed) == CLAIMED
            await storage.close()
        return spans

    return lambda sizes: {COST: statistics.median(asyncio.run(timed(sizes))) * 1e6}


def _task(number: int, **fields: Any) -> Task:
    task_id = f"019a0000-0000-7000-8000-{number & 0xFFFFFFFFFFFF:012x}"
    return Task(id=task_id, func_path="app.send", payload=PAYLOAD, **fields)

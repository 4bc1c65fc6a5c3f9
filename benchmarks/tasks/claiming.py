"""The cost of one claim with few and with many waiting tasks.

The store is asked directly, for one batch of tasks at a time. It does not wait for the disk here (synchronous=NORMAL),
because that would hide the growth. Some of the waiting tasks are first in order but not due.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.model import Measure
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.sqlite.store import SqliteStorage

from .plain import PAYLOAD
from .settings import Sizes, new_folder

COST = "cost"
BATCH = 10
NOT_DUE = 1_000
PAGE = 10_000


def cost(backlog: str) -> Measure:
    """`backlog` names the field of the sizes with the number of waiting tasks."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        with new_folder() as folder:
            spans = asyncio.run(_claims(folder, max(getattr(sizes, backlog), sizes.claims * BATCH), sizes.claims))
        return {COST: statistics.median(spans) * 1e6}

    return measure


async def _claims(folder: Path, backlog: int, claims: int) -> list[float]:
    storage = SqliteStorage(folder / "jobs.db", synchronous="normal")
    later = time.time() + 1e6
    await storage.add([new_task(-number - 1, eta=later, priority=9) for number in range(NOT_DUE)])
    for first in range(0, backlog, PAGE):
        await storage.add([new_task(number) for number in range(first, min(first + PAGE, backlog))])
    if backlog > PAGE:
        os.sync()  # or the disk is still busy
    gc.collect()
    spans = []
    for number in range(claims):
        began = time.perf_counter()
        exchange = await storage.exchange(
            [], worker="host-1-abcdef", queues=["default"], limit=BATCH, lease=15.0, claim_id=str(number)
        )
        spans.append(time.perf_counter() - began)
        assert len(exchange.claimed) == BATCH
    await storage.close()
    return spans


def new_task(number: int, **fields: float) -> Task:
    return Task(
        id=f"019a0000-0000-7000-8000-{number & 0xFFFFFFFFFFFF:012x}",
        func_path="app.send",
        payload=PAYLOAD,
        **fields,  # type: ignore[arg-type]
    )

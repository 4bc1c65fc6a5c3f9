"""The cost of an idle worker: its share of one core, over some seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter, process_time, sleep

from bullpen import AsyncWorkerPool

from .ours import Ours, in_file
from .peers import Huey
from .settings import CONCURRENCY, Sizes, new_folder

CPU = "cpu"


def ours(sizes: Sizes) -> Mapping[str, float]:
    async def idle(ours: Ours) -> float:
        async with ours.queue as queue, AsyncWorkerPool(queue, concurrency=CONCURRENCY):
            await (await ours.noop.aenqueue(1)).aresult(30)
            await asyncio.sleep(sizes.idle / 10)
            return await asyncio.to_thread(_percent, sizes.idle)

    with new_folder() as folder:
        return {CPU: asyncio.run(idle(Ours(in_file(folder))))}


def huey(sizes: Sizes) -> Mapping[str, float]:
    with new_folder() as folder:
        queue = Huey(folder)
        with queue.consuming():
            queue.noop(1).get(blocking=True, timeout=30)
            sleep(sizes.idle / 10)
            return {CPU: _percent(sizes.idle)}


def _percent(seconds: float) -> float:
    """Of one core, by all threads of this process."""
    began, used = perf_counter(), process_time()
    sleep(seconds)
    return 100 * (process_time() - used) / (perf_counter() - began)

"""An app for ``arq``."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from typing import Any

from .clock import note_time

_server, _, _place = os.environ["BULLPEN_BENCH_ADDRESS"].partition("?prefix=")


async def note(_: object) -> None:
    note_time()


class WorkerSettings:
    functions = (note,)
    redis_settings = import_module("arq.connections").RedisSettings.from_dsn(_server)
    queue_name = _place


def enqueue() -> None:
    async def enqueue() -> None:
        pool: Any = await import_module("arq").create_pool(WorkerSettings.redis_settings, default_queue_name=_place)
        await pool.enqueue_job("note", _job_id=f"{_place}-1")
        await pool.aclose()

    asyncio.run(enqueue())

"""The numbers that the works share, and the places of one measurement."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.servers.settings import postgres_place, postgres_settings, redis_place, redis_settings
from benchmarks.starting import sqlite_place
from benchmarks.tasks.settings import shared_settings

STEPS = 10  # of a task
CONCURRENCY = 100


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much one measurement does. Warm-up comes on top and is not timed."""

    rounds: int
    tasks: int  # of ten steps
    slow: int  # the same, for a peer that would need minutes
    singles: int  # steps one by one
    turns: int  # in which steps and enqueued tasks alternate
    parked: int  # tasks that sleep or wait
    idle: float  # seconds that a worker has nothing to do beside them
    calls: int  # woken one at a time
    pause: float  # seconds between those, so that the worker is idle


FULL = Sizes(rounds=5, tasks=2_000, slow=300, singles=50, turns=20, parked=100_000, idle=10.0, calls=100, pause=0.02)
QUICK = Sizes(rounds=1, tasks=500, slow=100, singles=25, turns=8, parked=5_000, idle=3.0, calls=30, pause=0.02)


@asynccontextmanager
async def sqlite_normal_place() -> AsyncIterator[str]:
    async with sqlite_place() as address:
        yield f"{address}?synchronous=normal"


PLACES = {
    "sqlite": sqlite_place,
    "sqlite-normal": sqlite_normal_place,
    "postgres": postgres_place,
    "redis": redis_place,
}


def steps_settings() -> dict[str, str]:
    return {**shared_settings(), **postgres_settings(), **redis_settings()}

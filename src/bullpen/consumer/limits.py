"""Limits that the code declares: set when a worker starts, unless people have set others."""

from __future__ import annotations

from collections.abc import Sequence

from bullpen.storage.port import Limit, Storage


async def declare_limits(storage: Storage, declared: Sequence[Limit]) -> None:
    if not declared:
        return
    there = {limit.queue: limit for limit in await storage.limits()}
    for limit in declared:
        now = there.get(limit.queue)
        if now is None or not now.is_limit or (now.declared and now != limit):
            await storage.set_limit(limit)

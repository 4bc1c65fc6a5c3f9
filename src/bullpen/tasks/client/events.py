"""Emitting events, and waiting for them in a program."""

from __future__ import annotations

from typing import Any

from bullpen import primitives
from bullpen.tasks.client.backend import QueueBackend
from bullpen.tasks.model.events import decode_payload, encode_payload, event_name, event_ttl
from bullpen.tasks.model.options import Seconds, seconds

LONGEST_WAIT = 60.0  # seconds of one call of the store


async def emit(backend: QueueBackend, name: str, payload: Any, ttl: Seconds | None, task_id: str | None = None) -> bool:
    """`TaskQueue.emit`. `task_id`: the task that the event is for alone."""
    stored_name, lasts = event_name(name, task_id), event_ttl(ttl)
    data = encode_payload(name, payload, backend.registry.max_payload)
    storage = await backend.clients.get()
    primitives.failpoint("emit.before")
    is_new = await storage.emit(stored_name, data, lasts)
    primitives.failpoint("emit.after")
    return is_new


async def wait_event(backend: QueueBackend, name: str, timeout: Seconds | None) -> Any:
    """`TaskQueue.wait_event`."""
    stored_name = event_name(name)
    limit = None if timeout is None else seconds("timeout", timeout, none="to wait without a limit")
    storage, clock = await backend.clients.get(), primitives.system_clock.monotonic
    end = None if limit is None else clock() + limit
    while True:
        left = LONGEST_WAIT if end is None else max(end - clock(), 0.0)
        event = await storage.wait_for_event(stored_name, min(left, LONGEST_WAIT))
        if event is not None:
            return decode_payload(event.payload)
        if end is not None and clock() >= end:
            return None

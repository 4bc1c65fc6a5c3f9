"""One stream of Server-Sent Events for each open page: its live part, whenever it has changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from bullpen import primitives
from bullpen.errors import BullpenError

EVERY = 1.0  # seconds between two looks
PING_EVERY = 15.0  # seconds without an event, so that proxies keep the connection
LONGEST = 600.0  # seconds; then the browser connects again, and its session is checked again
MOST_STREAMS = 64


class EventStreams:
    """The open streams of a dashboard."""

    def __init__(self) -> None:
        self._open = 0

    @property
    def is_full(self) -> bool:
        return self._open >= MOST_STREAMS

    async def stream(self, render: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
        self._open += 1
        try:
            monotonic = primitives.system_clock.monotonic
            began = said = monotonic()
            before = ""
            yield "retry: 2000\n\n"
            while monotonic() - began < LONGEST:
                try:
                    event, data = "live", await render()
                except BullpenError as error:
                    event, data = "problem", str(error)
                if data != before:
                    before, said = data, monotonic()
                    yield f"event: {event}\ndata: {json.dumps(data)}\n\n"
                elif monotonic() - said > PING_EVERY:
                    said = monotonic()
                    yield ": ping\n\n"
                await asyncio.sleep(EVERY)
        finally:
            self._open -= 1

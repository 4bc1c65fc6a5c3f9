"""`queue.failures`: checks what is asked for, and groups the stored rows."""

from __future__ import annotations

from datetime import datetime

from bullpen.errors import InvalidOptionType
from bullpen.tasks.client.history import begin_of
from bullpen.tasks.model.failure_groups import FAILURES_KEPT, FailureGroup, groups
from bullpen.tasks.model.history import HOUR
from bullpen.tasks.model.options import Seconds, queue_name
from bullpen.tasks.model.task import writable
from bullpen.tasks.storage.port import Storage

LAST_DAY = 86_400.0


async def read_failures(
    storage: Storage, *, since: datetime | Seconds, queue: str | None, function: str | None
) -> list[FailureGroup]:
    """Groups of the failures since then, which is rounded down to an hour."""
    if function is not None and not isinstance(function, str):
        raise InvalidOptionType("function", function, "the name of a function, or None for all")
    queue = None if queue is None else queue_name("queue", queue)
    function = None if function is None else writable(function)
    now = await storage.now()
    first = int(max(begin_of(since, now), now - FAILURES_KEPT)) // HOUR * HOUR
    rows = [
        row
        for row in await storage.failures(first)
        if (queue is None or row.queue == queue) and (function is None or row.function == function)
    ]
    return groups(rows, since=first, until=now)

"""A queue with a store of its own in memory, for the time of a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bullpen.tasks.client.clients import Clients
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.testing.clock import ManualClock


@contextmanager
def in_memory(queue: TaskQueue, clock: ManualClock | None = None) -> Iterator[TaskQueue]:
    """Give a queue, with all its tasks, an empty store in memory, and afterwards its own one again.

    With a `ManualClock`, a delayed task or a retry is due when the test has moved the clock on; it begins at the
    present instant.
    """
    began = time.time() - (clock.monotonic() if clock is not None else 0.0)
    storage = MemoryStorage() if clock is None else MemoryStorage(lambda: began + clock.monotonic())
    own = queue._clients
    queue._clients = queue._backend.clients = Clients(storage)
    try:
        yield queue
    finally:
        try:
            queue._clients.close()
        finally:
            queue._clients = queue._backend.clients = own

"""A queue with a store of its own in memory, for the time of a test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bullpen.tasks.client.clients import Clients
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.testing.clock import ManualClock
from bullpen.testing.transactions import IsolatedStorage


@contextmanager
def in_memory(queue: TaskQueue, clock: ManualClock | None = None) -> Iterator[TaskQueue]:
    """Give a queue, with all its tasks, an empty store in memory, and afterwards its own one again.

    With a `ManualClock`, a delayed task or a retry is due when the test has moved the clock on; it begins at the
    present instant. Tasks of `using(connection=…)` are kept when that transaction commits, or at once if the connection
    reports no commit: only those of SQLAlchemy do.
    """
    began = time.time() - (clock.monotonic() if clock is not None else 0.0)
    own = queue._clients
    storage = (
        IsolatedStorage(own.root) if clock is None else IsolatedStorage(own.root, lambda: began + clock.monotonic())
    )
    queue._clients = queue._backend.clients = Clients(storage)
    try:
        yield queue
    finally:
        storage.forget_connections()
        try:
            queue._clients.close()
        finally:
            queue._clients = queue._backend.clients = own

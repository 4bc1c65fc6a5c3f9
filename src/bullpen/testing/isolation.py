"""A queue with a store of its own in memory, for the time of a test."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bullpen.tasks.client.clients import Clients
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.storage.port import Storage
from bullpen.tasks.storage.sqlite.store import SqliteStorage, storage_clock
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
    own = queue._clients.root
    storage = IsolatedStorage(own) if clock is None else IsolatedStorage(own, lambda: began + clock.monotonic())
    try:
        with _with_store(queue, storage):
            yield queue
    finally:
        storage.forget_connections()


@contextmanager
def in_sqlite(queue: TaskQueue, clock: ManualClock) -> Iterator[TaskQueue]:
    """`in_memory` with a SQLite file in a temporary folder."""
    began = time.time() - clock.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        at_clock = storage_clock(lambda: began + clock.monotonic())
        storage = SqliteStorage(Path(folder) / "jobs.db", synchronous="normal", clock=at_clock)
        try:
            with _with_store(queue, storage):
                yield queue
        finally:
            storage.close_blocking()


@contextmanager
def at_address(queue: TaskQueue, address: str) -> Iterator[TaskQueue]:
    """`in_memory` with the store at an address."""
    with _with_store(queue, address):
        yield queue


@contextmanager
def _with_store(queue: TaskQueue, storage: str | Storage) -> Iterator[None]:
    own = queue._clients
    queue._clients = queue._backend.clients = Clients(storage)
    try:
        yield
    finally:
        try:
            queue._clients.close()
        finally:
            queue._clients = queue._backend.clients = own

"""What whoever enqueues learns of a task that has its unique key already."""

from __future__ import annotations

from bullpen.errors import TaskExists
from bullpen.queue.job import Job
from bullpen.queue.store import Store


class rejecting:
    """The store knows ids, people want jobs."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, TaskExists):
            error.job = Job(self._store, error.task)

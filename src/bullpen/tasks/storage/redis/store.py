"""The store on a Redis or Valkey server: all verbs of `storage.port.Storage`, put together."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from bullpen.errors import StorageError
from bullpen.tasks.model.task import Settlement, Step, Task
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage.port import AttemptKey
from bullpen.tasks.storage.redis.changing import TaskChanging
from bullpen.tasks.storage.redis.claiming import TaskClaiming
from bullpen.tasks.storage.redis.history import HistoryBlocks
from bullpen.tasks.storage.redis.queue_settings import QueueSettings
from bullpen.tasks.storage.redis.upkeep import TaskUpkeep
from bullpen.tasks.storage.redis.waiting import TaskWaiting

T = TypeVar("T")


class RedisStorage(TaskClaiming, TaskWaiting, TaskChanging, TaskUpkeep, HistoryBlocks, QueueSettings):
    """A store on a Redis or Valkey server, or a cluster of them, under keys that begin with `prefix`.

    On a cluster, one script can change several queues only if they are on one node. A part of `prefix` in curly
    brackets keeps all queues on one node.
    """

    def another(self) -> RedisStorage:
        return RedisStorage(self.url, prefix=self.prefix, cluster=self.cluster)

    # For blocking callers. The connection is a blocking one then, so a coroutine runs to its end without an event loop.

    def another_blocking(self) -> RedisStorage | None:
        if self.cluster:
            return None
        client = self.another()
        client._is_blocking = True  # noqa: SLF001 — one of ours
        return client

    def open_blocking(self) -> None:
        _run_without_loop(self.open())

    def close_blocking(self) -> None:
        _run_without_loop(self.close())

    def now_blocking(self) -> float:
        return _run_without_loop(self.now())

    def add_blocking(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        return _run_without_loop(self.add(tasks, duplicates))

    def get_blocking(self, ids: Sequence[str]) -> Sequence[Task | None]:
        return _run_without_loop(self.get(ids))

    def check_reentry(self) -> None:
        """Each call has a connection of its own."""

    # Transactions of the user.

    def add_in(self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[str]:  # noqa: ARG002
        raise self._no_transaction()

    def now_in(self, connection: Any) -> float:  # noqa: ARG002
        raise self._no_transaction()

    def settle_in(self, connection: Any, settlement: Settlement) -> None:  # noqa: ARG002
        raise self._no_transaction()

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> None:  # noqa: ARG002
        raise self._no_transaction()

    def _no_transaction(self) -> StorageError:
        why = "tasks in Redis share no transaction with anything else; use sqlite:/// or postgresql://"
        return StorageError(why, storage=self.name)


def _run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never has to wait for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a blocking connection had to wait: this is a defect, please report it")

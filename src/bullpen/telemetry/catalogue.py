"""Every event that pools, queues and workers report, by name. A checker can rebuild a whole history from them.

Reporting costs one comparison with None when nobody listens.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Kind(enum.Enum):
    """What happened. Values are stable names for exporters."""

    REQUEST_QUEUED = "request.queued"
    REQUEST_STARTED = "request.started"
    REQUEST_DONE = "request.done"
    REQUEST_FAILED = "request.failed"
    REQUEST_CANCELLED = "request.cancelled"
    REQUEST_EXPIRED = "request.expired"
    REQUEST_LOST = "request.lost"
    REQUEST_ABANDONED = "request.abandoned"
    REQUEST_REFUSED = "request.refused"
    REQUEST_RETURNED = "request.returned"
    REQUEST_REQUEUED = "request.requeued"
    WORKER_STARTING = "worker.starting"
    WORKER_READY = "worker.ready"
    WORKER_STOPPING = "worker.stopping"
    WORKER_EXITED = "worker.exited"
    WORKER_DEAD = "worker.dead"
    WORKER_ABANDONED = "worker.abandoned"
    WORKER_TAINTED = "worker.tainted"
    WORKER_RECOVERED = "worker.recovered"
    SESSION_BOUND = "session.bound"
    SESSION_ENDED = "session.ended"
    POOL_STATE = "pool.state"
    POOL_DEGRADED = "pool.degraded"
    POOL_RECOVERED = "pool.recovered"
    TASK_ENQUEUED = "task.enqueued"
    TASK_STOPPING = "task.stopping"
    TASK_REDRIVEN = "task.redriven"
    TASKS_FORGOTTEN = "tasks.forgotten"
    QUEUE_PAUSED = "queue.paused"
    QUEUE_RESUMED = "queue.resumed"
    QUEUE_LIMITED = "queue.limited"
    TASK_CLAIMED = "task.claimed"
    TASK_STARTED = "task.started"
    TASK_ENDED = "task.ended"
    TASK_SUCCEEDED = "task.succeeded"
    TASK_RETRYING = "task.retrying"
    TASK_FAILED = "task.failed"
    TASK_CANCELLED = "task.cancelled"
    TASK_RELEASED = "task.released"
    TASK_LOST = "task.lost"
    TASK_ABANDONED = "task.abandoned"
    TASK_RETURNED = "task.returned"
    TASK_RESCUED = "task.rescued"
    TASK_EXPIRED = "task.expired"
    CONSUMER_STATE = "consumer.state"
    CONSUMER_STUCK = "consumer.stuck"
    CONSUMER_RECOVERED = "consumer.recovered"
    STORE_LOST = "store.lost"
    STORE_FOUND = "store.found"

    @classmethod
    def of(cls, state: enum.Enum) -> Kind:
        """The event of a request that ended in `state`."""
        return cls(f"request.{state.value}")


@dataclass(frozen=True, slots=True)
class Event:
    """One change of state."""

    kind: Kind
    at: float  # monotonic seconds
    pool: str
    worker: str | None = None
    request: int | None = None  # its number within the pool
    session: str | None = None  # of the request
    detail: Any = None  # the new state of a pool, the capacity of a worker that is ready, the delay of a task
    task: str | None = None  # its id
    attempt: int | None = None  # of the task
    queue: str | None = None  # of the task

"""Every event the pool layer reports, by name. A checker can rebuild a whole history from them.

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
    detail: Any = None  # the new state of a pool, the capacity of a worker that is ready

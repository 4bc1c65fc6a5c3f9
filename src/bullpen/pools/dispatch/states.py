"""The three state machines of the pool layer, as tables. The diagrams in the docs are drawn from them.

A state changes only through a named method of `Request`, `Worker` or `PoolStatus`; each such method has its own guard,
and a test drives every method in every state and compares the guard with these tables.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from bullpen.errors import IllegalTransition


class RequestState(enum.Enum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    LOST = "lost"
    ABANDONED = "abandoned"

    def __str__(self) -> str:
        return self.value


class WorkerStatus(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    TAINTED = "tainted"
    STOPPING = "stopping"
    EXITED = "exited"
    DEAD = "dead"

    def __str__(self) -> str:
        return self.value


class PoolState(enum.Enum):
    CONFIGURING = "configuring"
    INITIALIZING = "initializing"
    RUNNING = "running"
    DRAINING = "draining"
    CLOSED = "closed"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value


State = TypeVar("State", bound=enum.Enum)
Moves = Mapping[State, frozenset[State]]

REQUEST_MOVES: Moves[RequestState] = {
    RequestState.QUEUED: frozenset(
        {RequestState.RUNNING, RequestState.EXPIRED, RequestState.CANCELLED, RequestState.FAILED}
    ),
    RequestState.RUNNING: frozenset(
        {
            RequestState.DONE,
            RequestState.FAILED,
            RequestState.CANCELLED,
            RequestState.LOST,
            RequestState.ABANDONED,
            RequestState.QUEUED,
        }
    ),
    RequestState.DONE: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.CANCELLED: frozenset(),
    RequestState.EXPIRED: frozenset(),
    RequestState.LOST: frozenset(),
    RequestState.ABANDONED: frozenset(),
}

WORKER_MOVES: Moves[WorkerStatus] = {
    WorkerStatus.STARTING: frozenset({WorkerStatus.READY, WorkerStatus.STOPPING, WorkerStatus.DEAD}),
    WorkerStatus.READY: frozenset({WorkerStatus.BUSY, WorkerStatus.TAINTED, WorkerStatus.STOPPING, WorkerStatus.DEAD}),
    WorkerStatus.BUSY: frozenset({WorkerStatus.READY, WorkerStatus.TAINTED, WorkerStatus.STOPPING, WorkerStatus.DEAD}),
    WorkerStatus.TAINTED: frozenset({WorkerStatus.READY, WorkerStatus.STOPPING, WorkerStatus.DEAD}),
    WorkerStatus.STOPPING: frozenset({WorkerStatus.EXITED, WorkerStatus.DEAD}),
    WorkerStatus.EXITED: frozenset(),
    WorkerStatus.DEAD: frozenset(),
}

POOL_MOVES: Moves[PoolState] = {
    PoolState.CONFIGURING: frozenset({PoolState.INITIALIZING, PoolState.FAILED}),
    PoolState.INITIALIZING: frozenset({PoolState.RUNNING, PoolState.DRAINING, PoolState.FAILED}),
    PoolState.RUNNING: frozenset({PoolState.DRAINING}),
    PoolState.DRAINING: frozenset({PoolState.CLOSED}),
    PoolState.CLOSED: frozenset(),
    PoolState.FAILED: frozenset(),
}


def check_move(table: Moves[State], old: State, new: State) -> None:
    """Raise `IllegalTransition` unless `table` allows `old` → `new`."""
    if new not in table[old]:
        raise IllegalTransition(type(old).__name__, old, new)

"""One worker as the pool sees it, and the lock that guards it.

Every read or write of a worker's mutable fields happens under `worker.lock`. A thread holds at most one worker lock,
and takes no registry lock while it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.core.lifecycle import WORKER_MOVES, WorkerStatus, check_move
from bullpen.core.request import Request

STARTING = WorkerStatus.STARTING
READY = WorkerStatus.READY
BUSY = WorkerStatus.BUSY
STOPPING = WorkerStatus.STOPPING
EXITED = WorkerStatus.EXITED
DEAD = WorkerStatus.DEAD

Hand = Callable[["Request | None"], None]


class Worker:
    """State of one worker: status, requests on it, tallies.

    `hand` is how the runtime takes a request for this worker; `hand(None)` asks it to end.
    """

    __slots__ = (
        "capacity",
        "completed",
        "failed",
        "hand",
        "handle",
        "id",
        "listed",
        "lock",
        "name",
        "requests",
        "skipped",
        "slot",
        "started_at",
        "status",
        "transient",
        "waiting_for",
        "was_ready",
    )

    def __init__(self, id: int, slot: int, name: str, started_at: float, capacity: int = 1) -> None:
        self.id = id
        self.slot: int | None = slot  # None once the slot has been given away or back
        self.name = name
        self.started_at = started_at
        self.capacity = capacity
        self.lock = primitives.worker_lock()
        self.status = STARTING
        self.requests: set[Request] = set()
        self.listed = False  # an entry for it is in the ready queue
        self.completed = 0
        self.failed = 0
        self.skipped = 0  # entries of the backlog that it found cancelled or expired
        self.hand: Hand = _no_hand
        self.handle: Any = None  # the runtime's own
        self.waiting_for: Request | None = None
        self.was_ready = False
        self.transient = False  # it ends by itself, as soon as it has done what it was started for

    def move(self, status: WorkerStatus) -> None:
        """Change the status, if the table allows it. The caller holds the lock."""
        check_move(WORKER_MOVES, self.status, status)
        self.status = status

    @property
    def load(self) -> int:
        return len(self.requests)

    @property
    def has_room(self) -> bool:
        return self.status is READY


def _no_hand(request: Request | None) -> None:  # noqa: ARG001 — the signature of `hand`
    raise RuntimeError("the runtime has not started this worker")

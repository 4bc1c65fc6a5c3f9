"""One worker as the pool sees it, and the lock that guards it.

Every read or write of a worker's mutable fields happens under `worker.lock`. A thread holds at most one worker lock,
and takes no registry lock while it does.
"""

from __future__ import annotations

import heapq
from typing import Any

from bullpen import primitives
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.states import WORKER_MOVES, WorkerStatus, check_move

STARTING = WorkerStatus.STARTING
READY = WorkerStatus.READY
BUSY = WorkerStatus.BUSY
TAINTED = WorkerStatus.TAINTED
STOPPING = WorkerStatus.STOPPING
EXITED = WorkerStatus.EXITED
DEAD = WorkerStatus.DEAD


NO_LINE: list[tuple[int, Request]] = []  # of all workers for which no request ever waited; never changed


HELPER = -1  # the slot of workers that take none, and end by themselves when they have done what they were started for


class PoolContext:
    """What all workers of a pool have in common."""

    __slots__ = ("clock", "keeps")

    def __init__(self, clock: primitives.Clock | None = None, keeps: Any = None) -> None:
        self.clock = clock
        self.keeps = keeps  # what makes the object that each keeps, if they keep any


_NO_POOL = PoolContext()


class Worker:
    """State of one worker: status, requests on it, tallies.

    The runtime sets `handle` when it starts the worker.
    """

    __slots__ = (
        "capacity",
        "completed",
        "failed",
        "handle",
        "id",
        "kept",
        "line",
        "listed",
        "lock",
        "name",
        "pool_context",
        "prefetched",
        "requests",
        "reserved",
        "skipped",
        "slot",
        "started_at",
        "status",
        "tainted_until",
        "was_ready",
    )

    def __init__(
        self,
        id: int,
        slot: int | None,
        name: str,
        started_at: float,
        capacity: int = 1,
        pool_context: PoolContext = _NO_POOL,
    ) -> None:
        self.id = id
        self.slot = slot  # None once it has been given away or back, and until it is inherited
        self.name = name
        self.started_at = started_at
        self.capacity = capacity
        self.lock = primitives.worker_lock()
        self.status = STARTING
        self.requests: tuple[Request, ...] = ()  # replaced as a whole, so that a reader needs no lock
        self.prefetched: tuple[Request, ...] = ()  # sent to it, and not started yet
        self.line = NO_LINE  # a heap of the requests that are pinned to this worker, by number
        self.listed = False  # an entry for it is in the ready queue
        self.completed = 0
        self.failed = 0
        self.tainted_until = 0.0  # 0: it is not tainted
        self.skipped = 0  # entries of the backlog that it found cancelled or expired
        self.pool_context = pool_context
        self.handle: Any = None  # the runtime's own: `hand(request)` gives it a request to run, `hand(None)` ends it
        self.kept: tuple[str, Any] | None = None  # the class of that object, and its capacity, if it is elsewhere
        self.was_ready = False
        self.reserved = False  # it is on its way, and the backlog has places for the requests that it will take first

    def move(self, status: WorkerStatus) -> None:
        """Change the status, if the table allows it. The caller holds the lock."""
        check_move(WORKER_MOVES, self.status, status)
        self.status = status

    def add(self, request: Request) -> None:
        self.requests = (*self.requests, request) if self.requests else (request,)

    def remove(self, request: Request) -> None:
        """Forget `request`, if it is here."""
        if len(self.requests) > 1:
            self.requests = tuple(other for other in self.requests if other is not request)
        elif self.requests and self.requests[0] is request:
            self.requests = ()

    def line_up(self, request: Request) -> None:
        """Let `request` wait for this worker and for no other. The caller holds the lock."""
        assert request.traits is not None
        request.traits.pinned_to = self
        if self.line is NO_LINE:
            self.line = []
        heapq.heappush(self.line, (request.number, request))

    @property
    def keeps(self) -> Any:
        """What makes the object that it keeps, if it keeps one."""
        return self.pool_context.keeps

    @property
    def transient(self) -> bool:
        """It ends by itself, and takes nothing from the backlog."""
        return self.slot == HELPER

    @property
    def load(self) -> int:
        return len(self.requests)

    @property
    def has_room(self) -> bool:
        return self.status is READY

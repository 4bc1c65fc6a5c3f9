"""Which workers there are.

The registry lock is held only to add, to remove and to copy. What the totals of removed workers were is kept, so
that no count goes backwards. All counts are derived here on demand; none is kept incrementally.
"""

from __future__ import annotations

from dataclasses import dataclass

from bullpen import primitives
from bullpen.pools.dispatch.states import WorkerStatus
from bullpen.pools.dispatch.worker import HELPER, Worker


@dataclass(slots=True)
class Tallies:
    """What workers have done, summed over all of them, also those that are gone."""

    completed: int = 0
    failed: int = 0
    skipped: int = 0
    pinned: int = 0  # entries in the lines of those that are there

    def add(self, worker: Worker) -> None:
        self.completed += worker.completed
        self.failed += worker.failed
        self.skipped += worker.skipped


class Registry:
    """The workers of one pool by id."""

    def __init__(self) -> None:
        self._lock = primitives.registry_lock()
        self._workers: dict[int, Worker] = {}
        self.get = self._workers.get  # by id, None if it is not there: each request asks for its worker
        self._abandoned: dict[int, Worker] = {}  # that still run a function
        self._gone = Tallies()
        self._added = 0
        self._removed = 0

    def add(self, worker: Worker) -> None:
        with self._lock:
            self._workers[worker.id] = worker
            self._added += 1

    def remove(self, worker: Worker) -> bool:
        """Forget `worker`, keep its tallies; False if it was not there."""
        with self._lock:
            if self._abandoned.pop(worker.id, None) is not None:
                self._gone.add(worker)
                return False
            if self._workers.pop(worker.id, None) is None:
                return False
            self._gone.add(worker)
            self._removed += 1
            return True

    def abandon(self, worker: Worker) -> None:
        """`worker` is no worker of the pool any more, but its requests count until it is removed."""
        with self._lock:
            if self._workers.pop(worker.id, None) is not None:
                self._abandoned[worker.id] = worker
                self._removed += 1

    def abandoned(self) -> list[Worker]:
        """The abandoned workers that have not ended."""
        with self._lock:
            return list(self._abandoned.values())

    def abandoned_still_serve(self) -> bool:
        """Whether an abandoned worker runs a request that has not ended: it may have had several."""
        return any(not request.ended for worker in self.abandoned() for request in worker.requests)

    def forget(self) -> None:
        """There are no workers here: this is a forked child. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.registry_lock()
        self._workers.clear()
        self._abandoned.clear()

    def __len__(self) -> int:
        return len(self._workers)

    def snapshot(self) -> list[Worker]:
        """The workers there are now, oldest first."""
        with self._lock:
            return list(self._workers.values())

    def peek(self) -> list[Worker]:
        """The same without the lock, for callers that hold a higher one: to copy is one step of the interpreter."""
        return list(self._workers.values())

    def totals(self) -> tuple[Tallies, int, int]:
        """Tallies over all workers there ever were, how many were added, how many were removed."""
        with self._lock:
            sums = Tallies(self._gone.completed, self._gone.failed, self._gone.skipped)
            workers = [*self._workers.values(), *self._abandoned.values()]
            added, removed = self._added, self._removed
        for worker in workers:
            sums.add(worker)
            sums.pinned += len(worker.line)
        return sums, added, removed

    def count(self, *statuses: WorkerStatus) -> int:
        return sum(worker.status in statuses for worker in self.snapshot())

    def starting_count(self) -> int:
        """How many workers are starting that will take requests: neither helpers nor those that will only take the
        place of another.
        """
        starting = [worker for worker in self.snapshot() if worker.status is WorkerStatus.STARTING]
        return sum(worker.slot is not None and worker.slot != HELPER for worker in starting)

    def busy_count(self) -> int:
        """How many workers have at least one request on them."""
        return sum(bool(worker.requests) for worker in self.snapshot())

    def all_idle(self) -> bool:
        return not any(worker.requests for worker in self.snapshot())

    def all_ready(self) -> bool:
        return all(worker.status in (WorkerStatus.READY, WorkerStatus.BUSY) for worker in self.snapshot())

    def all_inactive(self) -> bool:
        return all(worker.status in (WorkerStatus.EXITED, WorkerStatus.DEAD) for worker in self.snapshot())

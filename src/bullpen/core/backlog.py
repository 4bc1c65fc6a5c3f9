"""Requests that wait for a worker, oldest first.

`Backlog` is unbounded and lock-free: one deque, whose operations are atomic. `BoundedBacklog` adds one leaf lock for an exact
bound. In both, a request that is cancelled or expires leaves at once in every sense but one: its empty shell stays in
the deque until a worker comes to it and skips it.
"""

from __future__ import annotations

from bullpen import primitives
from bullpen.core.request import Request
from bullpen.core.tally import Tally


class Backlog:
    """Unbounded, first in first out."""

    limit: int | None = None

    def __init__(self) -> None:
        self.entries = primitives.new_deque()
        self._withdrawn = Tally()
        self.append = self.entries.append
        self.appendleft = self.entries.appendleft
        self.popleft = self.entries.popleft  # IndexError when there is nothing

    def __len__(self) -> int:
        """How many entries there are, shells included: an upper bound of how many requests wait."""
        return len(self.entries)

    def queued(self, skipped: int) -> int:
        """How many requests wait, given how many shells workers have skipped so far."""
        return max(0, len(self.entries) - (self._withdrawn.value - skipped))

    def withdrawn(self) -> None:
        """A waiting request was cancelled, expired, refused or started out of turn."""
        self._withdrawn.add()

    def copy(self) -> list[Request]:
        """A copy, oldest first."""
        while True:
            try:
                return list(self.entries)
            except RuntimeError:  # another thread changed it meanwhile
                continue


class Ticket:
    """The place in line of a submitter that waits for room in the backlog."""

    __slots__ = ("called", "gate")

    def __init__(self) -> None:
        self.gate = primitives.gate()
        self.gate.acquire()
        self.called = False

    def rearm(self) -> None:
        """Be ready to be called again. Only the holder calls this, before it tries for a place once more."""
        self.gate.acquire(False)
        self.called = False


class BoundedBacklog(Backlog):
    """At most `limit` requests wait.

    A request for which a worker is on its way (reserved, or just being started) does not count as waiting: that worker is
    *pledged* to take one. Submitters that wait for room hold tickets and are let in in order.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit: int = limit
        self._lock = primitives.backlog_lock()
        self._waiting = 0
        self._pledged = 0
        self._tickets = primitives.new_deque()

    def queued(self, skipped: int) -> int:  # noqa: ARG002 — counted exactly here
        return self._waiting

    def put(self, request: Request, ticket: Ticket | None = None) -> bool:
        """Queue `request` if there is room, and nobody waits for room before it."""
        lock = self._lock
        lock.acquire()
        try:
            if self._waiting - self._pledged >= self.limit or (self._tickets and self._tickets[0] is not ticket):
                return False
            self._waiting += 1
            self.append(request)
            return True
        finally:
            lock.release()

    def put_pledged(self, request: Request) -> None:
        """Queue `request`, whatever the bound: a worker is on its way."""
        with self._lock:
            self._waiting += 1
            self._pledged += 1
            self.append(request)

    def pledge(self) -> None:
        """A worker is being started."""
        with self._lock:
            self._pledged += 1

    def redeem(self) -> None:
        """The pledged worker has arrived, or never will."""
        with self._lock:
            self._pledged -= 1

    def put_back(self, request: Request) -> None:
        """A request that a worker took but did not begin is the oldest again."""
        with self._lock:
            self._waiting += 1
            self.appendleft(request)

    def left(self) -> None:
        """A waiting request was started, or withdrawn: there is room for another."""
        lock = self._lock
        lock.acquire()
        self._waiting -= 1
        if self._tickets:
            self._call_next()
        lock.release()

    withdrawn = left

    def take_ticket(self) -> Ticket:
        """Stand in line for room."""
        ticket = Ticket()
        with self._lock:
            self._tickets.append(ticket)
        return ticket

    def return_ticket(self, ticket: Ticket) -> None:
        """Leave the line, served or not; the next one is called."""
        with self._lock:
            self._tickets.remove(ticket)
            self._call_next()

    def call_next(self) -> None:
        """There may be room, or a worker, for the first in line."""
        if self._tickets:
            with self._lock:
                self._call_next()

    def call_all(self) -> None:
        """The pool closes: everybody in line has to know."""
        with self._lock:
            for ticket in self._tickets:
                if not ticket.called:
                    ticket.called = True
                    ticket.gate.release()

    def _call_next(self) -> None:
        if self._tickets and not self._tickets[0].called:
            ticket = self._tickets[0]
            ticket.called = True
            ticket.gate.release()

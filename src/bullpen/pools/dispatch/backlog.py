"""Requests that wait for a worker, oldest first.

`Backlog` is unbounded: one deque, whose operations are atomic, and no lock. A request that is cancelled or expires
ends at once, but its entry stays in the deque: to find it there would cost more than to skip it later. Such an entry is
a *tombstone*. The worker that comes to it drops it. So does a worker that meets the entry of a request that has gone to
the line of another worker. The number of waiting requests is the number of entries without the tombstones.

`BoundedBacklog` adds an exact limit. The problem is to keep it exact without a lock around every submission, and to
let exactly those requests through that do not have to wait.

A request needs a *place* to wait in. Places are tokens in a second deque. To take one is `popleft`, to give one back is
`append`; both are atomic, so two submitters never get the same place and none is lost. A request gives its place back
when a worker starts it, or when it is cancelled or expires.

A request for which a worker is on its way does not count as waiting: with `max_queue=0` and a free slot, a request is
accepted. So a worker that starts *reserves*: it brings as many places as it can run requests. When it is ready it takes
that many requests and does not give their places back. If it finds fewer requests, or does not come at all, it
withdraws the rest. A place may be in use when it has to go. Then the backlog has a *debt*: the next place that comes
back vanishes. The same accounting puts a request back that a worker took and did not begin.

The first race: a place comes back while a submitter decides to wait. The submitter takes a *ticket*, which puts it into
the line of submitters, and *then* tries once more. A thread that gives a place back appends it and *then* calls the
first ticket. So the one that acts last sees the other. The second race: a newcomer finds the place that was meant for
the first in line. It does not take it, because a newcomer that sees a ticket gets a ticket itself.

The invariant: free places + waiting requests that have one - debt = limit + places of workers on their way. Every
method here keeps it, also when an interrupt comes in the middle. Callers ask for these methods and never count places.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

from bullpen import primitives
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.tally import Tally, Total

_PLACES_AT_ONCE = 1024


class Backlog:
    """Unbounded, first in first out."""

    limit: int | None = None

    def __init__(self) -> None:
        self.entries = primitives.new_deque()
        self.tombstones = Tally()  # entries that stand for no request any more, here and in the lines of workers
        self._dropped = Tally()  # of these, the ones that no worker skipped
        self.append = self.entries.append
        self.appendleft = self.entries.appendleft
        self.popleft = self.entries.popleft  # IndexError when there is nothing

    def __len__(self) -> int:
        """How many entries there are, tombstones included: an upper bound of how many requests wait."""
        return len(self.entries)

    def queued(self, skipped: int, pinned: int = 0) -> int:
        """How many requests wait, given how many entries the lines of workers have, and how many tombstones workers
        have skipped so far.
        """
        return max(0, len(self.entries) + pinned - (self.tombstones.value - skipped - self._dropped.value))

    def withdrawn(self) -> None:
        """A waiting request was cancelled, expired, failed or started out of turn: its entry is a tombstone."""
        self.tombstones.add()

    def left(self) -> None:
        """A waiting request was started, or is gone with its entry."""

    def dropped(self) -> None:
        """A tombstone was taken out."""
        self._dropped.add()

    def put_back(self, request: Request) -> None:
        """A request that a worker took but did not begin is the oldest again."""
        self.appendleft(request)

    # Without a limit there are no places, and no submitter waits for one.

    def reserve_place(self) -> None:
        """A worker is on its way: there are more places."""

    def arrived(self) -> None:
        """A worker that was on its way is there, and takes the requests that its places were for."""

    def cancel_reservation(self) -> None:
        """A worker that was on its way does not come."""

    def withdraw_place(self) -> None:
        """A place has to go, now or as soon as one comes back."""

    def call_next(self) -> None:
        """There may be room, or a worker, for the submitter that waits longest."""

    def call_all(self) -> None:
        """The pool closes: every submitter that waits has to know."""

    def remove(self, request: Request) -> bool:
        """Take out one request; False if it is not here."""
        try:
            self.entries.remove(request)
        except ValueError:
            return False
        return True

    def forget(self) -> None:
        """This is a forked child: the requests are the parent's. Locks are new, as their holders may not exist here."""
        self.entries.clear()

    def copy(self) -> list[Request]:
        """A copy, oldest first."""
        while True:
            try:
                return list(self.entries)
            except RuntimeError:  # another thread changed it meanwhile
                continue


class Ticket:
    """The turn of a submitter that waits for room in the backlog."""

    __slots__ = ("called", "gate")

    def __init__(self) -> None:
        self.gate = primitives.gate()
        self.gate.acquire()
        self.called = False

    def call(self) -> None:
        """Let the holder try for a place. Called with the lock of the line held."""
        if not self.called:
            self.called = True
            self.gate.release()

    def rearm(self) -> None:
        """Be ready to be called again. Called with the lock of the line held."""
        self.gate.acquire(False)
        self.called = False


class BoundedBacklog(Backlog):
    """At most `limit` requests wait; a starting worker takes up to `per_worker` of them.

    A request needs a *place* to wait in, and gives it back when it leaves. Places are tokens in a deque, so that
    neither taking nor giving back one needs a lock: with one, submitters and workers would block each other at every
    step.

    A request for which a worker is on its way (reserved, or starting) does not count as waiting. So a worker on its way
    adds places, and takes that many requests without giving back their places. Requests in the lines of other workers
    may not use these places: see `has_room_in_lines`.
    """

    def __init__(self, limit: int, per_worker: int = 1) -> None:
        super().__init__()
        self.limit: int = limit
        self.per_worker = per_worker
        self._lock = primitives.leaf_lock()  # for making places, and for the line of submitters
        self._places = primitives.new_deque()
        self.pop_place = self._places.popleft  # IndexError when there is none, or none has been made yet
        self._unmade = limit  # places are made in batches when they are first needed
        self._debt = primitives.new_deque()  # places that have to vanish when they come back
        self._starting = Total()  # workers that are pledged
        self.tickets = primitives.new_deque()  # submitters that wait for room, in order

    def forget(self) -> None:
        super().forget()
        self._lock = primitives.leaf_lock()
        self._starting.renew()
        self.tickets = primitives.new_deque()

    def take_place(self, ticket: Ticket | None = None) -> bool:
        """Take a place for a request, if there is room, and no submitter waits for room before it."""
        if self.tickets and not self._is_next(ticket):
            return False
        return self._pop_place()

    def _is_next(self, ticket: Ticket | None) -> bool:
        with self._lock:
            return not self.tickets or self.tickets[0] is ticket

    def has_room_in_lines(self, lined_up: Callable[[], int]) -> bool:
        """Whether one more request may wait in the line of a worker; `lined_up()` counts those that do.

        They may not use the places of workers on their way, nor of those that are sent for at this moment.
        """
        if self._starting.value:
            return lined_up() < self.limit
        return bool(self._places) or self._unmade > 0

    def _pop_place(self) -> bool:
        while True:
            try:
                self._places.popleft()
            except IndexError:
                if not self._make_places():
                    return False
            except BaseException:  # an interrupt, which comes when the place is taken
                self.left()
                raise
            else:
                return True

    def _make_places(self) -> bool:
        """Make the next batch of places; False if all have been made."""
        with self._lock:
            batch = min(_PLACES_AT_ONCE, self._unmade)
            places = itertools.repeat(None, batch)
            try:
                self._places.extend(places)
            finally:  # also for an interrupt, which comes when they are there
                self._unmade -= batch
        return batch > 0

    def put_above_limit(self, request: Request) -> None:
        """Queue `request` although there may be no room: the place that it gives back later has to vanish."""
        self.withdraw_place()
        self.append(request)

    def left(self) -> None:
        """A waiting request was started, or withdrawn: its place is free."""
        if self._debt:
            with contextlib.suppress(IndexError):
                self._debt.popleft()
                return
        try:
            self._places.append(None)
        finally:  # also after an interrupt
            if self.tickets:
                self.call_next()

    def withdrawn(self) -> None:
        super().withdrawn()
        self.left()

    def put_back(self, request: Request) -> None:
        """A request that a worker took but did not begin is the oldest again."""
        self.withdraw_place()
        self.appendleft(request)

    def reserve_place(self) -> None:
        """A worker is on its way: there are more places."""
        self._starting.add(1)
        for _ in range(self.per_worker):
            self.left()

    def reserve_place_for(self, ticket: Ticket | None = None) -> bool:
        """A worker is on its way for one request, which gets the first of its places at once; False
        if a submitter waits for room before it, or all of its places are owed.
        """
        if self._debt or (self.tickets and not self._is_next(ticket)):
            self.reserve_place()
            return self.take_place(ticket)
        self._starting.add(1)
        for _ in range(self.per_worker - 1):
            self.left()
        return True

    def arrived(self) -> None:
        """A worker that was on its way is there, and takes what it was pledged to take."""
        self._starting.add(-1)

    def cancel_reservation(self) -> None:
        """A worker that was on its way does not come."""
        self._starting.add(-1)
        for _ in range(self.per_worker):
            self.withdraw_place()

    def withdraw_place(self) -> None:
        """A place has to go, now or as soon as one comes back."""
        if not self._pop_place():
            self._debt.append(None)

    # Submitters that wait for room.

    def take_ticket(self, ticket: Ticket | None = None) -> Ticket:
        """Stand in line for room, with a ticket of one's own or a new one."""
        if ticket is None:
            ticket = Ticket()
        with self._lock:
            self.tickets.append(ticket)
        return ticket

    def rearm(self, ticket: Ticket) -> None:
        """Let `ticket` be called again. Its holder does this before it tries for a place once more."""
        with self._lock:
            ticket.rearm()

    def return_ticket(self, ticket: Ticket) -> None:
        """Leave the line, served or not; the next one is called."""
        with self._lock:
            try:
                self.tickets.remove(ticket)
            except ValueError:  # it never stood there: its submitter was interrupted
                return
            finally:
                self._call_next()

    def call_next(self) -> None:
        """There may be room, or a worker, for the first in line."""
        if self.tickets:
            with self._lock:
                self._call_next()

    def pass_on(self, ticket: Ticket) -> None:
        """The holder of `ticket` cannot use the room that it was called for: call the next submitter."""
        with self._lock:
            behind = itertools.dropwhile(lambda other: other is not ticket, self.tickets)
            following = next(itertools.islice(behind, 1, None), None)
            if following is not None:
                following.call()

    def call_all(self) -> None:
        """The pool closes: every submitter in line has to know."""
        with self._lock:
            for ticket in self.tickets:
                ticket.call()

    def _call_next(self) -> None:
        if self.tickets:
            self.tickets[0].call()

"""Which worker serves which session.

A session is bound to a worker when its first request starts there. While that worker lives, *strict* requests of the
session run nowhere else; for others it is the first choice. A strict request that comes before the session is bound
waits in the backlog like any other and is noted here, so that the binding can send it to its worker's line. A request
in a line belongs to that worker, also after the session has ended.

The table is ordered by use, which is the start or the end of a request. A session that was not used for the time to
live is removed when it is next looked up, or when other sessions are used. When there are too many, the oldest ones are
removed. A session with a waiting or running request is never removed. A strictly bound one is not removed to make
room, because its worker may hold its state.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from bullpen import primitives
from bullpen.pools.dispatch.request import QUEUED, CallTraits, Request
from bullpen.pools.dispatch.tally import Tally
from bullpen.pools.dispatch.worker import BUSY, READY, STOPPING, TAINTED, Worker


class Session:
    """One session: its worker, and the strict requests that wait until it has one."""

    __slots__ = ("begun", "id", "pending", "strict", "used_at", "worker")

    def __init__(self, id: str, now: float) -> None:
        self.id = id
        self.worker: Worker | None = None
        self.begun = False  # a request has started on that worker
        self.strict = False  # it was used strictly: its worker has to be there for it
        self.pending: deque[Request] = deque()  # strict requests in the backlog, until it is bound
        self.used_at = now


class SessionChanged(Exception):
    """Something else was quicker: the session is bound or forgotten by now, or waits for that already."""


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A session as it is at one moment."""

    id: str
    worker: Worker | None
    strict: bool
    waiting: int
    used_at: float


def serves(worker: Worker) -> bool:
    """Whether `worker` can take requests, now or when it has room. Read without its lock: it may change at once."""
    return worker.status is READY or worker.status is BUSY


class Sessions:
    """The sessions of one pool. All methods may be called from any thread, some need a worker's lock."""

    def __init__(self, ttl: float | None, limit: int, moved: Tally, *, told: bool = False) -> None:
        self._ttl = math.inf if ttl is None else ttl
        self._limit = limit
        self._moved = moved  # counts what leaves the backlog for a worker's line
        self._told = told
        self.forgotten: deque[str] = deque()  # ids of sessions that are gone, until an observer is `told`
        self._lock = primitives.session_lock()
        self._loose: OrderedDict[str, Session] = OrderedDict()  # least recently used first
        self._strict: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._loose) + len(self._strict)

    def use(self, traits: CallTraits, now: float) -> Session | None:
        """The session of a request that comes in, made if need be; None if there are too many, all of them needed."""
        assert traits.session is not None
        with self._lock:
            session = self._find(traits.session)
            if session is not None and self._is_stale(session, now):
                self._forget(session)
                session = None
            self._sweep(now)
            if session is None:
                if len(self) >= self._limit and not self._make_room(now):
                    return None
                session = Session(traits.session, now)
                session.strict = traits.strict
                self._add(session)
            elif traits.strict and not session.strict:
                self._remove(session)
                session.strict = True
                session.used_at = now
                self._add(session)
            return session

    def expect(self, session: Session, request: Request, now: float) -> None:
        """Note a strict `request` that has its number and a place, and is put into the backlog next; or raise
        `SessionChanged`.
        """
        assert request.traits is not None
        with self._lock:
            if session.worker is not None or self._find(session.id) is not session:
                raise SessionChanged
            self._prune(session, now)
            if session.pending and request.traits.affinity == "strict_fail_fast":
                raise SessionChanged
            session.pending.append(request)

    def followers(self) -> int:
        """How many requests wait for the worker that the first of their session will start on."""
        with self._lock:
            pending = [session.pending for session in self._strict.values() if len(session.pending) > 1]
            return sum(max(0, sum(request.state is QUEUED for request in each) - 1) for each in pending)

    def is_expected(self, session: Session, now: float) -> bool:
        """Whether a strict request of an unbound session waits already, and can still start at `now`."""
        with self._lock:
            self._prune(session, now)
            return session.worker is None and bool(session.pending)

    def rebind(self, session: Session, gone: Worker) -> None:
        """Its worker is gone; if it was never strict, any other will do."""
        with self._lock:
            if session.worker is gone and not session.strict:
                session.worker = None

    def start(self, request: Request, worker: Worker, now: float) -> bool:
        """Start `request` on `worker`, whose lock is held, if its session allows that.

        If the session has no worker, it is bound to this one, and its waiting requests go to the worker's line. If one
        of them is older than `request`, then `request` goes to the line, too, and does not start now.
        """
        traits = request.traits
        assert traits is not None
        assert traits.session is not None
        with self._lock:
            session = self._find(traits.session)
            if traits.pinned_to is not None:  # its session may have ended, and begun anew elsewhere
                if traits.pinned_to is not worker or not request.start(worker):
                    return False
            elif request.state is not QUEUED:
                return False
            else:
                if session is None:  # it was forgotten while this waited
                    session = Session(traits.session, now)
                    session.strict = traits.strict
                    self._add(session)
                binding = _can_bind(worker) and _is_free(session)
                if traits.strict and session.worker is not worker and (session.worker is not None or not binding):
                    return False
                if binding and self._bind(session, worker, request, now):
                    return False
                if not request.start(worker):
                    return False
            if session is not None and session.worker is worker:
                if not session.begun:
                    session.begun = True
                    traits.binds = True
                self._used(session, now)
            return True

    def _bind(self, session: Session, worker: Worker, request: Request, now: float) -> bool:
        """Bind `session` to `worker`, and move its waiting requests to the worker's line; True if `request` went there,
        too, because an older one waits.
        """
        session.worker = worker
        session.begun = False
        self._prune(session, now)
        waiting = [other for other in session.pending if other.state is QUEUED]
        session.pending.clear()
        if waiting and waiting[0] is request:
            del waiting[0]
        for other in waiting:
            worker.line_up(other)
            self._moved.add()
        return request.pinned_to is not None

    def touch(self, session_id: str, now: float) -> None:
        """A request of the session has ended."""
        with self._lock:
            session = self._find(session_id)
            if session is not None:
                self._used(session, now)

    def end(self, session_id: str, now: float = -math.inf) -> bool:
        """Forget a session. Its waiting requests will still run on one worker. False if there is no such session."""
        with self._lock:
            session = self._find(session_id)
            if session is None:
                return False
            if self._is_stale(session, now):
                self._forget(session)
                return False
            self._prune(session, now)
            session.worker = None
            if not session.pending:
                self._remove(session)
            return True

    def forget(self) -> None:
        """This is a forked child, without workers. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.session_lock()
        self._loose.clear()
        self._strict.clear()
        self.forgotten.clear()

    def keeps(self, worker: Worker, now: float) -> bool:
        """Whether a strict session needs `worker`."""
        with self._lock:
            return any(s.worker is worker and not self._is_stale(s, now) for s in self._strict.values())

    def snapshot(self, now: float) -> list[SessionSnapshot]:
        """The sessions there are."""
        with self._lock:
            everyone = (*self._loose.values(), *self._strict.values())
            sessions = [session for session in everyone if not self._is_stale(session, now)]
            pending = [sum(request.state is QUEUED for request in session.pending) for session in sessions]
        return [
            SessionSnapshot(session.id, session.worker, session.strict, waiting + _pinned(session), session.used_at)
            for session, waiting in zip(sessions, pending, strict=True)
        ]

    # With the lock held.

    def _find(self, session_id: str) -> Session | None:
        return self._loose.get(session_id) or self._strict.get(session_id)

    def _add(self, session: Session) -> None:
        (self._strict if session.strict else self._loose)[session.id] = session

    def _remove(self, session: Session) -> None:
        if self._loose.pop(session.id, None) is None:
            del self._strict[session.id]

    def _sweep(self, now: float) -> None:
        """Forget the least recently used ones if their time has passed: two at a time, as at most one comes in."""
        for table in (self._loose, self._strict):
            oldest = next(iter(table.values()), None)
            if oldest is not None and now - oldest.used_at >= self._ttl and self._is_stale(oldest, now):
                self._forget(oldest)

    def _forget(self, session: Session) -> None:
        """Its time has passed, or another needs its room."""
        self._remove(session)
        if self._told and session.worker is not None:
            self.forgotten.append(session.id)

    def _used(self, session: Session, now: float) -> None:
        session.used_at = now
        (self._strict if session.strict else self._loose).move_to_end(session.id)

    def _prune(self, session: Session, now: float) -> None:
        """Drop the first waiting requests as far as they cannot start any more. The timer may end a late one later."""
        while session.pending and not _can_start(session.pending[0], now):
            session.pending.popleft()

    def _is_stale(self, session: Session, now: float) -> bool:
        """Not used for the time to live, and nothing of it is under way."""
        if now - session.used_at < self._ttl:
            return False
        return not self._under_way(session, now)

    def _under_way(self, session: Session, now: float) -> bool:
        self._prune(session, now)
        if session.pending:
            return True
        worker = session.worker
        if worker is None:
            return False
        if any(_of(session.id, request) for request in worker.requests):
            return True
        return session.strict and any(_of(session.id, request) for _, request in list(worker.line))

    def _make_room(self, now: float) -> bool:
        """Forget one session: the least recently used one that no request relies on."""
        for session in self._loose.values():
            if not self._under_way(session, now):
                self._forget(session)
                return True
        for session in self._strict.values():
            unbound = session.worker is None and not self._under_way(session, now)  # nothing of it ever started
            if unbound or self._is_stale(session, now):
                self._forget(session)
                return True
        return False


def _can_bind(worker: Worker) -> bool:
    """Whether `worker` will be there when the next request of the session comes."""
    return not worker.transient and worker.status is not STOPPING and worker.status is not TAINTED


def _can_start(request: Request, now: float) -> bool:
    """Whether a request that waited when it was noted can still start at `now`."""
    return not request.ended and (request.timing is None or now < request.timing.start_by)


def _is_free(session: Session) -> bool:
    """Whether any worker may become the session's."""
    return session.worker is None or not (session.strict or serves(session.worker))


def _of(session_id: str, request: Request) -> bool:
    return request.traits is not None and request.traits.session == session_id and not request.ended


def _pinned(session: Session) -> int:
    if session.worker is None:
        return 0
    return sum(_of(session.id, request) for _, request in list(session.worker.line))

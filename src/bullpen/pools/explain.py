"""Why a request waits, and what a pool lacks: as data and in words.

All facts are read from snapshots and block no worker and no caller. An explanation was true a moment ago.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from bullpen.errors import InvalidOptionType, repr_of
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import QUEUED, RUNNING, Request
from bullpen.pools.dispatch.states import PoolState, RequestState, WorkerStatus
from bullpen.pools.dispatch.worker import READY, STARTING, Worker
from bullpen.pools.supervision.nested_waits import awaited_by

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bullpen.pools.supervision.engine import Engine

_TRIES = 3  # how often a collection that changed during the read is read again
_SHOWN = 3  # how many of the running functions are named


class Reason(enum.Enum):
    """Why a request, or a pool, is where it is. Values are stable names."""

    NO_ROOM = "no_room"  # every worker is busy, and no more may be started
    STARTING = "starting"  # a worker is being started
    BEHIND = "behind"  # there is room, and older requests come first
    PINNED = "pinned"  # it has to run on one certain worker, which has no room
    ABOUT_TO_START = "about_to_start"  # there is room for it: this is a matter of microseconds
    TAINTED = "tainted"  # the workers that could run it are suspected of being broken
    DEGRADED = "degraded"  # workers die too often: the next one is started after a delay
    PAUSED = "paused"
    RUNNING = "running"
    RETRYING = "retrying"  # its worker died, and it runs again in a moment
    ENDED = "ended"
    IDLE = "idle"  # a pool in which nothing waits or runs
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"  # a pool in which no worker could start

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request that runs on a worker."""

    worker: str
    request: int
    label: str  # the function's name; empty if the request was abandoned while it ran
    seconds: float | None  # for how long; None if the pool does not time this request
    waits_for: int | None = None  # the request that it waits for

    @property
    def given_up(self) -> bool:
        """The caller has already got an error, but the function has not returned yet."""
        return not self.label

    def __str__(self) -> str:
        text = f"request {self.request} ({self.label or 'given up'}) on {self.worker}"
        return text if self.seconds is None else f"{text} for {in_words(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A request, or a pool, at one moment. `str()` says it in a sentence or two."""

    pool: str
    state: RequestState | PoolState
    reason: Reason
    text: str
    request: int | None = None  # None: this is about the pool
    label: str = ""
    session: str | None = None
    position: int | None = None  # how many older requests wait; for a pool, how many requests do
    worker: str | None = None  # where it runs, or ran, or has to run
    since: float | None = None  # for how many seconds it waits or runs, if the pool timed it
    timeout_left: float | None = None  # seconds
    queue_timeout_left: float | None = None
    run_timeout_left: float | None = None
    blocked_by: tuple[RunningRequest, ...] = ()  # the running requests, the longest-running first
    error: BaseException | None = None  # the error that it ended with
    advice: tuple[str, ...] = field(default=())  # advice

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class AsyncExplanation:
    """An `AsyncPool` at one moment: what its coroutines do, and what its threads do."""

    coroutines: Explanation
    threads: Explanation

    def __str__(self) -> str:
        return f"{self.coroutines}\n{self.threads}"


class Explainable(Protocol):
    """A future that knows its pool: `AsyncFuture`."""

    def explained(self) -> Explanation: ...


def explain(future: Future[Any] | Explainable) -> Explanation:
    """Why `future`, of a `Pool` or an `AsyncPool`, waits, or how it ended."""
    if isinstance(future, PoolFuture):
        return explain_request(cast("Engine", future.engine), future)
    explained = getattr(future, "explained", None)
    if explained is None:
        raise InvalidOptionType("future", future, "a future of a pool")
    return explained()  # type: ignore[no-any-return]


def explain_request(engine: Engine, request: Request) -> Explanation:
    """Why `request` waits, or how it ended."""
    for _ in range(_TRIES):
        state = request.state
        told = _EXPLAIN.get(state, _ended)(engine, request)
        if request.state is state:
            break
    return told


# A request.


def _waiting(engine: Engine, request: Request) -> Explanation:
    facts = PoolFacts(engine)
    line = facts.line_of(request)
    if line is not None:
        return _pinned(facts, request, line)
    position = _position(request, facts.waiting)
    reason = _why_waiting(facts, position)
    return _tell_waiting(facts, request, reason, position, _say_why_waiting(facts, reason), blocked_by=facts.running)


def _pinned(facts: PoolFacts, request: Request, line: PinnedLine) -> Explanation:
    """It waits for one certain worker."""
    reason = Reason.PAUSED if facts.paused else Reason.TAINTED if line.tainted else Reason.PINNED
    blocked_by = tuple(each for each in facts.running if each.worker == line.worker)
    session = None if request.traits is None else request.traits.session
    status = "tainted" if line.tainted else "busy"
    why = f"session {session!r} is served by worker {line.worker}, which is {status}{_with_what(blocked_by)}"
    if facts.paused:
        why = _say_why_waiting(facts, reason)
    position = _position(request, line.waiting)
    return _tell_waiting(facts, request, reason, position, why, blocked_by=blocked_by, worker=line.worker)


def _tell_waiting(
    facts: PoolFacts, request: Request, reason: Reason, position: int | None, why: str, **more: Any
) -> Explanation:
    left = _time_left(request, facts.now)
    since = None if request.timing is None else facts.now - request.timing.submitted_at
    parts = [why]
    if position:
        parts.append(f"{_count(position, 'older request')} {_is(position)} before it")
    start_by = math.inf if request.timing is None else request.timing.start_by
    if start_by != math.inf:
        parts.append(f"it expires in {in_words(max(0.0, start_by - facts.now))}")
    waits = "waits" if since is None else f"has waited {in_words(since)}"
    return Explanation(
        facts.name,
        QUEUED,
        reason,
        f"{_name(request)} {waits}: {'; '.join(parts)}",
        position=position,
        since=since,
        advice=tuple(_advice(facts, reason)),
        **_identity(request),
        **left,
        **more,
    )


def _position(request: Request, waiting: Iterable[Request]) -> int | None:
    """How many older requests wait; None if it is not among them."""
    for position, other in enumerate(waiting):
        if other is request:
            return position
    return None


def _why_waiting(facts: PoolFacts, position: int | None) -> Reason:
    if facts.paused:
        return Reason.PAUSED
    if position is None:
        return Reason.ABOUT_TO_START
    if position < facts.starting:
        return Reason.STARTING
    if not facts.room:
        return _why_no_room(facts)
    return Reason.BEHIND if position else Reason.ABOUT_TO_START


def _why_no_room(facts: PoolFacts) -> Reason:
    if facts.held:
        return Reason.DEGRADED
    return Reason.TAINTED if facts.workers and facts.tainted == facts.workers else Reason.NO_ROOM


def _running(engine: Engine, request: Request) -> Explanation:
    now = engine.clock.monotonic()
    if request in engine.retries:
        return _retrying(engine, request, now)
    worker = request.holder
    since = _ran_for(request, now)
    parts = [f"{_name(request)} runs" + ("" if worker is None else f" on {worker.name}")]
    if since is not None:
        parts[0] += f" for {in_words(since)}"
    left = _time_left(request, now)
    awaited = awaited_by(request)
    if awaited is not None:
        parts.append(f"it waits for {_name(awaited)}")
    if left["timeout_left"] is not None or left["run_timeout_left"] is not None:
        soonest = min(seconds for seconds in left.values() if seconds is not None)
        parts.append(f"its time is up in {in_words(soonest)}")
    return Explanation(
        engine.name,
        RUNNING,
        Reason.RUNNING,
        "; ".join(parts),
        worker=None if worker is None else worker.name,
        since=since,
        **_identity(request),
        **left,
    )


def _retrying(engine: Engine, request: Request, now: float) -> Explanation:
    text = f"{_name(request)} runs again in a moment: its worker died, and it is idempotent"
    left = _time_left(request, now)
    return Explanation(engine.name, RUNNING, Reason.RETRYING, text, **_identity(request), **left)


def _ended(engine: Engine, request: Request) -> Explanation:
    state = request.state
    value = request.value if isinstance(getattr(request, "value", None), BaseException) else None
    error = None if state is RequestState.DONE else value
    worker: Worker | None = getattr(request, "worker", None)
    text = f"{_name(request)} {_ENDED[state]}"
    if error is not None:
        text += f": {str(error) or type(error).__name__:.200}"
    if worker is not None and request in worker.requests:
        text += f"; its function still runs on {worker.name}"
    return Explanation(
        engine.name,
        state,
        Reason.ENDED,
        text,
        worker=None if worker is None else worker.name,
        error=error,
        **_identity(request),
    )


def explain_ended(engine: Engine, state: RequestState, error: BaseException | None = None) -> Explanation:
    """How a request ended, if only its state and error are known."""
    text = f"a request {_ENDED[state]}"
    if error is not None:
        text += f": {str(error) or type(error).__name__:.200}"
    return Explanation(engine.name, state, Reason.ENDED, text, error=error)


_EXPLAIN = {QUEUED: _waiting, RUNNING: _running}

_ENDED = {
    RequestState.DONE: "is done",
    RequestState.FAILED: "failed",
    RequestState.CANCELLED: "was cancelled",
    RequestState.EXPIRED: "expired",
    RequestState.LOST: "was lost",
    RequestState.ABANDONED: "was given up",
}


def _identity(request: Request) -> dict[str, Any]:
    session = None if request.traits is None else request.traits.session
    return {"request": getattr(request, "number", None), "label": request.label, "session": session}


def _name(request: Request) -> str:
    label = request.label
    number = getattr(request, "number", None)
    name = "a request" if number is None else f"request {number}"
    return f"{name} ({label})" if label else name


def _time_left(request: Request, now: float) -> dict[str, Any]:
    timing = request.timing
    left: dict[str, float | None] = dict.fromkeys(("timeout_left", "queue_timeout_left", "run_timeout_left"))
    if timing is None:
        return left
    if timing.limits.timeout is not None:
        left["timeout_left"] = max(0.0, timing.deadline - now)
    if timing.limits.queue_timeout is not None and request.state is QUEUED:
        left["queue_timeout_left"] = max(0.0, timing.submitted_at + timing.limits.queue_timeout - now)
    run_until = getattr(timing, "run_until", math.inf)  # there once it runs
    if run_until != math.inf and request.state is RUNNING:
        left["run_timeout_left"] = max(0.0, run_until - now)
    return left


def _ran_for(request: Request, now: float) -> float | None:
    started_at: float | None = getattr(request.timing, "started_at", None)
    return None if started_at is None else max(0.0, now - started_at)


# A pool.


def explain_pool(engine: Engine) -> Explanation:
    """The activity of the pool, its bottleneck, and advice."""
    facts = PoolFacts(engine)
    reason = _why_pool(facts)
    advice = tuple(_advice(facts, reason))
    oldest = facts.oldest_wait()
    parts = [f"pool {engine.name!r} {_say_what_pool_does(facts, reason)}"]
    if facts.queued:
        waits = f"{_count(facts.queued, 'request')} {'waits' if facts.queued == 1 else 'wait'}"
        parts.append(waits if oldest is None else f"{waits}, the oldest for {in_words(oldest)}")
    if facts.full:
        parts.append("the backlog is full" if facts.limit else "max_queue=0 lets no request wait")
    text = "; ".join(parts)
    if advice:
        text += f". What would help: {'; '.join(advice)}"
    return Explanation(
        engine.name,
        facts.state,
        reason,
        text,
        position=facts.queued,
        since=oldest,
        blocked_by=facts.running,
        error=engine.status.phase.failure,
        advice=advice,
    )


def _why_pool(facts: PoolFacts) -> Reason:
    ends = {
        PoolState.FAILED: Reason.FAILED,
        PoolState.CLOSED: Reason.CLOSED,
        PoolState.DRAINING: Reason.CLOSING,
    }
    if facts.state in ends:
        return ends[facts.state]
    if facts.paused:
        return Reason.PAUSED
    if facts.degraded:
        return Reason.DEGRADED
    if (facts.queued or facts.full) and not facts.room:
        return Reason.STARTING if facts.starting else _why_no_room(facts)
    return Reason.RUNNING if facts.running else Reason.STARTING if facts.starting else Reason.IDLE


# The facts.


class PoolFacts:
    """A pool's workers and backlog at one moment."""

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self.now = engine.clock.monotonic()
        self.state = engine.state
        self.failure = engine.status.phase.failure
        self.paused = engine.status.paused
        self.max_workers = engine.max_workers
        backlog = engine.backlog.copy()
        workers = engine.registry.snapshot()
        self.lines = [PinnedLine.of(worker) for worker in workers if worker.line]
        pinned = {request for line in self.lines for request in line.waiting}
        self.waiting = [request for request in backlog if request.state is QUEUED and request not in pinned]
        self.queued = engine.queued()
        self.limit = engine.backlog.limit
        self.workers = len(workers)
        self.starting = sum(worker.status is STARTING for worker in workers)
        self.busy = sum(bool(worker.requests) for worker in workers)
        self.degraded = engine.restarts.degraded
        self.held = self.degraded and engine.sizing.in_slots() < engine.max_workers
        self.tainted = sum(worker.status is WorkerStatus.TAINTED for worker in workers)
        self.room = bool(engine.dispatcher.free) or any(worker.status is READY for worker in workers)
        running = [_occupant(worker, request, self.now) for worker in workers for request in worker.requests]
        self.running = tuple(sorted(running, key=lambda each: -1.0 if each.seconds is None else each.seconds)[::-1])

    @property
    def full(self) -> bool:
        return self.limit is not None and not self.room and self.queued >= self.limit and self.state in _OPEN

    def line_of(self, request: Request) -> PinnedLine | None:
        """The line of the one worker that `request` waits for."""
        return next((line for line in self.lines if request in line.waiting), None)

    def oldest_wait(self) -> float | None:
        """For how long the oldest request with a known start has waited."""
        everybody = itertools.chain(self.waiting, *(line.waiting for line in self.lines))
        submitted = [request.timing.submitted_at for request in everybody if request.timing is not None]
        return self.now - min(submitted) if submitted else None


@dataclass(frozen=True, slots=True)
class PinnedLine:
    """The requests that wait for one certain worker, oldest first."""

    worker: str
    tainted: bool
    waiting: tuple[Request, ...]

    @classmethod
    def of(cls, worker: Worker) -> PinnedLine:
        entries = sorted(worker.line, key=lambda entry: entry[0])
        tainted = worker.status is WorkerStatus.TAINTED
        return cls(worker.name, tainted, tuple(request for _, request in entries if request.state is QUEUED))


_OPEN = (PoolState.INITIALIZING, PoolState.RUNNING)


def _occupant(worker: Worker, request: Request, now: float) -> RunningRequest:
    awaited = awaited_by(request)
    return RunningRequest(
        worker.name,
        request.number,
        "" if request.ended else request.label,
        _ran_for(request, now),
        None if awaited is None else getattr(awaited, "number", None),
    )


# Words.


def _all_busy(facts: PoolFacts) -> str:
    if not facts.workers:
        return f"none of at most {_count(facts.max_workers, 'worker')} is there"
    busy = f"busy or tainted ({facts.tainted})" if facts.tainted else "busy"
    return f"{_every_worker(facts)} {busy}{_with_what(facts.running)}"


def _every_worker(facts: PoolFacts) -> str:
    return "its only worker is" if facts.workers == 1 else f"all {facts.workers} workers are"


def _with_what(running: tuple[RunningRequest, ...]) -> str:
    if not running:
        return ""
    longest = running[0]
    if longest.seconds is not None:
        what = longest.label or "something that was given up"
        if len(running) == 1:
            return f" (it runs {what} for {in_words(longest.seconds)})"
        return f" (the longest runs {what} for {in_words(longest.seconds)})"
    labels = list(dict.fromkeys(each.label or "something that was given up" for each in running))
    more = ", …" if len(labels) > _SHOWN else ""
    return f" (with {', '.join(labels[:_SHOWN])}{more})"


def _some_busy(facts: PoolFacts) -> str:
    most = _count(facts.max_workers, "worker")
    return f"{facts.busy} of at most {most} {_is(facts.busy)} busy{_with_what(facts.running)}"


def _say_why_waiting(facts: PoolFacts, reason: Reason) -> str:
    match reason:
        case Reason.PAUSED:
            return "the pool is paused"
        case Reason.STARTING:
            return f"{_count(facts.starting, 'worker')} {_is(facts.starting)} being started"
        case Reason.NO_ROOM:
            return _all_busy(facts)
        case Reason.TAINTED:
            return f"{_every_worker(facts)} tainted"
        case Reason.DEGRADED:
            return "too many workers have died of late, and the next one is started after a delay"
        case Reason.BEHIND:
            return "there is room, but older requests come first"
    return "it is about to start"


def _say_what_pool_does(facts: PoolFacts, reason: Reason) -> str:
    match reason:
        case Reason.FAILED:
            return f"has failed: no worker could start: {repr_of(facts.failure)}"
        case Reason.CLOSED:
            return "is closed"
        case Reason.CLOSING:
            return f"is closing: {_some_busy(facts)}"
        case Reason.PAUSED:
            return f"is paused: {_some_busy(facts)}"
        case Reason.NO_ROOM:
            return f"has no room: {_all_busy(facts)}"
        case Reason.TAINTED:
            return f"has no room: {_every_worker(facts)} tainted"
        case Reason.DEGRADED:
            return f"is degraded, too many workers have died of late: {_some_busy(facts)}"
        case Reason.STARTING:
            return f"is starting {_count(facts.starting, 'worker')}"
        case Reason.RUNNING:
            return f"keeps up: {_some_busy(facts)}"
    return f"is idle, with {_count(facts.workers, 'worker')}"


def _advice(facts: PoolFacts, reason: Reason) -> Iterator[str]:
    """Advice, the most likely remedy first."""
    if reason is Reason.FAILED:
        yield "fix the error that keeps workers from starting, and create a new pool"
    if reason is Reason.PAUSED:
        yield "resume()"
    if reason is Reason.DEGRADED:
        yield "look in the log for the deaths of workers"
    if reason is Reason.TAINTED:
        yield "wait until recycling.taint_duration is over, or look in the log for the errors that tainted the workers"
    if reason is Reason.PINNED:
        yield "affinity='hint' would let another worker run it"
        yield "spread the work over more sessions"
    if reason is not Reason.NO_ROOM:
        return
    given_up = sum(each.given_up for each in facts.running)
    if given_up:
        yield (
            f"{_count(given_up, 'function')} that {'was' if given_up == 1 else 'were'} given up still "
            f"{'runs' if given_up == 1 else 'run'}: give such functions their own time limits, or raise "
            "restarts.max_abandoned"
        )
    waits_for = [each for each in facts.running if each.waits_for is not None]
    if len(waits_for) == len(facts.running) and waits_for:
        yield "every worker waits for another request: split the work over two pools"
    yield f"raise max_workers (now {facts.max_workers})"
    if facts.limit is None:
        yield "limit the backlog with max_queue"
    else:
        yield "submit fewer or shorter requests"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def in_words(seconds: float) -> str:
    """A duration for people: "250 ms", "3.2 s", "12 s", "5 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"

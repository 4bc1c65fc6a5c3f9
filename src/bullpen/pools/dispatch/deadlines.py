"""The time limits of requests, without a timer per request, and without a lock to set one.

Requests with the same limit come due in the order in which they got it. So there is one FIFO per duration: arming
appends to it, and only its head is checked. Durations beyond the first few dozen share a heap.

Nothing here keeps a finished request alive: only its timing stays, which no longer refers to the request. Timings of
finished requests are removed when they may outnumber the rest.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from bullpen import primitives
from bullpen.pools.dispatch.request import Request, Timing

MAX_DURATIONS = 64
_SWEEP_AT_LEAST = 1024
_START_BY: Callable[[Any], float] = attrgetter("start_by")
_RUN_UNTIL: Callable[[Any], float] = attrgetter("run_until")


class Deadlines:
    """The instants at which requests come due. All methods may be called from any thread.

    The arming methods return True if the timer has to look at once: it may not have taken this one into account.
    """

    def __init__(self) -> None:
        self._lock = primitives.deadlines_lock()  # for all but appending to a line
        self._waiting: dict[float, _DurationQueue] = {}  # by how long a request may wait
        self._running: dict[float, _DurationQueue] = {}  # by how long it may run
        self._heap: list[tuple[float, int, Timing]] = []
        self._sweep_heap_at = _SWEEP_AT_LEAST
        self._numbers = itertools.count()
        self._unwatched = False

    def forget(self) -> None:
        """This is a forked child: nothing is watched. The lock is made anew, its holder may not exist here."""
        self._lock = primitives.deadlines_lock()
        self._waiting, self._running, self._heap = {}, {}, []

    def unwatched(self) -> None:
        """No thread watches, although one was asked for: the next arming asks again."""
        with self._lock:
            self._unwatched = True
            for queue in (*self._waiting.values(), *self._running.values()):
                queue.ask_again()

    def arm_queued(self, timing: Timing) -> bool:
        """A request waits: look at it when it has to have started."""
        queue = self._waiting.get(timing.limits.max_wait)
        if queue is None:
            if timing.start_by == math.inf:
                return False
            queue = self._new_queue(self._waiting, timing.limits.max_wait, _START_BY)
            if queue is None:
                return self._push(timing.start_by, timing)
        return queue.append(timing)

    def arm_started(self, timing: Timing) -> bool:
        """A request starts: look at it when it has run for too long."""
        run_timeout = timing.limits.run_timeout
        if run_timeout is None:
            return False
        queue = self._running.get(run_timeout)
        if queue is None:
            queue = self._new_queue(self._running, run_timeout, _RUN_UNTIL)
            if queue is None:
                return self._push(timing.run_until, timing)
        return queue.append(timing)

    def arm_again(self, timing: Timing, when: float) -> bool:
        """A request was looked at too early: look again at `when`."""
        return when != math.inf and self._push(when, timing)

    def _new_queue(
        self, queues: dict[float, _DurationQueue], duration: float, when: Callable[[Timing], float]
    ) -> _DurationQueue | None:
        with self._lock:
            queue = queues.get(duration)
            if queue is None and len(queues) < MAX_DURATIONS:
                queue = queues[duration] = _DurationQueue(when, self._lock)
            return queue

    def _push(self, when: float, timing: Timing) -> bool:
        with self._lock:
            entry = (when, next(self._numbers), timing)
            heapq.heappush(self._heap, entry)
            if len(self._heap) >= self._sweep_heap_at:
                self._heap = [entry for entry in self._heap if entry[2].request is not None]
                heapq.heapify(self._heap)
                self._sweep_heap_at = max(_SWEEP_AT_LEAST, 2 * len(self._heap))
            unwatched, self._unwatched = self._unwatched, False
            return unwatched or self._heap[:1] == [entry]

    @property
    def next_at(self) -> float:
        """When the next request comes due; infinity if none does."""
        with self._lock:
            heads = [queue.head() for queue in (*self._waiting.values(), *self._running.values())]
            while self._heap and self._heap[0][2].request is None:
                heapq.heappop(self._heap)
            if self._heap:
                heads.append(self._heap[0][0])
        return min(heads, default=math.inf)

    def due(self, now: float) -> list[Request]:
        """Take out the requests whose time has come. The caller judges each by its timing, and arms it again if need
        be.
        """
        requests: list[Request] = []
        with self._lock:
            for queue in (*self._waiting.values(), *self._running.values()):
                queue.take_due(now, requests)
            while self._heap and self._heap[0][0] <= now:
                request = heapq.heappop(self._heap)[2].request
                if request is not None:
                    requests.append(request)
        return requests

    def __len__(self) -> int:
        """How many timings are kept, those of finished requests included."""
        with self._lock:
            queues = (*self._waiting.values(), *self._running.values())
            return len(self._heap) + sum(len(queue.timings) for queue in queues)


class _DurationQueue:
    """Timings of one duration, in the order in which they come due.

    Any thread may append at any time; everything else needs the lock.
    """

    __slots__ = ("_lock", "_sweep_at", "_when", "timings")

    def __init__(self, when: Callable[[Timing], float], lock: primitives.Lock) -> None:
        self._when = when
        self._lock = lock
        self._sweep_at = _SWEEP_AT_LEAST
        self.timings = primitives.new_deque()

    def append(self, timing: Timing) -> bool:
        """True if `timing` is now the head: then the timer may not have taken it into account."""
        timings = self.timings
        timings.append(timing)
        if len(timings) >= self._sweep_at:
            return self._sweep()
        try:
            return timings[0] is timing
        except IndexError:  # it has come due already
            return False

    def ask_again(self) -> None:
        self._sweep_at = 0

    def _sweep(self) -> bool:
        """Drop the timings of requests that have ended, which may be most; unless it came here only to ask again."""
        with self._lock:
            timings = self.timings
            if not self._sweep_at:
                self._sweep_at = max(_SWEEP_AT_LEAST, 2 * len(timings))
                return True
            kept = [timing for timing in (timings.popleft() for _ in range(len(timings))) if timing.request is not None]
            timings.extendleft(reversed(kept))
            self._sweep_at = max(_SWEEP_AT_LEAST, 2 * len(kept))
            return True

    def head(self) -> float:
        timings = self.timings
        while timings:
            if timings[0].request is not None:
                return self._when(timings[0])
            timings.popleft()
        return math.inf

    def take_due(self, now: float, requests: list[Request]) -> None:
        timings = self.timings
        while timings and (timings[0].request is None or self._when(timings[0]) <= now):
            request = timings.popleft().request
            if request is not None:
                requests.append(request)

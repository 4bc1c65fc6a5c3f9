"""Keeps a pool from deadlock when its workers wait for requests of the same pool.

A worker that waits for a queued request runs that request itself. Where the pool cannot take over the wait, as in
`concurrent.futures.wait`, a helper runs the request: an extra worker for this purpose only. A request that would wait
for itself, directly or through others, gets `NestedWait`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from bullpen import primitives
from bullpen.errors import NestedWait, WorkerBroken
from bullpen.pools.dispatch.dispatcher import Dispatcher, Report
from bullpen.pools.dispatch.request import DONE, FAILED, QUEUED, Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import BUSY, READY, STOPPING, Worker
from bullpen.pools.instances import Instances
from bullpen.pools.runtimes.port import WorkerEvents, current_request, inline
from bullpen.pools.supervision.slots import Slots
from bullpen.pools.supervision.taint import TaintedWorkers
from bullpen.telemetry import Kind

if TYPE_CHECKING:
    from bullpen.pools.dispatch.futures import PoolFuture


class WorkerEnds(Protocol):
    """How a helper, and an inline call, report the end of their worker. `Deaths` is one."""

    def exited(self, worker: Worker) -> None: ...
    def helper_died(self, worker: Worker, error: BaseException) -> None: ...
    def broke(self, worker: Worker, request: Request, error: BaseException) -> None: ...


class NestedWaits:
    """Waits that happen on the workers of one pool.

    `withdrawn()` is called when a waiting request runs out of turn, `wake()` wakes the timer, which calls `help`, and
    `start_helper(events)` starts a worker without a slot.
    """

    def __init__(
        self,
        *,
        name: str,
        slots: Slots,
        dispatcher: Dispatcher,
        report: Report,
        tainted_workers: TaintedWorkers,
        ends: WorkerEnds,
        instances: Instances | None,
        withdrawn: Callable[[], None],
        wake: Callable[[], bool],
        start_helper: Callable[[WorkerEvents], None],
        runs_inline: bool,
    ) -> None:
        self._name = name
        self._slots = slots
        self._dispatcher = dispatcher
        self._registry = dispatcher.registry
        self._report = report
        self._tainted_workers = tainted_workers
        self._ends = ends
        self._instances = instances
        self._withdrawn = withdrawn
        self._wake = wake
        self._start_helper = start_helper
        self._inline = runs_inline
        self._wanted = primitives.new_deque()  # awaited in foreign code: (worker, waiting request, awaited one)
        self._helpers: dict[Any, _Helper] = {}  # by the request that waits

    def is_own(self, worker: Worker) -> bool:
        return self._registry.get(worker.id) is worker

    def wait(self, worker: Worker, future: PoolFuture[Any], timeout: float | None) -> bool:
        """Wait for `future` on the thread of `worker`; False when `timeout` seconds passed first."""
        if timeout is not None:
            self.may_wait(worker, future)  # an inline call could not be left when the time is up
        elif self._inline and self.is_own(worker):
            if self.run_here(worker, future, queued=True):
                return True
            self._check_session(worker, future)
        with self.awaiting(worker, future, checked=timeout is None):
            return future.wait_at_gate(timeout)

    @contextmanager
    def awaiting(self, worker: Worker, future: PoolFuture[Any], *, checked: bool = True) -> Iterator[None]:
        """Inside, the request on the thread of `worker` waits for `future`. `checked`: raises if it would never end."""
        waiting = current_request()
        if waiting is not None:
            _awaits[waiting] = future
        try:
            if checked:
                self._follow(worker, waiting, future)
            yield
        finally:
            if waiting is not None:
                _awaits.pop(waiting, None)

    def run_here(self, worker: Worker, request: Request, *, queued: bool) -> bool:
        """Run a request inline on the thread of `worker`; False if it cannot start any more."""
        if request.state is not QUEUED:
            return False
        with self.inline(request):  # a thread that gives the worker up sees the request even before it starts
            if not self.take(worker, request, queued=queued):
                return False
            try:
                value = request.fn(*request.args, **(request.kwargs or {}))
            except BaseException as error:
                self.settle(worker, request, FAILED, error)
            else:
                self.settle(worker, request, DONE, value)
        return True

    @staticmethod
    @contextmanager
    def inline(request: Request) -> Iterator[None]:
        """Inside, `request` is an inline call of the request that runs on this thread."""
        with inline(request) as outer:
            if outer is not None:
                _runs_within[outer] = request
            try:
                yield
            finally:
                if outer is not None:
                    _runs_within.pop(outer, None)

    def take(self, worker: Worker, request: Request, *, queued: bool) -> bool:
        """Start a request out of turn, if it still can start."""
        if queued and not self.is_own(worker):
            return False
        if not self._dispatcher.start_out_of_turn(worker, request):
            return False
        if queued:
            self._withdrawn()
        self._dispatcher.report_started(worker, request)
        return True

    def settle(self, worker: Worker, request: Request, state: RequestState, value: Any) -> None:
        """An inline call has ended."""
        if state is FAILED and issubclass(type(value), WorkerBroken):
            self._ends.broke(worker, request, value)
            return
        self._tainted_workers.judge(worker, state, value)
        settled = request.attended and request.settle_and_call_back(state, value)
        with worker.lock:
            if not request.attended:  # it has no callbacks, and only this lock guards it
                settled = request.settle_and_call_back(state, value)
            if state is DONE:
                worker.completed += settled
            else:
                worker.failed += settled
        self._dispatcher.tell_end(worker, request, settled)

    def _follow(self, worker: Worker, waiting: Request | None, future: PoolFuture[Any]) -> None:
        """Follow the chain of waits. If it ends at a queued request, a worker runs that; if it is a ring, raise."""
        circle = _circle(worker, waiting, future)
        if circle:
            raise NestedWait(
                f"pool {self._name!r}: {' → '.join(circle)}: a request would wait for itself forever; "
                "do not wait in a request for a request that waits for it",
                pool=self._name,
            )

    def unblock(self, worker: Worker, waiting: Request | None, request: Request) -> None:
        """Have `request` run, which is queued here, and for which `worker` waits, maybe through others.

        If `worker` is one of this pool, it runs the request. Otherwise a helper does, if every worker here waits too,
        maybe for `worker`. The worker that begins to wait last finds all others waiting, so no ring of pools deadlocks.
        """
        if self.is_own(worker):
            self.run_here(worker, request, queued=True)
            return
        workers = self._registry.snapshot()
        if all(_stands_still(other) for other in workers) and not self._dispatcher.free:
            self.want(worker, waiting or worker, request)

    # Waiting in foreign code.

    def may_wait(self, worker: Worker, future: Request) -> None:
        """Foreign code on `worker` asks for the state of a request that has not ended, and may wait for it next.

        That code may hold the locks of other futures, so no lower lock is taken here: the timer does the rest.
        """
        if future.state is not QUEUED or not self.is_own(worker):
            return
        self._check_line(worker, future)
        self._check_session(worker, future)
        waiting = current_request() or worker
        most = self._slots.limit * worker.capacity
        if waiting not in self._helpers and sum(helper.busy for helper in list(self._helpers.values())) >= most:
            raise NestedWait(
                f"pool {self._name!r}: worker {worker.name} would wait for queued requests of its own pool, "
                f"where {most} requests do so already; wait with future.result(), or use a larger pool",
                pool=self._name,
            )
        self.want(worker, waiting, future)

    def have_helped(self, worker: Worker, stream: Request) -> None:
        """`worker` reads a stream that is still queued: a helper produces it, and nothing else.

        Streams that are read in turn need one each, so they are not counted: their reader is the limit.
        """
        if stream.state is QUEUED:
            self._check_line(worker, stream)
            self.want(worker, stream, stream)

    def _check_line(self, worker: Worker, request: Request) -> None:
        """Raise if the request is pinned to the waiting worker: no helper may run it."""
        if request.pinned_to is worker and len(worker.requests) >= worker.capacity:
            raise NestedWait(
                f"pool {self._name!r}: worker {worker.name} would wait for a request of its own session, which no "
                "other worker may run; wait with future.result(), without a time limit",
                pool=self._name,
            )

    def _check_session(self, worker: Worker, request: Request) -> None:
        """Raise if `request` begins a session and all workers wait: a helper cannot become a session's worker."""
        traits = request.traits
        if traits is None or not traits.strict or request.state is not QUEUED or request.pinned_to is not None:
            return
        here = current_request()
        staying = [other for other in self._registry.peek() if not other.transient]
        occupied = not self._dispatcher.free and not any(other.status is READY for other in staying)
        if occupied and all(self._waits(each, here) for other in staying for each in other.requests):
            raise NestedWait(
                f"pool {self._name!r}: worker {worker.name} would wait for the first request of session "
                f"{traits.session!r}, which needs a free worker, and all workers wait; begin the session outside the "
                "pool, or use a larger pool",
                pool=self._name,
            )

    def _waits(self, request: Request, here: Request | None) -> bool:
        """Whether a running request waits: as `here`, which is about to, by a call to the pool, or for a helper."""
        innermost = _innermost(request)
        helper = self._helpers.get(innermost)
        return innermost is here or innermost in _awaits or (helper is not None and helper.busy)

    def want(self, worker: Worker, waiting: object, future: Request) -> None:
        """Have a helper run `future` for `waiting`, which runs on `worker`. `waiting` has one helper for all."""
        self._wanted.append((worker, waiting, future))
        if not self._wake():
            raise NestedWait(
                f"pool {self._name!r}: worker {worker.name} would wait for queued requests, and no thread could "
                "be started to run them",
                pool=self._name,
            )

    def help(self) -> None:
        """Have helpers run the requests that workers wait for. Called by the timer thread."""
        while self._wanted:
            worker, waiting, request = self._wanted.popleft()
            helper = self._helpers.get(waiting)
            if helper is not None and helper.accept(request):
                continue
            if request.state is QUEUED:
                self._helpers[waiting] = helper = _Helper(
                    self, worker, waiting, request, self._ends, self._instances, self._report
                )
                self._start_helper(helper)

    def helper_gone(self, helper: _Helper) -> None:
        if self._helpers.get(helper.waiting) is helper:
            del self._helpers[helper.waiting]


# Which request waits for which, in all pools. A thread sets and deletes only the entries of its own requests.
_awaits: dict[Request, Request] = {}
_runs_within: dict[Request, Request] = {}  # inline calls, by the request that made them


def awaited_by(request: Request) -> Request | None:
    """The request that `request`, or its innermost inline call, waits for."""
    return _awaits.get(_innermost(request))


def all_on(worker: Worker) -> Iterator[Request]:
    """The requests that run on `worker`, inline calls included."""
    for request in worker.requests:
        each: Request | None = request
        while each is not None:
            yield each
            each = _runs_within.get(each)


def _circle(worker: Worker, waiting: Request | None, future: Request) -> list[str]:
    """The names of the workers in a ring of waits through `waiting`, on `worker`; empty if a request in it can go on.

    A queued request on the way gets a worker. No lock is needed: a request that waits cannot end meanwhile.
    """
    before: dict[Request, Request | None] = {future: None}
    held_by = {} if waiting is None else {waiting: worker}
    unseen: list[Request] = [future]
    while unseen:
        request = unseen.pop()
        if request is waiting:
            continue
        holders = _held_up_by(worker, waiting, request, request is future, held_by)
        if not holders:
            return []
        unseen.extend(each for each in holders if each not in before)
        before |= {each: request for each in holders if each not in before}
    step, names = waiting, list[str]()
    while step is not None and step in before:
        names += [held_by[step].name] if step in held_by else []
        step = before[step]
    return [worker.name, *reversed(names)] if names else []


def _held_up_by(
    worker: Worker, waiting: Request | None, request: Any, first: bool, held_by: dict[Request, Worker]
) -> tuple[Request, ...]:
    """Those that have to end, one of them at least, before `request` can; nothing if it can go on."""
    if request.state is QUEUED:
        pinned_to = request.pinned_to
        if pinned_to is None or pinned_to is worker:
            nested = request.engine.nested
            if not first or not nested.is_own(worker):
                nested.unblock(worker, waiting, request)
            return ()
        occupants: tuple[Request, ...] = pinned_to.requests
        held_by |= dict.fromkeys(occupants, pinned_to)  # also those that were given up: they are still there
        return occupants if len(occupants) >= pinned_to.capacity else ()
    if request.holder is not None:
        held_by[request] = request.holder
    inner = _runs_within.get(request) or _awaits.get(request)
    return () if inner is None or inner.ended else (inner,)


def _stands_still(worker: Worker) -> bool:
    """All that runs on `worker` waits, and it has no room for more; a helper takes nothing from the backlog anyway."""
    requests = worker.requests
    if worker.transient:
        return True
    return bool(requests) and worker.status is not READY and all(_innermost(request) in _awaits for request in requests)


def _innermost(request: Request) -> Request:
    while (inner := _runs_within.get(request)) is not None:
        request = inner
    return request


class _Helper:
    """Runs what one request waits for, then ends. Implements `WorkerEvents` for its own worker."""

    def __init__(
        self,
        nested: NestedWaits,
        lender: Worker,
        waiting: object,
        request: Request,
        ends: WorkerEnds,
        instances: Instances | None,
        report: Report,
    ) -> None:
        self.waiting = waiting
        self.lender = lender
        self._nested = nested
        self._ends = ends
        self._instances = instances
        self._report = report
        self._lock = primitives.leaf_lock()
        self._wanted: list[Request] = [request]
        self._current: Request | None = None
        self._open = True

    @property
    def busy(self) -> bool:
        """It has something left to do for the request that waits. Takes no lock: foreign code may hold higher ones."""
        current = self._current
        return self._open and (len(self._wanted) > 0 or current is None or not current.ended)

    def accept(self, request: Request) -> bool:
        """Run `request` too; False if the helper is about to end, or stuck in something that was given up."""
        with self._lock:
            if not self._open or (self._current is not None and self._current.ended):
                return False
            self._wanted.append(request)
            return True

    def prepare(self, worker: Worker) -> None:
        if self._instances is not None:
            self._instances.lend(self.lender, worker)

    def retire(self, worker: Worker) -> None:
        """It keeps nothing of its own."""

    def ready(self, worker: Worker) -> Request | None:
        with worker.lock:
            worker.was_ready = True
            if worker.status is not STOPPING:
                worker.move(READY)
                worker.move(BUSY)
        self._report(Kind.WORKER_READY, worker, None)
        return self._next(worker)

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        self._nested.settle(worker, request, state, value)
        with worker.lock:
            worker.remove(request)
        return self._next(worker)

    def _next(self, worker: Worker) -> Request | None:
        while True:
            with self._lock:
                self._open = bool(self._wanted)
                request = self._current = self._wanted.pop(0) if self._wanted else None
            if request is None:
                break
            if self._nested.take(worker, request, queued=True):
                with worker.lock:
                    worker.add(request)
                return request
        with worker.lock:
            if worker.status is not STOPPING:
                worker.move(STOPPING)
        self._report(Kind.WORKER_STOPPING, worker, None)
        worker.handle.hand(None)
        return None

    def exited(self, worker: Worker) -> None:
        self._nested.helper_gone(self)
        self._ends.exited(worker)

    def died(self, worker: Worker, error: BaseException) -> None:
        self._nested.helper_gone(self)
        if not worker.was_ready:  # no thread could be started: the thread that starts helpers does it
            with self._lock:
                self._open = False
                wanted, self._wanted = self._wanted, []
            for request in wanted:
                self._nested.run_here(worker, request, queued=True)
        self._ends.helper_died(worker, error)

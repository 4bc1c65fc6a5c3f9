"""How a pool comes to run, or fails: preparation, and the callers of `wait_ready`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bullpen import primitives
from bullpen.errors import PoolFailed, repr_of
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.policies import InitializationDelegate
from bullpen.pools.supervision.outcomes import ForcedOutcomes
from bullpen.pools.supervision.sizing import Sizing
from bullpen.pools.supervision.slots import Slots
from bullpen.pools.supervision.timer import PoolTimer
from bullpen.telemetry import logger

STAGGER = 0.002  # seconds between two callers of `wait_ready` that go on: all at once would overload a busy machine


class Startup:
    """The beginning of one pool.

    `call_on_loop`, if it is given, makes a call on the one thread on which everything happens to requests.
    """

    def __init__(
        self,
        *,
        name: str,
        lock: primitives.Lock,
        status: PoolStatus,
        slots: Slots,
        sizing: Sizing,
        dispatcher: Dispatcher,
        outcomes: ForcedOutcomes,
        timer: PoolTimer,
        clock: primitives.Clock,
        report_state: Callable[[], None],
        check_may_wait: Callable[[float | None], None],
        min_workers: int,
        delegate: InitializationDelegate | None,
        call_on_loop: Callable[[Callable[[], object]], object] | None,
    ) -> None:
        self._name = name
        self._lock = lock
        self._status = status
        self._slots = slots
        self._sizing = sizing
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._timer = timer
        self._clock = clock
        self._report_state = report_state
        self._check_may_wait = check_may_wait
        self._min_workers = min_workers
        self._delegate = delegate
        self._call_on_loop = call_on_loop
        self._prepared = delegate is None  # until then there is no slot in which a worker could start
        self._waiters: list[primitives.Lock] = []
        self._thread: Any = None
        self._preparing = False
        self._joiners: list[primitives.Lock] = []

    def begin(self) -> None:
        """Start the workers that have to be there from the beginning, after the preparation."""
        if self._delegate is None:
            self._open()
        else:
            self._preparing = True
            self._thread = primitives.start_thread(self._prepare, f"{self._name}-prepare")

    def _open(self) -> None:
        with self._lock:
            self._prepared = True
            if self._status.ended:
                return
            self._slots.open()
        self._dispatcher.use_new_room()
        self._sizing.fill_minimum()
        if not self._min_workers:
            self._release_next()

    def _prepare(self) -> None:
        assert self._delegate is not None
        try:
            self._delegate.prepare(self._name)
        except BaseException as error:
            logger.error("%s: startup.delegate.prepare() raised, so the pool has failed", self._name, exc_info=error)
            self._go_on(functools.partial(self._failed, error))
        else:
            self._go_on(self._open)
        with self._lock:
            self._preparing = False
            joiners, self._joiners = self._joiners, []
        for gate in joiners:
            gate.release()

    def _go_on(self, what: Callable[[], None]) -> None:
        if self._call_on_loop is None:
            what()
        else:
            self._call_on_loop(what)

    def _failed(self, error: BaseException) -> None:
        with self._lock:
            failed = self.fail(error)
        if failed:
            self.tell_failed()
            return
        failure = PoolFailed(f"pool {self._name!r} could not be prepared: {repr_of(error)}", pool=self._name)
        failure.__cause__ = error  # closed meanwhile, with requests that wait for workers
        self._outcomes.fail_waiting(failure)

    def fail(self, error: BaseException) -> bool:
        """No worker could start, and none ever did: the pool has failed. The pool's lock is held; the caller calls
        `tell_failed` next. False if a worker once did start.
        """
        if self._status.state is not PoolState.INITIALIZING:
            return False
        self._status.change(PoolState.FAILED, failure=error)
        self.release_all()
        return True

    def tell_failed(self) -> None:
        """The pool has failed: report that, end the timer, and fail the requests that wait."""
        self._report_state()
        self._timer.wake(start=False)
        self._outcomes.fail_waiting(self._status.not_open())

    def worker_is_ready(self) -> None:
        """One more worker has started; with enough of them the pool runs."""
        if self._status.state is not PoolState.INITIALIZING:
            return
        with self._lock:
            if self._status.state is not PoolState.INITIALIZING or not self._sizing.suffices():
                return
            self._status.change(PoolState.RUNNING)
        self._report_state()
        self._release_next()
        if self._delegate is not None:
            self._timer.call_later(0.0, self._tell_started)

    # Callers that wait until the pool is ready.

    def wait_ready(self, timeout: float | None) -> bool:
        """Wait until `min_workers` workers have started; False when `timeout` seconds passed first."""
        if not self.wait(timeout):
            return False
        self._status.check_open()
        return True

    def wait(self, timeout: float | None) -> bool:
        """Wait until `min_workers` workers have started; False when `timeout` seconds passed first."""
        gate = primitives.gate()
        gate.acquire()
        if not self.line_up(gate):
            return True
        try:
            self._check_may_wait(timeout)
            return self._clock.wait(gate, timeout)
        finally:
            self.leave_line(gate)

    def line_up(self, gate: primitives.Lock) -> bool:
        """Have `gate` opened once `min_workers` workers have started, or cannot; False if that is so already."""
        with self._lock:
            if self._status.state is not PoolState.INITIALIZING or (self._prepared and not self._min_workers):
                return False
            self._waiters.append(gate)
            return True

    def leave_line(self, gate: primitives.Lock) -> None:
        """The caller at `gate` does not wait any more."""
        with self._lock:
            if gate in self._waiters:
                self._waiters.remove(gate)

    @property
    def waiters(self) -> int:
        """How many wait until the pool is ready."""
        return len(self._waiters)

    def _release_next(self) -> None:
        """The callers go on one after another."""
        with self._lock:
            waiter = self._waiters.pop(0) if self._waiters else None
            more = bool(self._waiters)
        if waiter is not None:
            waiter.release()
        if more:
            self._timer.call_later(STAGGER, self._release_next)

    def _tell_started(self) -> None:
        assert self._delegate is not None
        self._delegate.started(self._name, self._sizing.in_slots())

    def release_all(self) -> None:
        """The pool does not become ready any more: every caller goes on. The pool's lock is held."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    def join(self, timeout: float | None) -> None:
        """Wait until nothing is being prepared any more, at most `timeout` seconds."""
        thread = self._thread
        if thread is None or thread.ident == primitives.current_thread_id():
            return
        thread.join(timeout)
        if thread.is_alive():
            logger.warning("%s: startup.delegate.prepare() still runs after the grace; abandoned", self._name)

    def opens_when_joined(self, gate: primitives.Lock) -> bool:
        """Have `gate` opened once nothing is being prepared any more; False if that is so already."""
        with self._lock:
            if self._preparing:
                self._joiners.append(gate)
            return self._preparing

    def forget(self) -> None:
        """This is a forked child, where the thread is not."""
        self._thread = None

"""How a pool comes to run: preparation, and those who wait until it is ready."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from bullpen import primitives
from bullpen.core.lifecycle import PoolState
from bullpen.errors import PoolFailed

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine

logger = logging.getLogger("bullpen")

STAGGER = 0.002  # seconds between two who waited for a pool to be ready: a herd would stampede


class InitializationDelegate(Protocol):
    """Somebody who has a say when a pool starts: to fetch a model, to check a licence, to tell a registry."""

    def prepare(self, pool_name: str) -> None:
        """Called once, on a thread of its own, before the first worker starts. If it raises, the pool has failed."""

    def started(self, pool_name: str, workers: int) -> None:
        """The pool runs, with `workers` workers so far. Called on the pool's supervisor: be brief."""


class Startup:
    """The beginning of one pool."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._delegate = engine.options.initialization
        self.prepared = self._delegate is None  # until then there is no slot in which a worker could start
        self._waiters: list[primitives.Lock] = []
        self._thread: Any = None
        self._preparing = False
        self._joiners: list[primitives.Lock] = []

    def begin(self) -> None:
        """Start the workers that have to be there from the beginning, after what has to come before them."""
        if self._delegate is None:
            self._open()
        else:
            self._preparing = True
            self._thread = primitives.start_thread(self._prepare, f"{self._engine.name}-prepare")

    def _open(self) -> None:
        engine = self._engine
        with engine.lock:
            self.prepared = True
            if engine.state in (PoolState.CLOSED, PoolState.FAILED):
                return
            engine.workforce.deal_slots(engine.max_workers)
        engine.use_new_room()
        engine.workforce.fill_minimum()
        if not engine.options.min_workers:
            self._release_next()

    def _prepare(self) -> None:
        assert self._delegate is not None
        engine = self._engine
        try:
            self._delegate.prepare(engine.name)
        except BaseException as error:
            logger.error("%s: could not be prepared", engine.name, exc_info=error)
            self._go_on(functools.partial(self._failed, error))
        else:
            self._go_on(self._open)
        with engine.lock:
            self._preparing = False
            joiners, self._joiners = self._joiners, []
        for gate in joiners:
            gate.release()

    def _go_on(self, what: Callable[[], None]) -> None:
        call_home = self._engine.call_home
        if call_home is None:
            what()
        else:
            call_home(what)

    def _failed(self, error: BaseException) -> None:
        engine = self._engine
        with engine.lock:
            failed = engine.fail(error)
        refusal: BaseException
        if failed:
            refusal = engine.not_open()
            engine.report_state()
            engine.time.wake(start=False)
        else:  # closed meanwhile, with requests that wait for workers
            refusal = PoolFailed(f"pool {engine.name!r} could not be prepared: {error!r}", pool=engine.name)
            refusal.__cause__ = error
        engine.refuse_backlog(refusal)

    def wait(self, timeout: float | None) -> bool:
        """Wait until `min_workers` workers have started; False when `timeout` seconds passed first."""
        gate = primitives.gate()
        gate.acquire()
        if not self.line_up(gate):
            return True
        try:
            self._engine.check_may_wait(timeout)
            return self._engine.clock.wait(gate, timeout)
        finally:
            self.leave_line(gate)

    def line_up(self, gate: primitives.Lock) -> bool:
        """Have `gate` opened once `min_workers` workers have started, or cannot; False if that is so already."""
        engine = self._engine
        with engine.lock:
            if engine.state is not PoolState.INITIALIZING or (self.prepared and not engine.options.min_workers):
                return False
            self._waiters.append(gate)
            return True

    def leave_line(self, gate: primitives.Lock) -> None:
        """Whoever waits at `gate` does not any more."""
        with self._engine.lock:
            if gate in self._waiters:
                self._waiters.remove(gate)

    @property
    def waiters(self) -> int:
        """How many wait until the pool is ready."""
        return len(self._waiters)

    def running(self) -> None:
        """The pool runs: whoever waited may go on, one after another."""
        self._release_next()
        if self._delegate is not None:
            self._engine.time.later(0.0, self._tell_started)

    def _release_next(self) -> None:
        with self._engine.lock:
            waiter = self._waiters.pop(0) if self._waiters else None
            more = bool(self._waiters)
        if waiter is not None:
            waiter.release()
        if more:
            self._engine.time.later(STAGGER, self._release_next)

    def _tell_started(self) -> None:
        assert self._delegate is not None
        self._delegate.started(self._engine.name, self._engine.workforce.in_slots())

    def release_all(self) -> None:
        """The pool has ended: nobody shall wait any more. Called with the engine's lock held."""
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
            logger.warning("%s: it is still being prepared after the grace; left behind", self._engine.name)

    def opens_when_joined(self, gate: primitives.Lock) -> bool:
        """Have `gate` opened once nothing is being prepared any more; False if that is so already."""
        with self._engine.lock:
            if self._preparing:
                self._joiners.append(gate)
            return self._preparing

    def forget(self) -> None:
        """This is a forked child, where the thread is not."""
        self._thread = None

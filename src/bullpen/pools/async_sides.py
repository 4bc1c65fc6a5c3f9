"""The two sides of an `AsyncPool`: coroutines on the loop, functions on threads. Each has an engine of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import time
import types
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, ClassVar

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType, NotCallable
from bullpen.pools.async_calls import (
    AsyncCall,
    AsyncFuture,
    LoopCall,
    ReaderWakeup,
    ThreadCall,
)
from bullpen.pools.async_instances import LoopInstances, ThreadInstances
from bullpen.pools.dispatch.request import (
    QUEUED,
    RUNNING,
    CallTraits,
    Request,
    RequestTraits,
    TimeLimits,
    WrappedCall,
)
from bullpen.pools.dispatch.states import PoolState
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.instances import Instances, no_workers_class
from bullpen.pools.loop_bridge import LoopBridge, LoopClock, LoopGate, LoopTicket, LoopTimer
from bullpen.pools.options import PoolOptions
from bullpen.pools.runtimes.open import open_event_loop, open_runtime
from bullpen.pools.runtimes.port import coroutine_request, only_by_name
from bullpen.pools.supervision.at_exit import close_in_background
from bullpen.pools.supervision.engine import Engine
from bullpen.telemetry import logger

CLEANUP_SECONDS = 1.0  # how long a cancelled coroutine may take to end when the pool closes

_FUNCTION = types.FunctionType
_COROUTINE = inspect.CO_COROUTINE


def is_coroutine_function(fn: Any) -> bool:
    """Whether a call of `fn` has to be awaited: it is one, or a method, partial or object that leads to one."""
    if type(fn) is _FUNCTION:
        if fn.__code__.co_flags & _COROUTINE:
            return True
        if not fn.__dict__:  # where the marks of decorators are
            return False
    elif not callable(fn):
        raise NotCallable(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.iscoroutinefunction(fn):
        return True
    return not inspect.isroutine(fn) and inspect.iscoroutinefunction(type(fn).__call__)


def check_streams(fn: Any) -> None:
    if not callable(fn):
        raise NotCallable(fn)
    if inspect.iscoroutinefunction(fn):
        raise InvalidOptionType("fn", fn, "a generator function or an async generator function")


def is_async_generator_function(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isasyncgenfunction(fn):
        return True
    return not inspect.isroutine(fn) and inspect.isasyncgenfunction(type(fn).__call__)


class Side:
    """One engine, and how calls get into it."""

    new_request: ClassVar[Callable[..., AsyncCall]]  # the class of its calls

    def __init__(
        self,
        bridge: LoopBridge,
        options: PoolOptions,
        clock: primitives.Clock,
        runtime: Any,
        instances: Instances | None,
        call_on_loop: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self.bridge = bridge
        options = dataclasses.replace(options, when_full="reject")  # an engine would block the loop
        new_timer = functools.partial(LoopTimer, bridge)
        self.engine = engine = Engine(options, runtime, clock, instances, new_timer, call_on_loop)
        self.dispatcher = engine.dispatcher
        self.offer = engine.admission.offer
        self.new_ticket = functools.partial(LoopTicket, bridge)
        self.wrap = options.wrap

    @property
    def capabilities(self) -> frozenset[str]:
        return self.engine.runtime.capabilities

    def new_call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: AsyncFuture[Any] | ReaderWakeup | None,
        traits: CallTraits | None = None,
    ) -> AsyncCall:
        """A call in the caller's context, which settles `future` when it ends."""
        if self.wrap is not None:
            fn, args, kwargs = self.wrap, (WrappedCall(fn, *args, **kwargs),), {}
        call = self.new_request(self, fn, args, kwargs, future)
        if traits is not None:
            call.traits = RequestTraits(traits)
        return call

    def admit(self, call: AsyncCall, limits: TimeLimits) -> bool:
        """Take `call` in; False if there is no room."""
        return self.engine.admit(call, limits)

    async def submit_when_room(self, call: AsyncCall, limits: TimeLimits) -> None:
        """Admit `call`, and wait for room if necessary."""
        steps = self.engine.admit_in_steps(call, limits, self.new_ticket, self.must_not_wait)
        try:
            gate, timeout = next(steps)
            while True:
                gate, timeout = steps.send(await gate.wait(timeout))
        except StopIteration:
            return
        finally:
            try:
                steps.close()
            except BaseException:  # interrupted: later tickets must not wait for this one forever
                steps.close()
                raise

    def give_up(self, call: AsyncCall) -> None:
        """The caller cancelled its future: cancel the call, queued or running."""
        engine = self.engine
        if engine.cancel_queued(call) or (len(engine.retries) and engine.retries.cancel(call)):
            return
        worker: Worker | None = call.holder
        if worker is not None and call.cancel_running():
            engine.runtime.cancel(worker, call)

    def was_cancelled(self, call: AsyncCall, worker: Worker | None) -> None:
        self.engine.counts.cancelled.add()
        self.engine.report_end(call, worker)

    def must_not_wait(self) -> bool:
        """Whether the caller must not wait for room, because it could wait for itself."""
        return False

    def awaited(self, call: AsyncCall) -> None:
        """A reader or a task awaits `call`, which is queued."""

    async def ready(self, timeout: float | None) -> bool:
        """Wait until the minimum of workers has started; False when `timeout` seconds passed first."""
        gate = LoopGate(self.bridge)
        if self.engine.startup.line_up(gate):
            try:
                if not await gate.wait(timeout):
                    return False
            finally:
                self.engine.startup.leave_line(gate)
        self.engine.check_open()
        return True

    async def closed(self, timeout: float | None) -> bool:
        """Wait until the side is closed; False when `timeout` seconds passed first."""
        gate = LoopGate(self.bridge)
        return not self.engine.opens_when_closed(gate) or await gate.wait(timeout)

    async def prepared(self, timeout: float | None) -> bool:
        """Wait until the startup delegate has prepared the side; False when `timeout` seconds passed first."""
        gate = LoopGate(self.bridge)
        return not self.engine.startup.opens_when_joined(gate) or await gate.wait(timeout)


class CoroutineSide(Side):
    """Coroutines, each in a task of its own."""

    new_request = LoopCall

    def __init__(self, bridge: LoopBridge, options: PoolOptions) -> None:
        instances = None
        if options.worker is not None:
            instances = LoopInstances(options.name, options.worker, options.capacity, options.capacity_strategy)
        super().__init__(bridge, options, LoopClock(), open_event_loop(), instances, bridge.call)
        self.lock = primitives.state_lock()  # one for all calls: only the loop's thread touches them

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"keep_instance"}

    def runs_here(self) -> Request | None:
        """The request of this side that the current coroutine belongs to."""
        request = coroutine_request.get()
        if request is None or request.state is not RUNNING or not isinstance(request, LoopCall):
            return None
        return request if request.side is self else None

    def must_not_wait(self) -> bool:
        """A coroutine of this side has one of its places."""
        return self.runs_here() is not None

    def awaited(self, call: AsyncCall) -> None:
        """If a coroutine of this side awaits it, every worker may be waiting: then a helper runs it."""
        waiting = self.runs_here()
        if waiting is not None and call.state is QUEUED:
            self.engine.nested.want(waiting.worker, waiting, call)

    def cancel_running(self, grace: float) -> None:
        """Abandon and cancel all running requests. Their callers get `WorkerAbandoned`."""
        engine = self.engine
        for worker in engine.registry.snapshot():
            for request in worker.requests:
                if request.abandon(engine.abandonment.outlasted(worker, grace)):
                    engine.counts.timed_out.add()
                    engine.report_end(request, worker)
                engine.runtime.cancel(worker, request)
            worker.handle.cancel(None)  # it may be warming up or closing its instance


class FunctionSide(Side):
    """Functions, on threads, in the contextvars of their callers; or in processes, or programs."""

    new_request = ThreadCall

    def __init__(self, bridge: LoopBridge, options: PoolOptions) -> None:
        runtime = open_runtime(options.runtime, options.initializer, options.initargs)
        if options.worker is not None and "keep_instance" not in runtime.capabilities:
            raise InvalidOption(
                "worker", options.worker, f"None: workers of the runtime {runtime.name!r} keep no instances"
            )
        self.is_remote = "share_memory" not in runtime.capabilities
        instances = options.new_instances()
        if options.worker is not None and not self.is_remote:
            instances = ThreadInstances(options.name, options.worker, options.capacity, options.capacity_strategy)
        super().__init__(bridge, options, primitives.system_clock, runtime, instances)
        self.state_lock = self.engine.state_lock


class Sides:
    """Both sides of a pool on one loop."""

    def __init__(self, bridge: LoopBridge, for_coroutines: PoolOptions, for_threads: PoolOptions) -> None:
        self.bridge = bridge
        self.coroutines = CoroutineSide(bridge, for_coroutines)
        self.threads = FunctionSide(bridge, for_threads)
        self.wait_for_room = for_coroutines.when_full == "block"  # `do`, `map` and `stream` wait for room
        self._loop_end_watcher: AsyncGenerator[None, None] | None = None
        self._dropped = False
        bridge.sides = self  # running work keeps the bridge alive, and so both sides

    def __iter__(self) -> Iterator[Side]:
        return iter((self.coroutines, self.threads))

    def enter(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """The pool is used on `loop`. The first use binds the pool to its loop, and starts it."""
        new = self.bridge.loop is None
        self.bridge.bind_to(loop)
        if new:
            for side in self:
                side.engine.start()
            self._loop_end_watcher = self._watch_loop()
            with contextlib.suppress(StopIteration):
                self._loop_end_watcher.__anext__().send(None)

    @property
    def stateful(self) -> Side | None:
        """The side with workers that keep instances."""
        return next((side for side in self if side.engine.instances is not None), None)

    def find(self, fn: Any) -> tuple[Side, Any]:
        """The side that a function runs on, and the function; a string names a method of the `worker`."""
        if not isinstance(fn, str):
            if is_coroutine_function(fn):
                return self.coroutines, fn
            self._check_function(fn)
            return self.threads, fn
        side = self.stateful
        if side is None:
            raise no_workers_class(self.bridge.name, fn)
        assert side.engine.instances is not None
        return side, side.engine.instances.method(fn)

    def find_generator(self, fn: Any) -> tuple[Side, Any]:
        """The same, for a function that returns a stream."""
        if not isinstance(fn, str):
            check_streams(fn)
            if is_async_generator_function(fn):
                return self.coroutines, fn
            self._check_function(fn)
            return self.threads, fn
        side = self.stateful
        if side is None:
            raise no_workers_class(self.bridge.name, fn)
        instances = side.engine.instances
        assert instances is not None
        return side, instances.generator(fn) if isinstance(instances, LoopInstances) else instances.method(fn)

    def _check_function(self, fn: Any) -> None:
        if self.threads.engine.by_name_only:
            raise only_by_name(fn)

    async def ready(self, timeout: float | None) -> bool:
        """Wait until both sides are ready; False when `timeout` seconds passed first."""
        until = None if timeout is None else time.monotonic() + timeout
        for side in self:
            if not await side.ready(None if until is None else max(0.0, until - time.monotonic())):
                return False
        return True

    async def close(self, grace: float | None, drain: bool) -> None:
        """Reject new work, run or cancel waiting calls, and wait until none runs; see `AsyncPool.close`."""
        until = None if grace is None else time.monotonic() + grace
        for side in self:
            side.engine.reject_new_work("it is closed", drain)
            if not drain:
                side.engine.cancel_waiting()
        if self.coroutines.runs_here() is not None:
            return
        if not await self._closed(grace):
            for side in self:
                side.engine.cancel_waiting()
            self.coroutines.cancel_running(grace or 0.0)
            self.threads.engine.abandonment.give_up_running(grace or 0.0)
            if self.threads.is_remote:
                await self.threads.closed(None)  # the pool kills the processes, which takes a moment
            if not await self.coroutines.closed(CLEANUP_SECONDS):
                self.coroutines.engine.abandonment.give_up_running(grace or 0.0)
        for side in self:
            is_prepared = await side.prepared(None if until is None else max(0.0, until - time.monotonic()))
            side.engine.startup.join(None if is_prepared else 0.0)
            side.engine.shutdown.join_workers()
            side.engine.timer.join()
        self.bridge.catch_up()  # requests may have ended on threads since the last delivery
        await self._stop_watching()
        if all(side.engine.status.ended for side in self):
            for side in self:
                side.engine.drain_watch.release()  # of a side that failed
            self.bridge.sides = None

    async def _closed(self, timeout: float | None) -> bool:
        start = time.monotonic()
        for side in self:
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
            if not await side.closed(left):
                return False
        return True

    def pool_is_gone(self) -> None:
        """The pool was garbage-collected: drain it.

        This may run inside the garbage collector, on any thread and inside any critical section, so it takes no lock.
        """
        self._dropped = True
        if self.bridge.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.bridge.loop.call_soon_threadsafe(
                    self.coroutines.engine.reject_new_work, "it was garbage-collected"
                )
            close_in_background(self.threads.engine.shutdown)

    # A loop that ends before the pool was closed.

    async def _watch_loop(self) -> AsyncGenerator[None, None]:
        """Wait for the loop to shut down: `asyncio.run` then closes all async generators, also this one."""
        try:
            yield
        finally:
            engine = self.coroutines.engine
            if engine.state is not PoolState.CLOSED and (not self._dropped or len(engine.registry)):
                await self._loop_ends()

    async def _loop_ends(self) -> None:
        logger.warning(
            "%s: the event loop ends, but the pool was not closed; cancelling its running calls", self.bridge.name
        )
        for side in self:
            side.engine.reject_new_work("its event loop has ended", drain=False)
            side.engine.cancel_waiting()
        self.coroutines.cancel_running(0.0)
        if not await self.coroutines.closed(CLEANUP_SECONDS):
            self.coroutines.engine.abandonment.give_up_running(0.0)

    async def _stop_watching(self) -> None:
        farewell, self._loop_end_watcher = self._loop_end_watcher, None
        if farewell is not None:
            await farewell.aclose()

"""The two lanes of an `AsyncPool`: coroutines on the loop, functions on threads. Each is an engine of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import time
import types
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, ClassVar

from bullpen import primitives
from bullpen.core.backlog import BoundedBacklog
from bullpen.core.lifecycle import PoolState
from bullpen.core.request import QUEUED, RUNNING, Request, WrappedCall
from bullpen.core.terms import Terms
from bullpen.core.timing import TimeLimits, Timing
from bullpen.core.worker import Worker
from bullpen.errors import InvalidOption, InvalidOptionType, NotCallable
from bullpen.pool.async_call import (
    AsyncCall,
    AsyncFuture,
    Bell,
    LoopCall,
    RemoteCall,
    TermedLoopCall,
    TermedRemoteCall,
    TermedThreadCall,
    ThreadCall,
)
from bullpen.pool.async_instances import LoopInstances, ThreadInstances
from bullpen.pool.engine import Engine
from bullpen.pool.exit import close_in_background
from bullpen.pool.home import Home, LoopClock, LoopGate, LoopTicket, LoopTimer
from bullpen.pool.instances import Instances, no_workers_class
from bullpen.pool.options import PoolOptions
from bullpen.runtimes.open import open_event_loop, open_runtime
from bullpen.runtimes.port import coroutine_request, only_by_name

logger = logging.getLogger("bullpen")

CLEANUP_SECONDS = 1.0  # what a coroutine gets to end after it was cancelled for good

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


class Lane:
    """One engine, and how calls get into it."""

    plain: ClassVar[Callable[..., AsyncCall]]  # the kinds of its calls
    termed: ClassVar[Callable[..., AsyncCall]]

    def __init__(
        self,
        home: Home,
        options: PoolOptions,
        clock: primitives.Clock,
        runtime: Any,
        call_home: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        self.home = home
        options = dataclasses.replace(options, when_full="reject")  # an engine would block the loop
        self.engine = engine = Engine(options, runtime, clock, functools.partial(LoopTimer, home), call_home)
        self.dispatcher = engine.dispatcher
        self.offer = engine.dispatcher.offer
        self.wrap = options.wrap

    @property
    def capabilities(self) -> frozenset[str]:
        return self.engine.runtime.capabilities

    def _new_instances(self, kind: type[Instances]) -> None:
        """Have an instance of the pool's `worker` kept by each worker here."""
        options = self.engine.options
        assert options.worker is not None
        self.engine.instances = kind(options.name, options.worker, options.capacity, options.capacity_strategy)

    def new_call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        future: AsyncFuture[Any] | Bell | None,
        terms: Terms | None = None,
    ) -> AsyncCall:
        """A call in the caller's context, which tells `future` when it ends."""
        if self.wrap is not None:
            fn, args, kwargs = self.wrap, (WrappedCall(fn, *args, **kwargs),), {}
        if terms is None:
            return self.plain(self, fn, args, kwargs, future)
        call = self.termed(self, fn, args, kwargs, future)
        call.agree(terms)
        return call

    def admit(self, call: AsyncCall, limits: TimeLimits) -> bool:
        """Take `call` in; False if there is no room."""
        engine = self.engine
        if limits.budget <= 0:
            engine.refuse_spent(call, limits)
        if call.terms is not None and call.terms.session is not None:
            return engine.submit_in_session(call, limits)
        return engine.submit(call, limits)

    async def submit_patiently(self, call: AsyncCall, limits: TimeLimits) -> None:
        """Admit `call`, after waiting for room if need be."""
        engine, dispatcher = self.engine, self.dispatcher
        if engine.bounded is None:
            engine.submit(call, limits)
            return
        if dispatcher.draining:
            raise engine.not_open()
        timing = None
        if limits.any:
            timing = call.timing = Timing(call, engine.clock.monotonic(), limits)
        if not dispatcher.offer_bounded(engine.bounded, call) and not self.push_in(engine.bounded, call):
            await self._wait_for_room(call)
        if dispatcher.draining and dispatcher.withdraw(call):
            raise engine.too_late()
        if timing is not None and engine.time.deadlines.arm_queued(timing):
            engine.time.wake()

    async def _wait_for_room(self, call: AsyncCall) -> None:
        engine, backlog = self.engine, self.engine.bounded
        assert backlog is not None
        until = math.inf if call.timing is None else call.timing.start_by
        ticket = LoopTicket(self.home)
        try:
            backlog.take_ticket(ticket)
            while True:
                ticket.rearm()
                if self.dispatcher.draining:
                    raise engine.not_open()
                if self.dispatcher.offer_bounded(backlog, call, ticket):
                    return
                timeout = None if until == math.inf else until - engine.clock.monotonic()
                if not await ticket.gate.wait(timeout):
                    engine.time.raise_too_late(call)
        except BaseException:
            if not call.ended:  # closed, or cancelled
                self.dispatcher.turn_away(call)
            raise
        finally:
            try:
                backlog.return_ticket(ticket)
            except BaseException:  # interrupted: nobody behind it shall wait for it forever
                backlog.return_ticket(ticket)
                raise

    def give_up(self, call: AsyncCall) -> None:
        """Its caller does not want it any more."""
        engine = self.engine
        if engine.cancel_queued(call) or (len(engine.retries) and engine.retries.cancel(call)):
            return
        worker = call.holder
        if worker is not None and call.cancel_running():
            engine.runtime.cancel(worker, call)

    def was_cancelled(self, call: AsyncCall, worker: Worker | None) -> None:
        self.engine.cancelled.add()
        self.engine.report_end(call, worker)

    def push_in(self, backlog: BoundedBacklog, call: AsyncCall) -> bool:  # noqa: ARG002 — see LoopLane
        """Take in a call although there is no room for it, if its caller must not wait for room."""
        return False

    def awaited(self, call: AsyncCall) -> None:
        """Somebody wants to know when `call`, which waits for a worker, ends."""

    async def ready(self, timeout: float | None) -> bool:
        """Wait until the workers that have to be there are; False when `timeout` seconds passed first."""
        gate = LoopGate(self.home)
        if self.engine.startup.line_up(gate):
            try:
                if not await gate.wait(timeout):
                    return False
            finally:
                self.engine.startup.leave_line(gate)
        self.engine.check_open()
        return True

    async def closed(self, timeout: float | None) -> bool:
        """Wait until the lane is closed; False when `timeout` seconds passed first."""
        gate = LoopGate(self.home)
        return not self.engine.opens_when_closed(gate) or await gate.wait(timeout)

    async def prepared(self, timeout: float | None) -> bool:
        """Wait until no delegate prepares the lane any more; False when `timeout` seconds passed first."""
        gate = LoopGate(self.home)
        return not self.engine.startup.opens_when_joined(gate) or await gate.wait(timeout)


class LoopLane(Lane):
    """Coroutines, each in a task of its own."""

    plain = LoopCall
    termed = TermedLoopCall

    def __init__(self, home: Home, options: PoolOptions) -> None:
        super().__init__(home, options, LoopClock(), open_event_loop(), home.call)
        self.lock = primitives.state_lock()  # of all calls: all that happens to them happens on one thread
        if options.worker is not None:
            self._new_instances(LoopInstances)

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"keep_instance"}

    def runs_here(self) -> Request | None:
        """The request of this lane that the current coroutine belongs to."""
        request = coroutine_request.get()
        if request is None or request.state is not RUNNING or not isinstance(request, LoopCall):
            return None
        return request if request.lane is self else None

    def push_in(self, backlog: BoundedBacklog, call: AsyncCall) -> bool:
        """For a coroutine of this lane, to wait for room could be to wait for itself."""
        if self.runs_here() is None:
            return False
        backlog.revoke()  # the place that it gives back when it leaves
        backlog.put_free(call)
        return True

    def awaited(self, call: AsyncCall) -> None:
        """If a coroutine of this lane waits for it, nobody may ever be free to run it: then a helper does."""
        waiting = self.runs_here()
        if waiting is not None and call.state is QUEUED:
            self.engine.nested.want(waiting.worker, waiting, call)

    def cancel_running(self, grace: float) -> None:
        """Cancel all that runs for good, and tell whoever waits for it."""
        engine = self.engine
        for worker in engine.registry.snapshot():
            for request in worker.requests:
                if request.abandon(engine.workforce.outlasted(worker, grace)):
                    engine.time.timed_out.add()
                    engine.report_end(request, worker)
                engine.runtime.cancel(worker, request)
            worker.handle.cancel(None)  # it may be warming up, or closing what it keeps


class ThreadLane(Lane):
    """Functions, on threads, in the contextvars of their callers; or in processes, or programs."""

    plain = ThreadCall
    termed = TermedThreadCall

    def __init__(self, home: Home, options: PoolOptions) -> None:
        runtime = open_runtime(options.runtime, options.initializer, options.initargs)
        if options.worker is not None and "keep_instance" not in runtime.capabilities:
            raise InvalidOption(
                "worker", options.worker, f"None: workers of the runtime {runtime.name!r} keep no instances"
            )
        super().__init__(home, options, primitives.system_clock, runtime)
        self.state_lock = self.engine.state_lock
        self.is_remote = "share_memory" not in runtime.capabilities
        if self.is_remote:
            self.plain = RemoteCall  # type: ignore[misc]
            self.termed = TermedRemoteCall  # type: ignore[misc,assignment]
        elif options.worker is not None:
            self._new_instances(ThreadInstances)


class Lanes:
    """Both lanes of a pool on one loop, and what concerns both."""

    def __init__(self, home: Home, for_coroutines: PoolOptions, for_threads: PoolOptions) -> None:
        self.home = home
        self.coroutines = LoopLane(home, for_coroutines)
        self.threads = ThreadLane(home, for_threads)
        self.patient = for_coroutines.when_full == "block"  # then whoever can wait for room does so
        self._farewell: AsyncGenerator[None, None] | None = None
        self._dropped = False
        home.lanes = self  # whatever runs keeps all of this alive

    def __iter__(self) -> Iterator[Lane]:
        return iter((self.coroutines, self.threads))

    def enter(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Somebody uses the pool on `loop`. The first time decides where it belongs, and starts it."""
        new = self.home.loop is None
        self.home.settle_on(loop)
        if new:
            for lane in self:
                lane.engine.start()
            self._farewell = self._watch_loop()
            with contextlib.suppress(StopIteration):
                self._farewell.__anext__().send(None)

    @property
    def stateful(self) -> Lane | None:
        """The lane whose workers keep instances."""
        return next((lane for lane in self if lane.engine.instances is not None), None)

    def find(self, fn: Any) -> tuple[Lane, Any]:
        """The lane that a function runs on, and the function; a string names a method of the `worker`."""
        if not isinstance(fn, str):
            if is_coroutine_function(fn):
                return self.coroutines, fn
            self._check_function(fn)
            return self.threads, fn
        lane = self.stateful
        if lane is None:
            raise no_workers_class(self.home.name, fn)
        assert lane.engine.instances is not None
        return lane, lane.engine.instances.method(fn)

    def find_generator(self, fn: Any) -> tuple[Lane, Any]:
        """The same, for a function whose result is a stream."""
        if not isinstance(fn, str):
            check_streams(fn)
            if is_async_generator_function(fn):
                return self.coroutines, fn
            self._check_function(fn)
            return self.threads, fn
        lane = self.stateful
        if lane is None:
            raise no_workers_class(self.home.name, fn)
        instances = lane.engine.instances
        assert instances is not None
        return lane, instances.generator(fn) if isinstance(instances, LoopInstances) else instances.method(fn)

    def _check_function(self, fn: Any) -> None:
        if self.threads.engine.by_name_only:
            raise only_by_name(fn)

    async def ready(self, timeout: float | None) -> bool:
        """Wait until the workers of both that have to be there are; False when `timeout` seconds passed first."""
        until = None if timeout is None else time.monotonic() + timeout
        for lane in self:
            if not await lane.ready(None if until is None else max(0.0, until - time.monotonic())):
                return False
        return True

    async def close(self, grace: float | None, drain: bool) -> None:
        """Take no new work, run what waits or cancel it, and wait until nothing runs; see `AsyncPool.close`."""
        until = None if grace is None else time.monotonic() + grace
        for lane in self:
            lane.engine.refuse_work("it is closed", drain)
            if not drain:
                lane.engine.cancel_waiting()
        if self.coroutines.runs_here() is not None:
            return
        if not await self._closed(grace):
            for lane in self:
                lane.engine.cancel_waiting()
            self.coroutines.cancel_running(grace or 0.0)
            self.threads.engine.workforce.give_up_running(grace or 0.0)
            if self.threads.is_remote:
                await self.threads.closed(None)  # they are killed: that takes a moment
            if not await self.coroutines.closed(CLEANUP_SECONDS):
                self.coroutines.engine.workforce.give_up_running(grace or 0.0)
        for lane in self:
            is_prepared = await lane.prepared(None if until is None else max(0.0, until - time.monotonic()))
            lane.engine.startup.join(None if is_prepared else 0.0)
            lane.engine.workforce.join()
            lane.engine.time.join()
        self.home.catch_up()  # the threads may have ended since the loop last looked
        await self._stop_watching()

    async def _closed(self, timeout: float | None) -> bool:
        start = time.monotonic()
        for lane in self:
            left = None if timeout is None else max(0.0, timeout - (time.monotonic() - start))
            if not await lane.closed(left):
                return False
        return True

    def pool_is_gone(self) -> None:
        """Nobody refers to the pool any more: let it drain.

        This may run inside the garbage collector, on any thread and inside any critical section, so it takes no lock.
        """
        self._dropped = True
        if self.home.loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.home.loop.call_soon_threadsafe(self.coroutines.engine.refuse_work, "nobody refers to it")
            close_in_background(self.threads.engine)

    # A loop that ends before the pool was closed.

    async def _watch_loop(self) -> AsyncGenerator[None, None]:
        """Waits for the loop to shut down: then `asyncio.run` closes all async generators, of which this is one."""
        try:
            yield
        finally:
            engine = self.coroutines.engine
            if engine.state is not PoolState.CLOSED and (not self._dropped or len(engine.registry)):
                await self._loop_ends()

    async def _loop_ends(self) -> None:
        logger.warning("%s: its event loop ends, and it was not closed; what it runs is cancelled", self.home.name)
        for lane in self:
            lane.engine.refuse_work("its event loop has ended", drain=False)
            lane.engine.cancel_waiting()
        self.coroutines.cancel_running(0.0)
        if not await self.coroutines.closed(CLEANUP_SECONDS):
            self.coroutines.engine.workforce.give_up_running(0.0)

    async def _stop_watching(self) -> None:
        farewell, self._farewell = self._farewell, None
        if farewell is not None:
            await farewell.aclose()

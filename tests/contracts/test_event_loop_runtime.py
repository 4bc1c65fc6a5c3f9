"""The contract of runtimes, kept by the event loop.

The functions of the contract would block the loop. So each is run on a thread of its own, by a coroutine that waits for
it: what is tested is how workers start, take over, report, are cancelled and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bullpen.pools.dispatch.request import RUNNING, Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes import port
from bullpen.pools.runtimes.event_loop import EventLoopRuntime
from bullpen.pools.runtimes.port import WorkerEvents
from bullpen.testing import RuntimeContract
from bullpen.testing._calls import PATIENCE


class TestEventLoopRuntime(RuntimeContract):
    loop: asyncio.AbstractEventLoop

    @pytest.fixture(autouse=True)
    def _loop(self) -> Iterator[None]:
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=run_on, args=(self.loop,))
        thread.start()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(all_ended(), self.loop).result(PATIENCE)
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join()
            self.loop.close()

    def make_runtime(
        self, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
    ) -> EventLoopRuntime:
        return OffLoop(self.loop, initializer, initargs)


async def all_ended() -> None:
    """Wait for coroutines that were left behind, whose functions return now."""
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


def run_on(loop: asyncio.AbstractEventLoop) -> None:
    """As `run_forever`, but a `KeyboardInterrupt` in a coroutine, which ends that, is not the end here."""
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue
        return


class OffLoop(EventLoopRuntime):
    """Runs functions that block, which coroutines must not."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(loop)
        self._first = initializer
        self._first_args = initargs

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        runtime = EventLoopRuntime(self._loop)
        if self._first is not None:
            runtime = EventLoopRuntime(self._loop, on_a_thread, (worker, self._first, *self._first_args))
        runtime.start(worker, Adapted(events))


class Adapted:
    """Reports to the pool, and makes coroutine functions of all functions that come back."""

    def __init__(self, events: WorkerEvents) -> None:
        self._events = events
        self.retire = events.retire
        self.exited = events.exited
        self.died = events.died

    def prepare(self, worker: Worker) -> None:
        if not isinstance(worker.handle, Hand):
            worker.handle = Hand(worker)
        self._events.prepare(worker)

    def ready(self, worker: Worker) -> Request | None:
        return adapt(worker, self._events.ready(worker))

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        return adapt(worker, self._events.finished(worker, request, state, value))


class Hand:
    """A worker's handle."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._handle = worker.handle

    def hand(self, request: Request | None) -> None:
        self._handle.hand(adapt(self._worker, request))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def adapt(worker: Worker, request: Request | None) -> Request | None:
    if request is not None and request.state is RUNNING and not inspect.iscoroutinefunction(request.fn):
        request.args = (worker, request.fn, *request.args)
        request.fn = on_a_thread
    return request


async def on_a_thread(worker: Worker, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The outcome of a call on a new thread, as `worker`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[BaseException | None, Any]] = loop.create_future()
    request = port.coroutine_request.get()

    def tell(error: BaseException | None, value: Any) -> None:
        if not ended.done():
            ended.set_result((error, value))

    def run() -> None:
        lane = port.enter_thread_of(worker)
        if request is not None:
            lane.append(request)
        error, value = None, None
        try:
            value = fn(*args, **kwargs)
        except BaseException as raised:
            error = raised
        finally:
            port.leave()
        with contextlib.suppress(RuntimeError):  # nobody waits any more, and the loop is closed
            loop.call_soon_threadsafe(tell, error, value)

    threading.Thread(target=contextvars.Context().run, args=(run,)).start()
    error, value = await ended
    if error is not None:
        try:
            raise error
        finally:
            del error
    return value

"""`Pool.stream`: the items of a generator that runs on a worker, as they are produced.

A stream is one request. It puts items into a bounded buffer and waits while the buffer is full. When the reader closes
or drops the stream, the worker closes the generator at its next item, so that its `finally` blocks run there.

A time limit ends a stream at once, and buffered items are dropped. The reader gets an error of the function, and the
loss of the worker, after all earlier items. An idempotent stream runs again only if it had produced no item when its
worker died, so no item comes twice.
"""

from __future__ import annotations

import _thread
import contextlib
import enum
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import CancelledError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bullpen import primitives
from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.dispatch.request import CANCELLED, DONE, FAILED, LOST, QUEUED
from bullpen.pools.runtimes.port import ProducesItems, current_worker

if TYPE_CHECKING:
    from bullpen.pools.dispatch.worker import Worker
    from bullpen.pools.supervision.engine import Engine

T = TypeVar("T")

DEFAULT_BUFFER = 100
STALL_SECONDS = 5.0  # while the pool closes, a reader that takes nothing for so long counts as gone


class Stream(Generic[T]):
    """The items of one `stream`. Close it, use it in `with`, or drop it to end it early."""

    __slots__ = ("__weakref__", "_owner", "_work")

    def __init__(self, work: StreamWork[T], owner: object) -> None:
        self._work = work
        self._owner = owner  # a reference to the pool: an unreferenced pool drains

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._work.next()
        except BaseException:
            del self  # a kept traceback must not keep the stream alive
            raise

    def close(self) -> None:
        """End the stream: drop the buffered items, and close the generator at its next item. If the reader was
        interrupted, the request is cancelled at once, where the runtime can cancel it.
        """
        self._work.close()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._work.close()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        work: StreamWork[T] | None = getattr(self, "_work", None)
        if work is not None and not work.over:
            with contextlib.suppress(
                RuntimeError
            ):  # no new threads at interpreter exit, where streams are ended anyway
                _thread.start_new_thread(work.close, ())


class _Answer(enum.Enum):
    TAKEN = enum.auto()
    FULL = enum.auto()
    OVER = enum.auto()  # the stream has ended


class StreamWork(Generic[T]):
    """One running stream: the buffer between a request and its reader."""

    future: PoolFuture[None]

    def __init__(self, engine: Engine, size: int) -> None:
        self.engine = engine
        self.size = size
        self._items: deque[T] = deque()
        self._lock = primitives.leaf_lock()
        self._begun = False  # an item was produced
        self._closed = False  # the reader has closed or dropped it, or read it to its end
        self._interrupted = False  # the last read was interrupted
        self._cut: BaseException | None = None  # why the pool ended it
        self.reads = 0
        self._reader = primitives.current_thread_id()  # the thread that reads; before the first read, its maker
        self._closer: int | None = None  # the thread that waits for the pool to close
        self._reader_gate: primitives.Lock | None = None  # closed while the reader waits
        self._wake_producer: Callable[[], object] | None = None  # set while the producer waits
        self._inline: _Inline[T] | None = None

    def admit(self, future: PoolFuture[None], submit: Callable[[PoolFuture[None]], None]) -> None:
        """Begin, with `future` as the request."""
        self.future = future
        future.add_done_callback(self._ended)
        self.engine.streams[id(self)] = self
        try:
            submit(future)
        except BaseException:
            self._closed = True
            self.engine.streams.pop(id(self), None)
            raise

    @property
    def over(self) -> bool:
        """The stream is closed or has ended. Takes no lock."""
        return self._closed or (self.future.ended and self._inline is None)

    # The producer's side.

    def offer(self, item: T, wake: Callable[[], object]) -> _Answer:
        """Put `item` into the buffer. If the buffer is full, `wake` is called once there is room or the stream ends."""
        with self._lock:
            if self._closed or self._cut is not None or self.future.ended:
                return _Answer.OVER
            if len(self._items) >= self.size:
                if self._closer is None or self._closer != self._reader:
                    self._wake_producer = wake
                    return _Answer.FULL
                self._cut = self.engine.not_open()  # the reader waits for the pool to close, so it reads nothing
                gate = self._take_gate()
                answer = _Answer.OVER
            else:
                if not self._begun:
                    self._begun = True
                    self.future.once_only()
                self._items.append(item)
                gate = self._take_gate()
                answer = _Answer.TAKEN
        if gate is not None:
            gate.release()
        return answer

    def put(self, item: T) -> bool:
        """`offer`, and wait while the buffer is full; False if the stream has ended."""
        while True:
            gate = primitives.gate()
            gate.acquire()
            answer = self.offer(item, gate.release)
            if answer is not _Answer.FULL:
                return answer is _Answer.TAKEN
            reads = self.reads
            if not self.engine.clock.wait(gate, self.patience):
                self.stalled(reads)

    @property
    def patience(self) -> float | None:
        """How long the producer waits for room before it checks whether the reader still reads."""
        return STALL_SECONDS if self.engine.status.draining else None

    def stalled(self, reads: int) -> None:
        """The pool closes, and the buffer stayed full: end the stream if the reader has taken nothing since."""
        with self._lock:
            self._wake_producer = None
            if self.reads == reads:
                self._cut = self.engine.not_open()

    # The reader's side.

    def next(self) -> T:
        while True:
            if self._inline is not None:
                return self._next_inline(self._inline)
            gate = None
            wake = None
            error: BaseException | None = None
            with self._lock:
                self._reader = primitives.current_thread_id()
                self._interrupted = False
                if self._closed:
                    raise StopIteration
                ended, state = self.future.ended, self.future.state
                given_up = ended and state not in (DONE, FAILED, CANCELLED, LOST)
                if self._items and not given_up:
                    item = self._items.popleft()
                    self.reads += 1
                    if len(self._items) <= self.size // 2:
                        wake = self._take_wake()
                elif ended or self._cut is not None:
                    error = self._outcome()
                    self._closed = True
                    self._items.clear()
                    wake = self._take_wake()
                elif self._reader_gate is not None:
                    raise _read_twice()
                else:
                    gate = self._reader_gate = primitives.gate()
                    gate.acquire(False)
            if wake is not None:
                wake()
            if gate is not None:
                self._wait_at(gate)
            elif error is not None:
                self.engine.streams.pop(id(self), None)
                try:
                    raise error
                finally:
                    error = None  # its traceback refers to this frame, and would keep the reader's variables alive
            else:
                return item

    def _outcome(self) -> BaseException:
        """The error that the reader gets after the last item; `StopIteration` at a normal end."""
        if self._cut is not None:
            return self._cut
        state, value = self.future.state, self.future.value
        if state is DONE:
            return StopIteration()
        if state is CANCELLED:
            return CancelledError()
        if isinstance(value, StopIteration):  # it would look like the end of the stream
            error = RuntimeError("the function of a stream raised StopIteration")
            error.__cause__ = value
            return error
        assert isinstance(value, BaseException)
        return value

    def _wait_at(self, gate: primitives.Lock) -> None:
        """Wait for an item, or for the end."""
        try:
            self._wait(gate)
        except BaseException as error:
            self._interrupted = not isinstance(error, Exception)
            raise
        finally:  # also after an interrupt: the reader no longer waits at the gate
            with self._lock:
                if self._reader_gate is gate:
                    self._reader_gate = None

    def _wait(self, gate: primitives.Lock) -> None:
        self.engine.check_may_wait()
        worker = current_worker()
        if worker is None:
            self.engine.clock.wait(gate, None)
            return
        nested = self.engine.nested
        if self.future.state is QUEUED and nested.is_own(worker) and self._begin_here(worker):
            return
        with nested.awaiting(worker, self.future):
            self.engine.clock.wait(gate, None)

    def close(self) -> None:
        """End the stream for its reader."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._items.clear()
            wake = self._take_wake()
            inline, self._inline = self._inline, None
        if wake is not None:
            wake()
        if inline is not None:
            inline.close()
        if self._interrupted:  # an interrupted reader does not wait for the next item
            self.engine.cancel(self.future)
        else:
            self.future.cancel()
        self.engine.streams.pop(id(self), None)

    # The pool's side.

    def pool_closes(self, *, drain: bool, closer: int | None) -> None:
        """The pool closes. Without `drain`, end at once. With it, end when the reader is `closer`, or stops reading."""
        with self._lock:
            if drain:
                self._closer = closer
            elif not self._closed and self._cut is None and not self.future.ended:
                self._cut = self.engine.not_open()
            gate = None if self._cut is None else self._take_gate()
            wake = self._take_wake()
        if gate is not None:
            gate.release()
        if wake is not None:
            wake()
        if not drain:
            self.future.cancel()

    def _ended(self, _: object) -> None:
        """The request has ended, in any state: wake both sides."""
        with self._lock:
            gate, wake = self._take_gate(), self._take_wake()
        if gate is not None:
            gate.release()
        if wake is not None:
            wake()
        self.engine.streams.pop(id(self), None)

    def _take_gate(self) -> primitives.Lock | None:
        gate, self._reader_gate = self._reader_gate, None
        return gate

    def _take_wake(self) -> Callable[[], object] | None:
        wake, self._wake_producer = self._wake_producer, None
        return wake

    # A worker that reads a stream of its own pool, which has not begun.

    def _begin_here(self, worker: Worker) -> bool:
        """Run the generator on the reader's own thread. If that is not possible, ask for a helper and return False."""
        future = self.future
        call, args, kwargs = future.fn, future.args, future.kwargs or {}
        timing = future.timing
        limited = timing is not None and timing.limits.timeout is not None  # this thread cannot abandon its own run
        elsewhere = limited or not isinstance(call, Produce)
        if elsewhere or (inspect.isasyncgenfunction(call.fn) and future.pinned_to is not worker):
            self.engine.nested.have_helped(worker, future)
            return False
        if not self.engine.nested.take(worker, future, queued=True):
            return False
        self._inline = _Inline(self, worker, call.open(*args, **kwargs))
        return True

    def _next_inline(self, inline: _Inline[T]) -> T:
        if inline.is_running():
            raise _read_twice()
        if not self.future.ended:
            with inline.running():
                try:
                    item = next(inline.items)
                except BaseException as error:
                    if inline.is_running():  # another thread reads at the same time
                        raise _read_twice() from None
                    inline.settle(error)
                else:
                    if not self._closed:
                        return item
        self._inline = None
        inline.close()
        outcome = self._outcome()
        self._closed = True
        raise outcome


def _read_twice() -> ValueError:
    return ValueError(
        "this stream is being read already, by another thread or by a function that it calls; read it in one place, "
        "and pass its items on"
    )


class _Inline(Generic[T]):
    """A generator that runs on the thread of its reader."""

    def __init__(self, work: StreamWork[T], worker: Worker, items: Generator[T, None, None]) -> None:
        self._work = work
        self._worker = worker
        self._settled = False
        self.items = items

    def is_running(self) -> bool:
        """The generator is producing an item."""
        return inspect.getgeneratorstate(self.items) == inspect.GEN_RUNNING

    def running(self) -> contextlib.AbstractContextManager[None]:
        return self._work.engine.nested.inline(self._work.future)

    def settle(self, error: BaseException) -> None:
        """The generator has ended: with `StopIteration` by itself, else by an error."""
        self._settled = True
        nested, future = self._work.engine.nested, self._work.future
        if isinstance(error, StopIteration):
            nested.settle(self._worker, future, DONE, None)
        else:
            nested.settle(self._worker, future, FAILED, error)

    def close(self) -> None:
        """Close the generator, unless it has ended. If it is running, its reader closes it afterwards."""
        if self._settled or self.is_running():
            return
        with self.running():
            try:
                self.items.close()
            except BaseException as error:
                self.settle(error)
            else:
                self.settle(StopIteration())


class Produce(ProducesItems):
    """The call that a worker makes for a stream: run a function, and put the items that it yields into the buffer."""

    __slots__ = ("__name__", "__qualname__", "_work", "fn")

    def __init__(self, work: StreamWork[Any], fn: Callable[..., Any]) -> None:
        self._work = work
        self.fn = fn
        self.__name__ = str(getattr(fn, "__name__", None) or fn)
        self.__qualname__ = str(getattr(fn, "__qualname__", None) or fn)

    @property
    def needs_instance(self) -> bool:
        return bool(getattr(self.fn, "needs_instance", False))

    @property
    def room(self) -> int:  # type: ignore[override]
        return self._work.size

    def take(self, item: Any, wake: Callable[[], object]) -> bool | None:
        answer = self._work.offer(item, wake)
        return None if answer is _Answer.FULL else answer is _Answer.TAKEN

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        made = self.fn(*args, **kwargs)
        if hasattr(made, "__aiter__"):
            _run_async(made, self._work)
            return
        items = _iterator(made, self.__qualname__)
        try:
            for item in items:
                if not self._work.put(item):
                    break
        finally:
            _close(items)

    def open(self, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """The items one by one, for a reader on the worker itself."""
        made = self.fn(*args, **kwargs)
        yield from _each_async(made) if hasattr(made, "__aiter__") else _iterator(made, self.__qualname__)


def _iterator(made: Any, name: str) -> Iterator[Any]:
    try:
        return iter(made)
    except TypeError:
        message = f"{name} returned {type(made).__name__}; stream() needs a function that returns an iterable"
        raise TypeError(message) from None


def _close(items: Iterator[Any]) -> None:
    if isinstance(items, Generator):
        items.close()


def _run_async(made: Any, work: StreamWork[Any]) -> None:
    """Run an async generator on an event loop of its own, which keeps running while the buffer is full."""
    import asyncio

    async def put(item: Any) -> bool:
        loop = asyncio.get_running_loop()
        while True:
            room = asyncio.Event()
            answer = work.offer(item, lambda room=room: loop.call_soon_threadsafe(room.set))  # type: ignore[misc]
            if answer is not _Answer.FULL:
                return answer is _Answer.TAKEN
            reads = work.reads
            try:
                await asyncio.wait_for(room.wait(), work.patience)
            except TimeoutError:
                work.stalled(reads)

    async def pump() -> None:
        items: AsyncIterator[Any] = made.__aiter__()
        try:
            async for item in items:
                if not await put(item):
                    break
        finally:
            await _aclose(items)

    with asyncio.Runner() as runner:
        runner.run(pump())


def _each_async(made: Any) -> Generator[Any, None, None]:
    """The items of an async generator, each awaited on an event loop of their own."""
    import asyncio

    items: AsyncIterator[Any] = made.__aiter__()

    async def following() -> Any:
        return await items.__anext__()

    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    item = runner.run(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(_aclose(items))


async def _aclose(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()

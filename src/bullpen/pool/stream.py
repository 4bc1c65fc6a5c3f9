"""`Pool.stream`: the items of a generator that runs on a worker, as they are produced.

A stream is one request. It puts items into a bounded buffer and waits while that is full. When its reader goes away,
the generator is closed at its next item, on the worker, so that its `finally` blocks run there.

What ends a stream from outside, as a limit in time does, is told at once; its own error, and the loss of its worker,
come after the items before them. A stream that is idempotent runs again only if it had produced nothing when its
worker died: no item comes twice.
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
from bullpen.core.request import CANCELLED, DONE, FAILED, LOST, QUEUED
from bullpen.pool.future import PoolFuture
from bullpen.runtimes.port import ProducesItems, current_worker

if TYPE_CHECKING:
    from bullpen.core.worker import Worker
    from bullpen.pool.engine import Engine

T = TypeVar("T")

DEFAULT_BUFFER = 100
STALL_SECONDS = 5.0  # a reader that takes nothing for so long while the pool closes is taken for gone


class Stream(Generic[T]):
    """The items of one `stream`, for whoever reads them. Close it, use it in `with`, or drop it to end it early."""

    __slots__ = ("__weakref__", "_keeper", "_work")

    def __init__(self, work: StreamWork[T], keeper: object) -> None:
        self._work = work
        self._keeper = keeper  # the pool, which would drain if nobody held on to it

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._work.next()
        except BaseException:
            del self  # whoever keeps the traceback does not keep a stream that nobody reads any more
            raise

    def close(self) -> None:
        """Read no further: the generator is closed at its next item, and what is buffered is dropped. If the reader was
        interrupted, it is ended at once, where the runtime can.
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
    OVER = enum.auto()  # nobody wants more


class StreamWork(Generic[T]):
    """One stream under way: the buffer between a request and its reader."""

    future: PoolFuture[None]

    def __init__(self, engine: Engine, size: int) -> None:
        self.engine = engine
        self.size = size
        self._items: deque[T] = deque()
        self._lock = primitives.backlog_lock()
        self._begun = False  # something was produced
        self._closed = False  # nobody reads any more
        self._interrupted = False  # the reader was, and has not come back
        self._cut: BaseException | None = None  # why the pool ended it
        self.reads = 0
        self._reader = primitives.current_thread_id()  # the thread that reads, as far as is known
        self._closer: int | None = None  # the thread that waits for the pool to close
        self._reader_gate: primitives.Lock | None = None  # closed while the reader waits
        self._wake_producer: Callable[[], object] | None = None  # there while the producer waits
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
        """Nothing is left to end. Takes no lock."""
        return self._closed or (self.future.ended and self._inline is None)

    # The producer's side.

    def offer(self, item: T, wake: Callable[[], object]) -> _Answer:
        """Put `item` into the buffer; if there is no room, `wake` is called once there is, or nobody wants it."""
        with self._lock:
            if self._closed or self._cut is not None or self.future.ended:
                return _Answer.OVER
            if len(self._items) >= self.size:
                if self._closer is None or self._closer != self._reader:
                    self._wake_producer = wake
                    return _Answer.FULL
                self._cut = self.engine.not_open()  # its reader waits for the pool to close, and reads nothing
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
        """`offer`, and wait while there is no room; False if nobody wants more."""
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
        """How long the producer waits before it looks whether anybody reads."""
        return STALL_SECONDS if self.engine.dispatcher.draining else None

    def stalled(self, reads: int) -> None:
        """The pool closes, and there was no room for a while: if nothing was read since, nobody will."""
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
                    error = None  # whose traceback leads here, and would keep the reader's own variables alive
            else:
                return item

    def _outcome(self) -> BaseException:
        """What the reader gets after the last item."""
        if self._cut is not None:
            return self._cut
        state, value = self.future.state, self.future.value
        if state is DONE:
            return StopIteration()
        if state is CANCELLED:
            return CancelledError()
        if isinstance(value, StopIteration):  # which would look like the end
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
        finally:  # nobody waits there any more, also if this was interrupted
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
        """Nobody reads any further."""
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
        if self._interrupted:  # who was interrupted does not want it to go on until its next item either
            self.engine.cancel(self.future)
        else:
            self.future.cancel()
        self.engine.streams.pop(id(self), None)

    # The pool's side.

    def pool_closes(self, *, drain: bool, closer: int | None) -> None:
        """The pool closes: end at once, or, if it drains, when nobody reads; as the thread `closer` does not."""
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
        """The request has ended, however it was."""
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
        """Produce on the reader's own thread; or, where that cannot be, have a helper do it, and return False."""
        future = self.future
        call, args, kwargs = future.fn, future.args, future.kwargs or {}
        timing = future.timing
        limited = timing is not None and timing.limits.timeout is not None  # what runs here could not be left in time
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
                    if inline.is_running():  # another thread came in the same moment
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
        "this stream is being read already, by another thread or by what it calls; read it in one place, "
        "and pass its items on"
    )


class _Inline(Generic[T]):
    """A stream that is produced where it is read."""

    def __init__(self, work: StreamWork[T], worker: Worker, items: Generator[T, None, None]) -> None:
        self._work = work
        self._worker = worker
        self._settled = False
        self.items = items

    def is_running(self) -> bool:
        """It is just producing an item."""
        return inspect.getgeneratorstate(self.items) == inspect.GEN_RUNNING

    def running(self) -> contextlib.AbstractContextManager[None]:
        return self._work.engine.nested.inline(self._work.future)

    def settle(self, error: BaseException) -> None:
        """It has ended: by itself, if by `StopIteration`."""
        self._settled = True
        nested, future = self._work.engine.nested, self._work.future
        if isinstance(error, StopIteration):
            nested.settle(self._worker, future, DONE, None)
        else:
            nested.settle(self._worker, future, FAILED, error)

    def close(self) -> None:
        """End it, if it has not ended; the reader is not told how that went. While it runs, its reader sees to that."""
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
    """The call that a worker makes for a stream: run a function, and put what it yields into the buffer."""

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
        """The items one by one, for a reader that runs on the worker itself."""
        made = self.fn(*args, **kwargs)
        yield from _each_async(made) if hasattr(made, "__aiter__") else _iterator(made, self.__qualname__)


def _iterator(made: Any, name: str) -> Iterator[Any]:
    try:
        return iter(made)
    except TypeError:
        message = f"{name} returned {type(made).__name__}; a stream takes a generator, or what returns an iterable"
        raise TypeError(message) from None


def _close(items: Iterator[Any]) -> None:
    if isinstance(items, Generator):
        items.close()


def _run_async(made: Any, work: StreamWork[Any]) -> None:
    """Run an async generator on an event loop of its own, which goes on while the buffer is full."""
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

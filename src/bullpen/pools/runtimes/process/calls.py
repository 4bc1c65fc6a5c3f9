"""How a worker process runs requests: one at a time on its main thread, or several at once on threads.

In both cases a cancelled request gets one `RequestCancelled`. It is raised in the user's code only, never in ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from bullpen.pools.runtimes.process import wire


class RequestCancelled(BaseException):
    """Raised inside a request that was cancelled or has timed out.

    It is a `BaseException`, so that `except Exception` does not catch it. `finally` blocks run. If the request takes
    longer to end than the runtime's `cancel_grace`, the worker is killed.
    """


class Owner(Protocol):
    """The worker, as the classes below need it."""

    def note_begin(self, id: int) -> None: ...
    def attempt(self, id: int, data: Any, buffers: Any, running: Callable[[int], Any]) -> None: ...
    def next_frame(self) -> wire.Frame: ...
    def read_what_is_there(self) -> None: ...
    def take_notices(self) -> list[tuple[int, int]]: ...
    def take_calls(self) -> list[int]: ...
    def has(self, id: int) -> bool: ...
    def use_again(self, places: Any) -> None: ...
    def send(self, kind: int, id: int, data: bytes = b"", buffers: Any = ()) -> None: ...
    def send_error(self, kind: int, id: int, error: BaseException, hide: int = 0) -> None: ...


class MainThreadCalls:
    """Runs one request at a time, on the main thread.

    The worker reads frames between two requests. After a signal it reads them while a request runs: it interrupts that
    request if it is cancelled, and gives back those that have not begun if the app recalls them.
    """

    def __init__(self, owner: Owner) -> None:
        self._worker = owner
        self._running: int | None = None
        self._told = False
        self._nudged = False  # a signal came, and the frames were not read yet
        self._at_wire = False  # the running request reads or sends frames
        self._unwanted: set[int] = set()  # cancelled requests that have not begun
        self._credits = 0
        self._left = 0  # the id of the stream whose reader has left
        signal.signal(wire.NUDGE, self._nudge)

    def run(self, id: int, data: Any, buffers: Any) -> None:
        self._worker.note_begin(id)
        if id in self._unwanted:
            self._unwanted.discard(id)
            self._worker.send_error(wire.FAILED, id, RequestCancelled())
        else:
            self._worker.attempt(id, data, buffers, self._run)

    @contextlib.contextmanager
    def _run(self, id: int) -> Iterator[None]:
        self._told = False
        self._credits = 0
        try:
            self._running = id
            if self._nudged:
                self._look()
            yield
            self._running = None
        finally:  # it is interrupted at most once, so this runs in any case
            self._running = None

    def _nudge(self, *_: object) -> None:
        """The signal handler: a frame has come that cannot wait. If no request runs, the worker reads it anyway."""
        self._nudged = True
        if self._running is not None and not self._at_wire:
            self._look()

    def _look(self) -> None:
        """Read frames while a request runs, and interrupt the request if it is cancelled."""
        unwanted = []
        while self._nudged:  # another signal may set it again; after the loop its handler calls this
            with self._undisturbed():
                self._nudged = False
                self._worker.read_what_is_there()
                for kind, id in self._worker.take_notices():
                    if kind == wire.RECALL:
                        self.recall()
                    elif kind == wire.CREDIT:
                        self._left = id
                    else:
                        unwanted.append(id)
        for id in unwanted:
            self.cancel(id)

    def cancel(self, id: int) -> None:
        if id != self._running:
            if self._worker.has(id):
                self._unwanted.add(id)
        elif not self._told:
            self._told = True
            raise RequestCancelled

    def recall(self) -> None:
        """Give back the requests that have not begun."""
        ids = self._worker.take_calls()
        self._unwanted.difference_update(ids)
        self._worker.send(wire.NOT_BEGUN, 0, wire.dumps(ids)[0])

    def current(self) -> int:
        assert self._running is not None
        return self._running

    @contextlib.contextmanager
    def at_wire(self) -> Iterator[None]:
        """Inside, the running request reads or sends frames, and is not interrupted."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread is interrupted
            yield
            return
        with self._undisturbed():
            yield
        self._look()

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Inside, the signal handler only sets `_nudged`."""
        self._at_wire = True
        try:
            yield
        finally:
            self._at_wire = False

    def take_credit(self, id: int) -> bool:
        """Wait until the stream may send one more item; False if its reader has left."""
        while not self._credits:
            with self.at_wire():
                if self._left == id:  # no other frame would come
                    return False
                kind, other, data, _ = self._worker.next_frame()
            if kind == wire.CANCEL:
                self.cancel(other)
            elif kind == wire.RECALL:
                self.recall()
            elif kind == wire.FREED:
                self._worker.use_again(data)
            elif kind == wire.CREDIT and other == id:
                count = int.from_bytes(data, "little")
                if not count:
                    return False
                self._credits += count
        self._credits -= 1
        return self._left != id

    def credit(self, id: int, count: int) -> None:
        """Credit for a request that has ended: ignored."""

    def end(self) -> None:
        pass


_here = threading.local()  # `id`: the request that runs on this thread


class CallThreads:
    """Runs several requests at once. It starts threads as they are needed."""

    def __init__(self, owner: Owner, capacity: int) -> None:
        import ctypes
        import queue

        self._raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        self._object = ctypes.py_object
        self._thread_id = ctypes.c_ulong
        self._worker = owner
        self._capacity = capacity
        self._todo: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._idle = 0
        self._threads = 0
        self._running: dict[int, int] = {}  # the threads, by request
        self._told: set[int] = set()
        self._at_wire: set[int] = set()  # requests that send a frame now
        self._credits: dict[int, int] = {}  # of streams; below 0: the reader has left

    def run(self, id: int, data: Any, buffers: Any) -> None:
        with self._changed:
            self._credits[id] = 0
            fresh = self._idle == 0 and self._threads < self._capacity
            if fresh:
                self._threads += 1
            else:
                self._idle -= 1
        self._todo.put((id, data, buffers))
        if fresh:
            threading.Thread(target=self._serve, name=f"call-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        try:
            while True:
                id, data, buffers = self._todo.get()
                with self._changed:
                    self._worker.note_begin(id)
                self._worker.attempt(id, data, buffers, self._run)
                del data, buffers
                with self._changed:
                    self._idle += 1
                    self._credits.pop(id, None)
        except OSError:  # the app has ended
            os._exit(0)
        except BaseException:  # a defect: the request would never be answered
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    @contextlib.contextmanager
    def _run(self, id: int) -> Iterator[None]:
        _here.id = id
        try:
            with self._changed:
                self._running[id] = threading.get_ident()
            yield
            self._over(id)
        except BaseException:
            self._over(id)  # the call above may have been interrupted
            raise

    def _over(self, id: int) -> None:
        """The request has ended: interrupt this thread no more."""
        with self._changed:
            thread = self._running.pop(id, None)
            if id in self._told and thread is not None:
                self._told.discard(id)
                self._raise_in(self._thread_id(thread), None)

    def cancel(self, id: int) -> None:
        with self._changed:
            thread = self._running.get(id)
            if thread is None or id in self._told:
                return
            self._told.add(id)
            if id not in self._at_wire:
                self._raise_in(self._thread_id(thread), self._object(RequestCancelled))
            self._changed.notify_all()

    def recall(self) -> None:
        """Every request begins at once: there is nothing to give back."""

    def current(self) -> int:
        return int(_here.id)

    @contextlib.contextmanager
    def at_wire(self) -> Iterator[None]:
        """Inside, the request of this thread sends a frame, and is not interrupted."""
        id = getattr(_here, "id", 0)  # 0: a thread of the user's, which is never interrupted
        with self._changed:
            self._at_wire.add(id)
        try:
            yield
        finally:
            with self._changed:
                self._at_wire.discard(id)
                told = id in self._told
        if told:
            self._over(id)
            raise RequestCancelled

    def take_credit(self, id: int) -> bool:
        with self._changed:
            while not self._credits[id]:
                self._changed.wait(1.0)  # with a timeout, because an interrupt is raised between two waits
            if self._credits[id] < 0:
                return False
            self._credits[id] -= 1
            return True

    def credit(self, id: int, count: int) -> None:
        with self._changed:
            if id in self._credits:
                self._credits[id] = self._credits[id] + count if count else -1
                self._changed.notify_all()

    def end(self) -> None:
        """Nothing runs any more."""

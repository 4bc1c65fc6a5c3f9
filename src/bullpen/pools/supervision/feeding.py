"""The maps of one pool: which of them have items left, and which thread takes these when no caller reads.

A map that is read takes items as its results are read. One that has to be run to its end without a reader, because
it was dropped unread or because the pool closes, gets a *feeder*: a thread that takes items as workers get through
them, never more than a window ahead. While there are feeders a draining pool keeps its workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from bullpen import primitives
from bullpen.pools.dispatch.pool_status import PoolStatus
from bullpen.telemetry import logger


class LoopMap(Protocol):
    """A map on a loop. Only its reader feeds it."""

    @property
    def waiting(self) -> int: ...
    def resized(self) -> None: ...
    def cancel(self) -> object: ...


class UnfinishedMap(LoopMap, Protocol):
    """A map, as far as the pool feeds it."""

    @property
    def begun(self) -> bool: ...
    @property
    def exhausted(self) -> bool: ...
    @property
    def finite(self) -> bool: ...
    @property
    def dropped(self) -> bool: ...
    @property
    def taken(self) -> int: ...
    @property
    def held_up(self) -> bool: ...
    @property
    def needs_care(self) -> bool: ...
    @property
    def feeder_id(self) -> int | None: ...
    def fill(self, count: int, /) -> object: ...
    def feed(self) -> None: ...
    def reader_gone(self) -> None: ...
    def cut(self, error: BaseException, /) -> None: ...


class Maps:
    """Maps with items left, and the feeders of some of them."""

    def __init__(self, name: str, lock: primitives.Lock, status: PoolStatus, end_if_fed: Callable[[], None]) -> None:
        self._name = name
        self._lock = lock
        self._status = status
        self._end_if_fed = end_if_fed
        self._unfinished: dict[int, UnfinishedMap] = {}  # finalizers remove some, without a lock
        self._on_loop: dict[int, LoopMap] = {}
        self._fed: dict[int, UnfinishedMap] = {}  # those that have a feeder; guarded by the pool's lock
        self._feeders: list[tuple[UnfinishedMap, Any]] = []  # and the threads, guarded by it too
        self._cut_unread: list[int] = []  # how many items were taken of maps that were cut short unread

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> list[LoopMap]:
        return [*self._unfinished.values(), *self._on_loop.values()]

    @property
    def waiting(self) -> int:
        """How many items wait for a worker, apart from those that are requests in the backlog."""
        return sum(work.waiting for work in self._all())

    def enter(self, work: UnfinishedMap) -> None:
        """A map begins. The pool is open, or this raises: so the pool knows of the map when it closes."""
        with self._lock:
            if self._status.draining:
                raise self._status.not_open()
            self._unfinished[id(work)] = work

    def enter_on_loop(self, work: LoopMap) -> None:
        """A map on a loop begins, or goes on. The pool closes on the same loop, so it knows of the map."""
        if self._status.draining:
            raise self._status.not_open()
        self._on_loop[id(work)] = work

    def leave(self, work: LoopMap) -> None:
        """Forget a map that needs no feeder any more. Takes no lock."""
        self._unfinished.pop(id(work), None)
        self._on_loop.pop(id(work), None)

    def resized(self) -> None:
        """The pool has grown: let each map start more runners."""
        for work in self._all():
            work.resized()

    # Feeders.

    def see_to(self, work: UnfinishedMap) -> None:
        """The reader of `work` has gone: a feeder takes the remaining items. A draining pool feeds its maps itself."""
        with self._lock:
            if not work.needs_care:  # meanwhile every item has been taken, and the pool may have closed
                return
            if not work.begun and not work.exhausted:
                if self._status.draining:
                    return
                self._fed[id(work)] = work
        self._start(work, work.reader_gone)

    def start_feeder(self, work: UnfinishedMap) -> None:
        """Feed `work`, which is counted as fed, on a thread of its own."""
        self._start(work, work.feed)

    def _start(self, work: UnfinishedMap, target: Callable[[], None]) -> None:
        try:
            with self._lock:  # until the thread is listed, the pool cannot end and miss it
                thread = primitives.start_thread(target, f"{self._name}-map")
                self._feeders = [(other, feeder) for other, feeder in self._feeders if feeder.is_alive()]
                self._feeders.append((work, thread))
        except RuntimeError:  # no thread can be started: the caller does it
            target()

    def is_fed(self, work: UnfinishedMap) -> None:
        """All that will ever be taken of `work` has been taken."""
        with self._lock:
            self._fed.pop(id(work), None)
        self._end_if_fed()

    def feeds_here(self) -> bool:
        """This thread is a feeder: to wait for the end of the pool here would be to wait for itself."""
        here = primitives.current_thread_id()
        return any(work.feeder_id == here for work in list(self._fed.values()))

    # The pool closes.

    def settle(self) -> list[UnfinishedMap]:
        """The pool begins to drain, and its lock is held: the maps that have to get a feeder now.

        A map whose input may be endless, and whose reader has begun, is taken no further.
        """
        wanted = []
        for work in list(self._unfinished.values()):
            if id(work) in self._fed or work.exhausted:
                continue
            if work.finite or work.dropped or not work.begun:
                self._fed[id(work)] = work
                wanted.append(work)
            else:
                self._cut(work)
        return wanted

    def being_fed(self) -> bool:
        """Whether a feeder still takes items. The pool's lock is held."""
        return bool(self._fed)

    def cut_endless(self) -> None:
        """The interpreter exits: a map that may be endless is taken no further, also if it is never read."""
        with self._lock:
            for work in list(self._unfinished.values()):
                if not work.exhausted and not work.finite:
                    self._cut(work)
        self.warn()
        self._end_if_fed()

    def _cut(self, work: UnfinishedMap) -> None:
        self._fed.pop(id(work), None)
        work.cut(self._status.not_open())
        if not work.begun:
            self._cut_unread.append(work.taken)

    def warn(self) -> None:
        """Log the maps that were cut short. Called without any lock."""
        cut, self._cut_unread = self._cut_unread, []
        for taken in cut:
            message = "%s: the pool closed a map that was never read after %d items, because its input may be endless"
            logger.warning(message, self._name, taken)

    def give_up(self) -> None:
        """The pool closes without draining, or its grace has passed: start nothing more."""
        for work in self._all():
            work.cancel()
        with self._lock:
            self._fed.clear()
        self._end_if_fed()

    def join(self) -> None:
        """Wait for the threads of feeders; but not for one that was given up and is kept by its input."""
        with self._lock:
            feeders, self._feeders = self._feeders, []
        for work, feeder in feeders:
            if feeder.ident != primitives.current_thread_id() and not work.held_up:
                feeder.join()

    def forget(self) -> None:
        """This is a forked child: no feeder is here."""
        self._unfinished = {}
        self._on_loop = {}
        self._fed = {}
        self._feeders = []

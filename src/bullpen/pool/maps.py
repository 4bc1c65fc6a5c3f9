"""The maps of one pool: which of them have items left, and who takes these when nobody reads.

A map that is read takes items as its results are read. One that has to be run to its end without a reader, because
it was dropped unread or because the pool closes, gets a *feeder*: a thread that takes items as workers get through
them, never more than a window ahead. While there are feeders a draining pool keeps its workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bullpen import primitives

if TYPE_CHECKING:
    from bullpen.pool.engine import Engine
    from bullpen.pool.mapping import MapWork

logger = logging.getLogger("bullpen")


class Maps:
    """Maps with items left, and the feeders of some of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unfinished: dict[int, MapWork[Any]] = {}  # finalizers remove some, without a lock
        self._fed: dict[int, MapWork[Any]] = {}  # those that have a feeder; guarded by the engine's lock
        self._feeders: list[tuple[MapWork[Any], Any]] = []  # and the threads, guarded by it too
        self._cut_unread: list[int] = []  # how many items were taken of maps that were cut short before anybody read

    def __len__(self) -> int:
        return len(self._unfinished)

    @property
    def waiting(self) -> int:
        """How many items wait for a worker, apart from those that are requests in the backlog."""
        return sum(work.waiting for work in list(self._unfinished.values()))

    def enter(self, work: MapWork[Any]) -> None:
        """A map begins. The pool is open, or this raises: so whoever closes it later knows of the map."""
        with self._engine.lock:
            if self._engine.dispatcher.draining:
                raise self._engine.not_open()
            self._unfinished[id(work)] = work

    def leave(self, work: MapWork[Any]) -> None:
        """Nothing is left of a map that has to be known here. Takes no lock."""
        self._unfinished.pop(id(work), None)

    def resized(self) -> None:
        """More may run at once than before."""
        for work in list(self._unfinished.values()):
            work.resized()

    # Feeders.

    def see_to(self, work: MapWork[Any]) -> None:
        """The reader of `work` has gone: do what is left to do. A pool that closes has seen to the feeding itself."""
        with self._engine.lock:
            if not work.begun and not work.exhausted:
                if self._engine.dispatcher.draining:
                    return
                self._fed[id(work)] = work
        self._start(work, work.reader_gone)

    def start_feeder(self, work: MapWork[Any]) -> None:
        """Feed `work`, which is counted as fed, on a thread of its own."""
        self._start(work, work.feed)

    def _start(self, work: MapWork[Any], target: Callable[[], None]) -> None:
        try:
            thread = primitives.start_thread(target, f"{self._engine.name}-map")
        except RuntimeError:  # no thread can be had: then whoever wants it done does it
            target()
            return
        with self._engine.lock:
            self._feeders = [(other, feeder) for other, feeder in self._feeders if feeder.is_alive()]
            self._feeders.append((work, thread))

    def is_fed(self, work: MapWork[Any]) -> None:
        """All that will ever be taken of `work` has been taken."""
        with self._engine.lock:
            self._fed.pop(id(work), None)
        self._engine.end_if_fed()

    def feeds_here(self) -> bool:
        """This thread is a feeder: to wait for the end of the pool here would be to wait for itself."""
        here = primitives.current_thread_id()
        return any(work.feeder_id == here for work in list(self._fed.values()))

    # The pool closes.

    def settle(self) -> list[MapWork[Any]]:
        """The pool begins to drain, and its lock is held: the maps that have to get a feeder now.

        Those whose input may be endless, and that somebody has begun to read, are taken no further.
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
        """Somebody still takes items. The engine's lock is held."""
        return bool(self._fed)

    def cut_endless(self) -> None:
        """The interpreter exits: what may be endless is taken no further, also if nobody will ever read it."""
        with self._engine.lock:
            for work in list(self._unfinished.values()):
                if not work.exhausted and not work.finite:
                    self._cut(work)
        self.warn()
        self._engine.end_if_fed()

    def _cut(self, work: MapWork[Any]) -> None:
        self._fed.pop(id(work), None)
        work.cut(self._engine.not_open())
        if not work.begun:
            self._cut_unread.append(work.taken)

    def warn(self) -> None:
        """Tell of maps that were cut short. Called without any lock."""
        cut, self._cut_unread = self._cut_unread, []
        for taken in cut:
            message = "%s: a map that nobody has read was cut short after %d items, as its input has no length"
            logger.warning(message, self._engine.name, taken)

    def give_up(self) -> None:
        """The pool closes without draining, or its grace has passed: start nothing more."""
        for work in list(self._unfinished.values()):
            work.cancel()
        with self._engine.lock:
            self._fed.clear()
        self._engine.end_if_fed()

    def join(self) -> None:
        """Wait for the threads of feeders; but not for one that was given up and is kept by its input."""
        with self._engine.lock:
            feeders, self._feeders = self._feeders, []
        for work, feeder in feeders:
            if feeder.ident != primitives.current_thread_id() and not work.held_up:
                feeder.join()

    def forget(self) -> None:
        """This is a forked child: no feeder is here."""
        self._unfinished = {}
        self._fed = {}
        self._feeders = []

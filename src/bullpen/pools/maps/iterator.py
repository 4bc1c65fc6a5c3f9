"""The iterator that `Pool.map` returns, and the steps that follow when it is dropped."""

from __future__ import annotations

import contextlib
from typing import Generic, TypeVar

from bullpen import primitives
from bullpen.pools.maps.map_work import MapWork

T = TypeVar("T")


class MapIterator(Generic[T]):
    """The results of one `map`: the iterator that `Pool.map` returns."""

    __slots__ = ("__weakref__", "_deadline", "_owner", "_work")

    def __init__(self, work: MapWork[T], deadline: float | None, owner: object) -> None:
        self._work = work
        self._deadline = deadline
        self._owner = owner  # a reference to the pool: an unreferenced pool drains

    def __iter__(self) -> MapIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._work.next(self._deadline)
        except StopIteration:
            self._owner = None  # nothing is left to run
            raise
        except BaseException:
            del self  # a kept traceback must not keep the map alive
            raise

    def close(self) -> None:
        """Start no further item. Running items finish, and their results are dropped. If the reader was interrupted,
        running items are cancelled, where the runtime can cancel them.
        """
        self._work.close()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        work: MapWork[T] | None = getattr(self, "_work", None)
        if work is None:  # the constructor was interrupted
            return
        work.dropped = True
        if work.begun:
            work.stop()
        else:
            work.unread = None
        if work.needs_care:
            with contextlib.suppress(RuntimeError):  # no new threads at interpreter exit, where pools drain anyway
                primitives.start_soon(work.engine.maps.see_to, work)

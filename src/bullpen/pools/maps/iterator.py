"""The iterator that `Pool.map` returns, and the steps that follow when it is dropped."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from itertools import repeat
from typing import Any, Generic, TypeVar

from bullpen import primitives
from bullpen.pools.maps.map_work import MapWork

T = TypeVar("T")


class MapIterator(itertools.chain[T]):
    """The results of one `map`: the iterator that `Pool.map` returns.

    As a `chain` of the results of bundles it steps from one result to the next without a call of Python code.
    """

    __slots__ = ("__weakref__", "_work")

    _work: MapWork[T, Any]

    @classmethod
    def over(cls, work: MapWork[T, Any], deadline: float | None, owner: object) -> MapIterator[T]:
        results: MapIterator[T] = cls.from_iterable(_Bundles(work, deadline, owner))  # type: ignore[assignment]
        results._work = work
        return results

    def close(self) -> None:
        """Start no further item. Running items finish, and their results are dropped. If the reader was interrupted,
        running items are cancelled, where the runtime can cancel them.
        """
        self._work.close()

    def __del__(self) -> None:
        # This may run inside the garbage collector, on any thread, inside any critical section: it takes no lock.
        work: MapWork[T, Any] | None = getattr(self, "_work", None)
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


class _Bundles(Generic[T]):
    """The results of a map, bundle by bundle. It raises nothing but `StopIteration`: a `chain` ends with any error of
    its source, but goes on after an error of a bundle.
    """

    __slots__ = ("_current", "_deadline", "_owner", "_results", "_work")

    def __init__(self, work: MapWork[T, Any], deadline: float | None, owner: object) -> None:
        self._work = work
        self._deadline = deadline
        self._owner = owner  # a reference to the pool: an unreferenced pool drains
        self._results: list[T] = []  # those of the bundle that are not read yet, the next one last
        self._current: Iterator[T] = iter([])

    def __iter__(self) -> _Bundles[T]:
        return self

    def __next__(self) -> Iterator[T]:
        if self._results:  # two threads have read at once
            return self._current
        try:
            results = self._work.next(self._deadline)
            results.reverse()
            self._current = current = map(list.pop, repeat(results, len(results)))  # it keeps no result that was read
            self._results = results
            return current
        except StopIteration:
            self._owner = None  # nothing is left to run
            raise
        except BaseException as error:
            del self  # a kept traceback must not keep the map alive
            return _Failure(error)


class _Failure(Iterator[Any]):
    """In place of results: raises an error, once."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error

    def __next__(self) -> Any:
        error, self._error = self._error, None
        try:
            raise StopIteration if error is None else error
        finally:
            del error, self

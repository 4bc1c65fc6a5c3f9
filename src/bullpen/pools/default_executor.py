"""What `asyncio` takes as the default executor of an event loop: it insists on a `ThreadPoolExecutor`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DefaultExecutor(ThreadPoolExecutor):
    """Submits to a pool, and starts no thread of its own. Its `shutdown` leaves the pool open."""

    def __init__(self, pool: Executor) -> None:
        super().__init__(max_workers=1)
        self._pool = pool

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return self._pool.submit(fn, *args, **kwargs)

    def map(self, *args: Any, **kwargs: Any) -> Any:
        return self._pool.map(*args, **kwargs)

"""A map with one request per item: for calls with time limits or traits, observed pools and tiny windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.maps.map_work import FutureBundle, FutureMap, MapInput, Reading

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine

T = TypeVar("T")


class RequestMap(FutureMap[T, FutureBundle]):
    """One request per item."""

    def __init__(
        self, engine: Engine, submit: Callable[[tuple[Any, ...]], PoolFuture[T]], source: MapInput, reading: Reading
    ) -> None:
        self._submit = submit
        self._under_way: deque[PoolFuture[T]] = deque()
        super().__init__(engine, source, reading)

    def accept(self, items: Iterator[Any]) -> None:
        under_way, args = self._under_way, self.source.args
        for item in items:
            if self._calls is None:
                break
            future = self._submit(args(item))
            self.taken += 1
            while under_way and under_way[0].ended:
                under_way.popleft()
            under_way.append(future)
            self.add(FutureBundle([item if self.outcomes else None], future))

    def wait_for_room(self) -> int:
        while len(self._under_way) >= self.window:
            self._under_way[0].wait_at_gate(None)
            self._under_way.popleft()
        return self.window - len(self._under_way)

    def succeeded(self, bundle: FutureBundle) -> None:
        bundle.values = [bundle.future.value]

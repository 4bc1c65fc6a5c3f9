"""A map with one request per item: for calls with time limits or traits, and for observed pools."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from bullpen.pools.dispatch.futures import PoolFuture
from bullpen.pools.maps.map_work import Calls, ItemMap

if TYPE_CHECKING:
    from bullpen.pools.supervision.engine import Engine

T = TypeVar("T")


class RequestMap(ItemMap[T]):
    """One request per item. The entries are futures."""

    def __init__(
        self,
        engine: Engine,
        submit: Callable[[tuple[Any, ...]], PoolFuture[T]],
        calls: Calls,
        window: int,
        *,
        finite: bool,
    ) -> None:
        self._submit = submit
        self._under_way: deque[PoolFuture[T]] = deque()
        super().__init__(engine, calls, window, finite=finite)

    def accept(self, items: Calls) -> None:
        unread, under_way = self.unread, self._under_way
        for args in items:
            if self._calls is None:
                break
            future = self._submit(args)
            self.taken += 1
            while under_way and under_way[0].ended:
                under_way.popleft()
            under_way.append(future)
            if unread is not None:
                unread.append(future)

    def wait_for_room(self) -> int:
        while len(self._under_way) >= self.window:
            self._under_way[0].wait_at_gate(None)
            self._under_way.popleft()
        return self.window - len(self._under_way)

    def outcome(self, entry: PoolFuture[T], deadline: float | None) -> T:
        try:
            return entry.result(None if deadline is None else deadline - self.engine.clock.monotonic())
        except BaseException as error:
            if not (entry.ended or isinstance(error, Exception)):
                raise  # the reader was interrupted, and may continue
            self.raise_from_call(error)
        finally:
            del entry

    @property
    def needs_care(self) -> bool:
        return super().needs_care or (self.begun and bool(self.unread))

    def forget(self, unread: Any) -> None:
        for future in unread:
            self.cancel_unread(future)

"""The items of a stream that runs in a worker process, on their way to their reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from bullpen.pools.dispatch.request import FAILED
from bullpen.pools.runtimes.port import ProducesItems
from bullpen.pools.runtimes.process.io_thread import io_thread
from bullpen.pools.runtimes.process.pickle_errors import unreadable


class Source(Protocol):
    """The worker that sends them."""

    def credit(self, number: int, count: int) -> None: ...
    def finished(self, number: int, state: Any, value: Any) -> None: ...


class Items:
    """The items of one stream.

    The worker may send as many items as the reader's buffer has room for, at most `MOST_UNDER_WAY`. An item for which
    there is no room waits here. Until the reader takes it, the worker gets no further credit.
    """

    MOST_UNDER_WAY = 16

    __slots__ = ("_end", "_error", "_left", "_number", "_process", "_producer", "_taken", "_waiting")

    def __init__(self, process: Source, number: int, producer: ProducesItems) -> None:
        self._process = process
        self._number = number
        self._producer = producer
        self._taken = 0  # since the worker last got credit
        self._waiting: list[Callable[[], Any]] = []
        self._left = False  # the reader has left, and the worker was told
        self._error: BaseException | None = None  # of an item that could not be unpickled
        self._end: tuple[Any, Any] | None = None  # state and value of the request, while items still wait

    @property
    def held_back(self) -> int:
        """The number of items that wait for room."""
        return len(self._waiting)

    @property
    def _allowed(self) -> int:
        return min(self.MOST_UNDER_WAY, self._producer.room)

    def begin(self) -> None:
        self._process.credit(self._number, self._allowed)

    def came(self, read: Callable[[], Any]) -> None:
        """An item has arrived; `read` unpickles it."""
        if self._left:
            return
        self._waiting.append(read)
        if len(self._waiting) == 1:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            try:
                item = self._waiting[0]()
                taken = self._producer.take(item, self._go_on)
            except BaseException as error:
                self._error = unreadable("an item", error, ran=True)
                taken = False
            if taken is None:  # no room: the reader calls `_go_on` when there is some
                return
            self._waiting.pop(0)
            if not taken:
                self._left = True
                self._process.credit(self._number, 0)
                self._waiting.clear()
                break
            self._taken += 1
            if self._taken >= max(1, self._allowed // 2):
                self._process.credit(self._number, self._taken)
                self._taken = 0
        if self._end is not None:
            end, self._end = self._end, None
            self._process.finished(self._number, *end)

    def _go_on(self) -> None:
        io_thread.post(self._pass_on)

    def keeps_back(self, state: Any, value: Any) -> bool:
        """Whether the end has to wait for items. Then it is kept here."""
        if not self._waiting:
            return False
        self._end = (state, value)
        return True

    def outcome(self, state: Any, value: Any) -> tuple[Any, Any]:
        return (state, value) if self._error is None else (FAILED, self._error)


def raise_(error: BaseException) -> NoReturn:
    """A `read` for an item that has failed."""
    raise error

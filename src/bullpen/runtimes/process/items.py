"""The items of a stream that runs in a worker process, on their way to whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from bullpen.core.request import FAILED
from bullpen.runtimes.port import ProducesItems
from bullpen.runtimes.process.refusals import unreadable
from bullpen.runtimes.process.switchboard import switchboard


class Source(Protocol):
    """Where they come from."""

    def credit(self, number: int, count: int) -> None: ...
    def finished(self, number: int, state: Any, value: Any) -> None: ...


class Items:
    """The items of one stream.

    As many are under way as there may be in the reader's buffer, at most `AHEAD`. One for which there is no room waits
    here, and until it is gone the worker may send no more than it was allowed before.
    """

    AHEAD = 16

    __slots__ = ("_end", "_error", "_left", "_number", "_process", "_producer", "_taken", "_waiting")

    def __init__(self, process: Source, number: int, producer: ProducesItems) -> None:
        self._process = process
        self._number = number
        self._producer = producer
        self._taken = 0  # since the worker was last allowed more
        self._waiting: list[Callable[[], Any]] = []
        self._left = False  # nobody wants more, and the worker was told
        self._error: BaseException | None = None  # an item could not be read
        self._end: tuple[Any, Any] | None = None  # how it ended, while items still wait

    @property
    def held_back(self) -> int:
        """How many items have come for which there is no room."""
        return len(self._waiting)

    @property
    def _ahead(self) -> int:
        return min(self.AHEAD, self._producer.room)

    def begin(self) -> None:
        self._process.credit(self._number, self._ahead)

    def came(self, read: Callable[[], Any]) -> None:
        """An item has come, which `read` makes of what was sent."""
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
            if taken is None:  # no room: `_go_on` is called when there is some
                return
            self._waiting.pop(0)
            if not taken:
                self._left = True
                self._process.credit(self._number, 0)
                self._waiting.clear()
                break
            self._taken += 1
            if self._taken >= max(1, self._ahead // 2):
                self._process.credit(self._number, self._taken)
                self._taken = 0
        if self._end is not None:
            end, self._end = self._end, None
            self._process.finished(self._number, *end)

    def _go_on(self) -> None:
        switchboard.post(self._pass_on)

    def keeps_back(self, state: Any, value: Any) -> bool:
        """Whether the end has to wait for items that come before it."""
        if not self._waiting:
            return False
        self._end = (state, value)
        return True

    def outcome(self, state: Any, value: Any) -> tuple[Any, Any]:
        return (state, value) if self._error is None else (FAILED, self._error)


def raise_(error: BaseException) -> NoReturn:
    """What reads an item that cannot be had."""
    raise error

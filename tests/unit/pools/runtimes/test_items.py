"""Items of a stream on their way from a worker process to their reader."""

from __future__ import annotations

from typing import Any

from bullpen.pools.runtimes.port import ProducesItems
from bullpen.pools.runtimes.process.items import Items, raise_


class Worker:
    """Notes what it is allowed to send."""

    def __init__(self) -> None:
        self.credits: list[int] = []

    def credit(self, number: int, count: int) -> None:
        self.credits.append(count)

    def finished(self, number: int, state: Any, value: Any) -> None:
        raise AssertionError("it goes on")


class Reader(ProducesItems):
    """Takes some items, and leaves."""

    def __init__(self, wants: int) -> None:
        self.room = 16
        self.wants = wants
        self.taken: list[Any] = []

    def take(self, item: Any, wake: object) -> bool:
        if len(self.taken) == self.wants:
            return False
        self.taken.append(item)
        return True


def test_a_worker_is_told_once_that_its_reader_has_left_however_many_items_are_under_way() -> None:
    worker, reader = Worker(), Reader(wants=2)
    items = Items(worker, 1, reader)
    items.begin()
    for number in range(10):
        items.came(lambda number=number: number)  # type: ignore[misc]
    assert reader.taken == [0, 1]
    assert worker.credits == [16, 0]


def test_nothing_is_taken_after_an_item_that_cannot_be_read() -> None:
    worker, reader = Worker(), Reader(wants=10)
    items = Items(worker, 1, reader)
    items.came(lambda: 0)
    items.came(lambda: raise_(ValueError("on purpose")))
    items.came(lambda: 2)
    assert reader.taken == [0]
    assert worker.credits == [0]

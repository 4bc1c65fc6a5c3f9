"""What became of one item of a map, and the options that ask for it."""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple, TypeVar

from bullpen.pools.checks import boolean, one_of

OnError = Literal["raise", "return"]

T = TypeVar("T")
R = TypeVar("R")


class Outcome(NamedTuple, Generic[T, R]):
    """What became of one item of a `map(…, on_error="return")`.

    `item` is the item, or the tuple of items if the map has several iterables. `error` is None if the call returned
    `value`; otherwise it is the error of the call, and `value` is None.
    """

    item: T
    value: R | None
    error: BaseException | None


def check_map_options(ordered: object, on_error: object) -> None:
    boolean("ordered", ordered)
    one_of("on_error", on_error, ("raise", "return"))

"""New ids for tasks: in the order in which this process makes them."""

from __future__ import annotations

import os
import threading
import time

from bullpen import primitives
from bullpen.tasks.model.ids import LAST_NODE, NODE_BITS, RANDOM_BITS, head_of, next_ordinal

_MILLISECOND = 1_000_000  # nanoseconds

_lock = threading.Lock()
_high, _node = 0, -1  # the latest ordinal, in two parts: most ids differ from the one before in the second only
_head = ""  # how those of this high part begin
_until = 0  # nanoseconds since the epoch: the end of the millisecond that they say


def new_ids(count: int) -> list[str]:
    """Ids that sort after all ids that this process has made before, and as they are in the list."""
    global _node  # noqa: PLW0603 — one process, one order
    with _lock:
        now = time.time_ns()
        if now >= _until or _node + count > LAST_NODE:
            _begin(now, count)
        head, first = _head, _node + 1
        _node += count
    if count == 1:
        return [head + "%012x" % first]  # noqa: UP031 — the faster spelling
    return [head + "%012x" % node for node in range(first, first + count)]  # noqa: UP031


def _begin(now: int, count: int) -> None:
    """Go on where there is room for so many with one beginning: in this millisecond, or right after the latest."""
    global _high, _node, _head, _until  # noqa: PLW0603
    random_bits = primitives.random.getrandbits(RANDOM_BITS)
    first = next_ordinal((_high << NODE_BITS) + _node, now // _MILLISECOND, random_bits)
    if (first & LAST_NODE) + count > LAST_NODE:
        first = ((first >> NODE_BITS) + 1) << NODE_BITS
    _high, _node = first >> NODE_BITS, (first & LAST_NODE) - 1
    _head = head_of(_high)
    _until = ((first >> RANDOM_BITS) + 1) * _MILLISECOND


def _after_fork() -> None:
    """Parent and child must not draw the same numbers, or go on from the same id."""
    global _lock, _high, _node, _until  # noqa: PLW0603
    _lock = threading.Lock()
    _high, _node, _until = 0, -1, 0
    primitives.random.seed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""New ids for tasks: in the order in which this process makes them."""

from __future__ import annotations

import os
import threading
import time

from bullpen import primitives
from bullpen.tasks.ids import RANDOM_BITS, as_uuids7, next_ordinal

_lock = threading.Lock()
_latest = 0


def new_ids(count: int) -> list[str]:
    """Ids that sort after all ids that this process has made before, and as they are in the list."""
    global _latest  # noqa: PLW0603 — one process, one order
    with _lock:
        unix_ms = time.time_ns() // 1_000_000
        is_first = unix_ms > _latest >> RANDOM_BITS  # of this millisecond; others just follow
        luck = primitives.random.getrandbits(RANDOM_BITS) if is_first else 0
        ordinal = next_ordinal(_latest, unix_ms, luck)
        _latest = ordinal + count - 1
    return as_uuids7(ordinal, count)


def _after_fork() -> None:
    """Parent and child must not draw the same numbers, or go on from the same id."""
    global _lock, _latest  # noqa: PLW0603
    _lock = threading.Lock()
    _latest = 0
    primitives.random.seed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

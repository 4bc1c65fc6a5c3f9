"""To wait for a `Pool` on the thread of an event loop is to stop the loop meanwhile, which is worth a warning."""

from __future__ import annotations

import sys
import warnings

_warned = False


def warn_on_event_loop() -> None:
    """Warn, once per process, if an event loop runs on this thread. Only called where asyncio is imported already.

    Not where people type: a notebook runs each cell on its loop, which stands still anyway until that has ended.
    """
    global _warned  # noqa: PLW0603 — one process, one warning
    if _warned or hasattr(sys, "ps1"):
        return
    from asyncio import _get_running_loop

    if _get_running_loop() is None:
        return
    _warned = True
    warnings.warn(
        "Pool.do was called on the thread of a running event loop, which stands still until the result is there; "
        "use bullpen.AsyncPool, or await asyncio.wrap_future(pool.submit(...))",
        RuntimeWarning,
        stacklevel=4,
    )

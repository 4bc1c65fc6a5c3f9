"""`remaining()`: the time that is left to the current request."""

from __future__ import annotations

import math

from bullpen.pools.dispatch.request import RUNNING
from bullpen.pools.runtimes.port import current_coroutine, current_requests


def remaining() -> float | None:
    """Seconds left to the request that runs on this thread, or to which this coroutine belongs: of its `timeout` or
    `run_timeout`, whichever ends sooner.

    0.0 once the time is over; None if there is no limit, or if no request runs here. So a library may call this
    anywhere. A request that runs within another has no more than the other has.

        def fetch(url):
            page = urlopen(url, timeout=remaining()).read()
            return pool.using(timeout=remaining()).do(parse, page)

        pool.using(timeout=2).do(fetch, url)
    """
    left = math.inf
    coroutine = current_coroutine()
    for request in current_requests() if coroutine is None else (*current_requests(), coroutine):
        timing, clock = request.timing, request.worker.pool_context.clock
        if timing is not None and clock is not None:
            left = min(left, timing.next_at(RUNNING) - clock.monotonic())
    return None if left == math.inf else max(0.0, left)

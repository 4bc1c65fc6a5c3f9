"""Pausing a pool: workers finish their current requests and start no other until the pool resumes."""

from __future__ import annotations

from bullpen import primitives
from bullpen.pools.dispatch.dispatcher import Dispatcher
from bullpen.pools.dispatch.pool_status import PoolStatus


class Pausing:
    """Pauses and resumes one pool."""

    def __init__(self, lock: primitives.Lock, status: PoolStatus, dispatcher: Dispatcher) -> None:
        self._lock = lock
        self._status = status
        self._dispatcher = dispatcher

    def pause(self) -> None:
        """Start no request from now on. Running requests go on, new ones wait. A draining pool does not pause."""
        with self._lock:
            if self._status.open:
                self._status.change(paused=True)
        for worker in self._dispatcher.registry.snapshot():
            if worker.prefetched:  # and not begun: these wait again
                worker.handle.recall()

    def resume(self) -> None:
        """Start the requests that wait."""
        with self._lock:
            if self._status.paused:
                self._status.change(paused=False)
        if self._status.ended:
            return
        self._dispatcher.pair_waiting_with_ready()
        self._dispatcher.serve_lines()
        self._dispatcher.use_new_room()

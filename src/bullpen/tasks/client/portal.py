"""The event loop behind the sync methods: one daemon thread per process, started when it is first needed.

It ends when the last queue that used it is closed, and is started again if it is needed again. A forked child has none
until it needs one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from bullpen import primitives

T = TypeVar("T")


class Portal:
    """Runs coroutines for threads that have no event loop."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """This is a forked child: the thread is not here, and the lock may be held by one that is not."""
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """Count one more user. The first one starts the thread."""
        with self._lock:
            if self._loop is None:
                self._start()
            self._users += 1

    def leave(self) -> None:
        """Count one user less. The last one ends the thread."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop = self._thread = None

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        started = threading.Event()

        def serve() -> None:
            asyncio.set_event_loop(loop)
            loop.call_soon(started.set)
            try:
                loop.run_forever()
            finally:
                loop.run_until_complete(_end_tasks())
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()

        try:
            self._thread = primitives.start_thread(serve, "bullpen-portal")
        except BaseException:
            loop.close()
            raise
        self._loop = loop
        started.wait()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the portal's loop. The caller has entered, and will not leave before it is done."""
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        if thread.ident == threading.get_ident():
            coroutine.close()
            raise RuntimeError("a sync method of a TaskQueue was called on the portal's event loop; use the async one")
        return asyncio.run_coroutine_threadsafe(coroutine, loop)


async def _end_tasks() -> None:
    """Cancel all other tasks of the loop, and wait for their ends."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


portal = Portal()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=portal.forget)

"""Workers that are processes: they are isolated from the app, and they can be killed.

A cancelled request gets an exception. If it does not end within `cancel_grace`, the runtime sends its process group a
SIGTERM and then a SIGKILL, which also ends C code that holds the GIL. A dying worker loses the requests that run on it
and no others. When the app ends, for whatever reason, all workers end.
"""

from __future__ import annotations

import _thread
import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any

from bullpen.errors import InvalidOption, InvalidOptionType, MissingMainGuard, WorkerStartFailed
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import WorkerEvents
from bullpen.pools.runtimes.process import child
from bullpen.pools.runtimes.process.io_thread import io_thread, log_thread
from bullpen.pools.runtimes.process.process import Process, Start
from bullpen.pools.runtimes.process.supervised import checked_bytes, checked_seconds, may_prestart

STARTS = ("forkserver", "spawn")

CANCEL_GRACE = 1.0
STOP_GRACE = 30.0
STARTS_OTHERS = (
    "worker {} is not started: a module that worker processes import uses a process pool while it is imported, so each "
    "worker would start others; use the pool in a function, or under \"if __name__ == '__main__':\""
)


class ProcessRuntime:
    """Runs requests in worker processes.

    `start="forkserver"` forks workers from a small process that has imported the modules of `preload`; `"spawn"` starts
    a fresh interpreter for each worker. `initializer(*initargs)` runs first in each worker. A request that is cancelled
    or times out has `cancel_grace` seconds to end; then its worker is killed. A worker that is told to end has
    `stop_grace` seconds, in which it closes its instance; None is no limit. The pool replaces a worker that has more
    than `max_rss` bytes in memory after a request. A worker that allocates more than `memory_limit` bytes ends with
    `WorkerOutOfMemory`.

        Pool(4, runtime=ProcessRuntime(preload=["numpy"]))
    """

    name = "process"
    capabilities = frozenset({"cancel_running", "kill_running", "keep_instance", "survive_crash"})

    def __init__(
        self,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        preload: Iterable[str] = (),
        start: Start = "forkserver",
        cancel_grace: float = CANCEL_GRACE,
        stop_grace: float | None = STOP_GRACE,
        max_rss: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        if not hasattr(socket, "AF_UNIX") or not hasattr(os, "fork"):
            raise InvalidOption("runtime", "process", "'thread' on this system, which has no process runtime")
        if child.importing_main and child.imports_here() != "module":
            raise MissingMainGuard
        if initializer is not None and not callable(initializer):
            raise InvalidOptionType("initializer", initializer, "a function, or None")
        modules = (None,) if isinstance(preload, str) else tuple(preload)
        if not all(isinstance(name, str) for name in modules):
            raise InvalidOptionType("preload", preload, "a list of names of modules")
        if start not in STARTS:
            raise InvalidOption("start", start, "'forkserver' or 'spawn'")
        self.max_rss = checked_bytes("max_rss", max_rss)
        self.memory_limit = checked_bytes("memory_limit", memory_limit)
        self.initializer = initializer
        self.initargs = tuple(initargs)
        self.preload: tuple[Any, ...] = modules
        self.start_method: Start = start
        self.cancel_grace = checked_seconds("cancel_grace", cancel_grace)
        self.stop_grace = None if stop_grace is None else checked_seconds("stop_grace", stop_grace)
        self.needs_main = False  # a worker has been sent a function or a class of the app's script
        if not child.of_an_app:
            sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # the name of the script in workers

    def with_initializer(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> ProcessRuntime:
        """A copy with the initializer of a pool."""
        return ProcessRuntime(
            initializer,
            initargs,
            preload=self.preload,
            start=self.start_method,
            cancel_grace=self.cancel_grace,
            stop_grace=self.stop_grace,
            max_rss=self.max_rss,
            memory_limit=self.memory_limit,
        )

    def reports_here(self) -> bool:
        """Whether this is the thread on which results arrive, or the one that logs, for which a worker's end waits.
        Waiting here would wait forever.
        """
        return _thread.get_ident() in (io_thread.ident, log_thread.ident)

    def can_prestart(self) -> bool:
        """Whether workers may start before there are requests for them."""
        return may_prestart()

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        if child.imports_here() is not None:
            raise WorkerStartFailed(STARTS_OTHERS.format(worker.name), worker=worker.name)
        worker.handle = process = Process(worker, events, self)
        process.start()

    def cancel(self, worker: Worker, request: Request) -> bool:
        return bool(worker.handle.cancel(request))

    def kill(self, worker: Worker) -> bool:
        worker.handle.kill()
        return True

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return bool(worker.handle.join(timeout))

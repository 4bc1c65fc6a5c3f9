"""Workers that are processes: real isolation, and an end for whatever runs too long.

A request that is to stop is told so by an exception inside it; if it does not end within `cancel_grace` its process
group gets a SIGTERM, and then a SIGKILL, also if C code keeps the interpreter to itself. A worker that dies takes the
requests that were on it along, and nothing else. When the app ends, however it ends, so do all workers.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal

from bullpen.core.request import RUNNING, Request
from bullpen.core.worker import Worker
from bullpen.errors import InvalidOption, InvalidOptionType, MissingMainGuard, WorkerStartFailed
from bullpen.runtimes.port import WorkerEvents
from bullpen.runtimes.process import child
from bullpen.runtimes.process.process import Process
from bullpen.runtimes.process.supervised import checked_bytes, may_start_ahead
from bullpen.runtimes.process.switchboard import switchboard

Start = Literal["zygote", "spawn"]
STARTS = ("zygote", "spawn")

CANCEL_GRACE = 1.0
STARTS_OTHERS = (
    "worker {} is not started: what a worker process just imports uses a process pool while it is imported, so every "
    "worker would start others; do that in a function, or under \"if __name__ == '__main__':\""
)


class ProcessRuntime:
    """Runs requests in processes of their own.

    `start="zygote"` forks workers from a small process that has imported the modules of `preload`; `"spawn"` starts a
    fresh interpreter for each. A request that is cancelled, or past its time, has `cancel_grace` seconds to end after
    it was told to. `initializer(*initargs)` runs first in each worker. A worker that has more than `max_rss` bytes in
    memory after a request is replaced; one that wants more than `memory_limit` is ended: `WorkerOutOfMemory`.

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
        start: Start = "zygote",
        cancel_grace: float = CANCEL_GRACE,
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
            raise InvalidOption("start", start, "'zygote' or 'spawn'")
        if isinstance(cancel_grace, bool) or not isinstance(cancel_grace, int | float):
            raise InvalidOptionType("cancel_grace", cancel_grace, "a number of seconds")
        if not cancel_grace >= 0:
            raise InvalidOption("cancel_grace", cancel_grace, "≥ 0 seconds")
        self.max_rss = checked_bytes("max_rss", max_rss)
        self.memory_limit = checked_bytes("memory_limit", memory_limit)
        self.initializer = initializer
        self.initargs = tuple(initargs)
        self.preload: tuple[Any, ...] = modules
        self.start_method: Start = start
        self.cancel_grace = float(cancel_grace)
        self.needs_main = False  # its workers are sent things that the app's script defines
        if not child.of_an_app:
            sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # as workers call it

    def with_initializer(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> ProcessRuntime:
        """The same, for a pool that has its own initializer."""
        return ProcessRuntime(
            initializer,
            initargs,
            preload=self.preload,
            start=self.start_method,
            cancel_grace=self.cancel_grace,
            max_rss=self.max_rss,
            memory_limit=self.memory_limit,
        )

    def reports_here(self) -> bool:
        """Whether results arrive on this thread, so that nobody must wait for one here."""
        return switchboard.reports_here()

    def listen_for(self, request: Request) -> None:
        """Whoever calls this is going to wait for a request, and has nothing else to do."""
        if request.state is RUNNING and request.worker is not None:  # else somebody drives it by hand
            request.worker.handle.listen_for(request)

    def starts_ahead(self) -> bool:
        """Whether workers may start before there is work for them."""
        return may_start_ahead()

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

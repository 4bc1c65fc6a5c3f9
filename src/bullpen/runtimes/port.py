"""What a runtime is: the place where requests run. The pool decides everything else.

A runtime starts workers, takes requests for them, and reports. It keeps no queue and makes no choice. What the pool
may rely on:

- `start` returns soon; the worker reports `ready` or `died` later, from any thread, exactly one of them first.
- After `ready`, a worker has at most `capacity` requests at once. Each one handed to it is answered by exactly one
  `finished`, or by the worker's one `died`.
- `ready` and `finished` return the worker's next request, to be run at once, or None: then the worker waits for its
`hand`.
- `hand(request)` never blocks. `hand(None)` comes once, to a worker without requests; it answers with `exited`.
- `cancel` and `kill` do what `capabilities` promises and nothing otherwise.

One contract suite, `bullpen.testing.contracts`, runs on every runtime.
"""

from __future__ import annotations

from typing import Any, Protocol

from bullpen import primitives
from bullpen.core.lifecycle import RequestState
from bullpen.core.request import Request
from bullpen.core.worker import Worker


class WorkerEvents(Protocol):
    """What workers report to the pool. May be called from any thread."""

    def ready(self, worker: Worker) -> Request | None:
        """It has started."""

    def finished(self, worker: Worker, request: Request, state: RequestState, value: Any) -> Request | None:
        """A request on it ended: done with a result, or failed with an error."""

    def exited(self, worker: Worker) -> None:
        """It ended, as it was asked to."""

    def died(self, worker: Worker, error: BaseException) -> None:
        """It could not start, or ended without being asked."""


class Runtime(Protocol):
    """Starts and ends workers of one kind."""

    name: str
    capabilities: frozenset[str]

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        """Begin to start `worker`: first set `worker.handle`, with a method `hand`. Raises if that cannot be done."""

    def cancel(self, worker: Worker, request: Request) -> bool:
        """End `request` on `worker`, if this runtime can; True if it did or will."""

    def kill(self, worker: Worker) -> bool:
        """End `worker` with all that is on it, if this runtime can."""

    def join(self, worker: Worker, timeout: float | None) -> bool:
        """Wait until nothing of `worker` is left; False when `timeout` seconds passed first."""


CAPABILITIES = {
    "cancel_running": "a request that runs can be told to stop",
    "kill_running": "a request that runs can be ended whatever it does",
    "share_memory": "arguments and results are the caller's own objects",
    "run_inline": "a request can run on the thread that waits for it",
    "survive_crash": "a crash of the interpreter costs only the requests on that worker",
}


_workers: dict[int, Worker] = {}  # by thread; a thread only ever sets and deletes its own entry


def current_worker() -> Worker | None:
    """The worker that the current thread is, if it is one in this process."""
    return _workers.get(primitives.current_thread_id())


def enter(worker: Worker) -> None:
    """The current thread is `worker` from now on."""
    _workers[primitives.current_thread_id()] = worker


def leave() -> None:
    """The current thread is no worker any more."""
    _workers.pop(primitives.current_thread_id(), None)

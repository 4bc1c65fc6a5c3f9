"""Workers without threads, which do nothing until the test tells them to.

    runtime = ScriptedRuntime()
    with Pool(1, runtime=runtime) as pool:
        first, second = pool.submit(print), pool.submit(print)
        assert runtime.running == [first]
        runtime.finish(first, "made up")
        assert first.result() == "made up"
        assert runtime.running == [second]
        runtime.run_next()  # prints

A worker runs a request from the moment it has it until the test ends it, whether or not its caller still waits.

Nothing here blocks. But a pool that closes waits for its running requests, and only the test can end those. End them
first, give them up with `pool.close(grace=0)`, or end them after `pool.shutdown(wait=False)`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any

from bullpen.pools.dispatch.request import DONE, FAILED, Request
from bullpen.pools.dispatch.states import RequestState
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes import port
from bullpen.pools.runtimes.port import WorkerEvents


class ScriptedRuntime:
    """A `Runtime` whose workers the test drives. Made for one pool; drive it from one thread.

    `auto_ready`: a worker is ready as soon as it is started, else when the test calls `ready`.
    `auto_exit`: a worker ends as soon as it is asked to, else when the test calls `exit_stopped`.
    `capabilities`: the capabilities that it declares. With "cancel_running", a request that the pool cancels joins
    `cancelling` and runs on until the test ends it; with "kill_running", a worker that is killed dies at once.
    `capacities`: the capacities that the first workers declare, in the order in which they get ready.
    Set `start_error` to make every further start fail.

    It raises `AssertionError` in a pool that breaks the rules of the port: that hands a request to a worker without
    room, or anything to one that was told to end.
    """

    name = "scripted"

    def __init__(
        self,
        *,
        auto_ready: bool = True,
        auto_exit: bool = True,
        capabilities: Iterable[str] = ("share_memory", "keep_instance"),
        capacities: Iterable[int] = (),
    ) -> None:
        self.capabilities = frozenset(capabilities)
        self.start_error: Exception | None = None
        self.cancelling: list[Request] = []
        self._auto_ready = auto_ready
        self._auto_exit = auto_exit
        self._capacities = list(capacities)
        self._workers: dict[int, Worker] = {}
        self._starting: dict[int, Worker] = {}
        self._stopped: dict[int, Worker] = {}
        self._running: OrderedDict[Request, Worker] = OrderedDict()

    # What the pool calls.

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        if self.start_error is not None:
            raise self.start_error
        worker.handle = _Handle(self, worker, events)
        self._workers[worker.id] = worker
        self._starting[worker.id] = worker
        if self._auto_ready:
            self.ready(worker)

    def cancel(self, worker: Worker, request: Request) -> bool:
        if "cancel_running" not in self.capabilities or self._running.get(request) is not worker:
            return False
        if request not in self.cancelling:
            self.cancelling.append(request)
        return True

    def kill(self, worker: Worker) -> bool:
        if "kill_running" not in self.capabilities or worker.id not in self._workers:
            return False
        self.die(worker, RuntimeError("killed"))
        return True

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return worker.id not in self._workers

    # What the test sees.

    @property
    def workers(self) -> list[Worker]:
        """Those that were started and have neither ended nor died, oldest first."""
        return list(self._workers.values())

    @property
    def starting(self) -> list[Worker]:
        """The workers that are not ready yet."""
        return list(self._starting.values())

    @property
    def stopped(self) -> list[Worker]:
        """The workers that were asked to end and have not ended; only with `auto_exit=False`."""
        return list(self._stopped.values())

    @property
    def running(self) -> list[Request]:
        """The running requests, in the order in which they started."""
        return list(self._running)

    def worker_of(self, request: Request) -> Worker:
        """The worker that runs `request`."""
        return self._running[request]

    # Commands of the test.

    def ready(self, worker: Worker | None = None) -> Worker:
        """`worker`, or the first starting one, becomes ready."""
        if worker is None:
            worker = next(iter(self._starting.values()))
        del self._starting[worker.id]
        if self._capacities:
            worker.capacity = self._capacities.pop(0)
        try:
            worker.handle.events.prepare(worker)
        except Exception as error:
            self.die(worker, error)
        else:
            self._go_on(worker, worker.handle.events.ready(worker))
        return worker

    def finish(self, request: Request, value: Any = None) -> None:
        """`request` returns `value`."""
        self._end(request, self._running.pop(request), DONE, value)

    def fail(self, request: Request, error: BaseException) -> None:
        """`request` raises `error`."""
        self._end(request, self._running.pop(request), FAILED, error)

    def finish_next(self, value: Any = None) -> Request:
        """The request that started first returns `value`."""
        request, worker = self._running.popitem(last=False)
        self._end(request, worker, DONE, value)
        return request

    def run_next(self) -> Request:
        """Call the function of the request that started first, and report its result or error."""
        request = next(iter(self._running))
        worker = self._running[request]
        if request.ended:  # given up: its function is gone
            self.finish(request)
            return request
        with port.acting_as(worker, request):
            try:
                value = request.fn(*request.args, **(request.kwargs or {}))
            except BaseException as error:
                self.fail(request, error)
            else:
                self.finish(request, value)
        return request

    def run_all(self) -> None:
        """`run_next` until nothing runs."""
        while self._running:
            self.run_next()

    def end_cancelled(self) -> None:
        """Everything that the pool asked to stop does."""
        while self.cancelling:
            self.fail(self.cancelling[0], CancelledError())

    def exit_stopped(self) -> None:
        """Every worker that was asked to end does."""
        for worker in self.stopped:
            self._exit(worker)

    def die(self, worker: Worker, error: BaseException | None = None) -> None:
        """`worker` could not start, or is gone with all that runs on it."""
        for request in [request for request, on in self._running.items() if on is worker]:
            self._forget(request)
            del self._running[request]
        self._starting.pop(worker.id, None)
        self._stopped.pop(worker.id, None)
        del self._workers[worker.id]
        worker.handle.events.died(worker, RuntimeError("died as scripted") if error is None else error)

    def took(self, worker: Worker, request: Request) -> None:
        """`worker` starts `request`: something to override for tests that watch every start."""

    # Between the two.

    def _hand(self, worker: Worker, request: Request | None) -> None:
        if request is not None:
            self._go_on(worker, request)
            return
        self._check(worker, None)
        self._stopped[worker.id] = worker
        if self._auto_exit:
            self._exit(worker)

    def _go_on(self, worker: Worker, request: Request | None) -> None:
        if request is not None:
            self._check(worker, request)
            worker.handle.load += 1
            self._running[request] = worker
            self.took(worker, request)

    def _check(self, worker: Worker, request: Request | None) -> None:
        """A pool that breaks the port's rules is told so."""
        if worker.id not in self._workers or worker.id in self._starting or worker.id in self._stopped:
            raise AssertionError(f"the pool handed {request} to {worker.name}, which is not ready, or not any more")
        if worker.handle.load >= (1 if request is None else worker.capacity):
            raise AssertionError(f"the pool handed {request} to {worker.name}, which has no room for it")
        if request in self._running:
            raise AssertionError(f"the pool handed {request} out twice")

    def _end(self, request: Request, worker: Worker, state: RequestState, value: Any) -> None:
        self._forget(request)
        worker.handle.load -= 1
        self._go_on(worker, worker.handle.events.finished(worker, request, state, value))

    def _forget(self, request: Request) -> None:
        if self.cancelling and request in self.cancelling:
            self.cancelling.remove(request)

    def _exit(self, worker: Worker) -> None:
        del self._stopped[worker.id]
        worker.handle.events.retire(worker)
        del self._workers[worker.id]
        worker.handle.events.exited(worker)


class _Handle:
    """The runtime's record of a worker."""

    __slots__ = ("_runtime", "_worker", "events", "load")

    def __init__(self, runtime: ScriptedRuntime, worker: Worker, events: WorkerEvents) -> None:
        self._runtime = runtime
        self._worker = worker
        self.events = events
        self.load = 0

    def hand(self, request: Request | None) -> None:
        self._runtime._hand(self._worker, request)

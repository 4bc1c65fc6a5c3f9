"""`AsyncWorkerPool`: a worker for a task queue, on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from types import EllipsisType, TracebackType
from typing import NamedTuple, Never, Protocol

from bullpen import primitives
from bullpen.errors import PoolClosed, StorageBusy, TasksLeft
from bullpen.pools.checks import Seconds, seconds
from bullpen.tasks.model.history import HistoryCounts
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.storage.port import FunctionSet, Storage, SupportsLockCheck, WorkerRecord
from bullpen.tasks.worker.attempt import Interruption
from bullpen.tasks.worker.black_box import capture_log
from bullpen.tasks.worker.declarations import DeclaredSchedules, declare_limits
from bullpen.tasks.worker.heartbeat import Heartbeat
from bullpen.tasks.worker.history_tally import Totals
from bullpen.tasks.worker.identity import new_worker_id, register_worker, unregister_worker
from bullpen.tasks.worker.lane import LaneRunner
from bullpen.tasks.worker.lane_threads import import_pool
from bullpen.tasks.worker.options import Lane, Lanes, WorkerOptions
from bullpen.tasks.worker.poison_isolation import PoisonIsolation
from bullpen.tasks.worker.reports import UNUSABLE, Outage, Reports, log_message
from bullpen.tasks.worker.scope import WorkerScope
from bullpen.tasks.worker.signals import StopSignals
from bullpen.telemetry import Kind, TelemetryEvent

_numbers = itertools.count(1)


class ServedQueue(Protocol):
    """The part of `TaskQueue` that a worker needs."""

    @property
    def storage(self) -> Storage: ...
    @property
    def registry(self) -> TaskRegistry: ...


class WorkerState(enum.Enum):
    """new → starting → running → stopping → stopped; starting → stopped if the store cannot be opened."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"

    def __str__(self) -> str:
        return self.value


class LaneLoad(NamedTuple):
    """A lane at one moment."""

    lane: Lane
    running: int  # tasks that are claimed and not settled yet
    abandoned: int
    claims: bool


class AsyncWorkerPool:
    """Runs the tasks of a queue: at most `concurrency` at once.

    Guarantees:

    - It claims no more tasks than it can run at once, and the store never shows more of them running.
    - It settles every claimed task once: with the outcome of its function, or released if it did not run.
    - A task keeps its lease while it runs, even if it blocks the event loop. A worker that cannot reach the store
      interrupts its tasks before other workers may start them.
    - `stop` claims no more tasks, waits `grace` seconds for running tasks, and releases the rest.

        async with AsyncWorkerPool(queue, concurrency=100):
            ...

        await AsyncWorkerPool(queue, lanes="default:100 cpu:4@process").run()     # until SIGTERM or SIGINT

    Async functions run on the event loop, plain functions on threads. A lane is a set of queues with its own permits;
    without `lanes`, one lane serves all queues of the registered functions. An idle worker waits for a notification of
    the store, at most `poll_interval` seconds. A thread cannot be stopped: a function that runs past its timeout is
    abandoned. While a lane has more than `max_abandoned` abandoned functions, it claims nothing. The worker releases
    tasks of functions that are not registered here, and fails them after `unknown_after` seconds. It calls `observer`,
    by default the observer of the queue, with a `TelemetryEvent` for every event.
    """

    def __init__(
        self,
        /,
        queue: ServedQueue,
        concurrency: int = 10,
        poll_interval: Seconds = 1.0,
        lanes: Lanes | None = None,
        *,
        name: str | None = None,
        grace: Seconds | None = 25.0,
        lease: Seconds = 15.0,
        max_abandoned: int = 10,
        unknown_after: Seconds = 3600.0,
        observer: Callable[[TelemetryEvent], object] | None = None,
        **unknown: Never,
    ) -> None:
        for wrong in unknown:
            raise WorkerOptions.unknown_name("AsyncWorkerPool()", wrong)
        self._queue = queue
        self._options = WorkerOptions.read(
            concurrency=concurrency,
            lanes=lanes,
            name=f"worker-{next(_numbers)}" if name is None else name,
            poll_interval=poll_interval,
            grace=grace,
            lease=lease,
            max_abandoned=max_abandoned,
            unknown_after=unknown_after,
            observer=getattr(queue, "observer", None) if observer is None else observer,
        )
        if any(not definition.is_async for definition in queue.registry):
            import_pool()
        self.id = new_worker_id()
        self._state = WorkerState.NEW
        self._lanes: list[LaneRunner] = []
        self._serving: list[asyncio.Task[None]] = []
        self._heartbeat: Heartbeat | None = None
        self._own: Storage | None = None
        self._stop: asyncio.Task[None] | None = None
        self._hurry: asyncio.Event
        self._deadline: float | None = None
        self._stop_early = False  # `stop` was called during `start`
        self._failure: BaseException | None = None  # a defect that has ended it, or TasksLeft

    # Its life.

    async def start(self) -> None:
        """Open the store and begin to claim. Raises the errors of the store, and then leaves nothing running."""
        if self._state is not WorkerState.NEW:
            raise PoolClosed(f"worker {self._options.name!r} is {self._state}; make a new one", pool=self._options.name)
        loop = asyncio.get_running_loop()
        options = self._options
        self._hurry = asyncio.Event()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._reports = Reports(options.name, self.id, options.observer, loop.time)
        self._enter(WorkerState.STARTING)
        storage = self._queue.storage
        lanes = options.lanes_for(queues_of(self._queue.registry))
        schedules = DeclaredSchedules(self._queue.registry, options.name)
        scope = self._scope = WorkerScope(self._queue.registry)
        try:
            await scope.open()
            self._own = storage.another()
            if self._own is not None:
                storage = self._own
            record = await self._join(storage, lanes, schedules)
        except BaseException:
            await self._end()
            raise
        capture_log()
        poison_isolation = PoisonIsolation(loop.time)
        self._lanes = [
            LaneRunner(lane, options, self._queue.registry, scope, storage, self.id, self._reports, poison_isolation)
            for lane in lanes
        ]
        self._heartbeat = Heartbeat(storage, self._lanes, options, record, self._reports, schedules, self._fail)
        self._heartbeat.start()
        for lane in self._lanes:
            serving = loop.create_task(lane.serve(), name=f"{options.name} {lane.lane}")
            serving.add_done_callback(self._served)
            self._serving.append(serving)
        self._enter(WorkerState.RUNNING)
        log_message(logging.INFO, "%s: worker %s serves %s", options.name, self.id, " ".join(map(str, lanes)))
        if self._stop_early:
            self._begin_stop(options.grace)

    async def _join(self, storage: Storage, lanes: tuple[Lane, ...], schedules: DeclaredSchedules) -> WorkerRecord:
        """Open the store, and save the worker's record and what its queue declares. Waits while the store is locked."""
        queues = tuple(lane.queues for lane in lanes)
        permits = sum(lane.concurrency for lane in lanes)
        functions = function_sets(self._queue.registry)
        outage = Outage(self._reports, "start", self._options.longest_pause)
        while True:
            try:
                if storage is self._own:
                    await storage.open()
                async with self._patience():
                    record = register_worker(self.id, queues, permits, await storage.now(), functions)
                    primitives.failpoint("worker.before_record")
                    await storage.save_worker(record)
                    primitives.failpoint("worker.after_record")
                    await schedules.declare(storage)
                    await declare_limits(storage, getattr(self._queue, "declared_limits", ()))
            except TimeoutError as error:  # StorageBusy is one
                is_locked = isinstance(storage, SupportsLockCheck) and storage.is_locked()
                if self._stop_early or not (is_locked or isinstance(error, StorageBusy)):
                    raise
                await asyncio.sleep(outage.failed("opening the store", error))
            else:
                outage.over()
                return record

    @contextlib.asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """Bound the wait for the store."""
        seconds = self._options.store_patience
        try:
            async with asyncio.timeout(seconds):
                yield
        except StorageBusy:
            raise
        except TimeoutError:
            raise TimeoutError(
                f"worker {self._options.name!r}: the store did not answer within {seconds:g} s"
            ) from None

    def _served(self, serving: asyncio.Task[None]) -> None:
        """A lane has ended. An error is a defect, or the store is unusable: the worker then stops."""
        if not serving.cancelled() and (error := serving.exception()) is not None:
            self._fail(f"lane {serving.get_name()}", error)

    def _fail(self, what: str, error: BaseException) -> None:
        is_unusable = isinstance(error, UNUSABLE)  # no task can be settled any more
        if is_unusable:
            log_message(logging.CRITICAL, "%s: %s; the worker stops now", self._options.name, error)
        else:
            log_message(logging.CRITICAL, "%s: %s has failed; the worker stops", self._options.name, what, error=error)
        self._failure = error
        if self._state is WorkerState.RUNNING or is_unusable:
            self._begin_stop(0.0 if is_unusable else self._options.grace)

    async def stop(self, grace: Seconds | EllipsisType | None = ...) -> None:
        """Claim no more tasks, wait `grace` seconds for running tasks (None: without limit), release the rest.

        Safe to call twice, and before `start`; the shorter grace applies. Returns when every task is settled.
        """
        self.begin_stop(grace)
        if self._state is not WorkerState.STOPPED:
            await self.wait_stopped()

    def begin_stop(self, grace: Seconds | EllipsisType | None = ...) -> None:
        """As `stop`, without waiting. Call it on the worker's loop."""
        limit = self._options.grace if isinstance(grace, EllipsisType) else seconds("grace", grace)
        if self._state is WorkerState.NEW:
            self._state = WorkerState.STOPPED
        elif self._state is WorkerState.STARTING:
            self._stop_early = True
        elif self._state is not WorkerState.STOPPED:
            self._begin_stop(limit)

    def _begin_stop(self, grace: float | None) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        if grace is not None:
            deadline = loop.time() + grace
            if self._deadline is None or deadline < self._deadline:
                self._deadline = deadline
                self._hurry.set()
        if self._stop is None:
            for lane in self._lanes:
                lane.stop_claiming()
            if self._heartbeat is not None:
                self._heartbeat.say_stopping()
            self._enter(WorkerState.STOPPING)
            self._stop = loop.create_task(self._finish(), name=f"{self._options.name} stop")
        return self._stop

    async def _finish(self) -> None:
        """Wait for running tasks, interrupt the rest, and settle all of them."""
        try:
            await self._settled_by_deadline()
            for lane in self._lanes:
                lane.interrupt_all(Interruption.STOP)
            if self._serving:
                _, unsettled = await asyncio.wait(self._serving, timeout=self._options.lease)
                for serving in unsettled:
                    serving.cancel()
                if unsettled:
                    await asyncio.wait(unsettled)
                    self._leave([task for lane in self._lanes for task in lane.leave_behind()])
            if self._heartbeat is not None:
                await self._heartbeat.stop()
            for lane in self._lanes:
                lane.close()
        finally:
            unregister_worker(self.id)
            await self._end()
            log_message(logging.INFO, "%s: worker %s has stopped", self._options.name, self.id)

    def _leave(self, tasks: list[str]) -> None:
        if tasks and self._failure is None:
            self._failure = TasksLeft(worker=self._options.name, tasks=tuple(tasks))

    async def _settled_by_deadline(self) -> None:
        """Wait until every lane has settled its tasks, or the grace is over. A later `stop` may shorten the grace."""
        loop = asyncio.get_running_loop()
        while serving := [lane for lane in self._serving if not lane.done()]:
            self._hurry.clear()
            remaining = None if self._deadline is None else self._deadline - loop.time()
            if remaining is not None and remaining <= 0:
                return
            hurried = loop.create_task(self._hurry.wait())
            await asyncio.wait((hurried, *serving), timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()

    async def _end(self) -> None:
        """Close the store and the scope. The worker has stopped then, also if the store cannot be closed."""
        try:
            try:
                if self._own is not None:
                    await self._own.close()
            finally:
                await self._scope.close(self._options.lease)
        except Exception as error:
            kind = type(error).__name__
            log_message(logging.ERROR, "%s: the store cannot be closed (%s: %s)", self._options.name, kind, error)
            self._failure = self._failure or error
        finally:
            self._enter(WorkerState.STOPPED)
            self._stopped.set_result(None)

    async def wait_stopped(self) -> None:
        """Wait until the worker has stopped."""
        await asyncio.shield(self._stopped)

    async def run(self, started: Callable[[], object] | None = None) -> None:
        """Work until SIGTERM or SIGINT.

        1st signal: finish the tasks within `grace`. 2nd: release the tasks and exit. 3rd: exit now. Calls `started`
        when the worker claims. Raises TasksLeft if the store does not answer at the end, so that the worker can
        neither settle nor release its tasks.
        """
        starting: asyncio.Task[None] | None = None

        def on_signal(count: int) -> None:
            if self._state is WorkerState.STARTING and starting is not None:
                starting.cancel()
            elif self._state is not WorkerState.STOPPED:
                self._begin_stop(self._options.grace if count == 1 else 0.0)

        with StopSignals(on_signal):
            starting = asyncio.get_running_loop().create_task(self.start())
            await asyncio.wait((starting,))
            if starting.cancelled():
                return
            starting.result()
            if started is not None:
                started()
            await self.wait_stopped()
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> AsyncWorkerPool:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # State.

    @property
    def name(self) -> str:
        return self._options.name

    @property
    def state(self) -> WorkerState:
        return self._state

    @property
    def running(self) -> int:
        """How many tasks are claimed and not settled yet."""
        return sum(len(lane.held) for lane in self._lanes)

    @property
    def abandoned(self) -> int:
        """How many functions keep running after their attempts were settled."""
        return sum(len(lane.abandoned) for lane in self._lanes)

    @property
    def ready(self) -> bool:
        """Whether every lane claims tasks when it has free permits."""
        return self._state is WorkerState.RUNNING and all(lane.claims for lane in self._lanes)

    def _task_totals(self) -> Totals:
        """What its attempts have come to since it started, by queue and function. On any thread, for exporters.

        Registered functions are there from the start: the first failure of one is then seen as an increase.
        """
        sums: Totals = {(one.options.queue, one.func_path): HistoryCounts() for one in self._queue.registry}
        for tally in () if self._heartbeat is None else self._heartbeat.tallies:
            for key, counts in tally.totals().items():
                sums.setdefault(key, HistoryCounts()).add(counts)
        return sums

    def _lane_loads(self) -> list[LaneLoad]:
        """What its lanes do now. On any thread, for exporters."""
        return [LaneLoad(one.lane, len(one.held), len(one.abandoned), one.claims) for one in self._lanes]

    def _enter(self, state: WorkerState) -> None:
        self._state = state
        self._reports.event(Kind.TASK_WORKER_STATE, detail=state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self._state}, {self.running} running>"


def queues_of(registry: TaskRegistry) -> tuple[str, ...]:
    """The queues that the registry names; without any, the default queue and the queues of the registered functions."""
    return registry.served_queues or tuple(
        dict.fromkeys(["default", *(definition.options.queue for definition in registry)])
    )


def function_sets(registry: TaskRegistry) -> tuple[FunctionSet, ...]:
    """The functions of each queue, for the record of the worker."""
    names: dict[str, list[str]] = {}
    for definition in registry:
        names.setdefault(definition.options.queue, []).append(definition.func_path)
    return tuple(
        FunctionSet(queue, len(of_queue), f"{zlib.crc32(' '.join(sorted(of_queue)).encode()):08x}")
        for queue, of_queue in sorted(names.items())
    )

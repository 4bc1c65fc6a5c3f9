"""Bullpen: durable tasks that are not lost, and a pool of warm workers that is bounded, keeps deadlines, and is a
drop-in `concurrent.futures.Executor`.

To read the code, follow one call from `submit` to its result:

    pool/pool.py         Pool: the public face          pool/view.py       using(): options for single calls
    pool/engine.py       admission, and the pool's life  pool/future.py     the future, which is also the request
    core/dispatcher.py   who runs what, when             core/backlog.py    what waits
    core/worker.py       one worker and its lock         core/request.py    one call and its states
    runtimes/port.py     what a runtime is               runtimes/thread.py where the call runs

From asyncio: `pool/async_pool.py`, `pool/lane.py` for its two engines, `pool/async_call.py` for a request and its
future, `pool/home.py` for the loop, `runtimes/event_loop.py` for where coroutines run.

To follow a durable task from `enqueue` to its result:

    queue/task_queue.py  TaskQueue: functions become tasks   queue/function.py  TaskFunction: enqueue
    tasks/options.py     what a task may be told             tasks/codec.py     arguments and results as JSON
    queue/clients.py     one client of the store per loop    storage/port.py    what a store is
    tasks/task.py        what a task is, and its moves       queue/job.py       Job: the way to the result
    consumer/            the worker: see its docstring       storage/memory.py  the readable store

Workers that are processes have a package of their own, `runtimes/process/`, with a reading order in its docstring, and
so have programs in other languages, `runtimes/program/`.

The command line begins in `cli/main.py`; each command is a file beside it.

`core/lifecycle.py` has the three state machines, `pool/workforce.py` how workers start and end, `pool/timekeeper.py`
all that happens because time has passed, `pool/pools.py` several pools by name, `errors.py` everything that is raised,
`primitives.py` the seams that tests use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from bullpen.consumer.options import Lane
    from bullpen.consumer.sync import WorkerPool
    from bullpen.consumer.worker_pool import AsyncWorkerPool, WorkerState
    from bullpen.core.lifecycle import PoolState, WorkerStatus
    from bullpen.core.ready import SchedulerStrategy
    from bullpen.errors import (
        BullpenError,
        Cancel,
        ConfigurationError,
        DeadlineExceeded,
        DuplicateTask,
        IllegalTransition,
        InvalidArgument,
        InvalidHook,
        InvalidOption,
        InvalidOptionType,
        InvalidPayload,
        InvalidResult,
        InvalidTask,
        LeaseLost,
        MissingExtra,
        MissingMainGuard,
        NestedWait,
        NoCurrentTask,
        NoSuchMethod,
        NotABullpenFile,
        NotCallable,
        NotJson,
        NotPicklable,
        PayloadTooLarge,
        PoolClosed,
        PoolError,
        PoolFailed,
        PoolNotFound,
        PoolSaturated,
        PredecessorFailed,
        ProgramError,
        QueueError,
        QueueTimeout,
        RemoteError,
        ResultDropped,
        ResultTimeout,
        Retry,
        RunTimeout,
        ScheduleBusy,
        ScheduleNotFound,
        SchemaTooNew,
        SessionError,
        SessionWorkerUnavailable,
        Snooze,
        StorageBusy,
        StorageClosed,
        StorageCorrupt,
        StorageError,
        StorageFull,
        StorageReadOnly,
        StorageUnavailable,
        TaskCancelled,
        TaskExists,
        TaskFailed,
        TaskNotFound,
        TaskSignal,
        TasksLeft,
        Timeout,
        TooManySessions,
        UnknownTask,
        UnsafeFile,
        WorkerAbandoned,
        WorkerBroken,
        WorkerBusy,
        WorkerError,
        WorkerLost,
        WorkerOutOfMemory,
        WorkerStartFailed,
        WrongLoop,
    )
    from bullpen.pool.async_call import AsyncFuture
    from bullpen.pool.async_mapping import AsyncMap
    from bullpen.pool.async_pool import AsyncPool
    from bullpen.pool.async_stream import AsyncStream
    from bullpen.pool.async_view import AsyncPoolView
    from bullpen.pool.budget import remaining
    from bullpen.pool.explain import AsyncExplanation, Explanation, Reason, RunningRequest, explain
    from bullpen.pool.future import PoolFuture
    from bullpen.pool.pool import Pool
    from bullpen.pool.pools import Pools
    from bullpen.pool.startup import InitializationDelegate
    from bullpen.pool.stats import AsyncPoolStats, Percentiles, PoolStats, SessionInfo, WorkerInfo
    from bullpen.pool.stream import Stream
    from bullpen.pool.view import PoolView
    from bullpen.queue.compose import RESULT, Call, ComposedJob, chain, group
    from bullpen.queue.function import TaskFunction
    from bullpen.queue.job import Job
    from bullpen.queue.new_tasks import NewTasks
    from bullpen.queue.schedules import Schedules
    from bullpen.queue.task_queue import TaskQueue
    from bullpen.queue.why import Cause, Why
    from bullpen.runtimes.process.calls import RequestCancelled
    from bullpen.runtimes.process.runtime import ProcessRuntime
    from bullpen.runtimes.program.program import CallProgress
    from bullpen.runtimes.program.runtime import ProgramRuntime
    from bullpen.tasks.context import CurrentTask, current_task
    from bullpen.tasks.info import ScheduleInfo, TaskInfo
    from bullpen.tasks.inject import Inject
    from bullpen.tasks.retry import Backoff
    from bullpen.tasks.task import Progress, TaskError, TaskStatus
    from bullpen.telemetry.catalogue import Event, Kind
    from bullpen.telemetry.observers import Fanout, LogObserver

_HOMES = {
    "bullpen.consumer.options": ("Lane",),
    "bullpen.consumer.sync": ("WorkerPool",),
    "bullpen.consumer.worker_pool": ("AsyncWorkerPool", "WorkerState"),
    "bullpen.core.lifecycle": ("PoolState", "WorkerStatus"),
    "bullpen.core.ready": ("SchedulerStrategy",),
    "bullpen.errors": (
        "BullpenError",
        "Cancel",
        "ConfigurationError",
        "DeadlineExceeded",
        "DuplicateTask",
        "IllegalTransition",
        "InvalidArgument",
        "InvalidHook",
        "InvalidOption",
        "InvalidOptionType",
        "InvalidPayload",
        "InvalidResult",
        "InvalidTask",
        "LeaseLost",
        "MissingMainGuard",
        "NestedWait",
        "NoCurrentTask",
        "NoSuchMethod",
        "MissingExtra",
        "NotCallable",
        "NotJson",
        "NotPicklable",
        "NotABullpenFile",
        "SchemaTooNew",
        "StorageBusy",
        "StorageClosed",
        "StorageCorrupt",
        "StorageError",
        "StorageFull",
        "StorageReadOnly",
        "StorageUnavailable",
        "UnsafeFile",
        "PayloadTooLarge",
        "PoolClosed",
        "PoolError",
        "PoolFailed",
        "PoolNotFound",
        "PoolSaturated",
        "PredecessorFailed",
        "ProgramError",
        "QueueError",
        "QueueTimeout",
        "RemoteError",
        "ResultDropped",
        "ResultTimeout",
        "Retry",
        "RunTimeout",
        "ScheduleBusy",
        "ScheduleNotFound",
        "SessionError",
        "SessionWorkerUnavailable",
        "Snooze",
        "TaskCancelled",
        "TaskExists",
        "TaskFailed",
        "TaskNotFound",
        "TasksLeft",
        "TaskSignal",
        "Timeout",
        "TooManySessions",
        "UnknownTask",
        "WorkerAbandoned",
        "WorkerBroken",
        "WorkerBusy",
        "WorkerError",
        "WorkerLost",
        "WorkerOutOfMemory",
        "WorkerStartFailed",
        "WrongLoop",
    ),
    "bullpen.pool.async_call": ("AsyncFuture",),
    "bullpen.pool.async_mapping": ("AsyncMap",),
    "bullpen.pool.async_pool": ("AsyncPool",),
    "bullpen.pool.async_stream": ("AsyncStream",),
    "bullpen.pool.async_view": ("AsyncPoolView",),
    "bullpen.pool.budget": ("remaining",),
    "bullpen.pool.explain": ("AsyncExplanation", "Explanation", "Reason", "RunningRequest", "explain"),
    "bullpen.pool.future": ("PoolFuture",),
    "bullpen.pool.pool": ("Pool",),
    "bullpen.pool.startup": ("InitializationDelegate",),
    "bullpen.pool.stats": ("AsyncPoolStats", "Percentiles", "PoolStats", "SessionInfo", "WorkerInfo"),
    "bullpen.pool.pools": ("Pools",),
    "bullpen.pool.stream": ("Stream",),
    "bullpen.pool.view": ("PoolView",),
    "bullpen.queue.compose": ("RESULT", "Call", "ComposedJob", "chain", "group"),
    "bullpen.queue.function": ("TaskFunction",),
    "bullpen.queue.job": ("Job",),
    "bullpen.queue.new_tasks": ("NewTasks",),
    "bullpen.queue.schedules": ("Schedules",),
    "bullpen.queue.task_queue": ("TaskQueue",),
    "bullpen.queue.why": (
        "Cause",
        "Why",
    ),
    "bullpen.runtimes.process.calls": ("RequestCancelled",),
    "bullpen.runtimes.process.runtime": ("ProcessRuntime",),
    "bullpen.runtimes.program.program": ("CallProgress",),
    "bullpen.runtimes.program.runtime": ("ProgramRuntime",),
    "bullpen.tasks.context": (
        "CurrentTask",
        "current_task",
    ),
    "bullpen.tasks.info": ("ScheduleInfo", "TaskInfo"),
    "bullpen.tasks.inject": ("Inject",),
    "bullpen.tasks.retry": ("Backoff",),
    "bullpen.tasks.task": (
        "Progress",
        "TaskStatus",
        "TaskError",
    ),
    "bullpen.telemetry.catalogue": ("Event", "Kind"),
    "bullpen.telemetry.observers": ("Fanout", "LogObserver"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "RESULT",
    "AsyncExplanation",
    "AsyncFuture",
    "AsyncMap",
    "AsyncPool",
    "AsyncPoolStats",
    "AsyncPoolView",
    "AsyncStream",
    "AsyncWorkerPool",
    "Backoff",
    "BullpenError",
    "Call",
    "CallProgress",
    "Cancel",
    "Cause",
    "ComposedJob",
    "ConfigurationError",
    "CurrentTask",
    "DeadlineExceeded",
    "DuplicateTask",
    "Event",
    "Explanation",
    "Fanout",
    "IllegalTransition",
    "InitializationDelegate",
    "Inject",
    "InvalidArgument",
    "InvalidHook",
    "InvalidOption",
    "InvalidOptionType",
    "InvalidPayload",
    "InvalidResult",
    "InvalidTask",
    "Job",
    "Kind",
    "Lane",
    "LeaseLost",
    "LogObserver",
    "MissingExtra",
    "MissingMainGuard",
    "NestedWait",
    "NewTasks",
    "NoCurrentTask",
    "NoSuchMethod",
    "NotABullpenFile",
    "NotCallable",
    "NotJson",
    "NotPicklable",
    "PayloadTooLarge",
    "Percentiles",
    "Pool",
    "PoolClosed",
    "PoolError",
    "PoolFailed",
    "PoolFuture",
    "PoolNotFound",
    "PoolSaturated",
    "PoolState",
    "PoolStats",
    "PoolView",
    "Pools",
    "PredecessorFailed",
    "ProcessRuntime",
    "ProgramError",
    "ProgramRuntime",
    "Progress",
    "QueueError",
    "QueueTimeout",
    "Reason",
    "RemoteError",
    "RequestCancelled",
    "ResultDropped",
    "ResultTimeout",
    "Retry",
    "RunTimeout",
    "RunningRequest",
    "ScheduleBusy",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SchedulerStrategy",
    "Schedules",
    "SchemaTooNew",
    "SessionError",
    "SessionInfo",
    "SessionWorkerUnavailable",
    "Snooze",
    "StorageBusy",
    "StorageClosed",
    "StorageCorrupt",
    "StorageError",
    "StorageFull",
    "StorageReadOnly",
    "StorageUnavailable",
    "Stream",
    "TaskCancelled",
    "TaskError",
    "TaskExists",
    "TaskFailed",
    "TaskFunction",
    "TaskInfo",
    "TaskNotFound",
    "TaskQueue",
    "TaskSignal",
    "TaskStatus",
    "TasksLeft",
    "Timeout",
    "TooManySessions",
    "UnknownTask",
    "UnsafeFile",
    "Why",
    "WorkerAbandoned",
    "WorkerBroken",
    "WorkerBusy",
    "WorkerError",
    "WorkerInfo",
    "WorkerLost",
    "WorkerOutOfMemory",
    "WorkerPool",
    "WorkerStartFailed",
    "WorkerState",
    "WorkerStatus",
    "WrongLoop",
    "__version__",
    "chain",
    "current_task",
    "explain",
    "group",
    "remaining",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'bullpen' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

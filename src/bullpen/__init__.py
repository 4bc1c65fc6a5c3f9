"""Bullpen: durable tasks that are not lost, and a pool of warm workers that is bounded, keeps deadlines, and is a
drop-in `concurrent.futures.Executor`.

The library has two wings. `pools/` runs a function now, on a bounded pool of warm workers. `tasks/` runs a function at
least once, even if the machine dies; its workers run on pools.

    pools/
      pool.py async_pool.py pools.py   Pool, AsyncPool, Pools: what a user holds
      options.py policies.py           its options, and groups of them
      stats.py explain.py              what a pool reports about itself
      supervision/                     the pool's life: admission, starting, deaths, recycling, timer, shutdown
      dispatch/                        requests, workers, backlog, sessions: decisions only, no thread and no clock
      maps/ streams/                   Pool.map, Pool.stream
      runtimes/                        where a call runs: thread, event loop, process, program
    tasks/
      client/                          TaskQueue, functions, jobs, chains and groups, why
      model/                           what a task is, and every move it can make: decisions only
      storage/                         the storage port, and memory, SQLite, PostgreSQL, Redis
      worker/                          AsyncWorkerPool and WorkerPool: claim, run, settle
    integrations/ web/ cli/ testing/   Django; the dashboard; the command `bullpen`; tools for the tests of users
    errors.py escaping.py telemetry.py primitives.py trusted_files.py version.py

To follow one call, read `pools/pool.py`, `pools/dispatch/dispatcher.py` and `pools/runtimes/thread.py`; to follow one
crash, `pools/runtimes/process/supervised.py` and `pools/supervision/deaths.py`. To follow one task, read
`tasks/client/function.py`, `tasks/storage/port.py`, `tasks/worker/lane.py` and `tasks/worker/attempt.py`.
`docs/explanation/architecture.md` leads through all three, and has every package, thread and layer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bullpen.version import __version__

if TYPE_CHECKING:
    from bullpen.errors import (
        BullpenError,
        Cancel,
        ConfigurationError,
        DeadlineExceeded,
        DuplicateTask,
        IllegalTransition,
        InvalidArgument,
        InvalidEvent,
        InvalidHook,
        InvalidOption,
        InvalidOptionType,
        InvalidPayload,
        InvalidResult,
        InvalidStep,
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
        StackUnavailable,
        StepFailed,
        StepMismatch,
        StorageBusy,
        StorageClosed,
        StorageCorrupt,
        StorageError,
        StorageFull,
        StorageGone,
        StorageReadOnly,
        StorageUnavailable,
        Suspended,
        TaskCancelled,
        TaskExists,
        TaskFailed,
        TaskNotFound,
        TaskSignal,
        TasksLeft,
        Timeout,
        TooManySessions,
        UnknownOption,
        UnknownTask,
        UnreadableTask,
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
    from bullpen.pools.async_calls import AsyncFuture
    from bullpen.pools.async_pool import AsyncPool
    from bullpen.pools.async_view import AsyncPoolView
    from bullpen.pools.dispatch.futures import PoolFuture
    from bullpen.pools.dispatch.ready_queue import SchedulerStrategy
    from bullpen.pools.dispatch.states import PoolState, WorkerStatus
    from bullpen.pools.explain import AsyncExplanation, Explanation, Reason, RunningRequest, explain
    from bullpen.pools.maps.async_map import AsyncMap
    from bullpen.pools.maps.outcome import Outcome
    from bullpen.pools.policies import (
        CallPolicy,
        CapacityPolicy,
        InitializationDelegate,
        RecyclePolicy,
        RestartPolicy,
        SessionPolicy,
        StartupPolicy,
    )
    from bullpen.pools.pool import Pool
    from bullpen.pools.pools import Pools
    from bullpen.pools.remaining import remaining
    from bullpen.pools.runtimes.port import Runtime
    from bullpen.pools.runtimes.process.calls import RequestCancelled
    from bullpen.pools.runtimes.process.runtime import ProcessRuntime
    from bullpen.pools.runtimes.program.program import CallProgress
    from bullpen.pools.runtimes.program.runtime import ProgramRuntime
    from bullpen.pools.stats import AsyncPoolStats, Percentiles, PoolStats, SessionInfo, WorkerInfo
    from bullpen.pools.streams.async_stream import AsyncStream
    from bullpen.pools.streams.stream import Stream
    from bullpen.pools.view import PoolView
    from bullpen.tasks.client.backend import NewTasks
    from bullpen.tasks.client.compose import RESULT, Call, ComposedJob, chain, group
    from bullpen.tasks.client.function import TaskFunction
    from bullpen.tasks.client.job import Job
    from bullpen.tasks.client.schedules import Schedules
    from bullpen.tasks.client.task_queue import TaskQueue
    from bullpen.tasks.client.why import Cause, Why
    from bullpen.tasks.model.context import CurrentTask, current_task
    from bullpen.tasks.model.failure_groups import FailureGroup
    from bullpen.tasks.model.history import Histogram, HistoryPeriod
    from bullpen.tasks.model.info import EventWait, ScheduleInfo, StepInfo, TaskError, TaskInfo
    from bullpen.tasks.model.inject import Inject
    from bullpen.tasks.model.retry import Backoff
    from bullpen.tasks.model.task import Progress, TaskStatus
    from bullpen.tasks.worker.options import Lane
    from bullpen.tasks.worker.sync import WorkerPool
    from bullpen.tasks.worker.worker_pool import AsyncWorkerPool, WorkerState
    from bullpen.telemetry import Fanout, Kind, LogObserver, TelemetryEvent

_HOMES = {
    "bullpen.tasks.worker.options": ("Lane",),
    "bullpen.tasks.worker.sync": ("WorkerPool",),
    "bullpen.tasks.worker.worker_pool": ("AsyncWorkerPool", "WorkerState"),
    "bullpen.pools.dispatch.states": ("PoolState", "WorkerStatus"),
    "bullpen.pools.dispatch.ready_queue": ("SchedulerStrategy",),
    "bullpen.errors": (
        "BullpenError",
        "Cancel",
        "ConfigurationError",
        "DeadlineExceeded",
        "DuplicateTask",
        "IllegalTransition",
        "InvalidArgument",
        "InvalidEvent",
        "InvalidHook",
        "InvalidOption",
        "InvalidOptionType",
        "InvalidPayload",
        "InvalidResult",
        "InvalidStep",
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
        "StackUnavailable",
        "StepFailed",
        "StepMismatch",
        "StorageBusy",
        "StorageClosed",
        "StorageCorrupt",
        "StorageError",
        "StorageFull",
        "StorageGone",
        "StorageReadOnly",
        "StorageUnavailable",
        "Suspended",
        "UnreadableTask",
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
        "TelemetryEvent",
        "Timeout",
        "TooManySessions",
        "UnknownOption",
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
    "bullpen.pools.async_calls": ("AsyncFuture",),
    "bullpen.pools.maps.async_map": ("AsyncMap",),
    "bullpen.pools.maps.outcome": ("Outcome",),
    "bullpen.pools.async_pool": ("AsyncPool",),
    "bullpen.pools.streams.async_stream": ("AsyncStream",),
    "bullpen.pools.async_view": ("AsyncPoolView",),
    "bullpen.pools.remaining": ("remaining",),
    "bullpen.pools.explain": ("AsyncExplanation", "Explanation", "Reason", "RunningRequest", "explain"),
    "bullpen.pools.dispatch.futures": ("PoolFuture",),
    "bullpen.pools.pool": ("Pool",),
    "bullpen.pools.policies": (
        "CallPolicy",
        "CapacityPolicy",
        "InitializationDelegate",
        "RecyclePolicy",
        "RestartPolicy",
        "SessionPolicy",
        "StartupPolicy",
    ),
    "bullpen.pools.stats": ("AsyncPoolStats", "Percentiles", "PoolStats", "SessionInfo", "WorkerInfo"),
    "bullpen.pools.pools": ("Pools",),
    "bullpen.pools.streams.stream": ("Stream",),
    "bullpen.pools.view": ("PoolView",),
    "bullpen.tasks.client.compose": ("RESULT", "Call", "ComposedJob", "chain", "group"),
    "bullpen.tasks.client.function": ("TaskFunction",),
    "bullpen.tasks.client.job": ("Job",),
    "bullpen.tasks.client.backend": ("NewTasks",),
    "bullpen.tasks.client.schedules": ("Schedules",),
    "bullpen.tasks.client.task_queue": ("TaskQueue",),
    "bullpen.tasks.client.why": (
        "Cause",
        "Why",
    ),
    "bullpen.pools.runtimes.port": ("Runtime",),
    "bullpen.pools.runtimes.process.calls": ("RequestCancelled",),
    "bullpen.pools.runtimes.process.runtime": ("ProcessRuntime",),
    "bullpen.pools.runtimes.program.program": ("CallProgress",),
    "bullpen.pools.runtimes.program.runtime": ("ProgramRuntime",),
    "bullpen.tasks.model.context": (
        "CurrentTask",
        "current_task",
    ),
    "bullpen.tasks.model.failure_groups": ("FailureGroup",),
    "bullpen.tasks.model.history": ("Histogram", "HistoryPeriod"),
    "bullpen.tasks.model.info": ("EventWait", "ScheduleInfo", "StepInfo", "TaskError", "TaskInfo"),
    "bullpen.tasks.model.inject": ("Inject",),
    "bullpen.tasks.model.retry": ("Backoff",),
    "bullpen.tasks.model.task": (
        "Progress",
        "TaskStatus",
    ),
    "bullpen.telemetry": ("Fanout", "Kind", "LogObserver", "TelemetryEvent"),
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
    "CallPolicy",
    "CallProgress",
    "Cancel",
    "CapacityPolicy",
    "Cause",
    "ComposedJob",
    "ConfigurationError",
    "CurrentTask",
    "DeadlineExceeded",
    "DuplicateTask",
    "EventWait",
    "Explanation",
    "FailureGroup",
    "Fanout",
    "Histogram",
    "HistoryPeriod",
    "IllegalTransition",
    "InitializationDelegate",
    "Inject",
    "InvalidArgument",
    "InvalidEvent",
    "InvalidHook",
    "InvalidOption",
    "InvalidOptionType",
    "InvalidPayload",
    "InvalidResult",
    "InvalidStep",
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
    "Outcome",
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
    "RecyclePolicy",
    "RemoteError",
    "RequestCancelled",
    "RestartPolicy",
    "ResultDropped",
    "ResultTimeout",
    "Retry",
    "RunTimeout",
    "RunningRequest",
    "Runtime",
    "ScheduleBusy",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SchedulerStrategy",
    "Schedules",
    "SchemaTooNew",
    "SessionError",
    "SessionInfo",
    "SessionPolicy",
    "SessionWorkerUnavailable",
    "Snooze",
    "StackUnavailable",
    "StartupPolicy",
    "StepFailed",
    "StepInfo",
    "StepMismatch",
    "StorageBusy",
    "StorageClosed",
    "StorageCorrupt",
    "StorageError",
    "StorageFull",
    "StorageGone",
    "StorageReadOnly",
    "StorageUnavailable",
    "Stream",
    "Suspended",
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
    "TelemetryEvent",
    "Timeout",
    "TooManySessions",
    "UnknownOption",
    "UnknownTask",
    "UnreadableTask",
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

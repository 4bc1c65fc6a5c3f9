"""The public names are a promise: adding or dropping one is a decision, made here."""

from __future__ import annotations

import subprocess
import sys

import bullpen

PUBLIC = [
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
    "Explanation",
    "FailureGroup",
    "Fanout",
    "Histogram",
    "HistoryPeriod",
    "IllegalTransition",
    "InitializationDelegate",
    "Inject",
    "InvalidArgument",
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
    "Suspended",
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

# Nobody who only wants threads should pay for these.
NOT_ON_IMPORT = ("asyncio", "multiprocessing", "socket", "sqlite3", "ssl", "subprocess")


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(bullpen.__all__) == sorted(PUBLIC)


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    for name in bullpen.__all__:
        assert getattr(bullpen, name) is not None
        assert name in dir(bullpen)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(bullpen, "no_such_name")


def test_import_bullpen_is_light() -> None:
    source = "import sys; before = set(sys.modules); import bullpen; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=30)
    brought = set(done.stdout.split())
    assert "bullpen" in brought
    assert brought.isdisjoint(NOT_ON_IMPORT)

"""Every error Bullpen raises, as one tree.

    BullpenError
    ├── InvalidOption (ValueError)          the value of an option is not allowed; names the allowed values
    │   └── InvalidOptionType (TypeError)   … or is of the wrong type
    │       └── UnknownOption               a keyword is no option of the call
    ├── ConfigurationError (ValueError)     a configuration is wrong; says where, and what would be right
    ├── MissingExtra (ImportError)          a feature needs a package that is not installed
    ├── NotCallable (TypeError)             the submitted value is not a function
    │   └── NoSuchMethod (AttributeError)   … or names no public method of the pool's workers
    ├── NotPicklable (PicklingError, …)     an argument or result cannot be pickled; names the part
    ├── NotJson (TypeError)                 an argument for a program cannot be written as JSON; names it
    ├── RemoteError                         replaces an error of a worker process that cannot be pickled
    │   └── ProgramError                    a program has answered with an error
    ├── MissingMainGuard (RuntimeError)     a script would start its process pools again in each worker
    ├── PoolError
    │   ├── PoolNotFound (KeyError)         no pool has this name; lists the existing pools
    │   ├── PoolClosed (RuntimeError)       the pool is closed
    │   ├── PoolFailed (BrokenExecutor)     no worker could be started; `__cause__` says why
    │   ├── PoolSaturated                   every worker is busy and the backlog is full
    │   ├── TooManySessions                 `sessions.max_sessions` are in use, and none of them can be removed
    │   ├── NestedWait (RuntimeError)       a worker would wait for itself forever
    │   └── WrongLoop (RuntimeError)        an `AsyncPool` was used outside the event loop that it belongs to
    ├── Timeout (TimeoutError)
    │   ├── DeadlineExceeded                the caller's whole budget (`timeout`) is spent
    │   ├── QueueTimeout                    waited in the backlog longer than `queue_timeout`
    │   ├── RunTimeout                      ran longer than `run_timeout`
    │   └── ResultTimeout                   the task was not finished when the wait for its result timed out
    ├── WorkerError
    │   ├── WorkerLost (BrokenExecutor)     the worker died with the request on it
    │   │   └── WorkerOutOfMemory           … because it needed more than its `memory_limit`
    │   ├── SessionError
    │   │   ├── WorkerBusy                  the session's worker is busy, and the call asked not to wait for it
    │   │   └── SessionWorkerUnavailable    the session's worker is gone, and no other will do
    │   ├── WorkerStartFailed (BrokenExecutor)  a worker could not be started
    │   └── WorkerAbandoned                 the pool closed while the request still ran
    ├── QueueError
    │   ├── InvalidTask (TypeError)         a function cannot be a task; says why
    │   │   └── DuplicateTask               … because another one has its name; names both places
    │   ├── InvalidHook (TypeError)         a function cannot be a middleware, a lifespan or a provider; says why
    │   ├── InvalidArgument (TypeError)     arguments do not fit, or would be read back changed; has the path
    │   │   └── PayloadTooLarge             … or are too large together
    │   ├── InvalidResult (TypeError)       a result cannot be kept: its task succeeded, but the result is dropped
    │   ├── InvalidPayload (ValueError)     the stored arguments or result cannot be decoded
    │   ├── UnknownTask (LookupError)       no function is registered under this name
    │   ├── TaskNotFound (LookupError)      no task has this id
    │   ├── StackUnavailable                the task does not run, or its worker does not tell its stack
    │   ├── UnreadableTask                  the stored row of a task cannot be read, so it cannot be retried
    │   ├── TaskExists                      another task has the unique key, and `on_duplicate="reject"`
    │   ├── ScheduleNotFound (LookupError)  no schedule has this key; lists the existing keys
    │   ├── ScheduleBusy                    a schedule cannot move to another queue while it runs
    │   ├── TaskFailed                      waited for a result, but the task failed; has the error as data
    │   ├── TaskCancelled                   … but the task was cancelled
    │   │   └── PredecessorFailed           … because a task that it depends on did not succeed
    │   ├── ResultDropped                   … and the task succeeded, but its result could not be kept
    │   ├── LeaseLost                       this attempt is over: another worker has the task
    │   ├── InvalidStep                     a step cannot run here: says why
    │   ├── StepMismatch                    a step was called with other arguments than its kept record
    │   ├── InvalidEvent (TypeError)        the payload of an event cannot be kept, or is too large
    │   ├── StepFailed                      a step gave up, now or in an earlier attempt; has the error as data
    │   ├── TasksLeft                       a worker stopped while its store did not answer; has the ids
    │   └── NoCurrentTask (RuntimeError)    `current_task()` was called outside a task
    ├── TaskSignal                          raised by your own tasks to decide how they continue
    │   ├── Retry                           try again, after a delay of its own
    │   ├── Snooze                          run later; nothing is counted
    │   └── Cancel                          stop for good; not a failure
    ├── WorkerBroken                        raised by your own code: this worker is broken, replace it
    ├── StorageError                        the store failed, and acknowledged nothing
    │   ├── StorageBusy (TimeoutError)      other users locked the store for too long; try again
    │   ├── StorageUnavailable (ConnectionError)  the server cannot be reached, or rejects the login
    │   ├── StorageFull                     the store has no space left
    │   ├── StorageReadOnly                 the store cannot be written
    │   ├── StorageCorrupt                  the stored data is damaged; Bullpen does not repair it
    │   ├── StorageGone                     the file was removed or replaced while it was in use; restart
    │   ├── NotABullpenFile                 the file belongs to another program, and is not changed
    │   ├── SchemaTooNew                    a newer Bullpen has written it
    │   ├── UnsafeFile                      the file would not be safe there: a network file system, others can write it
    │   └── StorageClosed (RuntimeError)    the store is closed
    └── IllegalTransition                   a defect in Bullpen itself: please report it

    Suspended (BaseException)               ends the attempt of a task that sleeps or waits; let it pass

Errors carry their data in fields, so that code need not read the text.
"""

from __future__ import annotations

from _pickle import PicklingError  # pickle itself takes longer to import
from collections.abc import Iterable
from concurrent.futures import BrokenExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from bullpen.escaping import escape_lines


class BullpenError(Exception):
    """The root of all errors that Bullpen itself raises. Control characters in quoted data are escaped."""

    def __str__(self) -> str:
        return escape_lines(Exception.__str__(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes, and can be copied, with their text and their fields."""
        return _rebuild, (type(self), self.args, self.__dict__)


def repr_of(error: object) -> str:
    """The `repr` of any error, for a message. The class of the error may be the user's, and its `repr` may raise."""
    try:
        return repr(error)
    except BaseException as other:
        return f"<{type(error).__name__}, whose repr raised {type(other).__name__}>"


def _rebuild(kind: type[BullpenError], args: tuple[Any, ...], fields: dict[str, Any]) -> BullpenError:
    error = kind.__new__(kind)  # without `__init__`: the fields have its results
    error.args = args
    error.__dict__.update(fields)
    return error


def closest(name: object, allowed: Iterable[str]) -> str | None:
    """The name that was probably meant, if one is close."""
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(str(name), list(allowed), n=1)
    return close[0] if close else None


def did_you_mean(name: object, allowed: Iterable[str]) -> str:
    """The hint at the name that was probably meant, for the end of a message; empty if none is close."""
    close = closest(name, allowed)
    return f"; did you mean {close!r}?" if close else ""


class InvalidOption(BullpenError, ValueError):
    """An option has a value that is not allowed."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        self.option = option
        self.value = value
        self.allowed = allowed
        super().__init__(f"{option} must be {allowed}, got {value!r}")


class InvalidOptionType(InvalidOption, TypeError):
    """An option has a value of the wrong type."""


class UnknownOption(InvalidOptionType):
    """A call has a keyword that is no option there. `option` is the call, `value` the keyword."""

    def __init__(self, where: str, name: str, known: Iterable[str], *, instead: str | None = None) -> None:
        self.option = where
        self.value = name
        self.known = tuple(sorted(known))
        self.allowed = ", ".join(self.known)
        self.suggestion = instead or closest(name, self.known)
        hint = f"did you mean {self.suggestion}?" if self.suggestion else f"the options are {self.allowed}"
        BullpenError.__init__(self, f"{where} has no option {name!r}; {hint}")


class ConfigurationError(BullpenError, ValueError):
    """A configuration of pools is wrong. Nothing was started."""

    def __init__(self, problem: str, *, source: str, pool: str | None = None, option: str | None = None) -> None:
        self.problem = problem
        self.source = source
        self.pool = pool
        self.option = option
        where = source if pool is None else f"{source}: pool {pool!r}"
        super().__init__(f"{where}: {problem}")


class MissingExtra(BullpenError, ImportError):
    """A feature needs a package that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f'{what} needs more packages: pip install "pybullpen[{extra}]" (in a clone: ".[{extra}]")')


class NotCallable(BullpenError, TypeError):
    """The submitted value is not a function."""

    def __init__(self, value: object) -> None:
        self.value = value
        super().__init__(
            f"expected a function to call, got {value!r} of type {type(value).__name__}; "
            "pass the function itself and its arguments after it: pool.submit(f, x), not pool.submit(f(x))"
        )


class NoSuchMethod(NotCallable, AttributeError):
    """The submitted string names no public method of the pool's workers."""

    def __init__(self, name: str, why: str, *, owner: str, methods: tuple[str, ...]) -> None:
        self.value = self.name = name
        self.owner = owner
        self.methods = methods
        there_are = f"; there are {', '.join(methods)}" if methods else ""
        BullpenError.__init__(self, f"{owner}: {name!r} {why}{there_are}")


class NotPicklable(BullpenError, PicklingError, TypeError):
    """A value cannot be sent to another process, or back from it."""

    def __init__(self, what: str, path: str, reason: str, *, ran: bool = False) -> None:
        self.what = what
        self.path = path
        self.reason = reason
        self.ran = ran  # True: the function has run, and its result or error cannot be sent back
        super().__init__(f"{what}{' at ' + path if path else ''}: {reason}")


class NotJson(BullpenError, TypeError):
    """An argument cannot be written as JSON. A program accepts only JSON."""

    def __init__(self, what: str, reason: str) -> None:
        self.what = what
        self.reason = reason
        super().__init__(f"{what}: {reason}")


class RemoteError(BullpenError):
    """An error of a worker process that could not be pickled, or not be unpickled here. Its causes stay as they are."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(f"{kind}: {text}")


class ProgramError(RemoteError):
    """The error that a program has answered a call with: a name, a text and optional details."""

    def __init__(self, kind: str, text: str, details: object = None) -> None:
        self.details: Any = details
        super().__init__(kind, text)


class MissingMainGuard(BullpenError, RuntimeError):
    """A worker process imports the script that has started it, and the script starts a process pool when imported."""

    def __init__(self) -> None:
        super().__init__(
            "this script creates a process pool when it is imported, and each worker imports it to find its functions; "
            "put the code of the script below \"if __name__ == '__main__':\""
        )


class PoolError(BullpenError):
    """An error of a whole pool."""

    def __init__(self, message: str, *, pool: str) -> None:
        self.pool = pool
        super().__init__(message)


class PoolNotFound(PoolError, KeyError):
    """There is no pool of this name."""

    def __init__(self, *, pool: object, known: tuple[str, ...], suggestion: str | None) -> None:
        self.known = known
        self.suggestion = suggestion
        hint = "" if suggestion is None else f"; did you mean {suggestion!r}?"
        super().__init__(f"there is no pool {pool!r}, there are {', '.join(known)}{hint}", pool=str(pool))


class PoolClosed(PoolError, RuntimeError):
    """The pool is closed: it accepts no calls."""


class PoolFailed(PoolError, BrokenExecutor):
    """The pool could not start a single worker; `__cause__` holds the worker's error."""


class PoolSaturated(PoolError):
    """Every worker is busy and the backlog is full: try later, or send less."""

    def __init__(self, *, pool: str, queued: int, limit: int) -> None:
        self.queued = queued
        self.limit = limit
        places = f"{queued} of {limit} places in the backlog are taken" if limit else "max_queue=0 lets no call wait"
        super().__init__(f"pool {pool!r} is saturated: no worker can take the call now, and {places}", pool=pool)


class TooManySessions(PoolError):
    """The pool has `sessions.max_sessions` sessions, and can remove none: all of them are strict or in use."""

    def __init__(self, *, pool: str, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"pool {pool!r} has {limit} sessions in use; raise sessions.max_sessions, lower sessions.ttl, or end some "
            "with pool.end_session(id)",
            pool=pool,
        )


class NestedWait(PoolError, RuntimeError):
    """A request waits, directly or through other requests, for its own result."""


class WrongLoop(PoolError, RuntimeError):
    """An `AsyncPool` was used outside the event loop that it belongs to: the first one it was used on."""

    def __init__(self, *, pool: str, owner: object, caller: object) -> None:
        self.owner = owner
        self.caller = caller
        owned = "belongs to no event loop yet" if owner is None else f"belongs to {owner!r}"
        where = "where no event loop runs" if caller is None else f"on {caller!r}"
        super().__init__(
            f"pool {pool!r} {owned} and was used {where}; use it on its loop (from another thread with "
            "asyncio.run_coroutine_threadsafe), or make a pool for each loop",
            pool=pool,
        )


class Timeout(BullpenError, TimeoutError):
    """A time limit has passed."""

    def __init__(self, message: str, *, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(message)


class DeadlineExceeded(Timeout):
    """The caller's whole budget for the call, `timeout`, is spent."""

    def __init__(self, *, seconds: float, ran: bool) -> None:
        self.ran = ran
        where = "while it ran" if ran else "before it started; it will not run"
        super().__init__(f"timeout of {seconds:g} s passed {where}", seconds=seconds)


class QueueTimeout(Timeout):
    """The request waited in the backlog longer than `queue_timeout`; it will not run."""

    def __init__(self, *, seconds: float) -> None:
        super().__init__(
            f"waited in the backlog longer than queue_timeout={seconds:g} s; it will not run", seconds=seconds
        )


class RunTimeout(Timeout):
    """The request ran longer than `run_timeout`."""

    def __init__(self, *, seconds: float) -> None:
        super().__init__(f"ran longer than run_timeout={seconds:g} s", seconds=seconds)


class ResultTimeout(Timeout):
    """The task was not finished when the wait for its result timed out. The task continues."""

    def __init__(self, *, seconds: float, task: str, status: str, why: str = "") -> None:
        self.task = task
        self.status = status
        self.why = why
        because = f": {why}" if why else ""
        super().__init__(f"task {task} is {status} after a wait of {seconds:g} s{because}", seconds=seconds)


class WorkerError(BullpenError):
    """An error of one worker."""

    def __init__(self, message: str, *, worker: str) -> None:
        self.worker = worker
        super().__init__(message)


class WorkerLost(WorkerError, BrokenExecutor):
    """The worker died while the request was on it.

    For a worker process, `exit_code` is its exit code, if known (negative: killed by that signal), `stderr` has the
    last lines that it wrote there, and `peak_memory` the most resident memory that it had, in bytes, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        worker: str,
        exit_code: int | None = None,
        stderr: str = "",
        peak_memory: int | None = None,
    ) -> None:
        self.exit_code = exit_code
        self.stderr = stderr
        self.peak_memory = peak_memory
        super().__init__(message, worker=worker)


class WorkerOutOfMemory(WorkerLost):
    """The request needed more memory than `memory_limit`, and the pool ended the worker."""

    def __init__(self, message: str, *, worker: str, limit: int) -> None:
        self.limit = limit
        super().__init__(message, worker=worker)


class SessionError(WorkerError):
    """An error of a session and its worker."""

    def __init__(self, message: str, *, worker: str, session: str) -> None:
        self.session = session
        super().__init__(message, worker=worker)


class WorkerBusy(SessionError):
    """The session's worker has no room, and the call asked not to wait for it (`strict_fail_fast`)."""

    def __init__(self, *, worker: str, session: str) -> None:
        what = f"worker {worker}, which serves it, is busy" if worker else "an earlier request of it has not started"
        super().__init__(f"session {session!r}: {what}", worker=worker, session=session)


class SessionWorkerUnavailable(SessionError):
    """The session's worker is gone, tainted or about to end, and the session may use no other (`strict_…`)."""

    def __init__(self, *, worker: str, session: str) -> None:
        super().__init__(
            f"session {session!r}: worker {worker}, which served it, is no longer available; "
            "end_session(id) lets it start again on another worker",
            worker=worker,
            session=session,
        )


class WorkerStartFailed(WorkerError, BrokenExecutor):
    """A worker could not be started; `__cause__` says why."""


class WorkerAbandoned(WorkerError):
    """The pool was closed, and its grace passed while the request ran on a worker that cannot be stopped."""


class QueueError(BullpenError):
    """An error of durable tasks."""


class InvalidTask(QueueError, TypeError):
    """A function cannot be a task."""

    def __init__(self, reason: str, *, function: str) -> None:
        self.function = function
        self.reason = reason
        super().__init__(f"{function} cannot be a task: {reason}")


class DuplicateTask(InvalidTask):
    """Two functions would have the same name, and a stored task could mean either."""

    def __init__(self, *, name: str, place: str, taken_by: str) -> None:
        self.name = name
        self.place = place
        self.taken_by = taken_by
        super().__init__(
            f"the name {name!r} is taken by the function at {taken_by}; give one of them another with name=",
            function=f"the function at {place}",
        )


class InvalidHook(QueueError, TypeError):
    """A function cannot be a middleware, a lifespan, or the provider of an injected value."""

    def __init__(self, reason: str, *, what: str, function: str) -> None:
        self.reason = reason
        self.what = what
        self.function = function
        super().__init__(f"{function} cannot be a {what}: {reason}")


class InvalidArgument(QueueError, TypeError):
    """An argument would be read back changed, or the arguments do not fit the function. Nothing was enqueued."""

    def __init__(self, reason: str, *, function: str, path: str) -> None:
        self.function = function
        self.path = path
        self.reason = reason
        super().__init__(f"{function}: {path} {reason}" if path else f"{function}: {reason}")


class PayloadTooLarge(InvalidArgument):
    """All arguments together are larger than `max_payload`. Store the data elsewhere, and pass its address."""

    def __init__(self, *, function: str, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the arguments are {size} bytes, and at most {limit} are taken; "
            "store the data elsewhere and pass its address, or raise max_payload",
            function=function,
            path="",
        )


class InvalidResult(QueueError, TypeError):
    """A result cannot be stored, or would be read back changed."""

    def __init__(self, reason: str, *, function: str, path: str) -> None:
        self.function = function
        self.path = path
        self.reason = reason
        super().__init__(f"{function}: {path} {reason}")


class InvalidPayload(QueueError, ValueError):
    """The stored arguments cannot be decoded: they are damaged, or belong to another version of the function."""

    def __init__(self, reason: str, *, function: str, path: str) -> None:
        self.function = function
        self.path = path
        self.reason = reason
        super().__init__(f"{function}: {path} {reason}" if path else f"{function}: {reason}")


class UnknownTask(QueueError, LookupError):
    """No function is registered under this name."""

    def __init__(self, *, name: str, known: tuple[str, ...], suggestion: str | None) -> None:
        self.name = name
        self.known = known
        self.suggestion = suggestion
        hint = "" if suggestion is None else f"; did you mean {suggestion!r}?"
        super().__init__(f"no task is registered as {name!r}{hint}")


class TaskNotFound(QueueError, LookupError):
    """No task has this id: it never existed, or it was pruned after its time to live."""

    def __init__(self, *, task: str) -> None:
        self.task = task
        super().__init__(f"there is no task {task}: it never existed, or it was pruned after its time to live")


class StackUnavailable(QueueError):
    """The stack of a task is not known: the task does not run, or its worker cannot tell or does not answer."""

    def __init__(self, *, task: str, reason: str) -> None:
        self.task = task
        self.reason = reason
        super().__init__(f"there is no stack of task {task}: {reason}")


class UnreadableTask(QueueError):
    """The stored row of this task cannot be read, so the task cannot run again. `reason` says which part of it."""

    def __init__(self, *, task: str, reason: str) -> None:
        self.task = task
        self.reason = reason
        super().__init__(
            f"the stored row of task {task} cannot be read ({reason}); repair the row, or delete the task and enqueue "
            "it again"
        )


class TaskExists(QueueError):
    """Another task has the unique key, and `on_duplicate` is "reject": nothing was enqueued. `job` is the Job of that
    other task.
    """

    job: Any = None

    def __init__(self, *, key: str, task: str) -> None:
        self.key = key
        self.task = task
        super().__init__(f"the unique key {key!r} is taken by task {task}; nothing was enqueued")


class ScheduleNotFound(QueueError, LookupError):
    """There is no schedule with this key."""

    def __init__(self, *, key: str, known: tuple[str, ...], suggestion: str | None = None) -> None:
        self.key = key
        self.known = known
        self.suggestion = suggestion
        hint = f"; do you mean {suggestion!r}?" if suggestion else f"; there are {len(known)}" if known else ""
        super().__init__(f"there is no schedule with the key {key!r}{hint}")


class ScheduleBusy(QueueError):
    """The schedule cannot move to another queue while it runs, or two runs would overlap. Try again after the run."""

    def __init__(self, *, key: str, queue: str) -> None:
        self.key = key
        self.queue = queue
        super().__init__(
            f"the schedule {key!r} is running in the queue {queue!r}, so it cannot move; try again after the run"
        )


class TaskFailed(QueueError):
    """The task failed for good. Its exception is here as data: the name of its type, its message, its traceback."""

    def __init__(
        self, *, task: str, name: str, kind: str, type: str, message: str, traceback: str, attempt: int
    ) -> None:
        self.task = task
        self.name = name
        self.kind = kind
        self.type = type
        self.message = message
        self.traceback = traceback
        self.attempt = attempt
        what = f"{type}: {message}" if type and message else type or message or kind
        super().__init__(f"{name} failed in attempt {attempt}, {what} (task {task})")
        if traceback:
            self.add_note(f"\nWhere the task raised it:\n{escape_lines(traceback)}")


class TaskCancelled(QueueError):
    """The task was cancelled, so there is no result."""

    def __init__(self, *, task: str, name: str, why: str = "") -> None:
        self.task = task
        self.name = name
        super().__init__(f"{name} was cancelled{why} (task {task})")


class PredecessorFailed(TaskCancelled):
    """The task depends on others, in a chain or a group, and one of them did not succeed: `reason` says which."""

    def __init__(self, *, task: str, name: str, reason: str) -> None:
        self.reason = reason
        super().__init__(task=task, name=name, why=f": {reason}")


class ResultDropped(QueueError):
    """The task succeeded, but its result could not be stored."""

    def __init__(self, *, task: str, name: str, reason: str) -> None:
        self.task = task
        self.name = name
        self.reason = reason
        super().__init__(f"{name} succeeded, but its result was not kept: {reason} (task {task})")


class LeaseLost(QueueError):
    """This attempt is over: it is settled, or its lease expired and another worker has the task. The store rejects its
    writes.
    """

    def __init__(self, *, task: str, attempt: int) -> None:
        self.task = task
        self.attempt = attempt
        super().__init__(f"attempt {attempt} of task {task} is over: it is settled, or another worker has the task")


class InvalidStep(QueueError):
    """A step of a task cannot run here, and has not run."""

    def __init__(self, reason: str, *, step: str) -> None:
        self.reason = reason
        self.step = step
        super().__init__(f"step {step!r}: {reason}")


class InvalidEvent(QueueError, TypeError):
    """The payload of an event cannot be kept, or is too large. Nothing was emitted."""

    def __init__(self, reason: str, *, event: str) -> None:
        self.reason = reason
        self.event = event
        super().__init__(f"event {event!r}: the payload {reason}")


class StepMismatch(QueueError):
    """A kept step is called with other arguments: the code has changed, or decides by something that differs between
    two attempts. The step has not run.
    """

    def __init__(self, *, step: str, attempt: int) -> None:
        self.step = step
        self.attempt = attempt
        super().__init__(
            f"step {step!r} was kept in attempt {attempt} with other arguments than now; give the step another key= to "
            "run it anew, or make the function call it as it did then"
        )


class StepFailed(QueueError):
    """A step with `max_retries` of its own gave up. Later attempts get the same error, and do not run the step.

    `kind` is the type of the error as text, `message` its message.
    """

    def __init__(self, *, step: str, kind: str, message: str, tries: int) -> None:
        self.step = step
        self.kind = kind
        self.message = message
        self.tries = tries
        times = "1 try" if tries == 1 else f"{tries} tries"
        super().__init__(f"step {step!r} gave up after {times}: {kind}: {message}")


class TasksLeft(QueueError):
    """A worker had to stop while its store did not answer. Its tasks still count as running; other workers take them
    when their leases expire.
    """

    def __init__(self, *, worker: str, tasks: tuple[str, ...]) -> None:
        self.worker = worker
        self.tasks = tasks
        count = "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks"
        named = f"{', '.join(tasks[:3])}{' …' if len(tasks) > 3 else ''}"
        super().__init__(
            f"worker {worker!r} has stopped while the store did not answer, and left {count} ({named}): other workers "
            "run them again when their leases expire"
        )


class NoCurrentTask(QueueError, RuntimeError):
    """`current_task()` was called where no task runs."""


class TaskSignal(BullpenError):
    """Your own tasks raise these to decide how they continue. None of them is an error of the task."""


class Retry(TaskSignal):
    """Try again, `after` seconds from now instead of the usual delay. The attempt counts as a failure: after
    `max_retries` retries the task fails.

        raise Retry("the service is busy", after=30)
    """

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None) -> None:
        self.reason = reason
        self.after = None if after is None else _delay("after", after)
        wait = "" if self.after is None else f" after {self.after:g} s"
        super().__init__(f"try again{wait}" + (f": {reason}" if reason else ""))


class Snooze(TaskSignal):
    """Run again `delay` seconds from now. The attempt is not counted."""

    def __init__(self, delay: float | timedelta) -> None:
        self.delay = _delay("delay", delay)
        super().__init__(f"run again in {self.delay:g} s")


class Cancel(TaskSignal):
    """End the task as cancelled. This is not a failure."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "the task cancelled itself")


class Suspended(BaseException):
    """Raised by `current_task().sleep` and `wait_event` to end the attempt: the task goes on later, in another attempt.
    Let it pass.

    It is a BaseException, so `except Exception` does not catch it. A function that catches it and returns has failed.
    """

    def __init__(self, until: float, event: str | None = None) -> None:
        self.until = until  # seconds since the epoch, by the store's clock
        self.event = event  # the event that it waits for
        super().__init__(until, event)

    def __str__(self) -> str:
        what = "sleeps" if self.event is None else f"waits for the event {escape_lines(self.event)}"
        until = datetime.fromtimestamp(self.until, UTC)
        return f"the task {what}" + ("" if until.year == datetime.max.year else f" until {until:%Y-%m-%d %H:%M:%S} UTC")


_CENTURY = 100 * 365.25 * 86_400


def _delay(name: str, value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidOptionType(name, value, "a number of seconds, or a timedelta")
    if not 0 <= seconds <= _CENTURY:
        raise InvalidOption(name, value, "≥ 0 seconds, and at most a century")
    return float(seconds)


class WorkerBroken(BullpenError):
    """Your own functions raise this if the worker that runs them is broken and has to be replaced.

    The worker dies. The request that raised it runs again elsewhere if it is idempotent; otherwise its caller gets
    `WorkerLost`, with this as its `__cause__`.
    """


class StorageError(BullpenError):
    """A store has failed and has not acknowledged the call: try again."""

    def __init__(self, message: str, *, storage: str) -> None:
        self.storage = storage
        super().__init__(f"{storage}: {message}")


class StorageBusy(StorageError, TimeoutError):
    """Other users locked the store for longer than the call waits."""


class StorageUnavailable(StorageError, ConnectionError):
    """The server cannot be reached, or rejects the login."""


class StorageFull(StorageError):
    """The store has no space left. It continues when there is space again."""


class StorageReadOnly(StorageError):
    """The store, or the folder it is in, cannot be written."""


class StorageCorrupt(StorageError):
    """The stored data is damaged, or its tables were dropped. Bullpen neither repairs nor replaces it: restore a
    backup. A worker stops, unless only the history is concerned.
    """


class StorageGone(StorageError):
    """The file of the store was removed or replaced while it was in use. Every later call fails as well: restart the
    process, or close the store and open it again. A worker stops.
    """


class NotABullpenFile(StorageError):
    """The file belongs to another program. Bullpen does not change it."""


class SchemaTooNew(StorageError):
    """A newer version of Bullpen has written the store."""

    def __init__(self, *, storage: str, found: int, known: int) -> None:
        self.found = found
        self.known = known
        super().__init__(
            f"its schema has version {found}, this version of Bullpen knows up to {known}; install a newer one",
            storage=storage,
        )


class UnsafeFile(StorageError):
    """A store would not be safe at this place."""


class StorageClosed(StorageError, RuntimeError):
    """The store is closed."""


class IllegalTransition(BullpenError):
    """A state machine was asked for a move that its table does not have."""

    def __init__(self, machine: str, old: object, new: object) -> None:
        self.machine = machine
        self.old = old
        self.new = new
        super().__init__(f"{machine} cannot go from {old} to {new}: this is a defect in Bullpen, please report it")

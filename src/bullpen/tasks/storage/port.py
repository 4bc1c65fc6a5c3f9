"""The storage port: a store keeps tasks, hands them to workers, and applies their settlements. It decides nothing.

- Atomic: every method is one step. The store applies the whole batch or nothing, even if a process dies in between.
- Durable: a task is stored when `add` returns, and stays until it is pruned. A store with `durable` keeps it across a
  crash. A task with a `result_ttl` of 0 may be deleted as soon as it succeeds.
- Exclusive: one worker at a time has a task. Each claim raises `attempt` by one. From then on the store applies only
  writes with that attempt; it rejects a write of an earlier attempt, which then changes nothing.
- Ordered: claims go by priority (highest first), then `eta`, then id. The store never claims a task before its `eta`,
  from a paused queue, or beyond a limit.
- Idempotent: a caller that did not learn the outcome of a call may repeat it. Adding an existing id, or settling an
  attempt again, changes nothing. The outcome of a claim can be asked for by its `claim_id`.
- Time: instants are by the store's clock. A lease is a duration, and the store decides when it has expired.
- Callers: a storage object belongs to one event loop, and any coroutine there may call it. Only `add_in`, `now_in`,
  `settle_in` and `save_step_in` run on the caller's thread, whichever that is. Producers, workers and operators each
  use their own section of `Storage`; none of them needs a lock.

`tasks/storage/memory.py` is the readable reference. The contract suite, `bullpen.testing.StorageContract`, runs on
every store.

**Where the rules are written.** The moves of one task are written once, as pure functions in `tasks/model`. The rules
by which a store applies them are in `rules.py`, for memory and SQLite. A server decides where the tasks are, so a
server store writes some of these rules again in its own language: PostgreSQL in SQL functions, Redis in Lua scripts.
The files of the contract suite (`bullpen/testing/storage_contract`) hold every store to each of them:

| rule | in Python | written again by | contract |
|---|---|---|---|
| the running attempt settles | `applies`, `settled` | PostgreSQL, Redis; SQLite for plain successes | settling.py |
| an event wakes tasks | `woken`, `rules._settle_task` | PostgreSQL, Redis; SQLite for `emit` | events.py |
| steps belong to one run | `settled`, `redriven`, `with_step` | PostgreSQL, Redis; SQLite for many retries | steps.py |
| the order of claims, leases, `attempt` + 1 | `claimed` | SQLite, PostgreSQL, Redis | claiming.py, leases.py |
| limits, rates, order within a key | `rules.QueueRoom` | PostgreSQL, Redis | limits.py |
| which task has a unique key | `has_key` | PostgreSQL, Redis | unique.py |
| duplicates of a unique key | `meet`, `rules._add_task` | Redis | unique.py |
| the end of a task changes those behind it | `followed`, `rules._keep` | PostgreSQL, Redis | links.py |
| a task that comes back changes those behind it | `called_back`, `rules._keep` | Redis | links.py |
| children come with their settlement | `rules._settle_task` | PostgreSQL, Redis | links.py |
| cancel, retry | `cancelled_by_operator`, `redriven_behind` | Redis | people.py |
| cancel, retry of many tasks without links | the same | SQLite, PostgreSQL, Redis | batches.py |
| which tasks match a filter | `TaskFilter.matches` | SQLite, PostgreSQL, Redis | batches.py |
| the time to start | `expired` | Redis | upkeep.py |
| counts of the history and of failures are added | `sum_of`, `merged` | PostgreSQL, Redis | history.py |
| the time to live | `prune_at` | PostgreSQL, Redis; SQLite for plain successes | upkeep.py |
| schedules | `schedule_changes`, through `change` | no store | schedules.py |

Beside the contracts, `tests/properties/test_storage_model.py` compares random histories of memory and SQLite with a
model of a store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from bullpen.tasks.model.events import Event
from bullpen.tasks.model.failure_groups import FailureRow
from bullpen.tasks.model.history import HistoryRow
from bullpen.tasks.model.queue_patterns import lane_of, matches_queue
from bullpen.tasks.model.task import PENDING, Bytes, Count, Instant, Progress, Settlement, Step, Task, TaskStatus
from bullpen.tasks.model.unique import RETURN, Duplicates


class AttemptKey(msgspec.Struct, frozen=True, gc=False):
    """One attempt of a task: a worker holds it, and it fences the worker's writes."""

    id: str
    attempt: int


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """The outcome of `exchange`."""

    claimed: tuple[Task, ...]
    rejected: frozenset[AttemptKey] = frozenset()  # settlements of attempts that are no longer current


class Renewal(msgspec.Struct, frozen=True, gc=False):
    """The outcome of `renew`."""

    lost: frozenset[AttemptKey] = frozenset()  # attempts that are no longer current
    cancelled: frozenset[AttemptKey] = frozenset()  # a caller has asked these tasks to stop


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the tasks that match every condition that is given."""

    ids: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    statuses: tuple[TaskStatus, ...] | None = None
    func_path: str | None = None  # a name of a function, or its last parts: "send" and "mail.send" for "shop.mail.send"
    key: str | None = None  # its unique key or its concurrency key
    header: tuple[str, str] | None = None  # a name and a value
    worker: str | None = None
    error: str | None = None  # one of the names of the latest stored error: its kind or type
    fingerprint: str | None = None  # of the latest stored error; or its kind, if the store has recorded it
    since: float | None = None  # it ended after this instant; an unfinished task: it was added after it
    until: float | None = None  # … at this instant or before
    awaits: str | None = None  # pending ones that wait for this event, or were just woken by it; "": for any event

    def matches(self, task: Task) -> bool:
        at = task.finished_at if task.is_final and task.finished_at is not None else task.created_at
        return (
            (self.ids is None or task.id in self.ids)
            and (self.queues is None or task.queue in self.queues)
            and (self.statuses is None or task.status in self.statuses)
            and (self.func_path is None or f".{task.func_path}".endswith(f".{self.func_path}"))
            and (self.key is None or self.key in (task.unique_key, task.concurrency_key))
            and (self.header is None or task.headers.get(self.header[0]) == self.header[1])
            and (self.worker is None or task.worker == self.worker)
            and (self.error is None or (task.error is not None and self.error in task.error.names))
            and (self.fingerprint is None or (task.error is not None and self.fingerprint == task.error.group))
            and (self.since is None or at > self.since)
            and (self.until is None or at <= self.until)
            and (
                self.awaits is None
                or (task.status is PENDING and task.awaits is not None and self.awaits in ("", task.awaits))
            )
        )


Stored = TypeVar("Stored", bound=msgspec.Struct)
BatchVerb = Literal["cancel", "retry", "delete"]


class ChangedTask(msgspec.Struct, frozen=True, gc=False):
    """A task that `change_batch` has changed, as it is then; a deleted one as it was."""

    id: str
    queue: str
    attempt: int
    status: TaskStatus


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The outcome of `change_batch`."""

    matching: int  # tasks that the filter matched
    changed: tuple[ChangedTask, ...]
    cursor: str | None  # where the next batch starts; None: there is none


def batch_of(found: Sequence[Task], changed: Iterable[Task], limit: int) -> Batch:
    """The outcome for a page of matching tasks, in the order of their ids."""
    return Batch(
        len(found),
        tuple(ChangedTask(task.id, task.queue, task.attempt, task.status) for task in changed),
        found[-1].id if len(found) == limit else None,
    )


class FunctionSet(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The functions that a worker registers for a queue. A record has no names, because there may be hundreds."""

    queue: str
    count: Count
    digest: str  # of their names


STACK_HEADER = "bullpen-stack"  # of a running task: a client has asked for its stack


class StackAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer of a worker that was asked for the stack of a running task."""

    request: str  # the value of `STACK_HEADER`
    at: Instant
    stack: str


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process, as it registers itself in the store."""

    id: str
    host: str
    pid: Count
    boot_id: str  # identifies the boot of the machine; a pid is unique only within one boot
    process_started: float
    queues: tuple[str, ...]  # names and patterns
    concurrency: Count
    running: Count = 0
    version: str = ""  # of Bullpen
    started_at: Instant = 0.0
    seen_at: Instant = 0.0  # by the store's clock
    stopping: bool = False
    lost: bool = False  # a worker on its host has found that its process is dead
    lanes: tuple[tuple[str, ...], ...] = ()  # the queues of each lane
    functions: tuple[FunctionSet, ...] = ()  # of each queue that its functions use; empty: it does not say
    on_threads: tuple[str, ...] = ()  # running tasks that were asked to stop, and run on threads
    stacks: tuple[StackAnswer, ...] = ()  # the latest ones that clients have asked for
    peak_memory: Bytes = 0  # the most resident memory that its process has had, in bytes; 0: not known

    def serves(self, queue: str) -> bool:
        """Whether it serves a queue: `queues` has its name, or a pattern that it matches."""
        return any(matches_queue(pattern, queue) for pattern in self.queues)

    def shares_lane(self, queue: str, other: str) -> bool:
        """Whether one lane serves both queues."""
        lanes = self.lanes or (self.queues,)
        number = lane_of(queue, lanes)
        return number is not None and number == lane_of(other, lanes)


def readable_workers(rows: Iterable[Sequence[Any]], decode: Callable[..., WorkerRecord]) -> list[WorkerRecord]:
    """The workers of stored records, without those that cannot be read. `decode` gets the values of a row."""
    found = []
    for row in rows:
        try:
            found.append(decode(*row))
        except Exception:  # whatever a decoder makes of arbitrary bytes
            continue
    return found


def readable(kind: type[Stored], rows: Iterable[Callable[[], Sequence[Any]]]) -> list[Stored]:
    """Stored values, without those that another program has damaged. Each function returns the fields of a row."""
    found = []
    for fields in rows:
        try:
            found.append(msgspec.convert(dict(zip(kind.__struct_fields__, fields(), strict=True)), kind))
        except Exception:  # whatever a decoder makes of arbitrary bytes
            continue
    return found


MAX_LIMIT = 1_000_000_000
MIN_RATE = 1e-9
_Most = Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a queue: `max_running` tasks at once, `max_running_per_key` of each concurrency key, and `rate`
    starts per second.

    `in_order`: the tasks of a concurrency key run one at a time, in the order in which they were added, whatever their
    priority. Each waits until all before it are final, also while one of them waits for a retry. A schedule is never
    final, so it has no place in that order: its runs wait only for the running task of the key, and a run that has not
    started delays no task. `declared`: the limit comes from the code, and no operator has set another one since.
    """

    queue: str
    max_running: _Most | None = None
    max_running_per_key: _Most | None = None
    rate: Annotated[float, msgspec.Meta(ge=MIN_RATE, le=float(MAX_LIMIT))] | None = None
    in_order: bool = False
    declared: bool = False

    @property
    def is_limit(self) -> bool:
        """Whether any limit is set."""
        terms = (self.max_running, self.max_running_per_key, self.rate)
        return self.in_order or terms != (None, None, None)

    @property
    def is_readable(self) -> bool:
        """Whether it is as a caller has set it. One that another program has damaged lets no task start."""
        return self.max_running != 0


def read_limit(queue: str, terms: Callable[[], Mapping[str, Any]]) -> Limit:
    """A stored limit. One that cannot be read holds its queue back, and no other one."""
    try:
        return msgspec.convert({**terms(), "queue": queue}, Limit)
    except Exception:  # whatever a decoder makes of arbitrary bytes
        return Limit(queue=queue, max_running=0)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a store: the version that was found, the version that this Bullpen knows, and the migrations
    between them.
    """

    found: int  # 0: there are no tables yet
    oldest: int | None = None  # clients of this version and later can use the tables; None: only of `found`
    known: int
    migrations: tuple[str, ...] = ()  # as SQL, one for each missing version

    @property
    def is_too_new(self) -> bool:
        """Whether this Bullpen cannot use it."""
        return self.found > self.known and (self.oldest is None or self.oldest > self.known)


class HealthFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A setting or state of a store that needs attention, its meaning, and advice.

    `about`: the names of its `queue`, `function`, `fingerprint`, `task`, `worker` or `event`, for programs.
    """

    kind: str
    level: Literal["problem", "warning"]
    message: str
    advice: str
    about: Mapping[str, str] = {}


Counts = Mapping[str, Mapping[TaskStatus, int]]  # by queue and status
# Returns the settlement of a task with an expired lease at that instant; None: leave the task alone. Pure and quick,
# because a store may call it on any thread and under its lock.
Decide = Callable[[Task, float], Settlement | None]
# Returns the changed task at that instant; None: no change. Pure and quick too, and a store may call it more than once.
Move = Callable[[Task, float], Task | None]


class Storage(Protocol):
    """A store of tasks. The object belongs to one event loop; `another` makes one for another loop."""

    durable: bool  # tasks survive the process

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def another(self) -> Storage | None:
        """A client of the same store for another event loop, not open yet; None if the store has only one client."""

    async def now(self) -> float:
        """The time by the store's clock."""

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        """Add `tasks`, and return each as it is stored. A task with an existing id is not changed: the stored one is
        returned. If another task of the queue holds its unique key, `duplicates` says what happens.
        """

    def add_in(
        self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """`add` in a transaction of the user's own, on a connection to the same database and on the caller's thread.
        Returns the ids under which the tasks are stored. They exist when the user commits. With an async connection it
        returns an awaitable, and does nothing before that is awaited.
        """

    def now_in(self, connection: Any) -> float | Awaitable[float]:
        """The time by the store's clock, read on that connection."""

    # Workers.

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        queues: Sequence[str],
        limit: int,
        lease: float,
        claim_id: str,
    ) -> Exchange:
        """Apply `settlements`, then claim at most `limit` due tasks of `queues`, in one step."""

    def settle_in(self, connection: Any, settlement: Settlement) -> Awaitable[None] | None:
        """Apply `settlement` in a transaction of the user's own, as `add_in` does. Raises LeaseLost if the attempt is
        no longer current.
        """

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        """The running tasks of a claim, for a worker that did not get its answer."""

    async def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        """Extend the leases of these attempts to `lease` seconds from now."""

    async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        """Store the progress of a task. False if the attempt is no longer current."""

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        """Keep a step of a running task; it replaces a step with the same name. False if the attempt is no longer
        current. The next claim brings the kept steps of the run along.
        """

    def save_step_in(self, connection: Any, hold: AttemptKey, step: Step) -> Awaitable[None] | None:
        """`save_step` in a transaction of the user's own, as `settle_in` does. Raises LeaseLost."""

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        """Settle running tasks with an expired lease or a worker in `dead_workers`, as `decide` says: at most
        `limit`. Returns them as they are then.
        """

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        """Return when a task of `queues` may start, or after `timeout` seconds. It is a hint and may return early, but
        not because of tasks that a pause or a limit holds back.
        """

    # Events.

    async def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        """Keep an event for `ttl` seconds, and make the tasks due that wait for it. If the event exists and its time to
        live is not over, it stays as it is: returns False. A task whose settlement awaits the event is due at once if
        the event comes before, while or after the store applies the settlement.
        """

    async def wait_for_event(self, name: str, timeout: float) -> Event | None:
        """Return the event as soon as it is there, or None after `timeout` seconds."""

    async def events(self, *, limit: int, after: str | None = None) -> Sequence[Event]:
        """Events in the order of their names, starting behind the name `after`."""

    # Results.

    async def wait_for_result(self, task_id: str, completed_runs: int, timeout: float) -> Task | None:
        """Return when the task may be final, or may have completed more than `completed_runs` runs, or after `timeout`
        seconds. Returns the task if the store has read it.
        """

    # Operators.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]: ...

    async def list(
        self, which: TaskFilter, *, limit: int, after: str | None = None, newest: bool = False
    ) -> Sequence[Task]:
        """Tasks in the order of their ids, starting behind the id `after`. `newest`: in the reverse order, starting
        before it.
        """

    async def counts(self, limit: int | None = None) -> Counts:
        """How many tasks there are. With a `limit`, a larger count may be given as `limit` + 1: the cost depends on the
        number of queues then, and not on that of tasks.
        """

    async def first_pending(self, limit: int) -> Sequence[Task]:
        """The pending tasks of each queue and priority with the earliest `eta`: `limit` of them, or all if there are
        fewer; perhaps some others. The cost depends on the number of queues and priorities, and not on that of tasks.
        """

    async def list_pending(
        self, *, limit: int, queue: str | None = None, after: tuple[float, str] | None = None
    ) -> Sequence[Task]:
        """Pending tasks of a queue, or of all, in the order of `eta` and id. `after` is the `eta` and the id of the
        last one of the page before. The cost depends on the number of queues and priorities, and not on that of tasks.
        """

    async def count(self, which: TaskFilter) -> int:
        """How many tasks match."""

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        """Cancel pending tasks, and ask running ones to stop, in the order of `ids`. Returns those that this changed;
        not those that were cancelled because they depend on one before them.
        """

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        """Make final tasks pending again, unless another task holds the unique key. Returns those that changed."""

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        """Replace tasks by the result of `move`, whatever their status. Returns those that changed. `move` may change
        the terms that a task was added with, and the fields that operators may change. It may not change the id,
        queue, unique key, attempt, worker or lease.
        """

    async def delete(self, ids: Sequence[str]) -> int:
        """Delete final tasks. Returns how many."""

    async def change_batch(self, verb: BatchVerb, which: TaskFilter, *, limit: int, cursor: str | None = None) -> Batch:
        """`cancel`, `retry` or `delete` at most `limit` of the tasks that match, from `cursor` on, in the store. A
        caller changes all by repeating it with the cursor of the batch before, until that is None. Each task changes
        as it would alone, in one step with those that depend on it; the batch may take more than one step. A task
        whose row cannot be read is not retried.
        """

    # Moving tasks between stores.

    async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        """Store pending and final tasks as they are, with their history. Returns the ids of those that were stored. A
        running task is left out, and so is one with an existing id or a held unique key.
        """

    async def export_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
        """Delete pending and final tasks that still have the status, attempt, `eta` and headers of the given ones.
        Returns the ids of those that were deleted.
        """

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        """Fail pending tasks that were not started before `expires`. Returns them as they are then."""

    async def prune(self, *, limit: int) -> int:
        """Delete final tasks after their time to live: `failure_ttl` if they failed, `result_ttl` if they succeeded or
        were cancelled; of each queue and status the oldest first. Returns how many. Also delete rows of the history
        that are kept no longer (`KEPT`, `FAILURES_KEPT`), events after their time to live unless an unfinished task
        awaits them, and what is kept of queues without tasks, limits and pause: names of queues may be made from data.
        """

    # History.

    async def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow] = ()) -> None:
        """Add counts to the history: each row to the stored one of its step, instant, queue and function; each of
        `failures` to the stored one with its key. A call that is repeated counts twice.
        """

    async def history(
        self, step: int, since: float, until: float, *, queue: str | None = None, function: str | None = None
    ) -> Sequence[HistoryRow]:
        """The rows of this step that begin at `since` or later, and before `until`."""

    async def failures(self, since: float) -> Sequence[FailureRow]:
        """The failures of the hours that begin at `since` or later."""

    async def delete_failures(self, fingerprint: str, function: str | None = None) -> None:
        """Delete the rows of failures with this fingerprint. The tasks stay."""

    # Workers, queues, limits.

    async def save_worker(self, record: WorkerRecord) -> None: ...
    async def delete_worker(self, worker: str) -> None: ...
    async def workers(self) -> Sequence[WorkerRecord]: ...
    async def queues(self) -> frozenset[str]:
        """The queues with pending tasks, and perhaps some others. Workers that serve patterns ask every second, so the
        cost depends on the number of queues only, not on that of tasks.
        """

    async def pause(self, queue: str) -> None: ...
    async def resume(self, queue: str) -> None: ...
    async def paused(self) -> frozenset[str]: ...
    async def set_limit(self, limit: Limit) -> None:
        """Replace the limit of a queue. One that sets nothing removes it."""

    async def limits(self) -> Sequence[Limit]:
        """In the order of queues."""


@runtime_checkable
class SupportsMigrations(Protocol):
    """A store with tables. `open` migrates them, unless the address says `migrate=false`."""

    async def look_at_schema(self) -> Schema:
        """The version that is there, and the migrations that are missing. Changes nothing."""

    async def upgrade_schema(self) -> None:
        """Apply the missing migrations in one transaction. Several clients may do so at once. Raises SchemaTooNew."""


@runtime_checkable
class SupportsHealthChecks(Protocol):
    """A store that can check its settings."""

    async def check_health(self) -> Sequence[HealthFinding]:
        """The settings and states that need attention."""


@runtime_checkable
class SupportsBlockingCalls(Protocol):
    """A store that can also answer on the calling thread, whether or not an event loop runs there.

    Each method blocks its thread until the step is done, and does the same as the coroutine of that name. Any number
    of threads may call at the same time.
    """

    def another_blocking(self) -> SupportsBlockingCalls | None:
        """A client of the same store for blocking calls, not open yet; None if it has no such client."""

    def open_blocking(self) -> None: ...
    def close_blocking(self) -> None: ...
    def now_blocking(self) -> float: ...
    def add_blocking(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]: ...
    def get_blocking(self, ids: Sequence[str]) -> Sequence[Task | None]: ...

    def check_reentry(self) -> None:
        """Raises StorageBusy if this thread is inside a call of the store that a signal handler has interrupted: the
        handler would wait for that call, which cannot continue before the handler returns.
        """


@runtime_checkable
class SupportsLockCheck(Protocol):
    """A store with one lock for all writers. While another process holds it, no worker can claim."""

    def is_locked(self) -> bool:
        """Whether a write of this process waits for the lock, holds it, or has just timed out waiting for it."""


@runtime_checkable
class SupportsUpkeepTurns(Protocol):
    """A store whose workers share the upkeep, so that its cost does not grow with the number of workers."""

    def take_upkeep_turn(self, group: str, every: float) -> bool:
        """Whether the caller has to do the upkeep now. A worker of the same `group` that asks within `every` seconds
        after such an answer gets False. Two workers that ask at the same instant may both get True.
        """


@runtime_checkable
class SupportsCrossQueueLinks(Protocol):
    """A store that may keep its queues on several nodes."""

    def check_reach(self, queues: Sequence[str]) -> None:
        """Raises StorageError if tasks of these queues cannot depend on each other."""

"""What a store of tasks is. It keeps tasks, hands them out, and takes back what became of them; it decides nothing.

Everything is a batch, and every method is one atomic step: it happens as a whole or not at all, whatever dies in
between. What all stores promise:

- A task that `add` returned for is there until it is pruned, also after a crash, as far as the store's durability goes.
  One that succeeds, and is to be kept for no time, may be gone at once.
- A task is claimed by one worker at a time. Each claim raises its `attempt` by one, and from then on only writes with
  that attempt are applied; later ones of an earlier attempt are refused, and change nothing.
- Claims come in the order of priority (high first), `eta`, id; never before the `eta`, never from a queue that is
  paused, never beyond a limit.
- Instants are by the store's own clock. A lease is a duration, and the store decides when it is over.
- Everything is safe to repeat when its outcome was never learned: adding the same id, settling the same attempt, and
  claiming, whose outcome can be asked for by `claim_id`.

`storage/memory.py` is the readable reference. One contract suite, `bullpen.testing.StorageContract`, runs on all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from bullpen.tasks.task import Progress, Settlement, Task, TaskStatus
from bullpen.tasks.unique import RETURN, Duplicates


class Hold(msgspec.Struct, frozen=True, gc=False):
    """A task in the hands of a worker."""

    id: str
    attempt: int


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """What came of one exchange."""

    claimed: tuple[Task, ...]
    refused: frozenset[Hold] = frozenset()  # settlements of tasks that are lost to others


class Handed(msgspec.Struct, frozen=True, gc=False):
    """What was claimed for somebody who waited."""

    claimed: tuple[Task, ...] = ()
    after: float = 0.0  # seconds from the call to the claim, at least


class Renewal(msgspec.Struct, frozen=True, gc=False):
    """What a worker learns when it renews its leases."""

    lost: frozenset[Hold] = frozenset()  # they run in a later attempt, or not at all
    cancelled: frozenset[Hold] = frozenset()  # somebody wants them to stop


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks: all that fit everything that is given."""

    ids: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    statuses: tuple[TaskStatus, ...] | None = None
    func_path: str | None = None
    worker: str | None = None


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process, as it tells the store about itself."""

    id: str
    host: str
    pid: int
    boot_id: str  # of the machine: a pid means nothing without
    process_started: float
    queues: tuple[str, ...]
    concurrency: int
    running: int = 0
    started_at: float = 0.0
    seen_at: float = 0.0  # by the store's clock
    stopping: bool = False


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most so many at once: of a queue, or of each concurrency key in it; and at most so many starts a second.

    `in_order`: the tasks of a concurrency key run one at a time and as they were added, whatever their priority: each
    waits until those before it are over, also while one of them waits for another try. Schedules, which never are,
    have no place in that order: their runs wait for nothing but the end of the one that runs, and hold up nobody before
    they start. `declared`: the code says so, and nobody has set another one since.
    """

    queue: str
    max_running: int | None = None
    max_running_per_key: int | None = None
    rate: float | None = None
    in_order: bool = False
    declared: bool = False

    @property
    def is_limit(self) -> bool:
        """Whether it limits anything."""
        terms = (self.max_running, self.max_running_per_key, self.rate)
        return self.in_order or terms != (None, None, None)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a store: which version is there, which one this Bullpen knows, and what leads from one to the
    other.
    """

    found: int  # 0 if there is nothing yet
    oldest: int | None = None  # the oldest version that can use what was found; None: itself
    known: int
    steps: tuple[str, ...] = ()  # in the store's own language, one for each version that is missing

    @property
    def is_too_new(self) -> bool:
        """Whether this Bullpen cannot use it."""
        return self.found > self.known and (self.oldest is None or self.oldest > self.known)


class Concern(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a store that its owner should know: what it means, and what to do."""

    kind: str
    level: Literal["problem", "warning"]
    words: str
    advice: str


Counts = Mapping[str, Mapping[TaskStatus, int]]  # by queue and status
# What becomes of a task whose lease is over, at that instant; None: leave it alone. Pure and quick: a store may call it
# on any thread and under its lock.
Decide = Callable[[Task, float], Settlement | None]
# What becomes of a task, at that instant; None: nothing. As pure and quick, and it may be called again.
Move = Callable[[Task, float], Task | None]


class Storage(Protocol):
    """A store of tasks. An object belongs to one event loop; `another` makes one for another."""

    durable: bool  # what was added survives the process

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def another(self) -> Storage | None:
        """A client of the same store for another event loop, not open yet; None if there can be no other."""

    async def now(self) -> float:
        """The store's clock."""

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        """Keep `tasks`; each as it is kept then. One whose id is there already stays as it is, and is returned so.
        Where another task of the queue has its unique key, `duplicates` says what happens.
        """

    def add_in(
        self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN
    ) -> Sequence[str] | Awaitable[Sequence[str]]:
        """`add` in a transaction of the user's own, on a connection to the same database, and on the caller's thread:
        the ids under which tasks are kept. It counts if and when the user commits. An awaitable, with a connection for
        async code; nothing is done before it is awaited.
        """

    def now_in(self, connection: Any) -> float | Awaitable[float]:
        """The store's clock, asked for in the same way."""

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
        """Apply `settlement` in a transaction of the user's own, as `add_in` does. Raises LeaseLost if the task is lost
        to others.
        """

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        """The running tasks of a claim whose outcome was never learned. Whoever waits to claim under this id gets
        nothing from now on.
        """

    async def renew(self, holds: Sequence[Hold], lease: float) -> Renewal:
        """Hold tasks for another `lease` seconds."""

    async def note_progress(self, hold: Hold, progress: Progress) -> bool:
        """Keep how far a task is; False if it is lost to others."""

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        """Take back running tasks whose lease is over, or whose worker is known to be dead, as `decide` says, at most
        `limit`; as they are then.
        """

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        """Return when something may start in `queues`, or after `timeout` seconds. A hint: it may return early, but
        what is paused or held back by a limit is nothing that may start.
        """

    # Results.

    async def wait_for_result(self, task_id: str, runs: int, timeout: float) -> Task | None:
        """Return when the task may be final, or have completed more than `runs` runs, or after `timeout` seconds; with
        the task, if what said so has brought it.
        """

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]: ...

    async def list(self, which: TaskFilter, *, limit: int, after: str | None = None) -> Sequence[Task]:
        """Tasks in the order of their ids, beginning behind the id `after`."""

    async def counts(self) -> Counts: ...

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        """Cancel those that wait, ask for those that run, one after the other as they are given; the ones that this
        changed. Those that were cancelled because of one before them have not been changed by this.
        """

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        """Let final tasks run again, but not those whose unique key another one has; the ones that this changed."""

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        """Make of tasks what `move` says, whatever their status; the ones that this changed. It may change what they
        were added with, apart from their id, queue and unique key, and what people may change; an attempt, its worker
        and its lease stay.
        """

    async def delete(self, ids: Sequence[str]) -> int:
        """Forget final tasks; how many."""

    # Moving tasks between stores.

    async def put(self, tasks: Sequence[Task]) -> frozenset[str]:
        """Keep tasks that wait or are over just as they are, with all that they have been through; the ids of those
        that were kept. One whose id is there already, or whose unique key is alive, is left out, and so is one that
        runs.
        """

    async def remove(self, tasks: Sequence[Task]) -> frozenset[str]:
        """Forget tasks that wait or are over, if they still have the status, attempt, `eta` and headers that they are
        given with; the ids of those that this forgot.
        """

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        """Fail waiting tasks whose time to start is over; as they are then."""

    async def prune(self, *, limit: int) -> int:
        """Forget final tasks whose time to live is over; how many."""

    # Workers, queues, limits.

    async def note_worker(self, record: WorkerRecord) -> None: ...
    async def drop_worker(self, worker: str) -> None: ...
    async def workers(self) -> Sequence[WorkerRecord]: ...
    async def pause(self, queue: str) -> None: ...
    async def resume(self, queue: str) -> None: ...
    async def paused(self) -> frozenset[str]: ...
    async def set_limit(self, limit: Limit) -> None: ...
    async def limits(self) -> Sequence[Limit]:
        """By queue."""


@runtime_checkable
class HasSchema(Protocol):
    """A store with tables. `open` brings them up to date too, unless it was told not to."""

    async def look_at_schema(self) -> Schema:
        """Without changing anything, whatever is there."""

    async def upgrade_schema(self) -> None:
        """Bring it up to date, in one step, also if others do so at the same time. Raises SchemaTooNew."""


@runtime_checkable
class HasConcerns(Protocol):
    """A store that can be set up badly."""

    async def concerns(self) -> Sequence[Concern]:
        """What is not as it should be, by its settings and its surroundings."""


@runtime_checkable
class HandsOver(Protocol):
    """A store that claims for those who wait, so that they need not ask when they are told."""

    async def wait_to_claim(
        self, queues: Sequence[str], timeout: float, *, worker: str, lease: float, claim_id: str
    ) -> Handed:
        """As `wait_for_work`, but a task that comes meanwhile may be claimed at once, as `exchange` does it. Whoever
        does not learn the end of this, as it fails or is cancelled, asks `find_claim`.
        """


@runtime_checkable
class HasReach(Protocol):
    """A store that has not all queues in one place."""

    def check_reach(self, queues: Sequence[str]) -> None:
        """Raises StorageError if tasks of these queues cannot wait for each other."""

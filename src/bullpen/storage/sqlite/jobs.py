"""Work for a line, and the callers that wait for it: on an event loop, or on a thread that has none."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import msgspec

from bullpen import primitives
from bullpen.errors import StorageCorrupt, StorageError
from bullpen.storage.sqlite import file, host
from bullpen.storage.sqlite.ledger import Ledger
from bullpen.storage.sqlite.rows import DamagedRow
from bullpen.tasks.task import Task

T = TypeVar("T")
Work = Callable[[Ledger], T]


class Clock(msgspec.Struct, frozen=True):
    """The store's clocks: since the epoch, for people, and since the boot, for leases."""

    now: Callable[[], float] = time.time
    elapsed: Callable[[], float] = host.elapsed
    boot: Callable[[], str] = primitives.machine_boot

    def ledger(self, db: sqlite3.Connection) -> Ledger:
        """The tables, at this instant."""
        return Ledger(db, self.now(), self.elapsed())


class Add:
    """Tasks to be added: work that is done for several callers at once."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks

    def __call__(self, ledger: Ledger) -> Sequence[Task]:
        return ledger.add(self.tasks)


class Job:
    """Work for a line, on behalf of a caller that waits for it.

    `durable`: what it has written survives a power cut when the caller hears of it.
    """

    __slots__ = ("clock", "durable", "error", "is_answered", "ledger", "result", "work")

    def __init__(self, work: Work[Any], clock: Clock, *, durable: bool = True) -> None:
        self.work = work
        self.clock = clock
        self.durable = durable
        self.ledger: Ledger | None = None
        self.is_answered = False  # what came of it is certain; the caller need not know yet
        self.result: Any = None
        self.error: BaseException | None = None

    def is_given_up(self) -> bool:
        """Nobody waits for it any more."""
        raise NotImplementedError

    def run(self, db: sqlite3.Connection) -> None:
        """Alone."""
        self.ledger = self.clock.ledger(db)
        self.result = self.work(self.ledger)

    def fail(self, error: BaseException, storage: str) -> None:
        self.error = error
        if isinstance(error, sqlite3.Error | OSError) and not isinstance(error, StorageError):
            self.error = file.named(error, storage)
        elif isinstance(error, DamagedRow | UnicodeDecodeError):
            self.error = StorageCorrupt(f"it is damaged ({error})", storage=storage)
        if self.error is not error:
            self.error.__cause__ = error
        self.is_answered = True


class LoopJob(Job):
    """Of a caller on an event loop."""

    __slots__ = ("future", "loop")

    def __init__(self, work: Work[Any], clock: Clock, loop: asyncio.AbstractEventLoop, *, durable: bool = True) -> None:
        super().__init__(work, clock, durable=durable)
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()

    def is_given_up(self) -> bool:
        return self.future.cancelled()

    def tell(self) -> None:
        """On its loop."""
        if self.future.done():  # its caller was cancelled
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class ThreadJob(Job):
    """Of a caller on a thread without an event loop, which waits at a gate."""

    __slots__ = ("_gate", "_is_given_up")

    def __init__(self, work: Work[Any], clock: Clock, *, durable: bool = True) -> None:
        super().__init__(work, clock, durable=durable)
        self._gate = primitives.gate()
        self._gate.acquire()
        self._is_given_up = False

    def is_given_up(self) -> bool:
        return self._is_given_up

    def give_up(self) -> None:
        self._is_given_up = True

    def wait(self, timeout: float) -> bool:
        """Until it is woken; False if that takes longer."""
        return self._gate.acquire(True, timeout)

    def wake(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:  # it is awake
            pass


def deliver(jobs: Iterable[Job]) -> None:
    """Let those callers know whose answer is there, each loop with one wake-up."""
    by_loop: dict[asyncio.AbstractEventLoop, list[LoopJob]] = {}
    for job in jobs:
        if not job.is_answered:
            continue
        if isinstance(job, LoopJob):
            by_loop.setdefault(job.loop, []).append(job)
        elif isinstance(job, ThreadJob):
            job.wake()
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_tell_all, some)
        except RuntimeError:  # that loop is closed: nobody waits there any more
            pass


def _tell_all(jobs: list[LoopJob]) -> None:
    for job in jobs:
        job.tell()


def is_of_store(error: BaseException) -> bool:
    """Whether the store or what it holds is to blame, and not a defect, or somebody who interrupts this thread."""
    return isinstance(error, StorageError | sqlite3.Error | OSError | DamagedRow | UnicodeDecodeError)


class Addition:
    """Tasks of several jobs that are added by one statement, which needs no transaction around it."""

    def __init__(self, ledger: Ledger, tasks: Sequence[Task], jobs: Sequence[Job]) -> None:
        self.tasks = tasks
        self._ledger = ledger
        self._jobs = jobs

    def run(self) -> None:
        for job in self._jobs:
            job.ledger = self._ledger
        _share_out(self.tasks, self._jobs)  # now, for this thread may be interrupted when they are there
        there = self._ledger.add_alike(self.tasks)
        if there is not self.tasks:
            _share_out(there, self._jobs)


def addition_of(db: sqlite3.Connection, jobs: Sequence[Job]) -> Addition | None:
    """If one statement does what all these jobs want."""
    clock = jobs[0].clock
    tasks: list[Task] = []
    for job in jobs:
        if type(job.work) is not Add or job.clock is not clock:
            return None
        tasks += job.work.tasks
    ledger = clock.ledger(db)
    new = ledger.new_alike(tasks)
    return None if new is None else Addition(ledger, new, jobs)


def run_together(db: sqlite3.Connection, jobs: Iterable[Job]) -> None:
    """Run jobs in their order, in one transaction. Those who add, one after the other, add with one statement."""
    clock: Clock | None = None
    for (of_clock, adds), group in groupby(jobs, lambda job: (job.clock, type(job.work) is Add)):
        if of_clock is not clock:
            clock = of_clock
            ledger = clock.ledger(db)
        some = list(group)
        for job in some:
            job.ledger = ledger
        if adds and len(some) > 1:
            _share_out(ledger.add([task for job in some for task in job.work.tasks]), some)  # type: ignore[attr-defined]
        else:
            for job in some:
                job.result = job.work(ledger)


def _share_out(kept: Sequence[Task], jobs: Iterable[Job]) -> None:
    """To each of these jobs, which have added them, its own."""
    first = 0
    for job in jobs:
        last = first + len(job.work.tasks)  # type: ignore[attr-defined]
        job.result = kept[first:last]
        first = last

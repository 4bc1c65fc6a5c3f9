"""Work for a line, and the callers that wait for it: on an event loop, or on a thread that has none."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from asyncio import _get_running_loop
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import groupby, islice
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


class Answer:
    """What a caller without an event loop waits for: to await it is to block, until the answer is there."""

    __slots__ = ("_cancelled", "_done", "_error", "_gate", "_result")

    def __init__(self) -> None:
        self._gate = primitives.gate()
        self._gate.acquire()
        self._cancelled = False
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            self._gate.acquire()
        except BaseException:  # a signal: nobody waits any more
            self._cancelled = True
            raise
        if self._error is not None:
            raise self._error
        return self._result
        yield

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._done or self._cancelled

    def set_result(self, result: Any) -> None:
        self._result = result
        self._end()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self._done = True
        self._gate.release()


class Add:
    """Tasks to be added: work that is done for several callers at once."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks

    def __call__(self, ledger: Ledger) -> Sequence[Task]:
        return ledger.add(self.tasks)


class Job:
    """Work for a line, and the caller that waits for it: on an event loop, or on a thread that has none.

    `durable`: what it has written survives a power cut when the caller hears of it.
    """

    __slots__ = ("clock", "durable", "error", "future", "ledger", "loop", "result", "work")

    def __init__(self, work: Work[Any], clock: Clock, *, durable: bool = True) -> None:
        self.work = work
        self.clock = clock
        self.durable = durable
        self.loop = _get_running_loop()
        self.future: asyncio.Future[Any] | Answer = Answer() if self.loop is None else self.loop.create_future()
        self.ledger: Ledger | None = None
        self.result: Any = None
        self.error: BaseException | None = None

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


def deliver(jobs: Iterable[Job]) -> None:
    """Let the callers know, each loop with one wake-up."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, some in by_loop.items():
        if loop is None:
            _resolve(some)
            continue
        try:
            loop.call_soon_threadsafe(_resolve, some)
        except RuntimeError:  # that loop is closed: nobody waits there any more
            pass


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():  # its caller was cancelled
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


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
            kept = iter(ledger.add([task for job in some for task in job.work.tasks]))  # type: ignore[attr-defined]
            for job in some:
                job.result = list(islice(kept, len(job.work.tasks)))  # type: ignore[attr-defined]
        else:
            for job in some:
                job.result = job.work(ledger)

"""Work for a line, and the callers that wait for it: on an event loop, or on a thread that has none."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, TypeVar

import msgspec

from bullpen import primitives
from bullpen.errors import StorageCorrupt, StorageError
from bullpen.storage.sqlite import file, host
from bullpen.storage.sqlite.ledger import Ledger, is_one_statement
from bullpen.storage.sqlite.rows import DamagedRow
from bullpen.tasks.alike import Alike, joined
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
    """Work that is done for several callers at once: to add these tasks."""

    __slots__ = ("tasks",)

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks


class Job:
    """Work for a line, on behalf of a caller that waits for it.

    `durable`: what it has written survives a power cut when the caller hears of it.
    """

    __slots__ = ("clock", "durable", "error", "is_answered", "ledger", "result", "work")

    def __init__(self, work: Work[Any] | Add, clock: Clock, *, durable: bool = True) -> None:
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

    @property
    def has_several(self) -> bool:
        """Whether several callers wait for it."""
        return False

    def split(self) -> Sequence[Job]:
        """One for each caller."""
        return (self,)

    def run(self, ledger: Ledger) -> None:
        """Alone. Those who add do that together."""
        self.ledger = ledger
        if not isinstance(self.work, Add):
            self.result = self.work(ledger)

    def parts(self) -> Sequence[Sequence[Task]]:
        """The tasks that it adds for each of its callers, if that is its work; else none."""
        return (self.work.tasks,) if isinstance(self.work, Add) else ()

    def alike(self) -> Alike | None:
        """The same, if all of them are alike."""
        return self.work.tasks if isinstance(self.work, Add) and type(self.work.tasks) is Alike else None

    def share_out(self, same: Task) -> None:
        """They are added, with this in common."""
        tasks = self.alike()
        self.result = None if tasks is None else tasks.like(same)

    def take_share(self, kept: Iterator[Sequence[Task]]) -> None:
        """This is what came of its parts."""
        self.result = next(kept)

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
        _answer(self.future, self.error, self.result)


class LoopAdds(Job):
    """What callers on one event loop add in one turn of it."""

    __slots__ = ("_ids", "_payloads", "_same", "callers", "loop")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(Add(()), clock)
        self.loop = loop
        self.callers: list[tuple[asyncio.Future[Any], Sequence[Task]]] = []
        self._same: Task | None = None  # what all of them have in common, as long as they are alike
        self._ids: list[str] = []
        self._payloads: list[bytes] = []

    def add(self, tasks: Sequence[Task]) -> asyncio.Future[Any]:
        future = self.loop.create_future()
        if type(tasks) is Alike and (tasks.same is self._same or not self.callers):
            self._same = tasks.same
            self._ids += tasks.ids
            self._payloads += tasks.payloads
        else:
            self._same = None
        self.callers.append((future, tasks))
        return future

    def is_given_up(self) -> bool:
        """Those who were cancelled meanwhile have nothing added."""
        for future, _ in self.callers:
            if future.cancelled():
                self._same = None
                self.callers = [caller for caller in self.callers if not caller[0].cancelled()]
                return not self.callers
        return False

    @property
    def has_several(self) -> bool:
        return len(self.callers) > 1

    def split(self) -> Sequence[Job]:
        each = [LoopAdds(self.clock, self.loop) for _ in self.callers]
        for one, caller in zip(each, self.callers, strict=True):
            one.callers.append(caller)
        return each

    def parts(self) -> Sequence[Sequence[Task]]:
        return [tasks for _, tasks in self.callers]

    def alike(self) -> Alike | None:
        return None if self._same is None else Alike(self._same, self._ids, self._payloads)

    def share_out(self, same: Task) -> None:
        self.result = [tasks.like(same) for _, tasks in self.callers]  # type: ignore[attr-defined]

    def take_share(self, kept: Iterator[Sequence[Task]]) -> None:
        self.result = list(islice(kept, len(self.callers)))

    def tell(self) -> None:
        """On its loop."""
        if self.error is not None:
            for future, _ in self.callers:
                _answer(future, self.error, None)
            return
        for (future, _), kept in zip(self.callers, self.result, strict=True):
            if not future.done():
                future.set_result(kept)


def _answer(future: asyncio.Future[Any], error: BaseException | None, result: Any) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class ThreadJob(Job):
    """Of a caller on a thread without an event loop, which waits at a gate."""

    __slots__ = ("_gate", "_is_given_up")

    def __init__(self, work: Work[Any] | Add, clock: Clock, *, durable: bool = True) -> None:
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
    by_loop: dict[asyncio.AbstractEventLoop, list[LoopJob | LoopAdds]] = {}
    for job in jobs:
        if not job.is_answered:
            continue
        if isinstance(job, LoopJob | LoopAdds):
            by_loop.setdefault(job.loop, []).append(job)
        elif isinstance(job, ThreadJob):
            job.wake()
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_tell_all, some)
        except RuntimeError:  # that loop is closed: nobody waits there any more
            pass


def _tell_all(jobs: list[LoopJob | LoopAdds]) -> None:
    for job in jobs:
        job.tell()


def is_of_store(error: BaseException) -> bool:
    """Whether the store or what it holds is to blame, and not a defect, or somebody who interrupts this thread."""
    return isinstance(error, StorageError | sqlite3.Error | OSError | DamagedRow | UnicodeDecodeError)


class Addition:
    """Tasks of several callers that are added by one statement, which needs no transaction around it."""

    def __init__(self, ledger: Ledger, tasks: Alike, jobs: Sequence[Job]) -> None:
        self.tasks = tasks.kept(ledger.now)
        self._ledger = ledger
        self._jobs = jobs

    def run(self) -> None:
        for job in self._jobs:
            job.ledger = self._ledger
            job.share_out(self.tasks.same)  # now, for this thread may be interrupted when they are there
        there = self._ledger.add_alike(self.tasks)
        if there is not self.tasks:
            _share_out(there, self._jobs)


def addition_of(db: sqlite3.Connection, jobs: Sequence[Job]) -> Addition | None:
    """If one statement does what all these jobs want."""
    clock = jobs[0].clock
    parts: list[Alike] = []
    for job in jobs:
        tasks = job.alike()
        if tasks is None or job.clock is not clock:
            return None
        parts.append(tasks)
    together = joined(parts)
    if together is None or not is_one_statement(together):
        return None
    return Addition(clock.ledger(db), together, jobs)


def run_together(db: sqlite3.Connection, jobs: Iterable[Job]) -> None:
    """Run jobs in their order, in one transaction. Those who add, one after the other, add together."""
    clock: Clock | None = None
    for (of_clock, adds), group in groupby(jobs, lambda job: (job.clock, type(job.work) is Add)):
        if of_clock is not clock:
            clock = of_clock
            ledger = clock.ledger(db)
        some = list(group)
        for job in some:
            job.run(ledger)
        if adds:
            parts = [part for job in some for part in job.parts()]
            _share_out(ledger.add(parts[0] if len(parts) == 1 else [task for part in parts for task in part]), some)


def _share_out(kept: Sequence[Task], jobs: Iterable[Job]) -> None:
    """To each of these jobs, whose parts they were, its own."""
    first = 0
    for job in jobs:
        shares = []
        for part in job.parts():
            last = first + len(part)
            shares.append(kept if len(part) == len(kept) else kept[first:last])
            first = last
        job.take_share(iter(shares))

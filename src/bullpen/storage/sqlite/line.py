"""Whoever may use a connection: one caller at a time, for all that wait.

Group commit: a caller that finds nobody at work takes the lead. It runs whatever waits, its own work and that of
others, in one transaction, so that many share one wait for the disk; then it tells them, and one of those who came
meanwhile leads next. A thread leads itself, which saves it two changes of threads. An event loop must not wait, so a
thread of the line leads for it.

The lead is the lock. It is taken by `with` only, so that nothing that interrupts a thread, such as the handler of a
signal, can leave it taken; what an interrupted leader has not done is done by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, TypeVar

from bullpen import primitives
from bullpen.errors import StorageBusy, StorageClosed
from bullpen.storage.sqlite.jobs import Add, Clock, Job, LoopAdds, LoopJob, ThreadJob, Work, deliver
from bullpen.tasks.task import Task

log = logging.getLogger("bullpen.storage")

T = TypeVar("T")

LARGEST_GROUP = 1000
_LOOK_AGAIN = 1.0  # seconds, should a leader have been interrupted in the midst of telling others
_LOST_CONNECTION = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}


def is_lost(error: BaseException) -> bool:
    """Whether the connection that raised it is of no use any more."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOST_CONNECTION


def is_busy(error: BaseException) -> bool:
    """Whether somebody else has the file for longer than one may wait."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


class Line:
    """Jobs in the order in which they came, and the connection that they need. Subclasses say how jobs are run."""

    def __init__(self, name: str, storage: str) -> None:
        self._name = name
        self._storage = storage
        self._jobs: deque[Job] = deque()
        self._db: sqlite3.Connection | None = None
        self.lock = threading.RLock()  # held while the connection is used; reentrant, for forks by signal handlers
        self._leader = 0  # the thread that leads
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._alarm = primitives.gate()  # wakes it
        self._alarm.acquire()
        self._turns: dict[asyncio.AbstractEventLoop, LoopAdds | None] = {}  # of loops that are about to wake it
        self._is_closing = self._has_ended = False
        self._farewells: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    # Callers.

    def submit(self, work: Work[T], clock: Clock, *, durable: bool = True) -> Awaitable[T]:
        """Have `work` done. What is returned must be awaited: on a thread without a loop, that is when it is done."""
        loop = _get_running_loop()
        if loop is None:
            return _Errand(self, ThreadJob(work, clock, durable=durable))
        job = LoopJob(work, clock, loop, durable=durable)
        self._send_adds(loop)
        self._jobs.append(job)
        if self._has_ended:  # only after the append: what is there at the end is refused then
            self._refuse_latecomers()
        elif loop not in self._turns:
            self._begin_turn(loop, None)
        return job.future

    def add(self, tasks: Sequence[Task], clock: Clock) -> Awaitable[Sequence[Task]]:
        """`submit` for tasks to be added. What is added in one turn of a loop is one job."""
        loop = _get_running_loop()
        if loop is None:
            return _Errand(self, ThreadJob(Add(tasks), clock))
        adds = self._turns.get(loop)
        if adds is None or adds.clock is not clock or len(adds.callers) >= LARGEST_GROUP:
            self._send_adds(loop)
            adds = LoopAdds(clock, loop)
            self._begin_turn(loop, adds)
        return adds.add(tasks)

    def _begin_turn(self, loop: asyncio.AbstractEventLoop, adds: LoopAdds | None) -> None:
        """All that is submitted in one turn of the loop, with one wake-up."""
        if loop not in self._turns:
            loop.call_soon(self._end_turn, loop)
        self._turns[loop] = adds

    def _send_adds(self, loop: asyncio.AbstractEventLoop) -> None:
        """Before what comes after them."""
        adds = self._turns.get(loop)
        if adds is not None:
            self._turns[loop] = None
            self._jobs.append(adds)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send_adds(loop)
        self._turns.pop(loop, None)
        if self._has_ended:
            self._refuse_latecomers()
        else:
            self._wake_thread()

    def carry_out(self, job: ThreadJob) -> None:
        """Have a job done for this thread, which waits: by this thread itself, if nobody else is at work."""
        if self._leader == primitives.current_thread_id():
            raise StorageBusy(
                "this thread is in the midst of another call, which a signal handler has interrupted; "
                "what the handler wants of the store has to be done by another thread",
                storage=self._storage,
            )
        self._jobs.append(job)
        try:
            while not job.is_answered:
                if self._leader == 0:
                    self._lead(job)
                elif not job.wait(_LOOK_AGAIN) and self._leader == 0 and job not in self._jobs:
                    self._jobs.append(job)
        except BaseException:
            job.give_up()
            self._hand_on()  # if it was its turn
            raise

    def _wake_thread(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._has_ended:
                    self._thread = primitives.start_thread(self._work, f"bullpen-sqlite-{self._name}")
        try:
            self._alarm.release()
        except RuntimeError:  # it is awake
            pass

    # The leader.

    def _lead(self, own: ThreadJob | None = None) -> None:
        """Run what waits, and tell those who wait for it. `own`: that of this thread, which need not be told."""
        group: list[Job] = []
        try:
            with self.lock:
                self._leader = primitives.current_thread_id()
                try:
                    if own is None or not own.is_answered:
                        self._take(group)
                    if self._has_ended:
                        self.fail_all(group, StorageClosed("it was closed", storage=self._storage))
                    elif group:
                        self._run(group)
                except BaseException as error:
                    self._give_back(group, own, error)
                    raise
                finally:
                    self._leader = 0
        finally:
            try:
                self._tell(group, own)
            except BaseException:  # interrupted
                self._tell(group, own)
                raise

    def _tell(self, group: list[Job], own: ThreadJob | None) -> None:
        if len(group) > 1 or own is None:
            deliver(group)
        if self._jobs:
            self._hand_on()
        self._announce(group)

    def _announce(self, group: list[Job]) -> None:
        """Tell those who did not ask. Others may lead meanwhile."""

    def _take(self, group: list[Job], *, durable: bool = True) -> None:
        """Add to `group` what waits; if it is not `durable`, nothing that has to be."""
        jobs = self._jobs
        while jobs and len(group) < LARGEST_GROUP:
            job = jobs[0]
            if job.durable and not durable:
                return
            if not job.is_answered and not job.is_given_up():
                group.append(job)
            jobs.popleft()  # only now: if this thread is interrupted, no job is nowhere

    def _give_back(self, group: list[Job], own: ThreadJob | None, error: BaseException) -> None:
        """This thread was interrupted: others do what is left to do. The thread of the line has nobody but itself."""
        if own is None:
            log.exception("%s: an unexpected error", self._storage)
            self.disconnect()
        for job in reversed(group):
            if job is own or (own is None and not job.is_answered):
                job.fail(error, self._storage)
            elif not job.is_answered and not (self._jobs and self._jobs[0] is job):
                self._jobs.appendleft(job)

    def _hand_on(self) -> None:
        """Wake somebody who waits for something that nobody has taken yet, if there is anybody."""
        if self._leader:
            return
        for job in tuple(self._jobs):
            if isinstance(job, ThreadJob):
                if not job.is_answered and not job.is_given_up():
                    job.wake()
                    return
            else:
                self._wake_thread()
                return

    def _run(self, group: list[Job]) -> None:
        """Do what there is to do, so that every job of `group` is answered."""
        raise NotImplementedError

    def fail_all(self, group: list[Job], error: BaseException) -> None:
        for job in group:
            job.fail(error, self._storage)

    def disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def let_go(self) -> None:
        """Close whatever is open. It is opened again when it is needed."""
        self.disconnect()

    # The thread that leads for event loops.

    def _work(self) -> None:
        while not self._is_closing:
            self._alarm.acquire()
            while self._jobs:
                with contextlib.suppress(BaseException):  # those who wait have been told
                    self._lead()
        self._end()
        for loop, farewell in self._farewells:
            try:
                loop.call_soon_threadsafe(_bid, farewell)
            except RuntimeError:  # that loop is closed
                pass

    # The end.

    async def close(self) -> None:
        """When all that was submitted is done. Whoever comes later is refused."""
        self._is_closing = True
        loop = _get_running_loop()
        if loop is not None:
            self._send_adds(loop)
            farewell = loop.create_future()
            self._farewells.append((loop, farewell))
            self._wake_thread()
            await farewell
        if self._thread is None:
            self._end()
        else:
            self._wake_thread()
            self._thread.join()

    def _end(self) -> None:
        while self._jobs:
            self._lead()
        with self.lock:
            self.let_go()
            self._has_ended = True
        self._refuse_latecomers()

    def _refuse_latecomers(self) -> None:
        """Another thread has closed the store meanwhile."""
        if self._jobs:
            self._lead()


class _Errand(Awaitable[Any]):
    """To await it is to carry it out, on this thread."""

    __slots__ = ("_job", "_line")

    def __init__(self, line: Line, job: ThreadJob) -> None:
        self._line = line
        self._job = job

    def __await__(self) -> Generator[Any, None, Any]:
        self._line.carry_out(self._job)
        if self._job.error is not None:
            raise self._job.error
        return self._job.result
        yield


def _bid(farewell: asyncio.Future[None]) -> None:
    if not farewell.done():
        farewell.set_result(None)

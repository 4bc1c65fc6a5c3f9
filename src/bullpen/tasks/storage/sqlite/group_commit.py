"""Group commit: many callers, one connection, one wait for the disk.

**The problem.** SQLite has one writer at a time, and a durable commit waits for the disk. That wait takes as long for a
hundred changes as for one, so callers that come at the same time should share one commit. And a blocking caller should
not pay for a change of threads only because others might come.

**Leader and followers.** A caller appends a `WorkItem` to `_items`. A blocking caller that finds no leader becomes the
leader: it takes the lock, takes all items that wait, has `_run` answer them, and tells their callers. A caller that
comes meanwhile is a follower: it waits at the gate of its item. When the leader is done and items are left, it wakes
the caller of the first one, and that caller leads next. An event loop must not block, so a thread of the group commit
leads for all event loops. The thread starts when the first loop needs it. It cannot run before the loop's thread gives
up the interpreter lock, which is mostly at the end of a turn of the loop, so what one turn submits is one group.

`_run` belongs to the subclass (`writer.py`): the writer runs a group in one transaction, the reader runs one item after
the other.

**What an interrupt may do.** The handler of a signal may raise at any line of a leading thread. Then:

- The lead is `lock`. Only `with` takes it, so no interrupt leaves it taken. `_leader` is reset by `finally`.
- `_take` removes an item from `_items` when the item is in the group already. No item is ever in neither.
- `_give_back` returns items without an answer to `_items`. The interrupted caller's own item fails with the interrupt.
- An item whose transaction is committed is answered, however the thread is interrupted afterwards (`writer.py`).
- `_tell` runs a second time if it was interrupted: to tell a caller twice changes nothing.

A handler that calls the store on the thread of an interrupted leader would wait for itself. It gets `StorageBusy`.

**Why no caller waits forever.** A follower looks again after `_LOOK_AGAIN` seconds, should a second interrupt have
stopped the leader even while it cleaned up. If there is no leader then, the follower leads, and it appends its item
again if the item was lost. A caller that is interrupted while it follows marks its item as abandoned, and wakes the
next caller in case that it was woken to lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from bullpen import primitives
from bullpen.errors import StorageBusy, StorageClosed, StorageError
from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.sqlite import file
from bullpen.tasks.storage.sqlite.file import DatabaseFile
from bullpen.tasks.storage.sqlite.task_table import SqliteTaskTable, StoreClock
from bullpen.telemetry import SafeLogger

log = SafeLogger("bullpen.storage")

T = TypeVar("T")
Work = Callable[[SqliteTaskTable], T]

LARGEST_GROUP = 1000
_LOOK_AGAIN = 1.0  # seconds
_LOST_CONNECTION = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN}


class WorkItem:
    """What one caller wants of the connection, and what came of it: `work` to be run in a transaction, or `tasks` to be
    added. With a `future` the caller is on an event loop; else it is a thread that waits at `gate`.

    `durable`: what it writes survives a power cut once the caller is told.
    """

    __slots__ = (
        *("clock", "durable", "error", "future", "gate", "is_abandoned", "is_answered"),
        *("result", "table", "tasks", "work"),
    )

    def __init__(
        self,
        clock: StoreClock,
        work: Work[Any] | None = None,
        *,
        tasks: Sequence[Task] | None = None,
        durable: bool = True,
        future: asyncio.Future[Any] | None = None,
    ) -> None:
        self.clock = clock
        self.work = work
        self.tasks = tasks
        self.durable = durable
        self.future = future
        if future is None:
            self.gate = primitives.gate()
            self.gate.acquire()
        self.is_abandoned = False  # the thread that waited for it was interrupted
        self.table: SqliteTaskTable | None = None
        self.is_answered = False  # what came of it is certain; the caller need not know yet
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, table: SqliteTaskTable) -> None:
        self.table = table
        if self.work is not None:
            self.result = self.work(table)
        elif self.tasks is not None:
            self.result = table.add(self.tasks)

    def fail(self, error: BaseException, storage: str) -> None:
        self.error = error
        if isinstance(error, sqlite3.Error | OSError) and not isinstance(error, StorageError):
            self.error = file.translated_error(error, storage)
        elif isinstance(error, UnicodeDecodeError):
            self.error = StorageError(f"a stored text is no UTF-8 ({error})", storage=storage)
        if self.error is not error:
            self.error.__cause__ = error
        self.is_answered = True

    def wake(self) -> None:
        """Open the gate of the thread that waits."""
        try:
            self.gate.release()
        except RuntimeError:  # the thread is awake
            pass


class GroupCommit:
    """A connection, the items that wait for it, and the lead."""

    def __init__(self, name: str, place: DatabaseFile) -> None:
        self._name = name
        self._place = place
        self._storage = str(place.path)
        self._items: deque[WorkItem] = deque()
        self._db: sqlite3.Connection | None = None
        self.lock = threading.RLock()  # held while the connection is used; reentrant, for forks by signal handlers
        self._leader = 0  # the thread that leads
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._alarm = primitives.gate()  # wakes the thread
        self._alarm.acquire()
        self._is_called = False  # the thread is to look at the items
        self._is_closing = self._has_ended = False
        self._close_waiters: list[asyncio.Future[None]] = []

    @property
    def is_connected(self) -> bool:
        return self._db is not None

    # Callers.

    def run_blocking(self, item: WorkItem) -> Any:
        """Have an item answered for this thread: by this thread itself, if no other one leads."""
        if self._leader == primitives.current_thread_id():
            self.check_reentry()
        self._items.append(item)
        try:
            while not item.is_answered:
                if self._leader == 0:
                    self._run_as_leader(item)
                elif not item.gate.acquire(True, _LOOK_AGAIN) and self._leader == 0 and item not in self._items:
                    self._items.append(item)  # an interrupted leader has lost it
        except BaseException:
            item.is_abandoned = True
            self._hand_on()  # if it was this thread's turn
            raise
        if item.error is not None:
            raise item.error
        return item.result

    def check_reentry(self) -> None:
        """Raises StorageBusy if a signal handler calls on the thread that leads."""
        if self._leader == primitives.current_thread_id():
            raise StorageBusy(
                "a signal handler called the store while this thread was in another call of the store; "
                "call the store from another thread",
                storage=self._storage,
            )

    def submit(
        self,
        clock: StoreClock,
        work: Work[Any] | None = None,
        *,
        tasks: Sequence[Task] | None = None,
        durable: bool = True,
    ) -> asyncio.Future[Any]:
        """Have `work` done, or `tasks` added, for a caller on the running event loop."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._items.append(WorkItem(clock, work, tasks=tasks, durable=durable, future=future))
        if self._has_ended:  # only after the append: items that are there at the end are rejected then
            self._reject_latecomers()
        else:
            self._wake_thread()
        return future

    def _wake_thread(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._has_ended:
                    self._thread = primitives.start_thread(self._work, f"bullpen-sqlite-{self._name}")
        if not self._is_called:  # read after the append of an item: a thread that is called looks for items later
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # another caller was faster
                self._alarm.release()

    # The leader.

    def _run_as_leader(self, own: WorkItem | None = None) -> None:
        """Answer the items that wait, and tell their callers. `own`: the item of this thread, which needs no telling;
        None on the thread of the group commit.
        """
        group: list[WorkItem] = []
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

    def _take(self, group: list[WorkItem], *, durable: bool = True) -> None:
        """Move items that wait to `group`. Without `durable`, stop at the first one that has to be."""
        items = self._items
        while items and len(group) < LARGEST_GROUP:
            item = items[0]
            if item.durable and not durable:
                return
            gone = item.is_abandoned if item.future is None else item.future.cancelled()
            if not (gone or item.is_answered):
                group.append(item)
            items.popleft()  # only now: if this thread is interrupted, no item is in neither

    def _run(self, group: list[WorkItem]) -> None:
        """Answer every item of `group`."""
        raise NotImplementedError

    def _give_back(self, group: list[WorkItem], own: WorkItem | None, error: BaseException) -> None:
        """Return the unanswered items after an error. If a signal interrupted the calling thread, other leaders answer
        them. The thread of the group commit gets no signals, so there the error is a defect, and the group fails.
        """
        if own is None:
            log.exception("%s: an unexpected error; the waiting calls fail", self._storage)
            self.disconnect()
        for item in reversed(group):
            if item is own or (own is None and not item.is_answered):
                item.fail(error, self._storage)
            elif not item.is_answered and not (self._items and self._items[0] is item):
                self._items.appendleft(item)

    def _tell(self, group: list[WorkItem], own: WorkItem | None) -> None:
        if len(group) > 1 or own is None:
            tell_callers(group)
        if self._items:
            self._hand_on()
        self._announce(group)

    def _announce(self, group: list[WorkItem]) -> None:
        """Wake the workers and callers that wait for a change the group has made. Others may lead meanwhile."""

    def _hand_on(self) -> None:
        """Wake the caller of the first item that still waits: it leads next."""
        if self._leader:
            return
        for item in tuple(self._items):
            if item.future is not None:
                self._wake_thread()
                return
            if not (item.is_answered or item.is_abandoned):
                item.wake()
                return

    def fail_all(self, group: list[WorkItem], error: BaseException) -> None:
        for item in group:
            item.fail(error, self._storage)

    def disconnect(self) -> None:
        if self._db is not None:
            self._place.disconnect(self._name, self._db)
            self._db = None

    def let_go(self) -> None:
        """Close whatever is open. It is opened again when it is needed."""
        self.disconnect()

    # The thread that leads for event loops.

    def _work(self) -> None:
        while not self._is_closing:
            self._alarm.acquire()
            self._is_called = False
            while self._items:
                with contextlib.suppress(BaseException):  # the callers have been told
                    self._run_as_leader()
        self._end()
        for waiter in self._close_waiters:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                waiter.get_loop().call_soon_threadsafe(_release, waiter)

    # The end.

    async def close(self) -> None:
        """End when every item that was submitted is answered. Later items are rejected."""
        self._is_closing = True
        waiter = asyncio.get_running_loop().create_future()
        self._close_waiters.append(waiter)
        self._wake_thread()
        await waiter
        self.close_blocking()

    def close_blocking(self) -> None:
        """`close`, for a caller that may block."""
        self._is_closing = True
        if self._thread is None:
            self._end()
        else:
            self._wake_thread()
            self._thread.join()

    def _end(self) -> None:
        while self._items:
            self._run_as_leader()
        with self.lock:
            self.let_go()
            self._has_ended = True
        self._reject_latecomers()

    def _reject_latecomers(self) -> None:
        """Another thread has closed the store meanwhile."""
        if self._items:
            self._run_as_leader()


def tell_callers(items: Iterable[WorkItem]) -> None:
    """Wake the callers whose items are answered, each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WorkItem]] = {}
    for item in items:
        if not item.is_answered:
            continue
        if item.future is None:
            item.wake()
        else:
            by_loop.setdefault(item.future.get_loop(), []).append(item)
    for loop, some in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits there
            loop.call_soon_threadsafe(_set_outcomes, some)


def _set_outcomes(items: list[WorkItem]) -> None:
    for item in items:
        future = item.future
        if future is None or future.done():  # its caller was cancelled
            continue
        if item.error is not None:
            future.set_exception(item.error)
        else:
            future.set_result(item.result)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def is_lost(error: BaseException) -> bool:
    """Whether the connection that raised it is of no use any more."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOST_CONNECTION


def is_busy(error: BaseException) -> bool:
    """Whether another connection had the file for longer than one may wait."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def is_of_store(error: BaseException) -> bool:
    """Whether the store or its content is to blame: no defect of the code, and no interrupt of this thread."""
    return isinstance(error, StorageError | sqlite3.Error | OSError | UnicodeDecodeError)

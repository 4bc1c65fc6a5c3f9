"""Floors: the least work of any queue in Python on SQLite.

**Shared commits**, for many callers. Callers have their row ready. A caller that finds no leader becomes the leader: it
inserts all waiting rows with one statement, and wakes the others. Coroutines leave that to one thread. There is no
encoding, no id, no lock between processes, and no worker to wake: only SQLite, the disk, and the wake-ups of threads
under the interpreter's lock.

**Same guarantees**, for one caller: a bare loop that inserts a row into Bullpen's own table, with its indexes, and
makes the system calls that the guarantees need. `flock` and its release keep another process from a checkpoint during
the commit. One `stat` each of the folder and of the file finds a file that was removed or emptied. One `stat` of the
folder of sockets finds the workers to wake.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from .ours import Ours, in_file
from .plain import Plain, Row, new_row

COLUMNS = 7


@cache
def _insert(count: int) -> str:
    row = f"({', '.join('?' * COLUMNS)})"
    return f"INSERT INTO task (id, queue, func, payload, status, priority, eta) VALUES {', '.join([row] * count)}"


def _commit(db: sqlite3.Connection, rows: list[Row]) -> None:
    db.execute(_insert(len(rows)), [value for row in rows for value in row])


class _Waiting:
    __slots__ = ("gate", "is_done", "row")

    def __init__(self, row: Row) -> None:
        self.row = row
        self.is_done = False
        self.gate = threading.Lock()
        self.gate.acquire()

    def wake(self) -> None:
        try:
            self.gate.release()
        except RuntimeError:  # it is awake
            pass


@contextmanager
def of_threads(folder: Path) -> Iterator[tuple[Callable[[int], object], Callable[[], int]]]:
    """A function that a thread calls for each task."""
    with Plain(folder, any_thread=True) as plain:
        lead = threading.Lock()
        waiting: deque[_Waiting] = deque()

        def put(_: int) -> None:
            own = _Waiting(new_row())
            waiting.append(own)
            while not own.is_done:
                if not lead.acquire(blocking=False):
                    own.gate.acquire()
                    continue
                group = [waiting.popleft() for _ in range(len(waiting))]
                if group:
                    _commit(plain.db, [one.row for one in group])
                lead.release()
                for one in group:
                    one.is_done = True
                    if one is not own:
                        one.wake()
                if waiting:
                    waiting[0].wake()

        yield put, lambda: plain.count("pending")


Put = Callable[[int], object]
AsyncPut = Callable[[int], Awaitable[object]]
Count = Callable[[], int]


@contextmanager
def of_coroutines(folder: Path, synchronous: str = "FULL") -> Iterator[tuple[AsyncPut, Count]]:
    """A function that a coroutine awaits for each task: one thread commits all waiting rows."""
    with (
        Plain(folder, any_thread=True, synchronous=synchronous) as plain,
        _awaited(new_row, lambda rows: _commit(plain.db, rows)) as put,
    ):
        yield put, lambda: plain.count("pending")


def of_coroutines_normal(folder: Path) -> AbstractContextManager[tuple[AsyncPut, Count]]:
    return of_coroutines(folder, "NORMAL")


@contextmanager
def _awaited(new_row: Callable[[], Row], commit: Callable[[list[Row]], object]) -> Iterator[AsyncPut]:
    pending: list[tuple[Row, asyncio.Future[None]]] = []
    groups: SimpleQueue[list[tuple[Row, asyncio.Future[None]]] | None] = SimpleQueue()

    def put(_: int) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if not pending:
            loop.call_soon(hand_over)
        future = loop.create_future()
        pending.append((new_row(), future))
        return future

    def hand_over() -> None:
        groups.put(pending[:])
        pending.clear()

    def write() -> None:
        while (group := groups.get()) is not None:
            commit([row for row, _ in group])
            group[0][1].get_loop().call_soon_threadsafe(tell, group)

    def tell(group: list[tuple[Row, asyncio.Future[None]]]) -> None:
        for _, future in group:
            future.set_result(None)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield put
    finally:
        groups.put(None)
        writer.join()


class _Guarded:
    """Bullpen's table, written in a bare loop with the same guarantees."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        with Ours(in_file(folder)) as ours:
            ours.noop.enqueue(0)
        self._folder, self._file, self._sockets = str(folder), f"{folder}/jobs.db", f"{folder}/jobs.db-bullpen"
        self._lock = os.open(f"{self._sockets}/lock", os.O_RDWR)
        self.db = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
        self.db.execute(f"PRAGMA synchronous = {synchronous}")
        found = self.db.execute("SELECT * FROM bullpen_task")
        self._row = [bytearray(value) if isinstance(value, bytes) else value for value in found.fetchone()]
        self._id = [name for name, *_ in found.description].index("id")
        self._insert = f"INSERT INTO bullpen_task VALUES ({', '.join('?' * len(self._row))})"

    def new_row(self) -> Row:
        row = self._row.copy()
        row[self._id] = new_row()[0]
        return tuple(row)

    def commit(self, rows: list[Row]) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for row in rows:  # one, because there is one caller
            self.db.execute(self._insert, row)
        os.stat(self._folder)
        os.stat(self._file)
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.stat(self._sockets)

    def count(self) -> int:
        return int(self.db.execute("SELECT count(*) FROM bullpen_task").fetchone()[0]) - 1

    def __enter__(self) -> _Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        self.db.close()
        os.close(self._lock)


def guarded(synchronous: str) -> Callable[[Path], AbstractContextManager[tuple[Put, Count]]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[tuple[Put, Count]]:
        with _Guarded(folder, synchronous) as table:
            yield lambda _: table.commit([table.new_row()]), table.count

    return opened


def guarded_awaited(synchronous: str) -> Callable[[Path], AbstractContextManager[tuple[AsyncPut, Count]]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[tuple[AsyncPut, Count]]:
        with _Guarded(folder, synchronous) as table, _awaited(table.new_row, table.commit) as put:
            yield put, table.count

    return opened

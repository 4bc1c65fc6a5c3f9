"""The floor for many callers that share commits: the least work of any queue in Python on SQLite.

Callers have their row ready. A caller that finds no leader becomes the leader: it inserts all waiting rows with one
statement, and wakes the others. Coroutines leave that to one thread. There is no encoding, no id, no lock between
processes, and no worker to wake: only SQLite, the disk, and the wake-ups of threads under the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from queue import SimpleQueue

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


def of_coroutines_normal(
    folder: Path,
) -> AbstractContextManager[tuple[Callable[[int], Awaitable[object]], Callable[[], int]]]:
    """`of_coroutines` with synchronous=NORMAL."""
    return of_coroutines(folder, "NORMAL")


@contextmanager
def of_coroutines(
    folder: Path, synchronous: str = "FULL"
) -> Iterator[tuple[Callable[[int], Awaitable[object]], Callable[[], int]]]:
    """A function that a coroutine awaits for each task: one thread commits all waiting rows."""
    with Plain(folder, any_thread=True, synchronous=synchronous) as plain:
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
                _commit(plain.db, [row for row, _ in group])
                group[0][1].get_loop().call_soon_threadsafe(tell, group)

        def tell(group: list[tuple[Row, asyncio.Future[None]]]) -> None:
            for _, future in group:
                future.set_result(None)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield put, lambda: plain.count("pending")
        finally:
            groups.put(None)
            writer.join()

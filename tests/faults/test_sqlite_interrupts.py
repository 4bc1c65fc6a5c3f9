"""The leader of a group commit is interrupted at any line: no other caller is affected."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bullpen.errors import StorageBusy
from bullpen.tasks.model.task import Task
from bullpen.tasks.model.task_batch import TaskBatch
from bullpen.tasks.storage.port import TaskFilter
from bullpen.tasks.storage.sqlite import file, group_commit, task_table, writer
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from tests.faults.interrupts import Interrupt
from tests.scenarios.support import PATIENCE, eventually
from tests.tools import lock_order
from tests.unit.tasks.storage.sqlite.support import new_task

HOT = (task_table.__file__, group_commit.__file__, writer.__file__)
OTHERS = 3
TRIES = 3
COMMON = new_task(id="", payload=b"")
_groups = itertools.count()


@pytest.fixture(autouse=True)
def locks_of_the_interpreter() -> Iterator[None]:
    """The lock-order checker is written in Python: it would add points at which a signal can arrive."""
    lock_order.uninstall()
    yield
    lock_order.install()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SqliteStorage]:
    storage = SqliteStorage(tmp_path / "jobs.db", synchronous="normal")
    storage.open_blocking()
    yield storage
    storage.close_blocking()


@pytest.mark.parametrize(("batched", "adds"), [(True, "SqliteTaskTable.add_plain"), (False, "SqliteTaskTable.add")])
def test_an_interrupted_leader_leaves_no_call_unanswered(storage: SqliteStorage, batched: bool, adds: str) -> None:
    """For tasks that one statement adds, and for those that need several statements in a transaction."""
    where = list[str]()
    while last := next(filter(None, (interrupted_at(len(where) + 1, storage, batched) for _ in range(TRIES))), ""):
        where.append(last)
    seen = {point.split(":")[0] for point in where}
    assert seen >= {
        "GroupCommit._run_as_leader",
        "GroupCommit._take",
        "SqliteWriter._run",
        "SqliteWriter._transact",
        adds,
        "tell_callers",
    }


def interrupted_at(count: int, storage: SqliteStorage, batched: bool) -> str:
    """Lead a group with other callers, and be interrupted at the `count`-th point. Return that point, or "".

    There is none, too, if the writer thread, which the loop has woken, led instead.
    """
    name = f"{count}, {next(_groups)}"
    assert storage._file is not None
    waiting = storage._file.writer._items
    added = list[str]()
    priorities = itertools.count()

    def new(name: str) -> Sequence[Task]:
        return TaskBatch(COMMON, [name], [b"[]"]) if batched else [new_task(id=name, priority=next(priorities))]

    def add(name: str) -> None:
        added.extend(task.id for task in storage.add_blocking(new(name)))

    async def add_two(name: str) -> None:
        for tasks in await asyncio.gather(*[storage.add(new(f"{name}, {number}")) for number in range(2)]):
            added.extend(task.id for task in tasks)

    other = file.WriteLock(file.folder_of(storage.path))
    other.acquire(PATIENCE)  # this thread leads, and waits here for the other callers
    others = [threading.Thread(target=add, args=(f"{name} of thread {number}",)) for number in range(OTHERS - 1)]
    others.append(threading.Thread(target=lambda: asyncio.run(add_two(f"{name} of a loop"))))

    finished = threading.Event()

    def bring_others() -> None:
        """Wait until this thread leads, or was interrupted before. The lock is free when all callers wait."""
        while storage._file.writer._leader == 0 and not finished.is_set():  # type: ignore[union-attr]
            time.sleep(0.0002)
        for thread in others:
            thread.start()
        while len(waiting) < OTHERS and not finished.is_set():
            time.sleep(0.0002)
        other.release()

    bringer = threading.Thread(target=bring_others)
    bringer.start()
    interrupt = Interrupt(count, HOT)
    with contextlib.suppress(KeyboardInterrupt), interrupt:
        add(f"{name} of the leader")
        assert not interrupt.where, f"the interrupt at {interrupt.where} was lost"
    finished.set()
    bringer.join()
    for thread in others:
        thread.join(group_commit._LOOK_AGAIN / 2)
    assert not any(thread.is_alive() for thread in others), f"a caller waits for ever after {interrupt.where}"
    other.close()
    add(f"{name} afterwards")
    kept = [task.id for task in asyncio.run(storage.list(TaskFilter(), limit=100_000))]
    assert len(added) >= OTHERS + 2
    assert set(added) <= set(kept), interrupt.where
    return interrupt.where


def test_a_call_of_a_signal_handler_during_a_call_is_rejected(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught = list[BaseException]()

    def handle(*_: object) -> None:
        try:
            storage.add_blocking([new_task(id="of the handler")])
        except StorageBusy as error:
            caught.append(error)

    def interrupted(*arguments: Any) -> TaskBatch | None:
        signal.raise_signal(signal.SIGUSR1)
        return plain_batch(*arguments)

    plain_batch = writer._plain_batch
    monkeypatch.setattr(writer, "_plain_batch", interrupted)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert storage.add_blocking(TaskBatch(COMMON, ["of the call"], [b"[]"]))[0].id == "of the call"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "signal handler" in str(caught[0])
    assert [task.id for task in asyncio.run(storage.list(TaskFilter(), limit=9))] == ["of the call"]


def test_a_claim_that_an_interrupted_leader_lost_is_found_again(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two interrupts in the same few microseconds."""
    assert storage._file is not None
    writing = storage._file.writer
    monkeypatch.setattr(group_commit, "_LOOK_AGAIN", 0.05)
    done = threading.Event()

    def add() -> None:
        storage.add_blocking([new_task(id="of another")])
        done.set()

    other = threading.Thread(target=add)
    with writing.lock:
        writing._leader = -1
        other.start()
        assert eventually(lambda: len(writing._items) == 1)
        writing._items.popleft()  # the group was taken, and its callers got no answer
        writing._leader = 0
    assert done.wait(PATIENCE)
    other.join()

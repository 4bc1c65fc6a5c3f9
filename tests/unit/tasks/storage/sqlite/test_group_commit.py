"""Group commit, one writer for all stores of a process, faults of single callers, forks."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bullpen import primitives
from bullpen.errors import StorageBusy, StorageClosed
from bullpen.tasks.model.task import Settlement, Task, succeed
from bullpen.tasks.model.task_batch import TaskBatch
from bullpen.tasks.storage.port import AttemptKey, TaskFilter
from bullpen.tasks.storage.sqlite import file, shared
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.tasks.storage.sqlite.task_table import StoreClock
from bullpen.tasks.storage.sqlite.writer import SqliteWriter
from tests.scenarios.support import PATIENCE, eventually
from tests.unit.tasks.storage.sqlite.support import claim, new_task, opened, raw

pytestmark = pytest.mark.anyio


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every commit from now on."""
    seen: list[str] = []

    def note(name: str) -> None:
        if name == "sqlite.after_commit":
            seen.append(name)

    monkeypatch.setattr(primitives, "failpoint", note)
    return seen


@contextmanager
def another_writer(path: Path) -> Iterator[None]:
    """As long as another process writes."""
    lock = file.WriteLock(file.folder_of(path))
    assert lock.acquire(PATIENCE)
    try:
        yield
    finally:
        lock.release()
        lock.close()


async def behind_a_lock(path: Path, *work: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """Start all `work` while another process writes, so that all of it waits together."""
    with another_writer(path):
        first = asyncio.ensure_future(work[0]())
        await asyncio.sleep(0.02)  # the writer has begun with it
        rest = [asyncio.ensure_future(each()) for each in work[1:]]
        await asyncio.sleep(0)  # they submit
    return list(await asyncio.gather(first, *rest, return_exceptions=True))


def outcome(answer: object) -> str:
    return type(answer).__name__ if isinstance(answer, BaseException) else "kept"


async def test_waiting_calls_share_one_commit(tmp_path: Path, commits: list[str]) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        commits.clear()
        tasks = [new_task() for _ in range(31)]
        kept = await behind_a_lock(storage.path, *[lambda task=task: storage.add([task]) for task in tasks])
        assert [one[0].id for one in kept] == [task.id for task in tasks]
        assert len(commits) == 1


async def test_a_call_that_fails_in_a_group_fails_alone(tmp_path: Path) -> None:
    def broken(task: Task, now: float) -> Settlement:
        raise ZeroDivisionError

    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(id="running")])
        await claim(storage, lease=0.0)
        bad = new_task(queue=None)
        answers = await behind_a_lock(
            storage.path,
            lambda: storage.add([new_task(id="a")]),
            lambda: storage.add([new_task(id="b")]),
            lambda: storage.add([new_task(id="never"), bad]),
            lambda: storage.note_progress(None, None),  # type: ignore[arg-type]
            lambda: storage.add([new_task(id="c")]),
        )
        assert [outcome(answer) for answer in answers] == ["kept", "kept", "StorageError", "AttributeError", "kept"]
        assert [task.id for task in await storage.list(TaskFilter(), limit=9)] == ["a", "b", "c", "running"]
        with pytest.raises(ZeroDivisionError):
            await storage.rescue_expired(broken, limit=10)
        assert (await storage.get(["running"]))[0].attempt == 1  # type: ignore[union-attr]


async def test_a_call_that_fails_among_tasks_of_one_statement_fails_alone(tmp_path: Path) -> None:
    same = new_task(id="", payload=b"")
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(id="there", payload=b"1")])
        answers = await behind_a_lock(
            storage.path,
            lambda: storage.add(TaskBatch(same, ["a"], [b"[]"])),
            lambda: storage.add(TaskBatch(same, ["never", "bad"], [b"[]", None])),  # type: ignore[list-item]
            lambda: storage.add(TaskBatch(same, ["there"], [b"2"])),
        )
        assert [outcome(answer) for answer in answers] == ["kept", "TypeError", "kept"]
        assert answers[2][0].payload == b"1"
        assert [task.id for task in await storage.list(TaskFilter(), limit=9)] == ["a", "there"]


async def test_while_others_write_a_group_waits_once(tmp_path: Path) -> None:
    """And not each of it, one after the other."""
    attempts = list[int]()
    async with opened(tmp_path / "jobs.db", busy_timeout=0.05) as storage:
        assert storage._file is not None
        transact = storage._file.writer._transact
        storage._file.writer._transact = lambda jobs, **options: (  # type: ignore[method-assign]
            attempts.append(len(jobs)) or transact(jobs, **options)  # type: ignore[func-returns-value]
        )
        with raw(storage.path) as other:
            other.execute("BEGIN IMMEDIATE")
            answers = await asyncio.gather(
                *[storage.add([new_task()]) for _ in range(3)],
                return_exceptions=True,
            )
            other.execute("ROLLBACK")
        other.close()
        assert [type(answer).__name__ for answer in answers] == ["StorageBusy"] * 3
        assert attempts == [3]


async def test_a_caller_that_is_cancelled_disturbs_nobody(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        gone = asyncio.ensure_future(storage.add([new_task()]))
        await asyncio.sleep(0)
        gone.cancel()
        await storage.add([new_task(id="there")])
        assert (await storage.get(["there"]))[0] is not None


async def test_tasks_of_cancelled_calls_in_a_group_are_not_stored(tmp_path: Path) -> None:
    same = new_task(id="", payload=b"")
    async with opened(tmp_path / "jobs.db") as storage:
        with another_writer(storage.path):
            first = asyncio.ensure_future(storage.add([new_task(id="first")]))
            await asyncio.sleep(0.02)  # the writer has begun with it
            adds = [asyncio.ensure_future(storage.add(TaskBatch(same, [name], [b"[]"]))) for name in ("a", "gone", "b")]
            await asyncio.sleep(0)
            adds[1].cancel()
            await asyncio.sleep(0)
        await first
        answers = await asyncio.gather(*adds, return_exceptions=True)
        assert [outcome(answer) for answer in answers] == ["kept", "CancelledError", "kept"]
        assert [answers[0][0].id, answers[2][0].id] == ["a", "b"]  # type: ignore[index]
        assert [task.id for task in await storage.list(TaskFilter(), limit=9)] == ["a", "b", "first"]


async def test_what_one_turn_submits_is_done_in_its_order(tmp_path: Path) -> None:
    """Also where tasks that are added are one job, and something else comes between."""
    same = new_task(id="", payload=b"")
    async with opened(tmp_path / "jobs.db") as storage:
        _, cancelled, _, also = await asyncio.gather(
            storage.add(TaskBatch(same, ["a"], [b"[]"])),
            storage.cancel(["a", "b"]),
            storage.add(TaskBatch(same, ["b"], [b"[]"])),
            storage.cancel(["b"]),
        )
        assert [task.id for task in cancelled] == ["a"]
        assert [task.id for task in also] == ["b"]


async def test_tasks_that_were_added_before_a_store_is_closed_are_kept(tmp_path: Path) -> None:
    async def hold_the_loop() -> None:
        time.sleep(0.05)  # so that the writer may end before this turn does

    same = new_task(id="", payload=b"")
    async with opened(tmp_path / "jobs.db") as storage:
        added = [asyncio.ensure_future(storage.add(TaskBatch(same, [name], [b"[]"]))) for name in ("a", "b")]
        await asyncio.gather(storage.close(), hold_the_loop())
        assert [(await one)[0].id for one in added] == ["a", "b"]


async def test_stores_of_one_process_share_a_writer(tmp_path: Path) -> None:
    def writers() -> int:
        return sum(thread.name == "bullpen-sqlite-writer" for thread in threading.enumerate())

    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")
    async with opened(tmp_path / "jobs.db") as one, opened(tmp_path / "link.db") as other:
        third = one.another()
        await third.open()
        assert writers() == 1
        await third.close()
        await one.add([new_task(id="x")])
        await one.close()
        assert (await other.get(["x"]))[0] is not None
        with pytest.raises(StorageClosed):
            await one.get(["x"])


async def test_a_write_behind_a_long_transaction_raises_storage_busy(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", busy_timeout=0.05) as storage:
        with raw(storage.path) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageBusy):
                await storage.add([new_task()])
            other.execute("COMMIT")
        other.close()
        await storage.add([new_task()])


async def test_the_log_does_not_grow_for_ever(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", synchronous="normal") as storage:
        for _ in range(12):
            await storage.add([new_task(payload=b"x" * 300) for _ in range(2000)])
        log = tmp_path / "jobs.db-wal"
        assert log.stat().st_size < storage.path.stat().st_size / 2


async def test_an_unexpected_error_is_told_and_the_thread_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task()])
        monkeypatch.setattr(SqliteWriter, "_transact", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await storage.add([new_task()])
        monkeypatch.undo()
        await storage.add([new_task()])
        assert "an unexpected error" in caplog.text


async def test_no_checkpoint_while_another_connection_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On older versions of SQLite that could lose what the other commits."""
    async with opened(tmp_path / "jobs.db", synchronous="normal") as storage:
        other = raw(storage.path)

        def begin(name: str) -> None:
            if name == "sqlite.before_checkpoint":
                other.execute("BEGIN IMMEDIATE")

        monkeypatch.setattr(primitives, "failpoint", begin)
        await storage.add([new_task() for _ in range(3000)])
        await storage.counts()
        await asyncio.sleep(0.02)
        size = storage.path.stat().st_size
        other.execute("ROLLBACK")
        other.close()
        assert size < 100_000  # everything is still in the log
        monkeypatch.setattr(primitives, "failpoint", lambda _: None)
        await storage.add([new_task() for _ in range(3000)])
        await storage.add([new_task()])
        assert storage.path.stat().st_size > 1_000_000


def in_a_child(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded")
def test_a_store_goes_on_in_a_forked_child_and_in_its_parent(tmp_path: Path) -> None:
    async def parent() -> None:
        async with opened(tmp_path / "jobs.db") as storage:
            await storage.add([new_task(id="before")])
            await storage.wait_for_work(["other"], 0.001)
            threads = asyncio.get_running_loop().run_in_executor(None, in_a_child, lambda: asyncio.run(child(storage)))
            await storage.add([new_task(id="parent")])
            assert await threads == 0
            assert [task.id for task in await storage.list(TaskFilter(), limit=9)] == ["before", "child", "parent"]

    async def child(storage: SqliteStorage) -> None:
        await storage.add([new_task(id="child")])
        assert locks_of(os.getpid(), storage.path) > 0
        await storage.wait_for_work(["default"], 1)
        assert len(await storage.get(["before", "child"])) == 2
        await storage.close()

    asyncio.run(parent())


def locks_of(pid: int, path: Path) -> int:
    """How many locks on the file the system knows of. SQLite alone would not take one in a child."""
    inodes = {str(place.stat().st_ino) for place in path.parent.glob(path.name + "*") if place.is_file()}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(fields[1] == "POSIX" and int(fields[4]) == pid and fields[5].split(":")[2] in inodes for fields in lines)


def test_nothing_is_left_open_by_a_process_without_stores() -> None:
    assert shared._files == {}


async def test_callers_that_add_together_get_their_own_tasks(tmp_path: Path, commits: list[str]) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        commits.clear()
        same = [new_task(unique_key="same") for _ in range(3)]
        others = [new_task(priority=number) for number in range(3)]
        answers = await behind_a_lock(
            storage.path,
            lambda: storage.add([others[0]]),
            lambda: storage.add([same[0], others[1]]),
            lambda: storage.add([same[1]]),
            lambda: storage.add([others[2], same[2]]),
        )
        assert [[task.id for task in answer] for answer in answers] == [
            [others[0].id],
            [same[0].id, others[1].id],
            [same[0].id],
            [others[2].id, same[0].id],
        ]
        assert len(commits) == 1
        assert [task.id for task in await storage.list(TaskFilter(), limit=9)] == sorted(
            task.id for task in [same[0], *others]
        )


# What waits for the disk.


def disk(storage: SqliteStorage) -> str:
    """How the last commit was made."""
    assert storage._file is not None
    writer = storage._file.writer
    with writer.lock:
        assert writer._db is not None
        return {1: "normal", 2: "full"}[writer._db.execute("PRAGMA synchronous").fetchone()[0]]


async def test_claims_and_signs_of_life_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(), new_task()])
        assert disk(storage) == "full"
        (first,) = (await claim(storage)).claimed
        assert disk(storage) == "normal"
        (second,) = (await claim(storage, settlements=(succeed(first, b"1"),))).claimed  # with a result
        assert disk(storage) == "full"
        await storage.renew([AttemptKey(second.id, second.attempt)], 15.0)
        assert disk(storage) == "normal"
        await storage.cancel([second.id])
        assert disk(storage) == "full"


async def test_the_claim_of_what_may_run_only_once_waits_for_the_disk(tmp_path: Path, commits: list[str]) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(at_most_once=True)])
        commits.clear()
        assert len((await claim(storage)).claimed) == 1
        assert disk(storage) == "full"


async def test_one_durable_call_makes_the_whole_group_wait_for_the_disk(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task()])
        await behind_a_lock(
            storage.path,
            lambda: claim(storage),
            lambda: storage.add([new_task()]),
            lambda: claim(storage, claim_id="another"),
        )
        assert disk(storage) == "full"


async def test_a_store_that_never_waits_for_the_disk_does_not_begin_to(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs.db", synchronous="normal") as storage:
        await storage.add([new_task(at_most_once=True)])
        await claim(storage)
        assert disk(storage) == "normal"


# Callers without an event loop.


def test_blocking_callers_need_no_event_loop(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "jobs.db")
    task = new_task()
    storage.add_blocking([task])
    (found,) = storage.get_blocking([task.id])
    assert found is not None
    assert found.id == task.id
    with pytest.raises(TypeError):
        storage.add_blocking([None])  # type: ignore[list-item]
    storage.close_blocking()


def test_many_threads_may_be_the_first_to_use_a_store(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "jobs.db")
    start = threading.Barrier(8)

    def add() -> None:
        start.wait()
        storage.add_blocking([new_task()])

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asyncio.run(storage.list(TaskFilter(), limit=9))) == 8
    assert storage._file is not None
    assert storage._file.users == 1
    storage.close_blocking()


def test_a_call_after_the_end_of_a_group_commit_is_rejected(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "jobs.db")
    storage.open_blocking()
    assert storage._file is not None
    writer = storage._file.writer
    storage.close_blocking()

    async def late() -> None:
        await writer.submit(StoreClock(), lambda _: None)

    with pytest.raises(StorageClosed):
        asyncio.run(late())


class Interrupted(Exception):
    pass


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such timers here")
def test_a_caller_that_is_interrupted_before_its_turn_has_written_nothing(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    storage = SqliteStorage(tmp_path / "jobs.db")
    storage.open_blocking()
    assert storage._file is not None
    writer = storage._file.writer
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with another_writer(storage.path):
            first = threading.Thread(target=lambda: storage.add_blocking([new_task(id="first")]))
            first.start()
            assert eventually(lambda: writer._leader != 0)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interrupted):
                storage.add_blocking([new_task(id="second")])
        first.join()
        assert [task.id for task in asyncio.run(storage.list(TaskFilter(), limit=9))] == ["first"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        storage.close_blocking()


async def test_a_commit_that_cannot_be_made_durable_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(writer: SqliteWriter, db: object) -> None:
        raise OSError("the disk is gone")

    async with opened(tmp_path / "jobs.db") as storage:
        await storage.add([new_task(at_most_once=True) for _ in range(4)])
        monkeypatch.setattr(SqliteWriter, "_make_durable", broken)
        answers = await behind_a_lock(
            storage.path,
            lambda: claim(storage, claim_id="a"),
            lambda: claim(storage, claim_id="b"),
        )
        assert [type(answer).__name__ for answer in answers] == ["StorageError", "StorageError"]
        assert [len(await storage.find_claim(claim_id)) for claim_id in ("a", "b")] == [1, 1]


async def test_a_waker_that_breaks_takes_no_answer_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with opened(tmp_path / "jobs.db") as storage:
        assert storage._file is not None
        monkeypatch.setattr(storage._file.waker, "wake_all", broken)
        task = new_task()
        assert (await storage.add([task]))[0].id == task.id
    assert "cannot wake" in caplog.text  # when the writer has ended: it wakes them when all have their answers

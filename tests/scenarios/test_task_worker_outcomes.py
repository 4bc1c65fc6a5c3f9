"""Whatever a task's function does, there is one outcome, it is recorded as data, and the worker goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bullpen import AsyncWorkerPool
from bullpen.errors import Cancel, Retry, Snooze, StorageUnavailable
from bullpen.tasks.client.why import Surroundings, explain
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.registry import TaskRegistry
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.task import CANCELLED, FAILED, PENDING, SUCCESS, AttemptError, Progress, Task
from bullpen.tasks.storage.port import AttemptKey, Storage
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from bullpen.tasks.worker.error_data import MESSAGE_KEPT, TRACEBACK_KEPT
from tests.scenarios.support import Blocker
from tests.scenarios.task_worker_support import Desk, OneLoopStorage, in_virtual_time, until


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)


def recurse() -> None:
    recurse()


def raises(error: Any) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


FAILURES: dict[str, Callable[[], Any]] = {
    "ValueError": raises(ValueError("wrong")),
    "SystemExit": raises(SystemExit(3)),
    "KeyboardInterrupt": raises(KeyboardInterrupt()),
    "GeneratorExit": raises(GeneratorExit()),
    "CancelledError": raises(asyncio.CancelledError()),
    "StopIteration": raises(StopIteration(1)),
    "StopAsyncIteration": raises(StopAsyncIteration()),
    "BaseException": raises(BaseException("bare")),
    "ExceptionGroup": raises(ExceptionGroup("several", [ValueError(1), TypeError(2)])),
    "BaseExceptionGroup": raises(BaseExceptionGroup("several", [KeyboardInterrupt()])),
    "MemoryError": raises(MemoryError()),
    "TimeoutError": raises(TimeoutError("its own")),
    "RecursionError": recurse,
    "unprintable": raises(Unprintable()),
    "unpicklable": raises(Unpicklable()),
    "sys.exit": lambda: sys.exit("bye"),
}


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("failure", FAILURES)
def test_every_exception_is_one_failed_attempt(failure: str, kind: str) -> None:
    async def main() -> None:
        desk = Desk()

        async def fail() -> None:
            FAILURES[failure]()

        async def fine() -> int:
            return 1

        bad, good = desk.task(fail if kind == "async" else FAILURES[failure], "fail"), desk.task(fine)
        async with desk.worker(1):
            task = await desk.ended(await desk.add(bad))
            after = await desk.ended(await desk.add(good))
        assert (task.status, task.failures, task.crashes, task.attempt) == (FAILED, 1, 0, 1)
        assert task.error is not None
        assert task.error.kind == "exception"
        assert task.error.attempt == 1
        assert task.error.worker
        assert after.status is SUCCESS

    asyncio.run(main())


def test_an_error_is_kept_as_data_within_limits() -> None:
    async def main() -> None:
        desk = Desk()

        async def fail(depth: int) -> None:
            if depth:
                await fail(depth - 1)
            raise ValueError("x" * 100_000)

        name = desk.task(fail)
        async with desk.worker():
            task = await desk.ended(await desk.add(name, 200))
        assert task.error is not None
        assert task.error.type == "ValueError"
        assert len(task.error.message) == MESSAGE_KEPT
        assert len(task.error.traceback) <= TRACEBACK_KEPT

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_half_a_character_in_what_a_task_says_breaks_no_store(kind: str, tmp_path: Path) -> None:
    """A name of a file, for one, may have it; it cannot be written as UTF-8."""
    half = os.fsdecode(b"caf\xe9")

    async def main() -> None:
        storage = SqliteStorage(tmp_path / "jobs.db", synchronous="normal")
        await storage.open()
        registry = TaskRegistry()
        odd = type("Odd", (Exception,), {"__module__": half})

        def speak() -> None:
            current_task().progress(1, note=half)
            raise odd(half)

        async def aspeak() -> None:
            speak()

        registry.register(speak if kind == "sync" else aspeak, name="speak")
        await storage.add([Task(id="t", func_path="speak", payload=b'{"args":[],"kwargs":{}}')])
        async with AsyncWorkerPool(_Queue(storage, registry), 1):
            await storage.wait_for_result("t", 0, 20)
        (task,) = await storage.get(["t"])
        await storage.close()
        assert task is not None
        assert task.error is not None
        assert (task.status, task.error.message) == (FAILED, "caf\\udce9")
        assert task.error.type == "caf\\udce9.Odd"
        assert "caf\\udce9" in task.error.traceback

    asyncio.run(main())


class _Queue:
    def __init__(self, storage: Storage, registry: TaskRegistry) -> None:
        self.storage = storage
        self.registry = registry


def test_the_traceback_begins_in_the_function() -> None:
    async def main() -> None:
        desk = Desk()

        async def fail() -> None:
            raise LookupError("here")

        def fail_too() -> None:
            raise LookupError("here")

        async with desk.worker():
            for name in (desk.task(fail), desk.task(fail_too)):
                task = await desk.ended(await desk.add(name))
                assert task.error is not None
                assert "tasks/worker/attempt.py" not in task.error.traceback
                assert 'raise LookupError("here")' in task.error.traceback

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_failure_is_logged_before_it_is_recorded(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Seed 002: the line stood behind the raise, and was never reached."""

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                seen.append(desk.storage._tasks[record.task_id])  # type: ignore[attr-defined]

    seen = list[Task]()
    desk = Desk()

    async def main() -> None:
        async def fail(secret: str) -> None:
            raise ValueError("wrong")

        def fail_too(secret: str) -> None:
            raise ValueError("wrong")

        name = desk.task(fail if kind == "async" else fail_too, "fail")
        async with desk.worker():
            await desk.ended(await desk.add(name, "hunter2"))

    handler = Watching()
    logging.getLogger("bullpen.worker").addHandler(handler)
    try:
        with caplog.at_level(logging.DEBUG, "bullpen"):
            asyncio.run(main())
    finally:
        logging.getLogger("bullpen.worker").removeHandler(handler)
    assert [task.status.value for task in seen] == ["running"]
    assert "hunter2" not in caplog.text
    about = [record for record in caplog.records if hasattr(record, "task_id")]
    assert about
    for record in about:
        line = record.getMessage()
        assert "000001" in line
        assert "attempt 1" in line
        assert "queue default" in line


def test_a_handler_of_the_log_that_raises_loses_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("a broken filter")

    async def main() -> None:
        desk = Desk()

        async def fail() -> None:
            raise ValueError

        name = desk.task(fail)
        async with desk.worker():
            task = await desk.ended(await desk.add(name))
        assert (task.status, task.failures) == (FAILED, 1)

    broken = Raising()
    logger = logging.getLogger("bullpen.worker")
    logger.addFilter(broken)
    try:
        asyncio.run(main())
    finally:
        logger.removeFilter(broken)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_what_cannot_be_decoded_is_poison_and_its_bytes_are_kept(kind: str) -> None:
    async def main() -> None:
        desk = Desk()

        async def work(number: int) -> None:
            raise AssertionError("it must not run")

        def work_too(number: int) -> None:
            raise AssertionError("it must not run")

        name = desk.task(work if kind == "async" else work_too, "work")
        payloads = [b"\xff\x00not json", b'{"args":["text"],"kwargs":{}}', b"", b'{"args":[1,2,3],"kwargs":{}}']
        async with desk.worker():
            for payload in payloads:
                task = await desk.ended(await desk.add(name, payload=payload, max_retries=5))
                assert (task.status, task.attempt, task.payload) == (FAILED, 1, payload)
                assert task.error is not None
                assert task.error.kind == "poison"

    asyncio.run(main())


def test_an_unknown_function_is_put_back_with_backoff_and_fails_in_the_end() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        task_id = await desk.add("nowhere.to.be.found", max_retries=3)
        async with desk.worker(poll_interval=0.5, unknown_after=600):
            await until(lambda: store._tasks[task_id].attempt == 3)
            waiting = await desk.get(task_id)
            assert (waiting.status, waiting.failures, waiting.crashes) == (PENDING, 0, 0)
            assert waiting.error is not None
            assert waiting.error.kind == "unknown_function"  # somebody who looks sees why
            assert len(waiting.errors) == 1
            began = asyncio.get_running_loop().time()
            task = await desk.ended(task_id)
            assert asyncio.get_running_loop().time() - began == pytest.approx(600, abs=80)
        assert (task.status, task.failures) == (FAILED, 0)
        assert task.error is not None
        assert task.error.kind == "unknown_function"
        assert task.attempt < 25  # not one claim per poll

    in_virtual_time(main)


def test_an_unknown_function_runs_as_soon_as_a_worker_knows_it() -> None:
    async def main() -> None:
        desk, newer = Desk(store := OneLoopStorage()), Desk(store)

        async def later() -> str:
            return "now"

        task_id = await desk.add("later")
        async with desk.worker():
            await until(lambda: store._tasks[task_id].attempt == 2)
        newer.task(later)
        async with newer.worker():
            task = await newer.ended(task_id)
        assert task.status is SUCCESS

    in_virtual_time(main)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_one_that_returns_a_coroutine_has_not_done_its_work(kind: str) -> None:
    async def main() -> None:
        desk = Desk()

        async def fetch() -> int:
            return 1

        async def forgetful() -> Any:
            return fetch()

        def plain() -> Any:
            return fetch()

        name = desk.task(forgetful if kind == "async" else plain, "work")
        async with desk.worker():
            task = await desk.ended(await desk.add(name))
        assert (task.status, task.attempt) == (FAILED, 1)
        assert task.error is not None
        assert task.error.type == "bullpen.errors.InvalidTask"
        assert "work cannot be a task: it returned a coroutine that was not awaited" in task.error.message

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_result_that_cannot_be_kept_is_dropped_and_flagged(kind: str) -> None:
    async def main() -> None:
        desk = Desk()

        async def work(size: int) -> Any:
            return object() if size == 0 else "x" * size

        def work_too(size: int) -> Any:
            return object() if size == 0 else "x" * size

        name = desk.task(work if kind == "async" else work_too, "work")
        async with desk.worker():
            for size in (0, 10_000_000):
                task = await desk.ended(await desk.add(name, size, max_retries=3))
                assert (task.status, task.attempt, task.result) == (SUCCESS, 1, None)
                assert task.result_dropped

    asyncio.run(main())


def test_a_task_can_ask_to_be_retried_after_a_delay_of_its_own() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        starts = list[float]()

        async def work() -> str:
            starts.append(asyncio.get_running_loop().time())
            if len(starts) < 3:
                raise Retry(after=100)
            return "ok"

        name = desk.task(work)
        async with desk.worker(poll_interval=0.5):
            task = await desk.ended(await desk.add(name, max_retries=5, backoff=Backoff(base=1.0)))
        assert (task.status, task.attempt) == (SUCCESS, 3)
        assert [b - a for a, b in zip(starts, starts[1:], strict=False)] == pytest.approx([100, 100], abs=1)  # noqa: RUF007

    in_virtual_time(main)


def test_a_retry_that_is_asked_for_counts() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def work() -> None:
            raise Retry("busy", after=1)

        name = desk.task(work)
        async with desk.worker():
            task = await desk.ended(await desk.add(name, max_retries=2))
        assert (task.status, task.attempt, task.failures) == (FAILED, 3, 3)

    in_virtual_time(main)


def test_a_retry_that_is_asked_for_is_logged_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """It is no accident: no traceback, and no warning as long as there are tries left."""
    caplog.set_level(logging.INFO, "bullpen.worker")

    async def main() -> None:
        desk = Desk(OneLoopStorage())

        async def work() -> None:
            raise Retry("busy", after=1)

        name = desk.task(work)
        async with desk.worker():
            await desk.ended(await desk.add(name, max_retries=1))

    in_virtual_time(main)
    lines = [record for record in caplog.records if "busy" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.INFO, logging.ERROR]
    assert all(record.exc_info is None for record in lines)
    assert "retrying in 1 s" in lines[0].getMessage()


@pytest.mark.parametrize("how", ["from", "while handled", "from None"])
def test_a_retry_keeps_the_error_that_it_was_raised_for(how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.worker")

    async def main() -> tuple[AttemptError, ...]:
        desk = Desk(OneLoopStorage())

        async def work() -> None:
            try:
                raise ConnectionResetError("rejected")
            except OSError as error:
                if how == "from":
                    raise Retry("busy", after=1) from error
                if how == "from None":
                    raise Retry("busy", after=1) from None
                raise Retry("busy", after=1)  # noqa: B904

        async with desk.worker():
            return (await desk.ended(await desk.add(desk.task(work), max_retries=1))).errors

    errors = in_virtual_time(main)
    lines = [record for record in caplog.records if "busy" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.INFO, logging.ERROR]
    if how == "from None":
        assert {(error.type, error.message) for error in errors} == {
            ("bullpen.errors.Retry", "try again after 1 s: busy")
        }
        assert all(record.exc_info is None for record in lines)
        return
    for error, record in zip(errors, lines, strict=True):
        assert (error.kind, error.type) == ("exception", "ConnectionResetError")
        assert error.message == "rejected; try again after 1 s: busy"
        assert error.names == {"exception", "ConnectionResetError"}
        assert 'raise ConnectionResetError("rejected")' in error.traceback
        assert "raised Retry (busy) because of ConnectionResetError: rejected" in record.getMessage()
        assert record.exc_info is not None
        assert record.exc_info[0] is ConnectionResetError


@pytest.mark.parametrize("reaction", ["ends", "raises its own error", "runs on a thread"])
def test_a_timeout_is_recorded_as_a_timeout(reaction: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> Task:
        desk = Desk()
        with Blocker() as blocker:

            async def work() -> None:
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    if reaction == "ends":
                        raise
                    raise ValueError("no time") from None

            name = desk.task(blocker if reaction == "runs on a thread" else work, "work")
            async with desk.worker():
                task = await desk.ended(await desk.add(name, timeout=0.05))
                blocker.release()
            return task

    task = asyncio.run(main())
    error = task.error
    assert error is not None
    assert (error.kind, error.type) == ("timeout", "TimeoutError")
    own = "; it raised ValueError: no time" if reaction == "raises its own error" else ""
    message = f"ran longer than its timeout of 0.05 s{own}"
    assert error.message == message
    assert error.traceback.endswith(f"TimeoutError: {message}\n")
    assert ("await asyncio.sleep" in error.traceback) is (reaction == "ends")
    shown = [error.traceback, str(explain(task, Surroundings(now=0.0))), caplog.text]
    assert not [text for text in shown if "CancelledError" in text]


@pytest.mark.parametrize(
    "kind", ["returns", "raises", "asks", "snoozes", "times out", "cancelled", "undecodable", "unknown"]
)
def test_every_line_about_a_task_says_which_and_none_has_its_arguments(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bullpen.worker")

    async def main() -> None:
        desk = Desk(store := OneLoopStorage())

        async def work(secret: str) -> str:
            if kind == "raises":
                raise ValueError("no")
            if kind == "asks":
                raise Retry("busy", after=1)
            if kind == "snoozes" and current_task().attempt == 1:
                raise Snooze(1)
            if kind in ("times out", "cancelled"):
                await asyncio.sleep(100)
            return secret

        name = desk.task(work)
        payload = b'{"args":["hunter2"]' if kind == "undecodable" else b'{"args":["hunter2"],"kwargs":{}}'
        path = "nobody.knows" if kind == "unknown" else name
        task_id = await desk.add(path, payload=payload, timeout=5.0 if kind == "times out" else None, queue="default")
        async with desk.worker(unknown_after=3):
            if kind == "cancelled":
                await until(lambda: store._tasks[task_id].attempt == 1)
                await store.cancel([task_id])
            await desk.ended(task_id)

    in_virtual_time(main)
    formatter = logging.Formatter("%(message)s")
    lines = [formatter.format(record) for record in caplog.records]
    assert not any("hunter2" in line for line in lines)
    about = [record for record in caplog.records if "000001" in formatter.format(record)]
    assert about
    for record in about:
        assert (record.task_id, record.queue) == ("000001", "default")  # type: ignore[attr-defined]
        assert record.attempt >= 1  # type: ignore[attr-defined]
        assert f"task 000001, attempt {record.attempt}, queue default" in record.getMessage()  # type: ignore[attr-defined]


def test_what_may_run_at_most_once_cannot_snooze() -> None:
    async def main() -> None:
        desk = Desk(OneLoopStorage())
        runs = list[int]()

        async def work() -> None:
            runs.append(1)
            raise Snooze(1)

        name = desk.task(work)
        async with desk.worker():
            task = await desk.ended(await desk.add(name, at_most_once=True))
        assert (task.status, task.attempt, runs) == (FAILED, 1, [1])
        assert task.error is not None
        assert task.error.type == "bullpen.errors.Snooze"

    in_virtual_time(main)


def test_a_snooze_counts_nothing() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        runs = list[float]()

        async def work() -> str:
            runs.append(asyncio.get_running_loop().time())
            if len(runs) < 4:
                raise Snooze(60)
            return "awake"

        name = desk.task(work)
        task_id = await desk.add(name)
        async with desk.worker(poll_interval=0.5):
            await until(lambda: store._tasks[task_id].attempt == 3)
            assert (await desk.get(task_id)).failures == 0
            task = await desk.ended(task_id)
        assert (task.status, task.failures, task.errors) == (SUCCESS, 0, ())
        assert runs[1] - runs[0] == pytest.approx(60, abs=1)

    in_virtual_time(main)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_task_can_cancel_itself(kind: str) -> None:
    async def main() -> None:
        desk = Desk()

        async def work() -> None:
            raise Cancel("no use")

        def work_too() -> None:
            raise Cancel("no use")

        name = desk.task(work if kind == "async" else work_too, "work")
        async with desk.worker():
            task = await desk.ended(await desk.add(name, max_retries=3))
        assert (task.status, task.attempt, task.failures) == (CANCELLED, 1, 0)

    asyncio.run(main())


def test_errors_that_a_function_gives_up_on_are_final() -> None:
    async def main() -> None:
        desk = Desk()

        async def work(final: bool) -> None:
            raise KeyError("final") if final else OSError("again")

        name = desk.task(work, give_up_on=KeyError)
        async with desk.worker():
            backoff = Backoff(base=0.0)
            final = await desk.ended(await desk.add(name, True, max_retries=3, backoff=backoff))
            again = await desk.ended(await desk.add(name, False, max_retries=3, backoff=backoff))
        assert (final.attempt, again.attempt) == (1, 4)

    asyncio.run(main())


def test_at_most_once_fails_at_the_first_error() -> None:
    async def main() -> None:
        desk = Desk()

        async def work() -> None:
            raise ValueError

        name = desk.task(work)
        async with desk.worker():
            task = await desk.ended(await desk.add(name, at_most_once=True))
        assert (task.status, task.attempt) == (FAILED, 1)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_task_knows_itself(kind: str) -> None:
    async def main() -> None:
        desk = Desk()

        def about() -> list[Any]:
            task = current_task()
            deadline = task.deadline.timestamp() if task.deadline else 0.0
            return [task.id, task.attempt, task.queue, task.fencing_token, task.is_cancelled, deadline]

        async def about_too() -> list[Any]:
            await asyncio.sleep(0)
            return about()

        name = desk.task(about_too if kind == "async" else about, "about")
        async with desk.worker():
            task = await desk.ended(await desk.add(name, timeout=60.0))
        import json

        *rest, deadline = json.loads(task.result or b"")
        assert rest == [task.id, 1, "default", f"{task.id}:1", False]
        assert deadline == pytest.approx((task.started_at or 0) + 60, abs=0.001)

    asyncio.run(main())


def test_progress_is_written_while_it_runs() -> None:
    async def main() -> None:
        desk = Desk(store := OneLoopStorage())
        let_go = asyncio.Event()

        async def work() -> None:
            for done in range(50):
                current_task().progress(done, 50, "copying")
            await let_go.wait()

        name = desk.task(work)
        task_id = await desk.add(name)
        async with desk.worker():
            await until(lambda: store._tasks[task_id].progress is not None)
            progress = (await desk.get(task_id)).progress
            assert progress is not None
            assert (progress.done, progress.total, progress.note) == (49, 50, "copying")
            let_go.set()

    in_virtual_time(main)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_last_progress_is_written_with_the_settlement(kind: str) -> None:
    """However soon it comes after another one, and in whatever way the function ends."""

    async def main() -> None:
        desk = Desk()

        def work(number: int) -> None:
            for done in range(1, 4):
                current_task().progress(done, 3, f"attempt {current_task().attempt}")
                if done == number:
                    raise ValueError(number)

        async def awork(number: int) -> None:
            work(number)

        name = desk.task(work if kind == "sync" else awork)
        retries = {"max_retries": 1, "backoff": Backoff(base=0.0)}
        async with desk.worker():
            ended = [await desk.ended(await desk.add(name, number, **retries)) for number in (2, 4)]
        assert [task.progress for task in ended] == [Progress(2, 3, "attempt 2"), Progress(3, 3, "attempt 1")]

    asyncio.run(main())


def test_progress_that_the_store_has_not_confirmed_is_written_again() -> None:
    class Forgetful(OneLoopStorage):
        async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
            notes.append(progress)
            raise StorageUnavailable("away", storage="memory")

    notes = list[Progress]()

    async def main() -> None:
        desk = Desk(Forgetful())
        let_go = asyncio.Event()

        async def work() -> None:
            current_task().progress(1, 2)
            await let_go.wait()

        task_id = await desk.add(desk.task(work))
        async with desk.worker():
            await until(lambda: len(notes) > 2)
            let_go.set()
            assert (await desk.ended(task_id)).progress == Progress(1, 2)

    in_virtual_time(main)


def test_progress_from_a_thread() -> None:
    async def main() -> None:
        desk = Desk()
        with Blocker() as blocker:

            def work() -> None:
                current_task().progress(1, 2)
                blocker()

            name = desk.task(work)
            task_id = await desk.add(name)
            async with desk.worker():
                await until(lambda: desk.storage._tasks[task_id].progress is not None)
                blocker.release()

    asyncio.run(main())


def test_contextvars_of_one_task_are_not_seen_by_another_on_the_same_thread() -> None:
    async def main() -> None:
        desk = Desk()
        ids = list[str]()

        def work() -> None:
            ids.append(current_task().id)
            inner = threading.Thread(target=lambda: None)
            inner.start()
            inner.join()

        name = desk.task(work)
        async with desk.worker(1):
            for _ in range(5):
                await desk.ended(await desk.add(name))
        assert ids == sorted(set(ids))

    asyncio.run(main())

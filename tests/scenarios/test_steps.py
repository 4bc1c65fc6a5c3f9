"""Steps of a task: each is kept when it has ended, and a later attempt gets its outcome instead of running it again."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    AsyncPool,
    AsyncWorkerPool,
    InvalidOption,
    InvalidResult,
    InvalidStep,
    Job,
    LeaseLost,
    NoCurrentTask,
    Pool,
    StepFailed,
    StepMismatch,
    TaskError,
    TaskFailed,
    TaskQueue,
    WorkerPool,
    current_task,
)
from bullpen.errors import InvalidOptionType
from bullpen.tasks.model import steps
from bullpen.tasks.model.context import CurrentTask
from bullpen.tasks.model.task import AttemptError, Task, crash
from bullpen.testing import run_until_empty
from tests.scenarios import process_tasks
from tests.stores import KINDS, new_store

calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


@pytest.fixture(params=("memory", *KINDS))
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskQueue]:
    if request.param == "memory":
        with TaskQueue("memory://", backoff=0) as queue:
            yield queue
    else:
        with new_store(request.param, tmp_path, request) as address, TaskQueue(address, backoff=0) as queue:
            yield queue


@pytest.fixture
def here() -> Iterator[TaskQueue]:
    with TaskQueue("memory://", backoff=0) as queue:
        yield queue


def charge(order: int) -> dict[str, int]:
    calls.append(f"charge {order}")
    return {"paid": order}


async def acharge(order: int) -> dict[str, int]:
    return charge(order)


def work(queue: TaskQueue, job: Job[Any]) -> Any:
    """The result of the task, from a worker on threads of its own."""
    with WorkerPool(queue, 4, poll_interval=0.05):
        return job.result(timeout=30)


def error_of(queue: TaskQueue, job: Job[Any]) -> TaskError:
    with pytest.raises(TaskFailed):
        work(queue, job)
    error = job.info().error
    assert error is not None
    return error


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_kept_step_does_not_run_again(queue: TaskQueue, kind: str) -> None:
    def checkout(order: int) -> list[dict[str, int]]:
        task = current_task()
        paid = [task.step(charge, order), task.step(charge, order + 1)]
        if task.attempt == 1:
            raise ValueError("after the steps")
        return paid

    async def acheckout(order: int) -> list[dict[str, int]]:
        task = current_task()
        paid = [await task.astep(acharge, order), await task.astep(charge, order + 1)]  # the second on a thread
        if task.attempt == 1:
            raise ValueError("after the steps")
        return paid

    function = queue.task(max_retries=3, name="checkout")(checkout if kind == "sync" else acheckout)
    job = function.enqueue(41)
    assert work(queue, job) == [{"paid": 41}, {"paid": 42}]
    assert calls == ["charge 41", "charge 42"]
    assert job.info().attempt == 2


@pytest.mark.anyio
async def test_a_kept_step_does_not_run_again_in_a_process() -> None:
    async with AsyncWorkerPool(process_tasks.plain, lanes="default:2@process", poll_interval=0.05):
        job = await process_tasks.stepped.aenqueue()
        first, second, pids = await job.aresult(timeout=30)
        assert (await job.ainfo()).attempt == 2
    assert first == second
    assert pids[0] != pids[1]  # the first process was killed after the step


@pytest.mark.anyio
async def test_a_step_in_a_process_joins_no_transaction() -> None:
    async with AsyncWorkerPool(process_tasks.plain, lanes="default:2@process", poll_interval=0.05):
        job = await process_tasks.in_transaction.aenqueue()
        with pytest.raises(TaskFailed, match="in a process cannot keep a step in a transaction"):
            await job.aresult(timeout=30)
    assert (await job.ainfo()).steps == ()


def test_a_result_is_decoded_by_the_annotation_of_the_step(here: TaskQueue) -> None:
    def pair() -> tuple[int, bytes]:
        return (1, b"\xff")

    @here.task(max_retries=1, name="f")
    def f() -> bool:
        task = current_task()
        value = task.step(pair)
        if task.attempt == 1:
            raise ValueError
        return value == (1, b"\xff")

    assert work(here, f.enqueue()) is True


def test_a_step_is_kept_before_it_returns(queue: TaskQueue) -> None:
    seen: list[list[str]] = []

    async def look() -> None:
        (task,) = await (await queue.astorage()).get([current_task().id])
        assert task is not None
        seen.append([step.name for step in task.steps])

    @queue.task(name="f")
    async def f() -> None:
        task = current_task()
        await look()
        await task.astep(acharge, 1)
        await look()
        await task.using(key="again").astep(acharge, 1)
        await look()

    work(queue, f.enqueue())
    assert seen == [[], ["acharge"], ["acharge", "again"]]


def test_steps_in_a_loop_are_told_apart_by_their_occurrence(here: TaskQueue) -> None:
    @here.task(max_retries=5, name="f")
    def f() -> list[int]:
        task = current_task()
        found = [task.step(charge, number)["paid"] for number in range(task.attempt)]
        if task.attempt < 4:
            raise ValueError
        return found

    assert work(here, f.enqueue()) == [0, 1, 2, 3]
    assert calls == ["charge 0", "charge 1", "charge 2", "charge 3"]


def test_steps_at_the_same_time_need_keys(here: TaskQueue) -> None:
    @here.task(name="f")
    async def f(with_keys: bool) -> list[dict[str, int]]:
        async def slow(number: int) -> dict[str, int]:
            await asyncio.sleep(0)
            return charge(number)

        task = current_task()
        keys = [f"slow {number}" if with_keys else None for number in range(3)]
        steps = [task.using(key=key).astep(slow, number) for number, key in enumerate(keys)]
        return list(await asyncio.gather(*steps))

    assert work(here, f.enqueue(True)) == [{"paid": 0}, {"paid": 1}, {"paid": 2}]
    error = error_of(here, f.enqueue(False))
    assert error.type == "bullpen.errors.InvalidStep"
    assert "step 'slow': another step of this function is running, so give each a key=" in error.message


def test_other_arguments_than_the_kept_ones_are_a_mismatch(here: TaskQueue) -> None:
    @here.task(max_retries=1, name="f")
    def f() -> None:
        task = current_task()
        task.step(charge, task.attempt)
        raise ValueError

    error = error_of(here, f.enqueue())
    assert error.type == f"bullpen.errors.{StepMismatch.__name__}"
    assert "step 'charge' was kept in attempt 1 with other arguments than now; give the step another key=" in (
        error.message
    )
    assert calls == ["charge 1"]


def test_arguments_that_json_cannot_have_count_by_their_type(here: TaskQueue) -> None:
    def use(lock: object, number: int) -> int:
        calls.append("use")
        return number

    @here.task(max_retries=1, name="f")
    def f() -> int:
        task = current_task()
        found = task.step(use, threading.Lock(), number=3)
        if task.attempt == 1:
            raise ValueError
        return found

    assert work(here, f.enqueue()) == 3
    assert calls == ["use"]


# Errors.


def test_an_error_of_a_step_is_an_error_of_the_attempt_and_the_step_runs_again(here: TaskQueue) -> None:
    def unsteady() -> str:
        calls.append("unsteady")
        if len(calls) == 1:
            raise ConnectionError("not yet")
        return "ok"

    @here.task(max_retries=1, name="f")
    def f() -> str:
        return current_task().step(unsteady)

    job = f.enqueue()
    assert work(here, job) == "ok"
    assert calls == ["unsteady"] * 2
    assert job.info().attempt == 2


def test_a_caught_error_leaves_the_name_to_the_next_call(here: TaskQueue) -> None:
    def unsteady() -> str:
        calls.append("unsteady")
        if len(calls) == 1:
            raise ConnectionError("not yet")
        return "ok"

    @here.task(max_retries=1, name="f")
    def f() -> str:
        task = current_task()
        try:
            found = task.step(unsteady)
        except ConnectionError:
            found = task.step(unsteady)
        if task.attempt == 1:
            raise ValueError
        return found

    assert work(here, f.enqueue()) == "ok"
    assert calls == ["unsteady"] * 2


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_step_has_retries_of_its_own(here: TaskQueue, kind: str) -> None:
    def unsteady() -> str:
        calls.append("unsteady")
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return "ok"

    async def aunsteady() -> str:
        return unsteady()

    def f() -> str:
        return current_task().using(max_retries=2, backoff=0).step(unsteady)

    async def af() -> str:
        return await current_task().using(max_retries=2, backoff=0).astep(aunsteady)

    job = here.task(name="f")(f if kind == "sync" else af).enqueue()
    assert work(here, job) == "ok"
    assert (job.info().failures, job.info().attempt) == (0, 1)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_the_error_of_a_step_that_gave_up_is_kept_and_raised_again(queue: TaskQueue, kind: str) -> None:
    def declined() -> None:
        calls.append("declined")
        raise PermissionError("card declined")

    async def adeclined() -> None:
        declined()

    def f() -> str:
        task = current_task()
        try:
            task.using(key="declined", max_retries=1, backoff=0).step(declined)
        except StepFailed as error:
            if task.attempt == 1:
                raise ValueError from error
            return f"{error.kind} {error.message} {error.tries} {error.step}"
        return ""

    async def af() -> str:
        task = current_task()
        try:
            await task.using(key="declined", max_retries=1, backoff=0).astep(adeclined)
        except StepFailed as error:
            if task.attempt == 1:
                raise ValueError from error
            return f"{error.kind} {error.message} {error.tries} {error.step}"
        return ""

    job = queue.task(max_retries=1, name="f")(f if kind == "sync" else af).enqueue()
    assert work(queue, job) == "PermissionError card declined 2 declined"
    assert calls == ["declined"] * 2


def test_a_task_that_does_not_catch_it_fails_at_once_and_a_retry_by_an_operator_runs_the_step_again(
    here: TaskQueue,
) -> None:
    def declined() -> str:
        calls.append("declined")
        if calls.count("declined") == 1:
            raise PermissionError("card declined")
        return "ok"

    @here.task(max_retries=5, name="f")
    def f() -> str:
        task = current_task()
        task.step(charge, 1)
        return task.using(max_retries=0).step(declined)

    job = f.enqueue()
    error = error_of(here, job)
    assert error.type == "bullpen.errors.StepFailed"
    assert "step 'declined' gave up after 1 try: PermissionError: card declined" in error.message
    assert job.info().attempt == 1
    job.retry()
    assert work(here, job) == "ok"
    assert calls == ["charge 1", "declined", "declined"]


def test_a_coroutine_may_have_a_timeout(here: TaskQueue) -> None:
    async def endless() -> None:
        calls.append("endless")
        await asyncio.Event().wait()

    @here.task(name="f")
    async def f() -> None:
        await current_task().using(timeout=0.01, max_retries=1, backoff=0).astep(endless)

    error = error_of(here, f.enqueue())
    assert "step 'endless' gave up after 2 tries: TimeoutError" in error.message
    assert calls == ["endless"] * 2


# Looking and mending.


def test_the_kept_steps_are_shown(here: TaskQueue) -> None:
    def declined() -> None:
        raise PermissionError("card declined")

    @here.task(name="f")
    def f() -> None:
        task = current_task()
        task.step(charge, 1)
        task.sleep(0)
        task.using(max_retries=1, backoff=0).step(declined)

    job = f.enqueue()
    error_of(here, job)
    first, slept, last = job.info().steps
    assert (first.name, first.attempt, first.tries, first.error, first.until) == ("charge", 1, 1, None, None)
    assert job.info().created_at <= first.started_at <= first.ended_at
    assert slept.name == "sleep"
    assert slept.until is not None
    assert (last.name, last.tries) == ("declined", 2)
    assert last.error is not None
    assert (last.error.type, last.error.message) == ("PermissionError", "card declined")
    assert last.duration.total_seconds() >= 0


def test_a_failed_task_is_retried_from_a_step(queue: TaskQueue) -> None:
    def say(word: str) -> str:
        calls.append(word)
        return f"{word} {calls.count(word)}"

    @queue.task(name="f")
    def f() -> list[str]:
        task = current_task()
        words = [task.using(key=word).step(say, word) for word in ("a", "b", "c")]
        if task.attempt in (1, 3):
            raise ValueError
        return words

    job = f.enqueue()
    error_of(queue, job)
    with pytest.raises(InvalidStep, match=f"task {job.id} has not kept it; its steps: a, b, c"):
        job.retry(from_step="z")
    assert job.retry(from_step="b")
    assert [step.name for step in job.info().steps] == ["a"]
    assert work(queue, job) == ["a 1", "b 2", "c 2"]
    assert [(step.name, step.attempt) for step in job.info().steps] == [("a", 1), ("b", 2), ("c", 2)]
    with pytest.raises(InvalidStep, match="only a failed or cancelled task is retried from a step"):
        queue.retry(job.id, from_step="b")
    assert calls == ["a", "b", "c", "b", "c"]


# Bad input.


def broken(problem: Callable[[CurrentTask], object]) -> Callable[[], None]:
    def f() -> None:
        problem(current_task())

    return f


def nested() -> None:
    current_task().step(charge, 1)


def unwritable() -> object:
    return threading.Lock()


def stored_twice(task: CurrentTask) -> None:
    task.using(key="k").step(charge, 1)
    task.using(key="k").step(charge, 1)


async def endless_steps() -> None:
    await current_task().astep(acharge, 1)


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (lambda task: task.step(nested), InvalidStep, "it cannot begin inside another step (nested)"),
        (lambda task: task.step(lambda: 1), InvalidStep, "it has no name of its own: give it one with task.using(key="),
        (lambda task: task.step(acharge, 1), InvalidStep, "it is a coroutine function: await task.astep(…)"),
        (lambda task: task.step(3), InvalidOptionType, "a function, and its arguments after it"),
        (lambda task: task.step(unwritable), InvalidResult, "unwritable"),
        (stored_twice, InvalidStep, "another step of this attempt has this name: give each a key="),
        (lambda task: task.using(key=""), InvalidOption, "key must be a string of 1 to"),
        (lambda task: task.using(key=3), InvalidOptionType, "key must be a string of 1 to"),
        (lambda task: task.using(max_retries=-1), InvalidOption, "max_retries must be a whole number from 0"),
        (lambda task: task.using(timeout=0), InvalidOption, "timeout must be > 0 seconds"),
        (lambda task: task.using(timeout=1).step(charge, 1), InvalidOption, "a thread cannot be stopped"),
        (lambda task: task.using(backoff=-1), InvalidOption, "backoff must be"),
        (
            lambda task: task.using(connection=1, max_retries=1),
            InvalidOption,
            "max_retries must be None with connection=",
        ),
    ],
)
def test_bad_input_is_a_named_error(here: TaskQueue, problem: Any, kind: type[Exception], words: str) -> None:
    here.task(name="f")(broken(problem)).enqueue()
    with pytest.raises(kind) as raised:
        run_until_empty(here, raises=True)
    assert type(raised.value) is kind
    assert words in str(raised.value)


def test_a_blocking_step_in_a_coroutine_is_an_error_and_not_a_deadlock(here: TaskQueue) -> None:
    @here.task(name="f")
    async def f() -> None:
        current_task().step(charge, 1)

    assert "an event loop runs here: await task.astep(…)" in error_of(here, f.enqueue()).message
    assert calls == []


def test_a_step_without_a_worker_is_an_error() -> None:
    with pytest.raises(NoCurrentTask, match="no worker runs this task here"):
        CurrentTask(Task(id="a", func_path="f", payload=b"")).step(charge, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: current_task().step(charge, 1),
        lambda: current_task().sleep(60),
        lambda: current_task().wait_event("approved"),
        lambda: current_task().idempotency_key("charge"),
    ],
    ids=["step", "sleep", "wait", "key"],
)
def test_a_call_of_a_pool_is_no_task(call: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    """Neither served nor submitted: there is no store that could keep a step or wake a wait."""
    with pytest.raises(NoCurrentTask, match="no task runs here"):
        call()
    with Pool(1) as pool:
        with pytest.raises(NoCurrentTask, match="no task runs here"):
            pool.submit(call).result(timeout=30)
        assert pool.serve(call)
        assert pool.do(lambda: "the worker goes on") == "the worker goes on"
    assert "NoCurrentTask" in caplog.text
    assert calls == []


def test_a_coroutine_of_a_pool_is_no_task() -> None:
    async def step() -> dict[str, int]:
        return await current_task().astep(charge, 1)

    async def wait() -> object:
        return await current_task().await_event("approved")

    async def main() -> None:
        async with AsyncPool(1) as pool:
            for call in (step, wait):
                with pytest.raises(NoCurrentTask, match="no task runs here"):
                    await pool.do(call)

    asyncio.run(main())
    assert calls == []


def test_the_number_and_the_size_of_steps_are_limited(here: TaskQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MAX_STEPS", 2)

    @here.task(name="f")
    def f() -> None:
        for number in range(3):
            current_task().step(charge, number)

    assert "the task has kept 2 steps, and no more are allowed" in error_of(here, f.enqueue()).message
    assert calls == ["charge 0", "charge 1"]
    monkeypatch.undo()
    monkeypatch.setattr(steps, "MAX_STEPS_SIZE", 20)
    assert "have 20 bytes, and 20 are allowed" in error_of(here, f.enqueue()).message


# The fence.


def test_a_step_of_a_lost_attempt_is_rejected(queue: TaskQueue) -> None:
    """Another worker has taken the task while the step ran."""

    @queue.task(name="f", max_retries=1)
    async def f() -> str:
        task = current_task()

        async def stolen() -> str:
            calls.append("stolen")
            if task.attempt > 1:
                return "second"
            storage = await queue.astorage()
            error = AttemptError(kind="crash", attempt=1, at=1.0)
            me = (await storage.get([task.id]))[0]
            assert me is not None
            await storage.rescue_expired(lambda one, _: crash(one, error), limit=1, dead_workers=[me.worker or ""])
            return "first"

        try:
            return await task.astep(stolen)
        except LeaseLost:
            calls.append("rejected")
            raise

    assert work(queue, f.enqueue()) == "second"
    assert sorted(calls) == ["rejected", "stolen", "stolen"]


def test_the_key_of_a_step_is_the_same_in_every_attempt_and_differs_between_runs(here: TaskQueue) -> None:
    keys: list[str] = []

    @here.task(name="f", max_retries=1)
    def f() -> None:
        task = current_task()
        keys.append(task.idempotency_key("charge"))
        if len(keys) == 1:
            raise ValueError

    job = f.enqueue()
    work(here, job)
    job.retry()
    run_until_empty(here)
    assert keys[0] == keys[1] == f"{job.id}:0:charge"
    assert keys[2] == f"{job.id}:1:charge"


def test_the_next_run_of_an_interval_runs_its_steps_again(here: TaskQueue) -> None:
    done = threading.Event()

    @here.task(name="f", interval=0.01)
    def f() -> None:
        current_task().step(charge, 1)
        if len(calls) >= 3:
            done.set()

    with WorkerPool(here, 1, poll_interval=0.05):
        assert done.wait(30)


# A step in the user's own transaction.


def test_a_step_and_its_effects_are_committed_together_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with TaskQueue(f"sqlite:///{path}?synchronous=normal", backoff=0) as queue:
        assert queue.counts() == {}
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE effect (attempt INTEGER)")
        db.close()

        def move_money(db: sqlite3.Connection) -> int:
            db.execute("INSERT INTO effect VALUES (?)", (current_task().attempt,))
            return current_task().attempt

        @queue.task(name="f", max_retries=3)
        def f() -> int:
            task = current_task()
            db = sqlite3.connect(path, timeout=10, isolation_level=None)  # even if each statement commits itself
            try:
                moved = task.using(connection=db).step(move_money, db)
                if task.attempt == 1:
                    db.execute("ROLLBACK")
                    raise ValueError("before the commit")
                if db.in_transaction:
                    db.execute("COMMIT")
            finally:
                db.close()
            if task.attempt == 2:
                raise ValueError("after the commit")
            return moved

        job = f.enqueue()
        assert work(queue, job) == 2
        assert job.info().attempt == 3
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT attempt FROM effect").fetchall() == [(2,)]
        db.close()


def test_a_step_and_its_effects_are_committed_together_on_postgresql(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import asyncpg
    import psycopg

    server = request.getfixturevalue("postgres_url")
    with new_store("postgres", tmp_path, request) as address, TaskQueue(address, backoff=0) as queue:
        schema = address.rpartition("=")[2]

        async def move_money(connection: Any) -> int:
            await connection.execute(f"INSERT INTO {schema}.effect VALUES ($1)", current_task().attempt)
            return current_task().attempt

        def move_more(connection: Any) -> int:
            connection.execute(f"INSERT INTO {schema}.effect VALUES (%s)", (10 + current_task().attempt,))
            return 10 + current_task().attempt

        @queue.task(name="f", max_retries=3)
        async def f() -> int:
            task = current_task()
            connection = await asyncpg.connect(server)
            try:
                async with connection.transaction():
                    moved: int = await task.using(connection=connection).astep(move_money, connection)
                    if task.attempt == 1:
                        raise ValueError("before the commit")
            finally:
                await connection.close()
            if task.attempt == 2:
                raise ValueError("after the commit")
            return moved

        @queue.task(name="g", max_retries=3)
        def g() -> int:
            task = current_task()
            with psycopg.connect(server) as connection:
                moved = task.using(connection=connection).step(move_more, connection)
                if task.attempt == 1:
                    raise ValueError("before the commit")
            if task.attempt == 2:
                raise ValueError("after the commit")
            return moved

        assert queue.counts() == {}
        with psycopg.connect(server) as connection:
            connection.execute(f"CREATE TABLE {schema}.effect (attempt integer)")
        assert work(queue, f.enqueue()) == 2
        assert work(queue, g.enqueue()) == 12
        with psycopg.connect(server) as connection:
            rows = connection.execute(f"SELECT attempt FROM {schema}.effect ORDER BY 1").fetchall()
        assert rows == [(2,), (12,)]


def test_a_store_without_transactions_says_so(here: TaskQueue) -> None:
    @here.task(name="f")
    def f() -> None:
        current_task().using(connection=object()).step(charge, 1)

    assert "tasks in memory share no transaction with anything" in error_of(here, f.enqueue()).message
    assert calls == []


def test_astep_works_on_the_loop_of_a_worker_in_an_async_program(here: TaskQueue) -> None:
    @here.task(name="f")
    async def f() -> int:
        return (await current_task().astep(acharge, 3))["paid"]

    async def main() -> int:
        async with AsyncWorkerPool(here, 2, poll_interval=0.05):
            return await (await f.aenqueue()).aresult(timeout=30)

    assert asyncio.run(main()) == 3


class Model:
    def answer(self) -> int:
        return 42


def test_a_step_keeps_no_object_alive(here: TaskQueue) -> None:
    """The codec of a step was kept with the method, and so with its object."""
    models: weakref.WeakSet[Model] = weakref.WeakSet()

    @here.task(name="ask")
    def ask() -> int:
        model = Model()
        models.add(model)
        task = current_task()
        return task.step(model.answer) + task.using(key="again").step(lambda: model.answer())

    job = ask.enqueue()
    run_until_empty(here)
    assert job.result(timeout=0) == 84
    gc.collect()
    assert not models

"""Tools for people who test their own tasks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bullpen import (
    RESULT,
    CurrentTask,
    Inject,
    InvalidTask,
    Progress,
    TaskFailed,
    TaskQueue,
    TaskStatus,
    chain,
    current_task,
    group,
)
from bullpen.testing import (
    ManualClock,
    arun_until_empty,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
    in_memory,
    inline,
    may_die,
    run_until_empty,
    simulate,
)


class Shop:
    """An app of its own, with a queue that no test may touch for good."""

    def __init__(self, address: str) -> None:
        self.queue = TaskQueue(address)
        self.sent: list[str] = []
        self.threads: set[int] = set()

        @self.queue.task(name="send", max_retries=2, timeout=5)
        def send(to: str, subject: str = "hello") -> str:
            self.threads.add(threading.get_ident())
            if to == "nobody":
                raise LookupError(f"attempt {current_task().attempt}")
            self.sent.append(f"{subject} {to}")
            return to

        @self.queue.task(name="welcome", queue="slow")
        async def welcome(to: str) -> None:
            await asyncio.sleep(0)
            await send.aenqueue(to, subject="welcome")

        self.send, self.welcome = send, welcome


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(f"sqlite:///{tmp_path}/shop.db")


@pytest.fixture
def bullpen_app(shop: Shop) -> TaskQueue:
    return shop.queue


def test_the_fixture_gives_the_queue_of_the_app_a_store_of_its_own(
    shop: Shop, bullpen_queue: TaskQueue, tmp_path: Path
) -> None:
    assert bullpen_queue is shop.queue
    shop.send.enqueue("ada")
    assert len(bullpen_queue.list()) == 1
    assert not list(tmp_path.iterdir())


def test_run_until_empty_runs_due_tasks_and_the_tasks_that_they_enqueue(shop: Shop, bullpen_queue: TaskQueue) -> None:
    shop.welcome.enqueue("ada")
    ran = run_until_empty(bullpen_queue)
    assert [(info.name, info.status) for info in ran] == [
        ("welcome", TaskStatus.SUCCESS),
        ("send", TaskStatus.SUCCESS),
    ]
    assert shop.sent == ["welcome ada"]
    assert shop.threads == {threading.get_ident()}
    assert run_until_empty(bullpen_queue) == []


def test_retries_and_delays_wait_for_the_clock(
    shop: Shop, bullpen_queue: TaskQueue, bullpen_clock: ManualClock
) -> None:
    job = shop.send.using(backoff=60).enqueue("nobody")
    later = shop.send.using(eta=datetime.now(UTC) + timedelta(hours=1)).enqueue("ada")
    assert [info.status for info in run_until_empty(bullpen_queue)] == [TaskStatus.PENDING]
    assert run_until_empty(bullpen_queue) == []
    bullpen_clock.advance(150)
    (again,) = run_until_empty(bullpen_queue)
    assert again.attempt == 2
    bullpen_clock.advance(3600)
    assert [info.status for info in run_until_empty(bullpen_queue)] == [TaskStatus.FAILED, TaskStatus.SUCCESS]
    assert later.result(0) == "ada"
    with pytest.raises(TaskFailed, match="attempt 3"):
        job.result(0)


def test_inline_mode_runs_each_task_at_once(shop: Shop, bullpen_queue: TaskQueue) -> None:
    with inline(bullpen_queue):
        assert shop.send.enqueue("ada").result(0) == "ada"
        assert shop.welcome.enqueue("bob").status is TaskStatus.SUCCESS
        shop.send.using(delay=60).enqueue("later")
        assert shop.send.enqueue("nobody").status is TaskStatus.PENDING
    assert shop.sent == ["hello ada", "welcome bob"]
    assert threading.get_ident() in shop.threads
    shop.send.enqueue("after")
    assert "hello after" not in shop.sent


def test_an_error_is_raised_where_it_is_wanted(shop: Shop, bullpen_queue: TaskQueue) -> None:
    with inline(bullpen_queue, raises=True), pytest.raises(LookupError, match="attempt 1"):
        shop.send.enqueue("nobody")
    shop.send.enqueue("nobody")
    with pytest.raises(LookupError):
        run_until_empty(bullpen_queue, raises=True)


@pytest.mark.anyio
async def test_the_same_in_async_tests(shop: Shop, bullpen_queue: TaskQueue) -> None:
    await shop.welcome.aenqueue("ada")
    assert len(await arun_until_empty(bullpen_queue)) == 2
    with inline(bullpen_queue):
        job = await shop.send.aenqueue("bob")
    assert await job.aresult(0) == "bob"
    assert threading.get_ident() not in shop.threads
    with pytest.raises(RuntimeError, match="use await arun_until_empty"):
        run_until_empty(bullpen_queue)


def test_chains_groups_and_children_run_too(shop: Shop, bullpen_queue: TaskQueue) -> None:
    @bullpen_queue.task(name="double")
    def double(number: int) -> int:
        shop.threads.add(threading.get_ident())
        return 2 * number

    @bullpen_queue.task(name="total")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @bullpen_queue.task(name="parent")
    def parent() -> None:
        current_task().enqueue(chain(double.call(1), double.call(RESULT)))

    job = group(chain(double.call(number), double.call(RESULT)) for number in (1, 2)).then(total.call(RESULT)).enqueue()
    assert len(run_until_empty(bullpen_queue, raises=True)) == 5
    assert job.result(0) == 12
    parent.enqueue()
    assert [info.name for info in run_until_empty(bullpen_queue)] == ["parent", "double", "double"]
    with inline(bullpen_queue):
        assert chain(double.call(5), double.call(RESULT)).enqueue().result(0) == 20
    assert shop.threads == {threading.get_ident()}


def thread_of_task() -> int:
    return threading.get_ident()


def test_what_workers_run_in_a_process_runs_here_too(shop: Shop, bullpen_queue: TaskQueue) -> None:
    bullpen_queue.task(name="thread", runtime="process")(thread_of_task)
    job = bullpen_queue.enqueue("thread")
    run_until_empty(bullpen_queue, raises=True)
    assert job.result(0) == threading.get_ident()


def test_tasks_without_end_are_noticed(bullpen_queue: TaskQueue, shop: Shop) -> None:
    @bullpen_queue.task(name="again")
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(AssertionError, match="20 attempts, and there is still something to run: again"):
        run_until_empty(bullpen_queue, limit=20)


def test_what_surrounds_tasks_is_there_too(shop: Shop, bullpen_queue: TaskQueue) -> None:
    told: list[str] = []

    @bullpen_queue.lifespan
    async def life() -> AsyncIterator[None]:
        told.append("begins")
        yield
        told.append("ends")

    @bullpen_queue.middleware
    async def around(task: CurrentTask) -> AsyncIterator[None]:
        told.append("before")
        yield
        told.append("after")

    def number() -> Iterator[int]:
        yield 7
        told.append("closed")

    @bullpen_queue.task(name="take")
    def take(*, number: int = Inject(number), shared: int = Inject(number, scope="worker")) -> int:
        return number + shared

    take.enqueue()
    run_until_empty(bullpen_queue, raises=True)
    assert told == ["begins", "before", "closed", "after", "closed", "ends"]


def test_assert_enqueued_knows_arguments_and_options(shop: Shop, bullpen_queue: TaskQueue) -> None:
    assert_not_enqueued(shop.send)
    with pytest.raises(AssertionError, match="send was not enqueued; of this task there is: nothing"):
        assert_enqueued(shop.send)
    shop.send.using(priority=5).enqueue("ada")
    assert assert_enqueued(shop.send, to="ada").info.priority == 5
    assert assert_enqueued(shop.send, "ada", "hello").args == ("ada",)
    assert_enqueued(shop.send)
    assert_not_enqueued(shop.send, "bob")
    with pytest.raises(
        AssertionError, match=r"send\('bob'\) was not enqueued; of this task there is:\n  send\('ada'\)"
    ):
        assert_enqueued(shop.send, "bob")
    with pytest.raises(AssertionError, match=r"send\('ada'\) was enqueued"):
        assert_not_enqueued(shop.send, "ada")
    run_until_empty(bullpen_queue)
    assert [str(call) for call in enqueued(shop.send)] == ["send('ada')"]


def test_without_an_app_there_is_a_new_queue() -> None:
    with in_memory(TaskQueue("memory://")) as queue:
        assert queue.counts() == {}


class Bank:
    """Someone else's system. It may be told twice, and knows what it was told before by a key."""

    def __init__(self) -> None:
        self.charges: list[tuple[str, int]] = []

    def charge(self, key: str, amount: int, *, once: bool) -> None:
        may_die()
        if not once or key not in dict(self.charges):
            self.charges.append((key, amount))
        may_die()


def bank_app(*, once: bool, is_async: bool) -> tuple[TaskQueue, Bank]:
    queue, bank = TaskQueue("memory://"), Bank()

    if is_async:

        @queue.task(name="charge")
        async def charge(amount: int) -> None:
            await asyncio.sleep(0.5)
            bank.charge(current_task().id, amount, once=once)
            await asyncio.sleep(0.5)
    else:

        @queue.task(name="charge")
        def charge(amount: int) -> None:
            bank.charge(current_task().id, amount, once=once)

    @queue.task(name="charge_all", interval=1)  # does not run here
    def charge_all() -> None:
        bank.charge("all", 1000, once=False)

    return queue, bank


@pytest.mark.parametrize("is_async", [False, True])
def test_a_simulation_tells_tasks_that_may_run_twice_from_those_that_may_not(is_async: bool) -> None:
    def charges_of(seed: int, *, once: bool) -> int:
        queue, bank = bank_app(once=once, is_async=is_async)

        async def start() -> None:
            for amount in range(3):
                await queue.aenqueue("charge", [amount])

        run = simulate(seed, queue=queue, start=start, kill=0.3)
        run.raise_for_violations()
        assert [info.status for info in run.tasks] == [TaskStatus.SUCCESS] * 3
        with queue:
            assert queue.list() == []  # its own store
        return len(bank.charges)

    assert {charges_of(seed, once=True) for seed in range(15)} == {3}
    assert max(charges_of(seed, once=False) for seed in range(15)) > 3


def test_a_group_in_a_simulation_comes_to_its_end() -> None:
    queue = TaskQueue("memory://")

    @queue.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    @queue.task(name="total")
    async def total(numbers: list[int]) -> int:
        await asyncio.sleep(0.1)
        return sum(numbers)

    async def start() -> None:
        await group(double.call(number) for number in range(3)).then(total.call(RESULT)).aenqueue()

    for seed in range(5):
        run = simulate(seed, queue=queue, start=start, kill=0.3)
        run.raise_for_violations()
        assert [info.status for info in run.tasks] == [TaskStatus.SUCCESS] * 4


def test_progress_is_kept_and_the_next_attempt_sees_it(bullpen_queue: TaskQueue) -> None:
    seen: list[object] = []

    @bullpen_queue.task(name="import", max_retries=1, backoff=0)
    def import_rows() -> None:
        task = current_task()
        seen.append(task.info.progress)
        task.progress(task.attempt, 2)
        if task.attempt == 1:
            raise ValueError("again")

    job = import_rows.enqueue()
    run_until_empty(bullpen_queue)
    assert seen == [None, Progress(1, 2)]
    assert job.info().progress == Progress(2, 2)


def test_a_simulation_says_what_it_cannot_do() -> None:
    queue, _ = bank_app(once=True, is_async=False)

    async def start() -> None: ...

    with pytest.raises(ValueError, match="start must be an async function"):
        simulate(1, queue=queue)
    with pytest.raises(ValueError, match="kill must be a probability"):
        simulate(1, queue=queue, start=start, kill=3)

    @queue.middleware
    async def around(task: CurrentTask) -> None: ...

    with pytest.raises(InvalidTask, match="there are no threads in a simulation"):
        simulate(1, queue=queue, start=start)
    may_die()  # does nothing here


def test_the_plugin_is_found_and_costs_little(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys
        def test_nothing_is_imported():
            assert not {name for name in sys.modules if name.startswith("bullpen.")} - {
                "bullpen.testing", "bullpen.testing.plugin", "bullpen.version"}
            assert "msgspec" not in sys.modules
        def test_a_queue(bullpen_queue, bullpen_clock):
            from bullpen.testing import run_until_empty
            ran = []
            task = bullpen_queue.task(name="task")(ran.append)
            bullpen_queue.enqueue("task", [1], delay=5)
            run_until_empty(bullpen_queue)
            assert ran == []
            bullpen_clock.advance(5)
            run_until_empty(bullpen_queue)
            assert ran == [1]
        """
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio")
    done.assert_outcomes(passed=2)


def test_the_library_itself_needs_no_pytest() -> None:
    source = (
        "import sys; from bullpen import TaskQueue\n"
        "from bullpen.testing import run_until_empty, inline, assert_enqueued, in_memory, simulate\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=30)
    assert "pytest" not in done.stdout.split()

"""Chains, groups and children, as people use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    RESULT,
    InvalidArgument,
    InvalidOption,
    NewTasks,
    PredecessorFailed,
    Retry,
    TaskCancelled,
    TaskExists,
    TaskFailed,
    TaskQueue,
    WorkerPool,
    chain,
    current_task,
    group,
)

PATIENCE = 60


@pytest.fixture(params=["memory", "sqlite"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskQueue]:
    address = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    with TaskQueue(address) as queue:
        yield queue


class Functions:
    """A few functions of one queue."""

    def __init__(self, queue: TaskQueue) -> None:
        @queue.task(name="add")
        def add(a: int, b: int = 1) -> int:
            return a + b

        @queue.task(name="aadd")
        async def aadd(a: int, b: int = 1) -> int:
            return a + b

        @queue.task(name="total")
        def total(values: list[int]) -> int:
            return sum(values)

        @queue.task(name="fails")
        def fails(a: int) -> int:
            raise ValueError("no")

        @queue.task(name="seen")
        def seen(values: list[int | None]) -> list[int | None]:
            return values

        self.add, self.aadd, self.total, self.fails, self.seen = add, aadd, total, fails, seen


def test_a_chain_hands_results_on(queue: TaskQueue) -> None:
    to = Functions(queue)
    job = chain(to.add.call(1), to.aadd.call(RESULT, 10), to.add.call(100, b=RESULT)).enqueue()
    assert [str(one.status) for one in job.members] == ["pending"] * 3
    assert job.members[1].why().causes[0].kind == "waits_for"
    assert job.members[0].id in str(job.members[1].why())
    with WorkerPool(queue, 4, poll_interval=0.05):
        assert job.result(timeout=PATIENCE) == 112
    assert [one.result() for one in job.members] == [2, 12, 112]
    info = job.members[1].info()
    assert (info.next_task_id, info.after, info.waits_for) == (job.members[2].id, (job.members[0].id,), 0)


def test_a_group_calls_back_with_all_results_in_order(queue: TaskQueue) -> None:
    to = Functions(queue)
    job = group(to.add.call(number) for number in range(20)).then(to.seen.call(RESULT)).enqueue()
    with WorkerPool(queue, 4, poll_interval=0.05):
        assert job.result(timeout=PATIENCE) == list(range(1, 21))


def test_chains_may_be_members_and_callbacks_of_groups(queue: TaskQueue) -> None:
    to = Functions(queue)
    member = chain(to.add.call(1), to.add.call(RESULT))
    after = chain(to.total.call(RESULT), to.add.call(RESULT, 1000))
    job = chain(group(member, to.add.call(10)), after).enqueue()
    with WorkerPool(queue, 4, poll_interval=0.05):
        assert job.result(timeout=PATIENCE) == 1000 + 3 + 11


def test_a_group_of_one_hands_on_a_list(queue: TaskQueue) -> None:
    to = Functions(queue)
    job = group(to.add.call(1)).then(to.total.call(RESULT)).enqueue()
    with WorkerPool(queue, 1, poll_interval=0.05):
        assert job.result(timeout=PATIENCE) == 2


def test_a_group_needs_no_callback(queue: TaskQueue) -> None:
    to = Functions(queue)
    jobs = group(to.add.call(1), to.add.call(2)).enqueue()
    with WorkerPool(queue, 2, poll_interval=0.05):
        assert [job.result(timeout=PATIENCE) for job in jobs] == [2, 3]


def test_a_failure_ends_a_chain_and_a_retry_goes_on_with_it(queue: TaskQueue) -> None:
    to = Functions(queue)
    works = False

    @queue.task(name="sometimes")
    def sometimes(a: int) -> int:
        if not works:
            raise ValueError("not yet")
        return a

    job = chain(to.add.call(1), sometimes.call(RESULT), to.add.call(RESULT), to.add.call(RESULT)).enqueue()
    with WorkerPool(queue, 2, poll_interval=0.05):
        with pytest.raises(PredecessorFailed, match=job.members[2].id) as raised:
            job.result(timeout=PATIENCE)
        assert isinstance(raised.value, TaskCancelled)
        with pytest.raises(PredecessorFailed, match=job.members[1].id):
            job.members[2].result(timeout=PATIENCE)
        with pytest.raises(TaskFailed, match="not yet"):
            job.members[1].result(timeout=PATIENCE)
        assert not job.retry()  # nothing to begin with
        works = True
        assert job.members[1].retry()
        assert job.result(timeout=PATIENCE) == 4


def test_a_callback_may_run_whatever_happened(queue: TaskQueue) -> None:
    to = Functions(queue)
    cancelled = group(to.add.call(1), to.fails.call(2)).then(to.seen.call(RESULT)).enqueue()
    job = group(to.add.call(1), to.fails.call(2), to.add.call(3)).then(to.seen.call(RESULT), on_failure="run").enqueue()
    with WorkerPool(queue, 2, poll_interval=0.05):
        assert job.result(timeout=PATIENCE) == [2, None, 4]
        with pytest.raises(PredecessorFailed):
            cancelled.result(timeout=PATIENCE)


def test_to_cancel_a_chain_is_to_cancel_all_of_it(queue: TaskQueue) -> None:
    to = Functions(queue)
    job = chain(to.add.call(1), to.add.call(RESULT), to.add.call(RESULT)).enqueue()
    assert job.cancel()
    assert [str(one.status) for one in job.members] == ["cancelled"] * 3
    assert not job.cancel()


def test_a_result_that_could_not_be_kept_is_named(queue: TaskQueue) -> None:
    to = Functions(queue)

    @queue.task(name="odd")
    def odd() -> Any:
        return object()

    job = chain(odd.call(), to.add.call(RESULT)).enqueue()
    with WorkerPool(queue, 1, poll_interval=0.05), pytest.raises(TaskFailed, match=job.members[0].id) as raised:
        job.result(timeout=PATIENCE)
    assert raised.value.kind == "input"


def test_a_result_of_the_wrong_kind_is_poison(queue: TaskQueue) -> None:
    to = Functions(queue)
    job = chain(to.add.call(1), to.total.call(RESULT)).enqueue()
    with WorkerPool(queue, 1, poll_interval=0.05), pytest.raises(TaskFailed) as raised:
        job.result(timeout=PATIENCE)
    assert raised.value.kind == "poison"


def test_results_are_restored_by_the_annotations_of_the_reader(queue: TaskQueue) -> None:
    @queue.task(name="make")
    def make() -> tuple[int, bytes]:
        return 1, b"\x00"

    @queue.task(name="take")
    async def take(pair: tuple[int, bytes], *, extra: int) -> str:
        return repr((pair, extra))

    job = chain(make.call(), take.call(RESULT, extra=5)).enqueue()
    with WorkerPool(queue, 1, poll_interval=0.05):
        assert job.result(timeout=PATIENCE) == "((1, b'\\x00'), 5)"


# What is rejected.


def test_what_cannot_be_a_chain_is_rejected_at_once(queue: TaskQueue) -> None:
    to = Functions(queue)
    call = to.add.call(1)
    with pytest.raises(InvalidOption, match="RESULT"):
        chain(to.add.call(RESULT), to.add.call(RESULT)).enqueue()
    with pytest.raises(InvalidOption, match="RESULT"):
        to.add.call(RESULT).enqueue()
    with pytest.raises(InvalidOption, match="at most once"):
        to.add.call(RESULT, b=RESULT)
    with pytest.raises(InvalidOption, match="current_task"):
        chain(call, group(call, call))
    for wrong in ("x", to.add, None):
        with pytest.raises(InvalidOption, match="call"):
            chain(call, wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="call"):
            group(call, wrong)  # type: ignore[arg-type]
    for nothing in (lambda: chain(), lambda: group([])):
        with pytest.raises(InvalidOption, match="at least one"):
            nothing()
    with pytest.raises(InvalidOption, match="on_failure"):
        group(call).then(call, on_failure="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        to.add.call("one")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        to.add.call()  # type: ignore[call-arg]
    for name in ("delay", "interval"):
        options: Any = {name: 5}
        with pytest.raises(InvalidOption, match=name):
            chain(call, to.add.using(**options).call(RESULT))
    with pytest.raises(InvalidOption, match="interval"):
        chain(to.add.using(interval=5).call(1), to.add.call(RESULT))
    other = TaskQueue("memory://")
    with pytest.raises(InvalidOption, match="one queue"):
        chain(call, Functions(other).add.call(RESULT))
    assert queue.list() == []


def test_a_first_step_may_be_delayed(queue: TaskQueue) -> None:
    to = Functions(queue)
    job = chain(to.add.using(delay=3600).call(1), to.add.call(RESULT)).enqueue()
    assert job.members[0].info().eta.timestamp() > time.time() + 3000


def test_a_unique_key_that_is_taken_rejects_the_whole(queue: TaskQueue) -> None:
    to = Functions(queue)
    first = to.add.using(unique_key="k").enqueue(1)
    with pytest.raises(TaskExists) as raised:
        chain(to.add.call(1), to.add.using(unique_key="k").call(RESULT)).enqueue()
    assert raised.value.job == first
    assert len(queue.list()) == 1


def test_middleware_sees_every_member(queue: TaskQueue) -> None:
    to = Functions(queue)
    names = []

    @queue.enqueue_middleware
    def stamp(new: Any) -> Iterator[None]:
        new.headers["by"] = "me"
        yield
        names.append((new.name, len(new.ids)))

    job = chain(to.add.call(1), to.aadd.call(RESULT)).enqueue()
    assert sorted(names) == [("aadd", 1), ("add", 1)]
    assert [one.info().headers for one in job.members] == [{"by": "me"}] * 2


# Children.


def test_children_come_with_success(queue: TaskQueue) -> None:
    to = Functions(queue)
    made: list[Any] = []

    @queue.task(name="parent", max_retries=1, backoff=0)
    def parent() -> str:
        made.append(current_task().enqueue(to.add.call(len(made))))
        made.append(current_task().enqueue(chain(to.add.call(5), to.add.call(RESULT))))
        if current_task().failures == 0:
            raise Retry("once more")
        return str(made[-1].id)

    job = parent.enqueue()
    with WorkerPool(queue, 2, poll_interval=0.05):
        assert queue.job(job.result(timeout=PATIENCE)).result(timeout=PATIENCE) == 7
        assert made[2].result(timeout=PATIENCE) == 3
    assert len(queue.list()) == 4  # nothing of the attempt that failed
    assert {info.name for info in queue.list()} == {"parent", "add"}


def test_children_of_an_async_parent_may_be_a_group(queue: TaskQueue) -> None:
    to = Functions(queue)

    @queue.task(name="parent")
    async def parent(count: int) -> str:
        await asyncio.sleep(0)
        return current_task().enqueue(group(to.add.call(n) for n in range(count)).then(to.total.call(RESULT))).id

    job = parent.enqueue(4)
    with WorkerPool(queue, 2, poll_interval=0.05):
        assert queue.job(job.result(timeout=PATIENCE)).result(timeout=PATIENCE) == 1 + 2 + 3 + 4


def test_a_child_may_be_delayed_and_unique_and_nothing_that_could_reject(queue: TaskQueue) -> None:
    to = Functions(queue)
    problems: list[str] = []

    @queue.task(name="parent")
    def parent() -> str:
        for work in (
            to.add.using(unique_key="k", on_duplicate="reject").call(1),
            chain(to.add.using(unique_key="k").call(1), to.add.call(RESULT)),
            to.add.using(interval=5).call(1),
            to.add,
        ):
            try:
                current_task().enqueue(work)  # type: ignore[arg-type]
            except InvalidOption as error:
                problems.append(error.option)
        return current_task().enqueue(to.add.using(delay=3600, unique_key="k").call(1)).id

    job = parent.enqueue()
    with WorkerPool(queue, 2, poll_interval=0.05):
        child = queue.job(job.result(timeout=PATIENCE))
    assert problems == ["unique_key", "unique_key", "interval", "work"]
    assert child.info().eta.timestamp() > time.time() + 3000
    assert len(queue.list()) == 2


def test_children_pass_the_middleware_and_inherit_the_trace(queue: TaskQueue) -> None:
    to, passed = Functions(queue), []

    @queue.enqueue_middleware
    def tenant(new: NewTasks) -> Iterator[None]:
        new.headers["tenant"] = "acme"
        yield
        passed.append((new.name, new.headers.get("traceparent"), new.ids))

    @queue.task(name="parent")
    def parent() -> list[str]:
        own = to.add.using(headers={"traceparent": "own"}).call(1)
        return [current_task().enqueue(to.add.call(1)).id, current_task().enqueue(own).id]

    with WorkerPool(queue):
        job = parent.using(headers={"traceparent": "00-1", "private": "p"}).enqueue()
        first, second = job.result(PATIENCE)
    assert queue.get(first).headers == {"traceparent": "00-1", "tenant": "acme", "bullpen-parent": job.id}
    assert queue.get(second).headers == {"traceparent": "own", "tenant": "acme", "bullpen-parent": job.id}
    assert [one.id for one in queue.list(header=("bullpen-parent", job.id))] == [first, second]
    children = [one for one in passed if one[0] == "add"]  # that of the parent may come before or after them
    assert children == [("add", "00-1", (first,)), ("add", "own", (second,))]


def test_children_cannot_await_middleware(queue: TaskQueue) -> None:
    to = Functions(queue)

    @queue.enqueue_middleware
    async def waits(new: NewTasks) -> None:
        await asyncio.sleep(0)

    @queue.task(name="parent")
    def parent() -> None:
        current_task().enqueue(to.add.call(1))

    with WorkerPool(queue), pytest.raises(TaskFailed, match="cannot await async middleware"):
        parent.enqueue().result(PATIENCE)

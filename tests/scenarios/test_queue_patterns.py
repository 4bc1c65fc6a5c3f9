"""Workers that serve every queue that matches a pattern: new ones too, without a restart."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen import AsyncWorkerPool, Lane, TaskQueue, WorkerPool
from bullpen.cli.commands.doctor import examine
from bullpen.cli.matching import Matching
from bullpen.errors import InvalidOption
from bullpen.tasks.worker.served_queues import REMEMBERED_FOR, ServedQueues
from tests.stores import KINDS, new_store

PATIENCE = 60


@pytest.fixture(params=["memory", *KINDS])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TaskQueue]:
    if request.param == "memory":
        with TaskQueue("memory://") as queue:
            yield queue
        return
    with new_store(request.param, tmp_path, request) as address, TaskQueue(address) as queue:
        yield queue


def test_a_new_queue_that_matches_is_served_without_a_restart(queue: TaskQueue) -> None:
    @queue.task(name="send")
    def send(number: int) -> str:
        return f"{threading.current_thread().name.rpartition('_')[0]} {number}"

    before = send.using(queue="partner-1").enqueue(1)
    other = send.using(queue="internal").enqueue(0)
    with WorkerPool(queue, poll_interval=600, lanes="partner-vip:1 partner-*,default:4", name="w"):
        assert before.result(timeout=PATIENCE) == "w-partner-* 1"
        later = send.using(queue="partner-2").enqueue(2)  # no worker has heard of this queue
        assert later.result(timeout=PATIENCE) == "w-partner-* 2"
        again = send.using(queue="partner-2").enqueue(3)  # now they have: it is notified, long before the next poll
        assert again.result(timeout=PATIENCE) == "w-partner-* 3"
        named = send.using(queue="partner-vip").enqueue(4)
        assert named.result(timeout=PATIENCE) == "w-partner-vip 4"
        assert send.enqueue(5).result(timeout=PATIENCE) == "w-partner-* 5"
        assert [worker.queues for worker in queue.workers()] == [("partner-vip", "partner-*", "default")]
        assert other.status.value == "pending"
        assert [cause.kind for cause in other.why().causes] == ["no_worker"]


@pytest.mark.anyio
async def test_why_and_doctor_know_that_a_pattern_serves_a_queue(tmp_path: Path) -> None:
    async with TaskQueue(f"sqlite:///{tmp_path}/jobs.db") as queue:

        @queue.task(name="send")
        async def send() -> None: ...

        async with AsyncWorkerPool(queue, lanes="partner-*:1"):
            await queue.apause("partner-9")
            job = await send.using(queue="partner-9").aenqueue()
            assert [cause.kind for cause in (await job.awhy()).causes] == ["paused"]
            left = await send.using(queue="other").aenqueue()
            cause = (await left.awhy()).causes[0]
            assert (cause.kind, cause.data["served"]) == ("no_worker", ("partner-*",))
            kinds = {(one.kind, "partner-9" in one.message) for one in await examine(queue.storage.another())}  # type: ignore[arg-type]
            assert kinds == {("paused_queue", True), ("unserved_queue", False)}
            await queue.aresume("partner-9")
            await job.aresult(timeout=PATIENCE)


def test_limits_and_priorities_hold_among_the_queues_of_a_pattern(queue: TaskQueue) -> None:
    ran: list[int] = []

    @queue.task(name="send")
    def send(number: int) -> None:
        ran.append(number)

    queue.set_limit("p-limited", max_running=1)
    queue.pause("p-paused")
    paused = send.using(queue="p-paused", priority=9).enqueue(0)
    jobs = [send.using(queue=f"p-{number}", priority=number).enqueue(number) for number in range(1, 6)]
    jobs += [send.using(queue="p-limited").enqueue(number) for number in (6, 7)]
    with WorkerPool(queue, 1, lanes="p-*"):
        for job in jobs:
            job.result(timeout=PATIENCE)
    assert ran == [5, 4, 3, 2, 1, 6, 7]
    assert paused.status.value == "pending"


def test_a_lane_serves_what_it_names_and_of_the_rest_what_no_lane_before_matches() -> None:
    served = ServedQueues([Lane(("*-vip", "x"), 1), Lane(("a-1", "a-*"), 1), Lane(("*",), 1)])
    assert served.has_patterns
    divided = served.divide(["a-1", "a-2", "a-vip", "b", "x"], now=0.0)
    assert divided == [("x", "a-vip"), ("a-1", "a-2"), ("b",)]
    assert served.divide(["c"], now=REMEMBERED_FOR - 1) == [("x", "a-vip"), ("a-1", "a-2"), ("b", "c")]
    assert served.divide([], now=REMEMBERED_FOR) == [("x",), ("a-1",), ("c",)]
    assert not ServedQueues([Lane(("a",), 1)]).has_patterns


@pytest.mark.parametrize("queues", [("a b*",), ("part?er",), ("",), ("*" * 101,), ("-x",), ("p-*", "p-*")])
def test_a_wrong_pattern_is_rejected(queues: tuple[str, ...]) -> None:
    with pytest.raises(InvalidOption, match=r"'\*' stands for any characters|different queues"):
        Lane(queues, 1)


def test_a_filter_for_a_queue_knows_patterns_and_never_suggests_one(tmp_path: Path) -> None:
    with TaskQueue(f"sqlite:///{tmp_path}/jobs.db") as queue:
        queue.task(name="send")(print)
        with WorkerPool(queue, lanes="partner-*:1"):
            queue.enqueue("send", queue="partner-7").result(timeout=PATIENCE)
            assert Matching(queue=("partner-8",)).unknown_names(queue) == []  # a worker would serve it
            (sentence,) = Matching(queue=("partner7",)).unknown_names(queue)
            assert sentence == "no task and no worker has the queue 'partner7'; did you mean 'partner-7'?"
            (sentence,) = Matching(queue=("partner",)).unknown_names(queue)
            assert "*" not in sentence

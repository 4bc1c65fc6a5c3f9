"""`bullpen move`: every task arrives once and as it was, between all kinds of stores, while workers run."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from bullpen import TaskQueue, WorkerPool, current_task, primitives
from bullpen.cli.main import main
from bullpen.errors import QueueError
from bullpen.tasks.model import schedule_changes
from bullpen.tasks.model.ids import schedule_id
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.store_move import mark_of, marked, through_mark
from bullpen.tasks.model.task import CANCELLED, FAILED, NEVER, PENDING, RUNNING, Task, cancel, fail, succeed
from bullpen.tasks.model.unique import Duplicates
from bullpen.tasks.storage import mover
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.mover import Mover
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Limit, Storage, TaskFilter
from bullpen.tasks.storage.schedules import put
from bullpen.testing.storage_contract.base import claim, error_of, ids, new_task, new_tasks, settle
from bullpen.testing.storage_contract.links import new_chain, new_group
from tests.scenarios.cli_support import command, environment, heeding_ctrl_c
from tests.scenarios.support import eventually
from tests.stores import new_store

PAIRS = [("sqlite", "postgres"), ("postgres", "redis"), ("redis", "sqlite")]
STEPS = ["move.before_mark", "move.after_mark", "move.after_put", "move.after_remove"]


@asynccontextmanager
async def two(urls: Sequence[str]) -> AsyncIterator[tuple[Storage, Storage]]:
    source, destination = map(open_storage, urls)
    await source.open()
    await destination.open()
    try:
        yield source, destination
    finally:
        await source.close()
        await destination.close()


async def everything(store: Storage) -> dict[str, Task]:
    return {task.id: task for task in await store.list(TaskFilter(), limit=1000)}


async def fill(store: Storage) -> dict[str, Task]:
    """Tasks of all states; those that do not run, by id."""
    now = await store.now()
    await store.add(new_tasks(6, queue="mail", headers={"trace": "1"}, concurrency_key="c"))
    done, failed, gone, retrying, _ = await claim(store, 5, queues=("mail",))
    await settle(
        store,
        succeed(done, b"1"),
        fail(failed, error_of(failed), 0.0),
        cancel(gone),
        fail(replace(retrying, max_retries=3), error_of(retrying), 0.5, after=3600.0),
    )
    await store.add([new_task(eta=now + 3600, expires=now + 7200, unique_key="k"), new_task(at_most_once=True)])
    return {task_id: task for task_id, task in (await everything(store)).items() if task.status is not RUNNING}


@pytest.fixture(params=PAIRS, ids=lambda pair: "-".join(pair))
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    one, other = request.param
    with new_store(one, tmp_path, request) as source, new_store(other, tmp_path, request) as destination:
        yield source, destination


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return f"sqlite:///{tmp_path}/one.db?synchronous=normal", f"sqlite:///{tmp_path}/two.db?synchronous=normal"


def test_all_that_does_not_run_arrives_as_it_was(urls: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    async def before() -> dict[str, Task]:
        async with two(urls) as (source, destination):
            tasks = await fill(source)
            await source.pause("mail")
            await source.set_limit(Limit(queue="mail", max_running=3))
            await source.set_limit(Limit(queue="own", max_running=9))
            await destination.set_limit(Limit(queue="own", max_running=1))
            (running,) = await source.list(TaskFilter(statuses=(RUNNING,)), limit=10)
            await settle(source, succeed(running, b"2"))
            return {**tasks, running.id: (await everything(source))[running.id]}

    async def after(expected: dict[str, Task]) -> None:
        async with two(urls) as (source, destination):
            assert await everything(source) == {}
            assert await everything(destination) == expected
            assert await destination.paused() == {"mail"}
            limits = {limit.queue: limit.max_running for limit in await destination.limits()}
            assert limits == {"mail": 3, "own": 1}

    expected = asyncio.run(before())
    assert main(["move", *urls, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"moved": len(expected), "left": {}, "running": 0}
    asyncio.run(after(expected))
    assert main(["move", *urls]) == 0
    assert capsys.readouterr().out == "0 tasks moved\n"


class Killed(BaseException):
    pass


async def die_at(step: str, source: Storage, destination: Storage, batch: int = 3) -> None:
    """A mover to "there" that gets as far as this."""

    def failpoint(name: str) -> None:
        if name == step:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(primitives, "failpoint", failpoint)
        with pytest.raises(Killed):
            await Mover(source, destination, "there", batch=batch).sweep()


@pytest.mark.anyio
@pytest.mark.parametrize("step", STEPS)
async def test_the_next_mover_continues_after_a_kill(urls: tuple[str, str], step: str) -> None:
    async with two(urls) as (source, destination):
        expected = await fill(source)
        await die_at(step, source, destination)
        # What waits can start in one place at most: what is at the source is marked, or not at the destination.
        here, there = await everything(source), await everything(destination)
        assert {**here, **there}.keys() >= expected.keys()
        for task_id in here.keys() & there.keys():
            assert here[task_id].is_final or here[task_id].eta == NEVER
        moving = Mover(source, destination, "there", batch=3)
        await moving.sweep()
        assert moving.left == {}
        assert await everything(destination) == expected
        assert {task.status for task in (await everything(source)).values()} == {RUNNING}


@pytest.mark.anyio
async def test_a_task_that_has_changed_at_the_destination_is_not_imported_again() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    (task,) = await source.add([new_task()])
    await die_at("move.after_put", source, destination)
    (mine,) = await claim(destination)
    await settle(destination, succeed(mine, b"done"))
    await Mover(source, destination, "there").sweep()
    assert await everything(source) == {}
    assert (await everything(destination))[task.id].result == b"done"


@pytest.mark.anyio
async def test_what_may_run_at_most_once_is_lost_visibly_rather_than_run_twice() -> None:
    clock = [1000.0]
    source, destination = MemoryStorage(lambda: clock[0]), MemoryStorage(lambda: clock[0])
    once, often = await source.add([new_task(at_most_once=True, result_ttl=60.0), new_task(result_ttl=60.0)])
    await die_at("move.after_put", source, destination)
    for mine in await claim(destination, 2):
        await settle(destination, succeed(mine, None))
    clock[0] += 61.0
    assert await destination.prune(limit=10) == 2
    await Mover(source, destination, "there").sweep()
    there = await everything(destination)
    assert (there[once.id].status, there[often.id].status) == (FAILED, PENDING)
    assert [error.kind for error in there[once.id].errors] == ["lost"]
    assert await everything(source) == {}


@pytest.mark.anyio
async def test_a_task_that_was_never_imported_is_imported_also_if_it_may_run_at_most_once() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    (once,) = await source.add([new_task(at_most_once=True)])
    await die_at("move.after_mark", source, destination)
    await Mover(source, destination, "there").sweep()
    assert (await everything(destination))[once.id] == once


@pytest.mark.anyio
async def test_a_task_that_was_cancelled_during_a_move_is_cancelled_at_the_destination() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    (task,) = await source.add([new_task()])
    await die_at("move.after_put", source, destination)
    await source.cancel([task.id])
    await Mover(source, destination, "there").sweep()
    assert (await everything(destination))[task.id].status is CANCELLED
    assert await everything(source) == {}


@pytest.mark.anyio
async def test_a_schedule_that_is_changed_on_its_way_arrives_with_the_change_and_its_time(
    urls: tuple[str, str],
) -> None:
    async with two(urls) as (source, destination):
        told = {name: Schedule(key=name) for name in ("declared", "paused", "run")}
        now = await source.now()
        kept = await source.add(
            [new_task(id=schedule_id(name), interval=60.0, schedule=told[name], eta=now + 60) for name in told]
        )
        await die_at("move.after_mark", source, destination)
        declared, paused, run = kept
        await put(source, replace(declared, max_retries=7))
        await source.change([paused.id], through_mark(schedule_changes.paused))
        await source.change([run.id], through_mark(schedule_changes.run_now))
        assert await claim(source, 10) == []
        await Mover(source, destination, "there").sweep()
        there = await everything(destination)
        assert (there[declared.id].eta, there[declared.id].max_retries) == (declared.eta, 7)
        assert (there[paused.id].eta, there[paused.id].hold) == (NEVER, "paused")
        assert ids(await claim(destination, 10)) == [run.id]
        assert await everything(source) == {}


@pytest.mark.anyio
async def test_a_task_that_is_changed_after_its_import_is_imported_again(urls: tuple[str, str]) -> None:
    async with two(urls) as (source, destination):
        schedule = new_task(id=schedule_id("s"), interval=60.0, schedule=Schedule(key="s"), eta=await source.now() + 60)
        early, late = (new_task(unique_key=key, payload=b"[1]") for key in ("early", "late"))
        await source.add([schedule, early, late])
        removed: list[Task] = []

        async def change_first(tasks: Sequence[Task]) -> frozenset[str]:
            """Between the second step and the third."""
            if not removed:
                await source.change([schedule.id], through_mark(schedule_changes.paused))
                assert ids(await claim(destination)) == [early.id]
                again = [new_task(unique_key=key, payload=b"[2]") for key in ("late", "early")]
                await source.add(again, Duplicates("replace"))
            removed.extend(tasks)
            return await export_tasks(tasks)

        export_tasks, source.export_tasks = source.export_tasks, change_first  # type: ignore[method-assign]
        moving = Mover(source, destination, "there")
        assert await moving.sweep() == 0
        assert await moving.sweep() == 2
        there = await everything(destination)
        assert there[schedule.id].hold == "paused"
        assert there[late.id].payload == b"[2]"
        assert moving.left == {early.id: "its copy has started at the destination, and it was replaced here since"}
        (left,) = (await everything(source)).values()
        assert (left.id, left.payload, ids(await claim(source))) == (early.id, b"[2]", [early.id])


@pytest.mark.anyio
async def test_a_task_that_is_retried_during_a_move_arrives_in_its_new_state() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    await source.add([new_task()])
    (mine,) = await claim(source)
    await settle(source, succeed(mine, b"1"))
    (over,) = (await everything(source)).values()
    assert await destination.import_tasks([over]) == {over.id}  # and then somebody retries it
    await source.retry([over.id])
    await Mover(source, destination, "there").sweep()
    assert (await everything(destination))[over.id].status is PENDING
    assert await everything(source) == {}


@pytest.mark.anyio
async def test_what_cannot_go_there_stays_and_can_start() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    over, unique, same_id, plain = await source.add([new_task(), new_task(unique_key="k"), new_task(), new_task()])
    await source.cancel([over.id])
    others = [replace(task, created_at=0.0, func_path="app.other") for task in (same_id, over)]
    await destination.add([new_task(unique_key="k"), *others])
    moving = Mover(source, destination, "there")
    assert await moving.sweep() == 1
    taken = "another task at the destination has its id"
    assert moving.left == {
        over.id: taken,
        unique.id: "another task at the destination has its unique key",
        same_id.id: taken,
    }
    here = await everything(source)
    assert (here[over.id].status, here[unique.id], here[same_id.id]) == (CANCELLED, unique, same_id)
    assert plain.id in await everything(destination)
    assert ids(await claim(source, 5)) == [unique.id, same_id.id]


@pytest.mark.anyio
@pytest.mark.parametrize("step", ["", *STEPS])
async def test_tasks_that_wait_for_each_other_go_together(urls: tuple[str, str], step: str) -> None:
    async with two(urls) as (source, destination):
        first, second, third = await new_chain(source)
        one, other, last = await new_group(source, 2, queue="mail")
        (mine,) = await claim(source, queues=("mail",))
        await settle(source, succeed(mine, b"1"))
        expected = await everything(source)
        if step:
            await die_at(step, source, destination)
        moving = Mover(source, destination, "there", batch=2)
        await moving.sweep()
        assert moving.left == {}
        assert await everything(source) == {}
        assert await everything(destination) == expected
        for task in (first, second, third):
            assert ids(await claim(destination, 9)) == [task.id]
            await settle(destination, succeed((await everything(destination))[task.id], b"x"))
        assert mine.id == one.id
        for task in (other, last):
            assert ids(await claim(destination, 9, queues=("mail",))) == [task.id]
            await settle(destination, succeed((await everything(destination))[task.id], b"x"))


@pytest.mark.anyio
async def test_a_dependent_task_arrives_before_its_predecessors_could_end() -> None:
    put: list[list[str]] = []

    class Destination(MemoryStorage):
        async def import_tasks(self, tasks: Sequence[Task]) -> frozenset[str]:
            put.append(ids(tasks))
            return await super().import_tasks(tasks)

    source = MemoryStorage()
    first, second, third, fourth = await new_chain(source, 4)
    (mine,) = await claim(source)
    await settle(source, succeed(mine, b"1"))
    await Mover(source, Destination(), "there").sweep()
    assert put == [[first.id], [fourth.id], [third.id], [second.id]]


@pytest.mark.anyio
async def test_a_task_that_depends_on_a_running_one_waits_where_that_one_ends() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    first, second, third = await new_chain(source)
    (mine,) = await claim(source)
    moving = Mover(source, destination, "there")
    assert await moving.sweep() == 0
    assert {task.id for task in (first, second, third)} == (await everything(source)).keys()
    await settle(source, succeed(mine, b"1"))
    assert await moving.sweep() == 3
    assert ids(await claim(destination, 9)) == [second.id]


@pytest.mark.anyio
async def test_what_becomes_due_while_it_is_marked_stays_due() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    _, second = await new_chain(source, 2)
    (mine,) = await claim(source)
    await source.change([second.id], lambda task, _: marked(task, "there", 0.0))  # a moment too early
    await settle(source, succeed(mine, b"1"))
    assert await Mover(source, destination, "there").give_up() == 1
    assert ids(await claim(source, 9)) == [second.id]


@pytest.mark.anyio
async def test_two_moves_do_not_get_into_each_others_way() -> None:
    source, destination = MemoryStorage(), MemoryStorage()
    (task,) = await source.add([new_task()])
    await die_at("move.after_put", source, MemoryStorage())
    with pytest.raises(QueueError, match=f"task {task.id} is already moving to there; finish that move first"):
        await Mover(source, destination, "elsewhere").sweep()
    assert await everything(destination) == {}
    assert await Mover(source, destination, "elsewhere").give_up() == 1
    assert await everything(source) == {task.id: task}


def test_workers_and_producers_may_go_on(urls: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    ran: Counter[str] = Counter()
    lock = threading.Lock()

    def count(number: int) -> int:
        with lock:
            ran[current_task().id] += 1
        return number

    with TaskQueue(urls[0]) as old, TaskQueue(urls[1]) as new:
        at_old, at_new = (queue.task(name="count")(count) for queue in (old, new))
        jobs = at_old.enqueue_many([(number,) for number in range(120)])
        at_new.enqueue(0).status  # noqa: B018 — makes the store
        with WorkerPool(old, 2, poll_interval=0.05), WorkerPool(new, 20, poll_interval=0.05):
            assert main(["move", *urls]) == 0
            late = at_old.enqueue_many([(number,) for number in range(5)])
            assert main(["move", *urls]) == 0
            everybody = {job.id for job in (*jobs, *late)}
            assert eventually(lambda: everybody <= {task.id for task in new.list(status="success", limit=1000)}, 30)
    assert ran.keys() >= everybody
    assert set(ran.values()) == {1}


def test_what_still_comes_in_is_moved_until_ctrl_c(files: tuple[str, str]) -> None:
    with TaskQueue(files[0]) as old, TaskQueue(files[1]) as new:
        first = old.enqueue("count", elsewhere=True)
        with heeding_ctrl_c():
            words = command("move", *files, "--follow")
            process = subprocess.Popen(words, stdout=subprocess.PIPE, encoding="utf-8", env=environment())
        with process:
            assert eventually(lambda: [task.id for task in new.list()] == [first.id], 60)
            second = old.enqueue("count", elsewhere=True)
            assert eventually(lambda: [task.id for task in new.list()] == [first.id, second.id], 60)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "2 tasks moved\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["move", "sqlite:///gone.db", "sqlite:///x.db"], 1, "there is no file"),
        (["move", "memory://", "sqlite:///x.db"], 1, "memory:// lives in one process"),
        (["move", "{0}", "memory://"], 1, "memory:// lives in one process"),
        (["move", "{0}", "{0}"], 2, "FROM and TO are the same store"),
        (["move", "{0}", "x.db"], 2, "url must be sqlite:///x.db, got"),
    ],
)
def test_what_cannot_be_moved_is_said(
    files: tuple[str, str], words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with TaskQueue(files[0]) as queue:
        queue.counts()
    assert main([word.format(*files) for word in words]) == code
    assert said in capsys.readouterr().err


KILLED = """
import os, signal, sys
from bullpen import primitives
from bullpen.tasks.storage import mover
from bullpen.cli.main import main

mover.BATCH, step, hits = 5, sys.argv[1], 1
mover.Mover.__init__.__kwdefaults__["batch"] = 5

def failpoint(name):
    global hits
    if name == step:
        hits -= 1
        if hits < 0:
            os.kill(os.getpid(), signal.SIGKILL)

primitives.failpoint = failpoint
main(["move", *sys.argv[2:]])
"""


@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_is_killed_is_finished_by_the_next(
    files: tuple[str, str], step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with TaskQueue(files[0]) as old, TaskQueue(files[1]) as new:
        old.task(name="count")(str)
        jobs = [old.enqueue("count", (number,)) for number in range(20)]
        done = subprocess.run([sys.executable, "-c", KILLED, step, *files], check=False, timeout=60)
        assert done.returncode == -9
        assert main(["move", *files]) == 0
        assert old.counts() == {}
        assert [task.id for task in new.list()] == [job.id for job in jobs]
        assert {task.attempt for task in new.list()} == {0}
        assert all(mark_of(task) is None for task in asyncio.run(_stored(files[1])))


async def _stored(url: str) -> list[Task]:
    store = open_storage(url)
    try:
        return list((await everything(store)).values())
    finally:
        await store.close()


def test_every_step_of_a_move_is_tested() -> None:
    source = Path(mover.__file__).read_text()
    assert set(re.findall(r'failpoint\("([^"]+)"\)', source)) == set(STEPS)

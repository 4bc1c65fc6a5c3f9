"""Several clients at once, on threads and in processes: no task is lost, and no task is claimed twice."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest

from bullpen.tasks.model.task import CANCELLED, PENDING, RUNNING, SUCCESS, Task, succeed
from bullpen.tasks.storage.port import Limit, Storage, TaskFilter, WorkerRecord
from bullpen.testing.storage_contract.base import (
    FAR,
    PATIENCE,
    StoreTests,
    added,
    claim,
    claimed_one,
    get,
    ids,
    new_task,
    new_tasks,
    settle,
    take_back,
)

T = TypeVar("T")

THREADS = 4


class TogetherTests(StoreTests):
    async def on_threads(self, *work: Callable[[Storage], Awaitable[T]]) -> list[T]:
        """Each on a thread and an event loop of its own, with a client of its own; all begin at the same moment."""
        start = threading.Barrier(len(work))

        async def with_client(what: Callable[[Storage], Awaitable[T]]) -> T:
            store = self.make_storage()
            await store.open()
            try:
                start.wait(PATIENCE)
                return await what(store)
            finally:
                await store.close()

        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(len(work)) as threads:
            calls = [loop.run_in_executor(threads, asyncio.run, with_client(what)) for what in work]
            return list(await asyncio.gather(*calls))

    # One process.

    async def test_two_claimants_never_get_one_task(self, store: Storage) -> None:
        given = await store.add(new_tasks(120))

        async def claim_all(mine: Storage) -> list[str]:
            taken: list[str] = []
            while some := await claim(mine, 3, worker=f"w{threading.get_ident()}"):
                assert len(some) <= 3
                assert {task.attempt for task in some} == {1}
                taken += ids(some)
            return taken

        taken = await self.on_threads(*[claim_all] * THREADS)
        assert sorted(task for some in taken for task in some) == ids(given)
        by_worker = Counter(task.worker for task in await store.list(TaskFilter(statuses=(RUNNING,)), limit=1000))
        assert sorted(by_worker.values()) == sorted(len(some) for some in taken if some)

    async def test_nor_do_those_of_one_event_loop(self, store: Storage) -> None:
        given = await store.add(new_tasks(60))
        taken = await asyncio.gather(*[claim(store, 4) for _ in range(20)])
        assert sorted(task.id for some in taken for task in some) == ids(given)

    async def test_a_rescued_task_is_returned_as_it_was_then(self, store: Storage) -> None:
        async def claim_it() -> Task:
            while True:
                for task in await claim(store, 1, worker="quick"):
                    return task
                await asyncio.sleep(0)

        for _ in range(5):
            await claimed_one(store)
            claiming = asyncio.ensure_future(claim_it())
            (taken,) = await store.rescue_expired(take_back, limit=1, dead_workers=["w"])
            assert (taken.status, taken.attempt) == (PENDING, 1)
            assert not await settle(store, succeed(await claiming, None))

    async def test_all_that_is_added_at_once_is_there_once(self, store: Storage) -> None:
        keys = [f"key {number}" for number in range(10)]
        shared = new_tasks(10)

        async def add_all(mine: Storage) -> dict[str, str]:
            await mine.add(new_tasks(20, queue="own"))
            await mine.add(shared)
            kept = [await mine.add([new_task(queue="unique", unique_key=key)]) for key in keys]
            return {key: task.id for key, (task,) in zip(keys, kept, strict=True)}

        answers = await self.on_threads(*[add_all] * THREADS)
        assert all(answer == answers[0] for answer in answers)
        counts = {queue: sum(by_status.values()) for queue, by_status in (await store.counts()).items()}
        assert counts == {"own": 20 * THREADS, "default": 10, "unique": 10}

    async def test_one_settlement_of_many_is_taken(self, store: Storage) -> None:
        mine = [await claimed_one(store) for _ in range(20)]

        async def settle_all(other: Storage) -> int:
            answers = [await settle(other, succeed(task, b"%d" % threading.get_ident())) for task in mine]
            return sum(not rejected for rejected in answers)

        assert sum(await self.on_threads(*[settle_all] * THREADS)) == len(mine)

    async def test_a_task_that_was_cancelled_before_its_start_never_starts(self, store: Storage) -> None:
        given = await store.add(new_tasks(60))

        async def cancel_all(mine: Storage) -> set[str]:
            changed = [task for task_id in ids(given)[::-1] for task in await mine.cancel([task_id])]
            return {task.id for task in changed if task.status is CANCELLED}

        async def claim_all(mine: Storage) -> set[str]:
            taken: set[str] = set()
            while some := await claim(mine, 2):
                taken.update(ids(some))
            return taken

        cancelled, taken = await self.on_threads(cancel_all, claim_all)
        assert cancelled | taken == set(ids(given))
        assert not cancelled & taken
        for task in await store.list(TaskFilter(), limit=100):
            assert (task.status, task.attempt) == ((CANCELLED, 0) if task.id in cancelled else (RUNNING, 1))

    async def test_a_limit_holds_over_all_of_them(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", max_running=3, max_running_per_key=2))
        await store.add([new_task(concurrency_key=f"k{number % 2}") for number in range(60)])

        async def work(mine: Storage) -> int:
            most = 0
            held = await claim(mine, 2)
            while held or await mine.list(TaskFilter(statuses=(PENDING, RUNNING)), limit=1):
                running = await mine.list(TaskFilter(statuses=(RUNNING,)), limit=100)
                most = max(most, len(running))
                assert all(count <= 2 for count in Counter(task.concurrency_key for task in running).values())
                held = await claim(mine, 2, *[succeed(task, None) for task in held])
            return most

        assert max(await self.on_threads(*[work] * 3)) <= 3
        assert (await store.counts())["default"][SUCCESS] == 60

    # Opening and closing.

    async def test_an_empty_store_may_be_opened_by_all_at_once(self) -> None:
        async def use(mine: Storage) -> str:
            return (await added(mine)).id

        added_ids = await self.on_threads(*[use] * THREADS)
        store = self.make_storage()
        await store.open()
        assert sorted(ids(await store.list(TaskFilter(), limit=10))) == sorted(added_ids)
        await store.close()

    async def test_a_client_may_be_opened_again(self) -> None:
        store = self.make_storage()
        for _ in range(2):
            await store.open()
            await added(store)
            await store.close()
        await store.close()

    async def test_another_client_sees_the_same(self, store: Storage) -> None:
        other = store.another()
        if other is None:
            pytest.skip("there is one client only")
        await other.open()
        try:
            task = await added(other)
            assert await get(store, task) == task
        finally:
            await other.close()

    async def test_everything_survives_its_clients(self) -> None:
        store = self.make_storage()
        if not store.durable:
            pytest.skip("the store does not say so")
        await store.open()
        done = await claimed_one(store, headers={"a": "b"})
        await settle(store, succeed(done, b"42"))
        await claimed_one(store, concurrency_key="k")
        await added(store, unique_key="u", eta=await store.now() + FAR)
        await store.pause("mail")
        await store.set_limit(Limit(queue="mail", max_running=2))
        record = WorkerRecord(id="w", host="h", pid=1, boot_id="", process_started=0.0, queues=("a",), concurrency=1)
        await store.save_worker(record)
        before = await self.everything(store)
        await store.close()
        store = self.make_storage()
        await store.open()
        assert await self.everything(store) == before
        await store.close()

    async def everything(self, store: Storage) -> tuple[object, ...]:
        tasks = [(task.id, task.status, task.attempt, task.result) for task in await store.list(TaskFilter(), limit=9)]
        return tasks, await store.paused(), list(await store.limits()), list(await store.workers())

    # Several processes.

    @contextmanager
    def child(self, verb: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        address = self.address()
        if address is None:
            pytest.skip("the store is for one process")
        command = [sys.executable, "-m", "bullpen.testing.storage_contract.child", address, verb, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    async def test_acknowledgements_to_a_killed_process_are_true(self, store: Storage) -> None:
        with self.child("work") as process:
            assert process.stdout is not None
            said = [process.stdout.readline().split() for _ in range(120)]
            process.kill()
            said += [line.split() for line in process.stdout if line.endswith("\n")]
        there = {task.id: task for task in await store.list(TaskFilter(), limit=10**5)}
        assert {task for verb, task in said if verb == "added"} <= set(there)
        settled = {task for verb, task in said if verb == "settled"}
        assert settled
        assert {there[task].status for task in settled} == {SUCCESS}

    async def test_processes_never_get_one_task(self, store: Storage) -> None:
        """Both claim at the same moment, again and again."""
        with self.child("race") as one, self.child("race") as other:
            assert [_ask(process) for process in (one, other)] == ["ready"] * 2
            for _ in range(40):
                task, taken = await added(store), ""
                while not taken:
                    for process in (one, other):
                        _tell(process)
                    taken = "".join([_ask(process) for process in (one, other)])
                assert taken == task.id
            answers = [process.communicate(timeout=2 * PATIENCE) for process in (one, other)]
        assert [one.returncode, other.returncode] == [0, 0], answers
        ended = await store.list(TaskFilter(statuses=(SUCCESS,)), limit=100)
        assert [task.attempt for task in ended] == [1] * 40

    async def test_processes_wake_each_other(self, store: Storage) -> None:
        with self.child("serve") as process:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "waits\n"
            task = await added(store)
            await asyncio.wait_for(self.result(store, task.id), PATIENCE)

    async def result(self, store: Storage, task_id: str) -> None:
        while not (await get(store, task_id)).is_final:
            await store.wait_for_result(task_id, 0, FAR)


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _ask(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "it has ended"
    return line.strip()

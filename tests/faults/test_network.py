"""The network is slow or interrupted: workers wait, give up their tasks in time, and continue without help."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bullpen import AsyncWorkerPool, StorageUnavailable, TaskQueue
from bullpen.tasks.model.task import PENDING, SUCCESS
from bullpen.tasks.storage.open import open_storage
from bullpen.telemetry import Kind, TelemetryEvent
from bullpen.testing.storage_contract.base import claim, new_tasks, take_back
from tests.faults.proxy import Proxy
from tests.faults.storm import WITHIN, Storm
from tests.stores import SERVERS

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("address", SERVERS, indirect=True)]


async def test_a_worker_that_is_cut_off_from_the_store_loses_its_tasks_and_nothing_else(
    tmp_path: Path, address: str
) -> None:
    """Other workers run them after the lease expires. The store rejects the late results, and the worker continues."""
    lease = 1.5
    async with Storm(tmp_path, address, lease=lease) as storm, Proxy(address) as proxy:
        parted = storm.start(address=proxy.address, host="one host")
        jobs = [await storm.queue.aenqueue("grind", [2 * lease]) for _ in range(2)]
        for job in jobs:
            assert await storm.held_by(job.id, 1) == parted
        proxy.part()
        storm.note("fault", "storm", "parted")
        other = storm.start(host="another host")
        for job in jobs:
            assert await storm.held_by(job.id, 2) == other
        proxy.join()
        storm.note("fault", "storm", "calm")
        await storm.all_ended()
        tasks = await storm.storage.get([job.id for job in jobs])
        assert [(task.status, task.attempt, task.worker) for task in tasks if task is not None] == [
            (SUCCESS, 2, other)
        ] * 2
        storm.kill(other)
        last = await storm.queue.aenqueue("nap", [0.0])  # the worker has reconnected without help
        await last.aresult(timeout=WITHIN)
        await storm.stop()
        records = await storm.judged()
    lost = {(record.task, record.attempt) for record in records if record.op == "lose" and record.actor == parted}
    assert lost == {(job.id, 1) for job in jobs}


async def test_a_caller_that_times_out_on_a_silent_store_does_not_wait_for_it(address: str) -> None:
    """It waits neither for the answer nor for the server to confirm the cancellation. Later calls succeed."""
    async with Proxy(address) as proxy:
        store = open_storage(proxy.address)
        await store.open()
        proxy.part()
        async with asyncio.timeout(WITHIN / 2):
            for _ in range(2):
                asked: list[Callable[[], Awaitable[object]]] = [
                    lambda: store.add(new_tasks(1)),
                    lambda: store.add(new_tasks(300)),
                    lambda: claim(store),
                    lambda: store.rescue_expired(take_back, limit=1),
                    store.workers,
                ]
                for ask in asked:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await ask()
            proxy.join()
            await store.workers()
            proxy.part()
            await store.close()


async def test_a_store_that_does_not_answer_is_given_up_after_the_timeout_in_its_address(address: str) -> None:
    """By each method, by opening it, and by waiting for a result within the timeout of that wait."""
    patience = "timeout=0.3" if address.startswith("postgresql:") else "socket_timeout=0.3"
    async with Proxy(address) as proxy, TaskQueue(address) as well:
        store = open_storage(f"{proxy.address}&{patience}")
        await store.open()
        queue = TaskQueue(proxy.address)
        parted_job = queue.job((await well.aenqueue("f", elsewhere=True)).id)
        assert await parted_job.astatus() is PENDING
        proxy.part()
        asked: list[Callable[[], Awaitable[object]]] = [
            lambda: store.add(new_tasks(300)),
            lambda: store.add(new_tasks(1, unique_key="k")),
            lambda: claim(store),
            lambda: store.rescue_expired(take_back, limit=1),
            store.counts,
            open_storage(f"{proxy.address}&{patience}").open,
            lambda: parted_job.aresult(timeout=0.3),
        ]
        async with asyncio.timeout(WITHIN / 2):
            for error in await asyncio.gather(*(ask() for ask in asked), return_exceptions=True):
                assert isinstance(error, StorageUnavailable), error
            proxy.join()
            assert await store.counts()
        await queue.aclose()
        await store.close()


async def test_on_a_slow_network_an_idle_worker_stays_idle_and_loses_no_lease(address: str, thorough: bool) -> None:
    """Each direction takes 50 to 100 ms."""
    lease, longest = (4.0, 6.0) if thorough else (15.0, 0.2)
    events: list[TelemetryEvent] = []
    async with Proxy(address) as proxy, TaskQueue(proxy.address) as queue:

        @queue.task(name="nap")
        async def nap(seconds: float) -> float:
            await asyncio.sleep(seconds)
            return seconds

        jobs = await nap.aenqueue_many([(0.2,)] * 7 + [(longest,)])
        proxy.slow_down(0.05, 0.1)
        began = time.monotonic()
        async with AsyncWorkerPool(queue, 4, 0.5, lease=lease, observer=events.append):
            await asyncio.gather(*(job.aresult(timeout=WITHIN) for job in jobs))
            took = time.monotonic() - began
            before, cpu = proxy.passed, time.process_time()
            await asyncio.sleep(1.0)
            assert proxy.passed - before < 60  # idle: one poll every half a second, upkeep every second
            assert time.process_time() - cpu < 0.5
        infos = [await job.ainfo() for job in jobs]
        proxy.slow_down(0.0, 0.0)
    assert [info.attempt for info in infos] == [1] * 8
    assert took < longest + 15.0  # two batches, each a few round trips of 0.15 s
    assert not [event for event in events if event.kind is Kind.TASK_LOST]

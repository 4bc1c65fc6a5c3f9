"""Several worker processes on one file, killed and stopped at random and started again. The history is checked."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bullpen.storage.sqlite.store import SqliteStorage
from bullpen.tasks.task import PENDING, RUNNING
from bullpen.testing import HistoryFile, Record, check, read_history, take_stock
from tests.faults.storm_worker import LEDGER, new_queue

pytestmark = pytest.mark.anyio

LEASE = 2.0
WITHIN = 90.0


class Storm:
    """The workers, and what is done to them. It is not random itself: a seed decides."""

    def __init__(self, folder: Path, seed: int, workers: int, lease: float = LEASE) -> None:
        self._folder = folder
        self._lease = lease
        self._random = random.Random(seed)
        self._count = workers
        self._made = 0
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._write = HistoryFile(folder / "storm.jsonl")
        self.kills = 0

    def __enter__(self) -> Storm:
        while len(self._workers) < self._count:
            self.start()
        return self

    def start(self) -> str:
        """Another worker; its name."""
        self._made += 1
        name = f"w{self._made}"
        history = self._folder / f"{name}.jsonl"
        arguments = [name, str(self._folder / "jobs.db"), str(history), str(self._lease)]
        command = [sys.executable, "-m", "tests.faults.storm_worker", *arguments]
        self._workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE)
        return name

    async def started(self, name: str) -> None:
        """When it has begun to claim."""
        history = self._folder / f"{name}.jsonl"
        async with asyncio.timeout(WITHIN):
            while True:
                if history.exists() and b'"state":"started"' in history.read_bytes():
                    return
                await asyncio.sleep(0.01)

    def kill(self, name: str) -> None:
        self.note("worker", name, "crashed")
        process = self._workers.pop(name)
        process.kill()
        process.communicate()
        self.kills += 1

    def note(self, op: str, actor: str, state: str) -> None:
        self._write(Record(at=time.monotonic(), actor=actor, op=op, state=state))  # type: ignore[arg-type]

    async def strike(self) -> None:
        """Kill a worker, or let it stand still for longer than its leases, and start another."""
        await asyncio.sleep(self._random.uniform(0.1, 1.0))
        name = self._random.choice(sorted(self._workers))
        process = self._workers[name]
        if self._random.random() < 0.25:
            process.send_signal(signal.SIGSTOP)
            self.note("fault", "storm", f"{name} stands still")
            await asyncio.sleep(LEASE * self._random.uniform(0.5, 2.0))
            process.send_signal(signal.SIGCONT)
            self.note("fault", "storm", f"{name} goes on")
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
        self.kill(name)
        self.start()

    async def stop(self) -> None:
        """In order: each lets go of what it holds, and says so by its exit code."""
        for name, process in self._workers.items():
            await self.started(name)
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WITHIN):
            for name, process in self._workers.items():
                assert await asyncio.to_thread(process.wait) == 0, name

    def __exit__(self, *_: object) -> None:
        for process in self._workers.values():
            process.kill()
            process.communicate()
        self._write.close()


async def all_ended(storage: SqliteStorage, within: float) -> None:
    async with asyncio.timeout(within):
        while True:
            statuses = {
                status for counts in (await storage.counts()).values() for status, count in counts.items() if count
            }
            if statuses.isdisjoint((PENDING, RUNNING)):
                return
            await asyncio.sleep(0.1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
async def test_nothing_is_lost_in_a_storm(tmp_path: Path, seed: int, thorough: bool) -> None:
    tasks, kills = (3_000, 100) if thorough else (240, 5)
    path = tmp_path / "jobs.db"
    producer = HistoryFile(tmp_path / "producer.jsonl")
    queue = new_queue(path, producer, "producer")
    luck = random.Random(seed)
    storage = SqliteStorage(path)
    await storage.open()
    with sqlite3.connect(path) as connection:
        connection.execute(LEDGER)
    connection.close()
    await queue.aset_limit(max_running=7, in_order=True)  # of 12 permits; the checker sees whether it holds
    with Storm(tmp_path, seed, workers=3) as storm:
        while storm.kills < kills:
            for _ in range(tasks // kills):
                name = luck.choice(["nap", "nap", "grind", "stumble", "transfer"])
                argument = luck.randrange(3) if name == "stumble" else luck.choice([0.0, 0.02, 0.3])
                key = luck.choice([None, None, "a", "b", "c"])
                await queue.aenqueue(name, [argument], concurrency_key=key)
            await storm.strike()
        storm.note("fault", "storm", "calm")
        await all_ended(storage, WITHIN * (5 if thorough else 1))
        await storm.stop()
    await take_stock(storage, producer)
    with sqlite3.connect(path) as connection:
        for task, attempt in connection.execute("SELECT task, attempt FROM effect"):
            producer(Record(at=time.monotonic(), actor="effects", op="row", task=task, attempt=attempt))
    connection.close()
    await storage.close()
    await queue.storage.close()
    producer.close()
    records = read_history(*tmp_path.glob("*.jsonl"))
    verdict = check(records)
    verdict.raise_for_violations()
    assert verdict.tasks >= tasks - kills
    assert sum(record.state == "crashed" for record in records) == kills
    ended = [record for record in records if record.op == "kept"]
    assert sum(record.status == "success" for record in ended) >= len(ended) * 0.98  # few can die with three workers
    assert any(record.op == "row" for record in records)
    assert any(record.op == "rescue" and record.task for record in records)


async def test_the_history_of_a_storm_would_show_a_lost_task(tmp_path: Path) -> None:
    """The same way, without any worker: what was enqueued has not ended, and the checker says so."""
    producer = HistoryFile(tmp_path / "producer.jsonl")
    queue = new_queue(tmp_path / "jobs.db", producer, "producer")
    await queue.aenqueue("nap", [0.0])
    storage = SqliteStorage(tmp_path / "jobs.db")
    await take_stock(storage, producer)
    await storage.close()
    await queue.storage.close()
    producer.close()
    assert check(read_history(tmp_path / "producer.jsonl")).broken == {"I1"}


# How soon.


async def held_by(storage: SqliteStorage, task_id: str, attempt: int) -> str:
    """Who runs it, once it is in that attempt."""
    async with asyncio.timeout(WITHIN):
        while True:
            (task,) = await storage.get([task_id])
            if task is not None and task.status is RUNNING and task.attempt >= attempt:
                return task.worker or ""
            await asyncio.sleep(0.005)


async def test_another_worker_takes_over_within_two_seconds(tmp_path: Path) -> None:
    """With the default lease, which would last much longer. The median of three: the machine may be busy otherwise."""
    path, write = tmp_path / "jobs.db", HistoryFile(tmp_path / "producer.jsonl")
    queue, storage = new_queue(path, write, "producer"), SqliteStorage(path)
    waits = []
    with Storm(tmp_path, 0, workers=1, lease=15.0) as storm:
        for _ in range(3):
            job = await queue.aenqueue("nap", [3600.0])
            holder = await held_by(storage, job.id, 1)
            await storm.started(storm.start())
            killed = time.monotonic()
            storm.kill(holder)
            await held_by(storage, job.id, 2)
            waits.append(time.monotonic() - killed)
            await queue.acancel(job.id)
        await storm.stop()
    await storage.close()
    await queue.storage.close()
    write.close()
    assert sorted(waits)[1] <= 2.0, waits


async def test_after_the_death_of_all_workers_new_ones_go_on_within_the_lease_and_five_seconds(tmp_path: Path) -> None:
    path, write = tmp_path / "jobs.db", HistoryFile(tmp_path / "producer.jsonl")
    queue, storage = new_queue(path, write, "producer"), SqliteStorage(path)
    jobs = [await queue.aenqueue("nap", [3600.0]) for _ in range(6)]
    with Storm(tmp_path, 0, workers=2, lease=15.0) as storm:
        holders = {await held_by(storage, job.id, 1) for job in jobs}
        assert len(holders) == 2
        for holder in sorted(holders):
            storm.kill(holder)
        killed = time.monotonic()
        for _ in holders:
            storm.start()
        for job in jobs:
            await held_by(storage, job.id, 2)
        assert time.monotonic() - killed <= 15.0 + 5.0
        await queue.acancel(*(job.id for job in jobs))
        await storm.stop()
    tasks = [task for task in await storage.get([job.id for job in jobs]) if task is not None]
    assert [str(task.status) for task in tasks] == ["cancelled"] * 6
    assert all(task.attempt == task.crashes + 1 for task in tasks)
    assert {task.attempt for task in tasks} <= {2, 3}  # the second to die may have taken over from the first
    await storage.close()
    await queue.storage.close()
    write.close()

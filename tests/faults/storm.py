"""Worker processes that share a store, the faults that hit them, and the history of all operations."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bullpen import TaskQueue
from bullpen.errors import StorageUnavailable
from bullpen.tasks.model.task import PENDING, RUNNING
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Storage
from bullpen.testing import HistoryFile, Record, check, read_history, take_stock
from tests.faults.storm_worker import EffectTable, new_queue

LEASE = 2.0
WITHIN = 90.0
_BEGIN, _END = b'"op":"begin"', b'"op":"end"'


class Storm:
    """A producer, an observer of the store, and workers. A seed determines the faults."""

    def __init__(self, folder: Path, address: str, *, seed: int = 0, workers: int = 0, lease: float = LEASE) -> None:
        self._folder = folder
        self._address = address
        self._lease = lease
        self._count = workers
        self._made = 0
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._write = HistoryFile(folder / "storm.jsonl")
        self.luck = random.Random(seed)
        self.queue: TaskQueue = new_queue(address, self._write, "producer")
        self.storage: Storage = open_storage(address)
        self.effects = EffectTable(address)
        self.kills = 0

    async def __aenter__(self) -> Storm:
        await self.storage.open()
        if self.effects.exists:
            await asyncio.to_thread(self.effects.create)
        while len(self._workers) < self._count:
            self.start()
        return self

    # Workers.

    def start(self, *, address: str | None = None, host: str = "", within: Sequence[str] = ()) -> str:
        """Start another worker and return its name. It may use another address, and a command around it."""
        self._made += 1
        name = f"w{self._made}"
        arguments = [name, address or self._address, str(self._history(name)), str(self._lease), host]
        command = [*within, sys.executable, "-m", "tests.faults.storm_worker", *arguments]
        self._workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE)
        return name

    async def started(self, name: str) -> None:
        """Wait until the worker has begun to claim."""
        async with asyncio.timeout(WITHIN):
            while b'"state":"started"' not in self._written_by(name):
                assert self._workers[name].poll() is None, f"{name} has ended"
                await asyncio.sleep(0.01)

    async def at_work(self) -> list[str]:
        """The names of the workers that run a task. Waits until there is one."""
        async with asyncio.timeout(WITHIN):
            while True:
                written = {name: self._written_by(name) for name in sorted(self._workers)}
                busy = [name for name, said in written.items() if said.count(_BEGIN) > said.count(_END)]
                if busy:
                    return busy
                await asyncio.sleep(0.01)

    def _history(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    def _written_by(self, name: str) -> bytes:
        history = self._history(name)
        return history.read_bytes() if history.exists() else b""

    def note(self, op: str, actor: str, state: str) -> None:
        self._write(Record(at=time.monotonic(), actor=actor, op=op, state=state))  # type: ignore[arg-type]

    def kill(self, name: str) -> None:
        self.note("worker", name, "crashed")
        process = self._workers.pop(name)
        process.kill()
        process.communicate()
        self.kills += 1

    async def strike(self) -> None:
        """Kill a worker, or first stop it (SIGSTOP) for up to two leases. Then start another one."""
        name = self.luck.choice(await self.at_work())
        process = self._workers[name]
        await asyncio.sleep(self.luck.choice([0.0, self.luck.uniform(0.0, 1.0)]))
        if self.luck.random() < 0.25:
            process.send_signal(signal.SIGSTOP)
            self.note("fault", "storm", f"{name} stands still")
            await asyncio.sleep(LEASE * self.luck.uniform(0.5, 2.0))
            process.send_signal(signal.SIGCONT)
            self.note("fault", "storm", f"{name} goes on")
            await asyncio.sleep(self.luck.uniform(0.0, 0.3))
        self.kill(name)
        self.start()

    async def stop(self) -> None:
        """Stop all workers with SIGTERM. Each releases its tasks, and its exit code is 0."""
        for name, process in self._workers.items():
            await self.started(name)
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WITHIN):
            for name, process in self._workers.items():
                assert await asyncio.to_thread(process.wait) == 0, name

    # Tasks.

    async def enqueue(self, count: int) -> None:
        """Enqueue tasks of each kind, and some chains."""
        names = ["nap", "nap", "grind", "stumble", "transfer"][: None if self.effects.exists else -1]
        for _ in range(count):
            name = self.luck.choice(names)
            argument = self.luck.randrange(3) if name == "stumble" else self.luck.choice([0.0, 0.02, 0.3])
            await self.queue.aenqueue(name, [argument], concurrency_key=self.luck.choice([None, None, "a", "b", "c"]))

    async def held_by(self, task_id: str, attempt: int) -> str:
        """The worker that runs this attempt of the task. Waits until there is one."""
        async with asyncio.timeout(WITHIN):
            while True:
                (task,) = await self.storage.get([task_id])
                if task is not None and task.status is RUNNING and task.attempt >= attempt:
                    return task.worker or ""
                await asyncio.sleep(0.005)

    async def all_ended(self, within: float = WITHIN) -> None:
        async with asyncio.timeout(within):
            while True:
                with contextlib.suppress(
                    StorageUnavailable
                ):  # this client, too, loses its connection when the server is killed
                    found = await self.storage.counts()
                    if not any(counts.get(status) for counts in found.values() for status in (PENDING, RUNNING)):
                        return
                await asyncio.sleep(0.05)

    # The history.

    async def judged(self) -> list[Record]:
        """The whole history. The checker has found no violation in it."""
        await take_stock(self.storage, self._write)
        if self.effects.exists:
            for task, attempt in await asyncio.to_thread(self.effects.rows):
                self._write(Record(at=time.monotonic(), actor="effects", op="row", task=task, attempt=attempt))
        records = read_history(*self._folder.glob("*.jsonl"))
        check(records).raise_for_violations()
        return records

    async def __aexit__(self, *_: object) -> None:
        for process in self._workers.values():
            process.kill()
            process.communicate()
        await self.storage.close()
        await self.queue.storage.close()
        self._write.close()

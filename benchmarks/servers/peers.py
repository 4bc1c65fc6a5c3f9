"""Each library in its own idiom: how tasks get in, and how one process works them off.

A peer is opened at a place of its own, with what is called for every task that runs. All of them run their workers in
the measuring process. Where results are an extra, they are left out, which only makes a peer faster; ours are kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from benchmarks.model import Peer

from .settings import BATCH, CONCURRENCY, REDIS

BULLPEN = Peer("bullpen", "bullpen:TaskQueue", "bullpen", "pip install -e .", "TaskQueue")
HUEY = Peer("huey", "huey:RedisHuey", "huey", "pip install huey redis", "RedisHuey(url)")
TASKIQ = Peer("taskiq", "taskiq_redis:ListQueueBroker", "taskiq-redis", "pip install taskiq-redis", "ListQueueBroker")
DRAMATIQ = Peer("dramatiq", "dramatiq.brokers.redis:RedisBroker", "dramatiq", "pip install dramatiq[redis]", "Broker")
SAQ = Peer("saq", "saq:Queue", "saq", "pip install saq[redis]", "Queue.from_url")
PGQUEUER = Peer("pgqueuer", "pgqueuer:PgQueuer", "pgqueuer", "pip install pgqueuer[asyncpg]", "PgQueuer")
PROCRASTINATE = Peer("procrastinate", "procrastinate:App", "procrastinate", "pip install procrastinate", "App")

Seen = Callable[[int], object]


class Opened:
    """A library that is ready. `put` enqueues one task, `put_many` many; `working` works them off."""

    async def put(self, number: int) -> object:
        raise NotImplementedError

    async def put_many(self, count: int) -> object:
        """As its idiom has it; here: one after the other, sixteen at a time."""
        for first in range(0, count, 16):
            await asyncio.gather(*[self.put(number) for number in range(first, min(first + 16, count))])
        return None

    def working(self) -> Any:
        raise NotImplementedError


def _quiet() -> None:
    logging.disable(logging.WARNING)


class Huey(Opened):
    def __init__(self, place: str, seen: Seen) -> None:
        _quiet()
        self._huey = import_module("huey").RedisHuey(place, url=REDIS, results=False)

        def noop(x: int) -> None:
            seen(x)

        self._noop = self._huey.task()(noop)

    async def put(self, number: int) -> object:
        return self._noop(number)

    async def put_many(self, count: int) -> object:
        for number in range(count):
            self._noop(number)
        return None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        consumer = self._huey.create_consumer(workers=4, periodic=False)
        consumer._set_signal_handlers = lambda: None  # they belong to the main program
        consumer.start()
        try:
            yield
        finally:
            await asyncio.to_thread(consumer.stop, graceful=True)


class Taskiq(Opened):
    def __init__(self, place: str, seen: Seen) -> None:
        _quiet()
        self._broker = import_module("taskiq_redis").ListQueueBroker(REDIS, queue_name=place)

        async def noop(x: int) -> None:
            seen(x)

        self._noop = self._broker.task(task_name="noop")(noop)

    async def put(self, number: int) -> object:
        return await self._noop.kiq(number)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        run = import_module("taskiq.api").run_receiver_task
        worker = asyncio.ensure_future(run(self._broker, max_async_tasks=CONCURRENCY, max_prefetch=CONCURRENCY))
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.wait([worker])


class Dramatiq(Opened):
    def __init__(self, place: str, seen: Seen) -> None:
        _quiet()
        dramatiq = import_module("dramatiq")
        broker = import_module("dramatiq.brokers.redis").RedisBroker(url=REDIS, namespace=place)
        dramatiq.set_broker(broker)

        def noop(x: int) -> None:
            seen(x)

        self._noop = dramatiq.actor(actor_name="noop")(noop)
        self._worker = dramatiq.Worker(broker, worker_threads=8, worker_timeout=100)

    async def put(self, number: int) -> object:
        return self._noop.send(number)

    async def put_many(self, count: int) -> object:
        for number in range(count):
            self._noop.send(number)
        return None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        self._worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self._worker.stop)


class PgQueuer(Opened):
    """With asyncpg and a batch of 100, the fastest of 10, 50, 100 and 200 here."""

    def __init__(self, connection: Any, seen: Seen) -> None:
        _quiet()
        pgqueuer = import_module("pgqueuer")
        driver = pgqueuer.AsyncpgDriver(connection)
        self._queries = pgqueuer.Queries(driver)
        self._queuer = pgqueuer.PgQueuer(driver)

        @self._queuer.entrypoint("noop")  # type: ignore[untyped-decorator]
        async def noop(job: Any) -> None:
            seen(int(job.payload))

    async def install(self) -> None:
        await self._queries.install()

    async def put(self, number: int) -> object:
        return await self._queries.enqueue("noop", str(number).encode())

    async def put_many(self, count: int) -> object:
        payloads = [str(number).encode() for number in range(count)]
        return await self._queries.enqueue(["noop"] * count, payloads, [0] * count)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        worker = asyncio.ensure_future(self._queuer.run(batch_size=BATCH))
        try:
            yield
        finally:
            self._queuer.shutdown.set()
            await asyncio.wait([worker], timeout=30)


class Procrastinate(Opened):
    def __init__(self, address: str, seen: Seen) -> None:
        _quiet()
        procrastinate = import_module("procrastinate")
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=address))

        async def noop(x: int) -> None:
            seen(x)

        self._noop = self._app.task(name="noop")(noop)

    async def install(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def put(self, number: int) -> object:
        return await self._noop.defer_async(x=number)

    async def put_many(self, count: int) -> object:
        return await self._noop.batch_defer_async(*[{"x": number} for number in range(count)])

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        run = self._app.run_worker_async(concurrency=20, delete_jobs="always", install_signal_handlers=False)
        worker = asyncio.ensure_future(run)
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.wait([worker])


class Tally:
    """Counts calls on any thread, and sets an event on the loop when it is enough."""

    def __init__(self, expected: int) -> None:
        self.calls = 0
        self.enough = asyncio.Event()
        self._expected = expected
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    def __call__(self, _: int) -> None:
        with self._lock:
            self.calls += 1
            if self.calls == self._expected:
                self._loop.call_soon_threadsafe(self.enough.set)

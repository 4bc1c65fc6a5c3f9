"""The libraries on Redis, each in its own idiom and at the settings that made it fastest, with results kept.

They are imported when they are opened, so that a missing one is a message and not a crash.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from benchmarks.model import Peer

from .library import TIMEOUT, Blocking, Library, returning, returning_async
from .settings import CONCURRENCY
from .trace import Trace

CELERY = Peer("celery", "celery:Celery", "celery", "pip install celery[redis]", "Celery(broker, backend)")
RQ = Peer("rq", "rq:Queue", "rq", "pip install rq", "Queue(connection)")
DRAMATIQ = Peer("dramatiq", "dramatiq.brokers.redis:RedisBroker", "dramatiq", "pip install dramatiq[redis]", "Broker")
HUEY = Peer("huey", "huey:RedisHuey", "huey", "pip install huey redis", "RedisHuey(url)")
ARQ = Peer("arq", "arq:Worker", "arq", "pip install arq", "create_pool")
SAQ = Peer("saq", "saq:Queue", "saq", "pip install saq[redis,hiredis,postgres] psycopg[binary]", "Queue.from_url")
TASKIQ = Peer("taskiq", "taskiq_redis:ListQueueBroker", "taskiq-redis", "pip install taskiq-redis", "ListQueueBroker")
STREAQ = Peer("streaq", "streaq:Worker", "streaq", "pip install streaq", "Worker(redis_url)")

THREADS = 8


def _place(address: str) -> tuple[str, str]:
    """The address of the server, and the word that all keys have in them."""
    server, _, query = address.partition("?prefix=")
    return server, query


def _ids(place: str) -> Iterator[str]:
    """With that word in them, where keys are made of ids, so that all can be deleted."""
    return (f"{place}-{number}" for number in itertools.count())


class Celery(Blocking):
    """Threads: of its pools the fastest here."""

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        server, place = _place(address)
        self._app = import_module("celery").Celery(place, broker=server, backend=server)
        self._app.conf.update(
            task_default_queue=place,
            result_backend_transport_options={"global_keyprefix": place},
            broker_transport_options={"global_keyprefix": place},
            worker_prefetch_multiplier=64,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )
        self._noop = self._app.task(name="noop")(returning(trace))

    def put_now(self, number: int) -> object:
        return self._noop.delay(number)

    def ask_now(self, number: int) -> object:
        return self._noop.delay(number).get(timeout=TIMEOUT)

    def run(self) -> None:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=CRITICAL"]
        self._app.worker_main(["worker", "--pool=threads", "-c", "4", *quiet])


_traces: list[Trace] = []


def noop(x: int) -> int:
    """rq finds a function by its name in a module."""
    _traces[-1](x)
    return x


class Rq(Blocking):
    """A SimpleWorker: its default forks for every job."""

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        server, place = _place(address)
        _traces.append(trace)
        self._rq = import_module("rq")
        self._queue = self._rq.Queue(place, connection=import_module("redis").Redis.from_url(server))
        self._ids = _ids(place)

    def put_now(self, number: int) -> Any:
        return self._queue.enqueue(noop, number, job_id=next(self._ids))

    async def put_many(self, count: int) -> None:
        prepare = self._rq.Queue.prepare_data
        self._queue.enqueue_many([prepare(noop, (number,), job_id=next(self._ids)) for number in range(count)])

    def ask_now(self, number: int) -> object:
        return self.put_now(number).latest_result(timeout=int(TIMEOUT)).return_value

    def run(self) -> None:
        self._rq.SimpleWorker([self._queue], connection=self._queue.connection).work(logging_level="CRITICAL")


class Dramatiq(Blocking):
    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        server, place = _place(address)
        dramatiq, results = import_module("dramatiq"), import_module("dramatiq.results")
        self._broker = import_module("dramatiq.brokers.redis").RedisBroker(url=server, namespace=place)
        backend = import_module("dramatiq.results.backends").RedisBackend(url=server, namespace=f"{place}-results")
        self._broker.add_middleware(results.Results(backend=backend))
        dramatiq.set_broker(self._broker)
        self._noop = dramatiq.actor(actor_name="noop", store_results=True)(returning(trace))
        self._worker_class = dramatiq.Worker

    def put_now(self, number: int) -> object:
        return self._noop.send(number)

    def ask_now(self, number: int) -> object:
        return self._noop.send(number).get_result(block=True, timeout=int(TIMEOUT * 1000))

    def run(self) -> None:
        worker = self._worker_class(self._broker, worker_threads=THREADS, worker_timeout=100)
        worker.start()
        signal.pause()


class Huey(Blocking):
    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        server, place = _place(address)
        self._huey = import_module("huey").RedisHuey(place, url=server)
        self._noop = self._huey.task(name="noop")(returning(trace))

    def put_now(self, number: int) -> object:
        return self._noop(number)

    def ask_now(self, number: int) -> object:
        return self._noop(number).get(blocking=True, timeout=TIMEOUT, backoff=1.0, max_delay=0.001)

    def run(self) -> None:
        self._huey.create_consumer(workers=4, periodic=False).run()


class Arq(Library):
    """It polls: every ten milliseconds here, not every half a second."""

    async def open(self) -> None:
        self._ids = _ids(_place(self.address)[1])
        self._pool = await self._connect()

    async def _connect(self) -> Any:
        server, place = _place(self.address)
        settings = import_module("arq.connections").RedisSettings.from_dsn(server)
        return await import_module("arq").create_pool(settings, default_queue_name=place)

    async def close(self) -> None:
        await self._pool.aclose()

    async def put(self, number: int) -> object:
        return await self._pool.enqueue_job("noop", number, _job_id=next(self._ids))

    async def ask(self, number: int) -> object:
        job: Any = await self.put(number)
        return await job.result(timeout=TIMEOUT, poll_delay=0.001)

    async def work(self) -> None:
        trace = self.trace

        async def noop(_: object, x: int) -> int:
            trace(x)
            return x

        worker = import_module("arq").Worker(
            functions=[import_module("arq").func(noop, name="noop")],
            redis_pool=await self._connect(),
            queue_name=_place(self.address)[1],
            max_jobs=200,
            poll_delay=0.01,
            handle_signals=False,
        )
        await worker.async_run()


class Saq(Library):
    """On both servers."""

    concurrency = CONCURRENCY

    async def open(self) -> None:
        self._queue = await self._connect()

    async def _connect(self) -> Any:
        server, place = _place(self.address)
        queue = import_module("saq").Queue.from_url(server, name=place or "default")
        await queue.connect()
        return queue

    async def close(self) -> None:
        await self._queue.disconnect()

    async def put(self, number: int) -> object:
        return await self._queue.enqueue("noop", x=number)

    async def ask(self, number: int) -> object:
        return await self._queue.apply("noop", timeout=TIMEOUT, poll_interval=0.001, x=number)

    async def work(self) -> None:
        trace = self.trace

        async def noop(_: object, *, x: int) -> int:
            trace(x)
            return x

        worker = import_module("saq").Worker(
            await self._connect(), functions=[("noop", noop)], concurrency=self.concurrency
        )
        await worker.start()


class Taskiq(Library):
    on_uvloop = True

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        server, place = _place(address)
        redis = import_module("taskiq_redis")
        backend = redis.RedisAsyncResultBackend(server, prefix_str=place)
        self._broker = redis.ListQueueBroker(server, queue_name=place).with_result_backend(backend)
        self._noop = self._broker.task(task_name="noop")(returning_async(trace))

    async def open(self) -> None:
        await self._broker.startup()

    async def close(self) -> None:
        await self._broker.shutdown()

    async def put(self, number: int) -> object:
        return await self._noop.kiq(number)

    async def ask(self, number: int) -> object:
        task = await self._noop.kiq(number)
        return (await task.wait_result(check_interval=0.001, timeout=TIMEOUT)).return_value

    async def work(self) -> None:
        run = import_module("taskiq.api").run_receiver_task
        await run(self._broker, max_async_tasks=CONCURRENCY, max_prefetch=CONCURRENCY, run_startup=True)


class Streaq(Library):
    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        server, place = _place(address)
        self._worker = import_module("streaq").Worker(redis_url=server, queue_name=place, concurrency=CONCURRENCY)
        self._noop = self._worker.task(name="noop")(returning_async(trace))

    async def open(self) -> None:
        await self._worker.__aenter__()

    async def close(self) -> None:
        await self._worker.__aexit__(None, None, None)

    async def put(self, number: int) -> object:
        return await self._noop.enqueue(number)

    async def put_many(self, count: int) -> None:
        await self._worker.enqueue_many([self._noop.enqueue(number) for number in range(count)])

    async def ask(self, number: int) -> object:
        task = await self._noop.enqueue(number)
        return (await task.result(int(TIMEOUT))).result

    async def work(self) -> None:
        await self._worker.run_async()

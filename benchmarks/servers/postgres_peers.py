"""The libraries on PostgreSQL, each in its own idiom and at the settings that made it fastest.

They are imported when they are opened, so that a missing one is a message and not a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from benchmarks.model import Peer

from .library import TIMEOUT, Blocking, Library, forever, pages, returning
from .redis_peers import THREADS, Saq
from .settings import BATCH, CALLERS, CONCURRENCY
from .trace import Trace

PROCRASTINATE = Peer(
    "procrastinate", "procrastinate:App", "procrastinate", "pip install procrastinate psycopg[binary]", "App(connector)"
)
PGQUEUER = Peer("pgqueuer", "pgqueuer:PgQueuer", "pgqueuer", "pip install pgqueuer[asyncpg]", "PgQueuer(driver)")
DRAMATIQ_PG = Peer(
    "dramatiq-pg", "dramatiq_pg:PostgresBroker", "dramatiq-pg", "pip install dramatiq-pg psycopg2-binary", "Broker(url)"
)
CHANCY = Peer("chancy", "chancy:Chancy", "chancy", "pip install chancy psycopg[binary]", "Chancy(dsn)")
AWA = Peer("awa", "awa:AsyncClient", "awa-pg", "pip install awa-pg", "AsyncClient(url)")
DISPATCHERD = Peer(
    "dispatcherd",
    "dispatcherd.config:setup",
    "dispatcherd",
    "pip install dispatcherd[pg_notify] psycopg[binary]",
    "setup(config)",
)


class Procrastinate(Library):
    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        procrastinate = import_module("procrastinate")
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=address))

        async def noop(x: int) -> None:
            trace(x)

        self._noop = self._app.task(name="noop")(noop)

    async def install(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self) -> None:
        await self._app.open_async()

    async def close(self) -> None:
        await self._app.close_async()

    async def put(self, number: int) -> object:
        return await self._noop.defer_async(x=number)

    async def put_many(self, count: int) -> None:
        for page in pages(count, 1000):
            await self._noop.batch_defer_async(*[{"x": number} for number in page])

    async def work(self) -> None:
        async with self._app.open_async():
            await self._app.run_worker_async(concurrency=20, delete_jobs="always", install_signal_handlers=False)


class PgQueuer(Library):
    """With a batch of 100, the fastest of 10, 50, 100 and 200 here."""

    on_uvloop = True

    async def _connect(self) -> Any:
        return import_module("pgqueuer").AsyncpgDriver(await import_module("asyncpg").connect(self.address))

    async def install(self) -> None:
        await import_module("pgqueuer").Queries(await self._connect()).install()

    async def open(self) -> None:
        pgqueuer, listening = import_module("pgqueuer"), await self._connect()
        self._pool = await import_module("asyncpg").create_pool(self.address, min_size=1, max_size=CALLERS)
        self._queries = pgqueuer.Queries(pgqueuer.AsyncpgPoolDriver(self._pool))
        watcher = import_module("pgqueuer.core.completion").CompletionWatcher
        self._watcher = watcher(listening, queries=pgqueuer.Queries(listening), debounce=timedelta(milliseconds=1))
        await self._watcher.__aenter__()

    async def close(self) -> None:
        await self._watcher.__aexit__(None, None, None)
        await self._pool.close()

    async def put(self, number: int) -> object:
        return await self._queries.enqueue("noop", str(number).encode())

    async def put_many(self, count: int) -> None:
        for page in pages(count, 20_000):
            payloads: list[bytes | None] = [str(number).encode() for number in page]
            await self._queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    async def ask(self, number: int) -> object:
        """It keeps no results: waits until the job has succeeded."""
        (job_id,) = await self._queries.enqueue("noop", str(number).encode())
        status = await asyncio.wait_for(self._watcher.wait_for(job_id), TIMEOUT)
        return number if status == "successful" else status

    async def work(self) -> None:
        trace = self.trace
        queuer = import_module("pgqueuer").PgQueuer(await self._connect())

        @queuer.entrypoint("noop")  # type: ignore[untyped-decorator]
        async def noop(job: Any) -> None:
            trace(int(job.payload))

        await queuer.run(batch_size=BATCH)


class SaqOnPostgres(Saq):
    concurrency = 50


class DramatiqPg(Blocking):
    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        self._dramatiq = import_module("dramatiq")
        pool = import_module("psycopg2.pool").ThreadedConnectionPool(0, 32, address)
        self._broker = import_module("dramatiq_pg").PostgresBroker(pool=pool)
        self._dramatiq.set_broker(self._broker)
        self._noop = self._dramatiq.actor(actor_name="noop", store_results=True)(returning(trace))

    async def install(self) -> None:
        connection = await import_module("asyncpg").connect(self.address)
        await connection.execute(import_module("dramatiq_pg").generate_init_sql())
        await connection.close()

    def put_now(self, number: int) -> Any:
        return self._noop.send(number)

    def ask_now(self, number: int) -> object:
        return self.put_now(number).get_result(block=True, timeout=int(TIMEOUT * 1000))

    def run(self) -> None:
        self._dramatiq.Worker(self._broker, worker_threads=THREADS, worker_timeout=100).start()
        asyncio.run(asyncio.sleep(3600))


_traces: list[Trace] = []


async def noop(x: int) -> None:
    """chancy and dispatcherd find a function by its name in a module."""
    _traces[-1](x)


def noop_in_a_process(x: int, trace: str) -> None:
    """The processes of dispatcherd are told where the trace is."""
    if not _traces:
        _traces.append(Trace(trace))
    _traces[-1](x)


class Chancy(Library):
    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        _traces.append(trace)
        self._chancy = import_module("chancy")
        self._app = self._chancy.Chancy(address)
        self._job = self._chancy.job(queue="bench")(noop).job

    async def install(self) -> None:
        async with self._chancy.Chancy(self.address) as app:
            await app.migrate()
            executor = self._chancy.Chancy.Executor.Async
            queue = self._chancy.Queue(
                "bench", concurrency=CONCURRENCY, executor=executor, polling_interval=1, eager_polling=True
            )
            await app.declare(queue)

    async def open(self) -> None:
        await self._app.__aenter__()

    async def close(self) -> None:
        await self._app.__aexit__(None, None, None)

    async def put(self, number: int) -> object:
        return await self._app.push(self._job.with_kwargs(x=number))

    async def put_many(self, count: int) -> None:
        async for _ in self._app.push_many([self._job.with_kwargs(x=number) for number in range(count)]):
            pass

    async def work(self) -> None:
        async with self._app, self._chancy.Worker(self._app) as worker:
            await worker.wait_for_shutdown()


@dataclass
class Noop:
    """The arguments of a task, as awa has them."""

    x: int


class Awa(Library):
    """Its engine is written in Rust."""

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        self._client = import_module("awa").AsyncClient(address)

    async def install(self) -> None:
        await self._client.migrate()
        await self._client.install_queue_storage()

    async def put(self, number: int) -> object:
        return await self._client.insert(Noop(number), queue="bench")

    async def put_many(self, count: int) -> None:
        for page in pages(count, 20_000):
            await self._client.enqueue_many_copy([Noop(number) for number in page], queue="bench")

    async def work(self) -> None:
        trace = self.trace

        async def noop(job: Any) -> None:
            trace(job.args.x)

        self._client.task(Noop, queue="bench")(noop)
        await self._client.start([("bench", CONCURRENCY)])
        await forever()


class Dispatcherd(Blocking):
    """Its messages are notifications: a worker that does not listen misses them."""

    is_one_service = True
    keeps_tasks = False

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        broker = {"config": {"conninfo": address}, "channels": ["bench"], "default_publish_channel": "bench"}
        workers = {"max_workers": processes, "min_workers": processes}
        config = {
            "version": 2,
            "service": {"pool_kwargs": workers},
            "brokers": {"pg_notify": broker},
            "publish": {"default_broker": "pg_notify"},
        }
        import_module("dispatcherd.config").setup(config)
        publish = import_module("dispatcherd.publish")
        publish.task(queue="bench", decorate=False)(noop_in_a_process)
        self._submit: Callable[..., object] = publish.submit_task

    def put_now(self, number: int) -> object:
        return self._submit(noop_in_a_process, args=(number, self.trace.path))

    def run(self) -> None:
        import_module("dispatcherd").run_service()

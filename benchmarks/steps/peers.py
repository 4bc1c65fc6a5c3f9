"""DBOS and Absurd, each in its own idiom and at the settings that made it fastest here.

They are imported when they are opened, so that a missing one is a message and not a crash.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from importlib import import_module
from typing import Any, ClassVar

from benchmarks.model import Peer
from benchmarks.servers.library import Library, forever
from benchmarks.servers.trace import Trace

from .settings import CONCURRENCY, STEPS

DBOS = Peer("dbos", "dbos:DBOS", "dbos", "pip install dbos", "DBOS(config={…})")
ABSURD = Peer("absurd", "absurd_sdk:AsyncAbsurd", "absurd-sdk", "pip install absurd-sdk absurdctl", "AsyncAbsurd(url)")


class Dbos(Library):
    """A queue of workflows. Functions that block are faster than async ones here: DBOS calls its store from threads."""

    on_wal: ClassVar[bool] = False
    concurrency: ClassVar[int] = 10
    pool: ClassVar[int] = 20

    def __init__(self, address: str, trace: Trace, processes: int = 1) -> None:
        super().__init__(address, trace, processes)
        dbos = import_module("dbos").DBOS
        self._dbos = dbos
        config = {
            "name": "bench",
            "system_database_url": address,
            "application_version": "1",
            "sys_db_pool_size": self.pool,
            "log_level": "ERROR",
        }
        dbos(config=config)

        @dbos.step()  # type: ignore[untyped-decorator]
        def noop(x: int) -> int:
            return x

        @dbos.workflow(name="ten_steps")  # type: ignore[untyped-decorator]
        def ten_steps(x: int) -> int:
            trace(x)
            for number in range(STEPS):
                noop(number)
            trace(x)
            return x

    async def install(self) -> None:
        """Its first launch creates the tables."""
        if self.on_wal:
            with sqlite3.connect(self.address.removeprefix("sqlite:///")) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
        await asyncio.to_thread(self._dbos.launch)
        await asyncio.to_thread(self._dbos.destroy)

    async def put_many(self, count: int) -> None:
        def put() -> None:
            client = import_module("dbos").DBOSClient(system_database_url=self.address)
            for number in range(count):
                client.enqueue({"queue_name": "bench", "workflow_name": "ten_steps", "app_version": "1"}, number)
            client.destroy()

        await asyncio.to_thread(put)

    def run(self) -> None:
        self._dbos.launch()
        self._dbos.register_queue("bench", worker_concurrency=self.concurrency, polling_interval_sec=0.01)
        threading.Event().wait()


class DbosOnWal(Dbos):
    """With a file that was set to WAL by hand before; DBOS leaves it so."""

    on_wal = True


class Absurd(Library):
    on_uvloop = True
    concurrency: ClassVar[int] = CONCURRENCY

    async def install(self) -> None:
        """The schema comes with its command, absurdctl."""
        connection = await import_module("asyncpg").connect(self.address)
        await connection.execute(import_module("absurdctl").BUNDLED_SCHEMA_SQL)
        await connection.execute("SELECT absurd.create_queue('default')")
        await connection.close()

    async def put_many(self, count: int) -> None:
        app = self._app()
        for number in range(count):
            await app.spawn("ten_steps", number, queue="default")
        await app.close()

    def _app(self) -> Any:
        return import_module("absurd_sdk").AsyncAbsurd(self.address)

    async def work(self) -> None:
        app, trace = self._app(), self.trace

        async def noop() -> int:
            return 1

        @app.register_task("ten_steps")  # type: ignore[untyped-decorator]
        async def ten_steps(x: int, context: Any) -> int:
            trace(x)
            for _ in range(STEPS):
                await context.step("noop", noop)
            trace(x)
            return x

        await app.start_worker(concurrency=self.concurrency, batch_size=self.concurrency, poll_interval=0.01)
        await forever()

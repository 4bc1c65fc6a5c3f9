"""The dashboard in this process, asked through the ASGI protocol, over a store with tasks of every kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from bullpen import AsyncWorkerPool, Job, TaskQueue, current_task
from bullpen.errors import TaskFailed
from bullpen.tasks.storage.port import WorkerRecord
from bullpen.web import dashboard
from bullpen.web.tokens import SCOPES, TokenFile

TOKEN = "a token of more than twenty characters"
HOST = "127.0.0.1:8787"
ORIGIN = f"http://{HOST}"
CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')


def make_queue(folder: Path) -> TaskQueue:
    queue = TaskQueue(f"sqlite:///{folder}/jobs.db?synchronous=normal")

    @queue.task(name="shop.send", max_retries=1, backoff=0.0)
    def send(to: str) -> str:
        if "@" not in to:
            raise ValueError(f"no address: {to}")
        return f"secret-result for {to}"

    @queue.task(name="shop.nightly", cron="30 2 * * *", timezone="Europe/Berlin")
    def nightly() -> None: ...

    queue.declare_limit("reports", max_running=2)
    return queue


async def fill(queue: TaskQueue, addresses: Sequence[str] = ("ada@example.org", "nobody")) -> list[str]:
    """Run one task for each address, and leave some tasks waiting. Returns the ids of the tasks that ran."""
    jobs = [await queue.aenqueue("shop.send", [to]) for to in addresses]
    async with AsyncWorkerPool(queue, 2, poll_interval=0.05):
        for job in jobs:
            with suppress(TaskFailed):
                await job.aresult(timeout=60)
    await queue.aenqueue("shop.send", ["waiting@example.org"], queue="mail")
    await queue.aenqueue("shop.send", ["later@example.org"], delay=3600)
    await queue.apause("mail")
    return [job.id for job in jobs]


async def wait_for_approval(
    queue: TaskQueue, event: str = "approved:42", *, failures: int = 0, many: int = 1
) -> list[Job[Any]]:
    """Tasks that wait for the event, after a step and after some failures."""

    @queue.task(name="shop.checkout", max_retries=failures, backoff=0.0)
    async def checkout() -> Any:
        task = current_task()
        await task.using(key="charge").astep(len, "abc")
        if task.attempt <= failures:
            raise ValueError("not yet")
        return await task.await_event(event, timeout=3600)

    jobs = [await checkout.aenqueue() for _ in range(many)]
    async with AsyncWorkerPool(queue, 1, poll_interval=0.05):
        while await queue.acount(awaits=event) < many:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return jobs


async def add_worker(queue: TaskQueue, name: str, host: str = "elsewhere") -> None:
    """The record of a worker on another host."""
    storage = await queue.astorage()
    now = await storage.now()
    record = WorkerRecord(
        id=name,
        host=host,
        pid=4711,
        boot_id="b",
        process_started=0.0,
        queues=("default",),
        concurrency=4,
        started_at=now,
        seen_at=now,
    )
    await storage.save_worker(record)


class Browser(httpx.AsyncClient):
    """A browser on this machine that keeps cookies and follows no redirects."""

    def __init__(self, app: Any, *, peer: str = "127.0.0.1", host: str = HOST, **more: Any) -> None:
        super().__init__(
            transport=httpx.ASGITransport(app=app, client=(peer, 50_000)), base_url=f"http://{host}", **more
        )

    async def log_in(self, token: str = TOKEN) -> httpx.Response:
        return await self.post("/login", data={"token": token}, headers={"origin": str(self.base_url).rstrip("/")})

    async def csrf(self, page: str = "/queues") -> str:
        found = CSRF.search((await self.get(page)).text)
        assert found is not None, "the page has no form"
        return found[1]

    async def act(self, path: str, **fields: str) -> httpx.Response:
        form = {"csrf": await self.csrf(), **fields}
        return await self.post(path, data=form, headers={"origin": ORIGIN})


def make_tokens(folder: Path) -> dict[str, dict[str, str]]:
    """A tokens file in the folder, and the headers of a program for each scope."""
    file = TokenFile(folder / "tokens")
    return {scope: {"host": HOST, "authorization": f"Bearer {file.create(scope, [scope])}"} for scope in SCOPES}


@asynccontextmanager
async def site(folder: Path, **options: Any) -> AsyncIterator[tuple[TaskQueue, Any]]:
    """A queue and its dashboard."""
    queue = make_queue(folder)
    try:
        terms: dict[str, Any] = {"token": TOKEN, "anonymous": True}
        yield queue, dashboard(queue, **terms | options)
    finally:
        await queue.aclose()

"""Connections that break at any byte of a request, or of its answer: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from bullpen.errors import StorageError
from bullpen.storage.open import open_storage
from bullpen.storage.port import Storage
from bullpen.tasks.task import PENDING, SUCCESS, Task, succeed
from tests.postgres import new_schema

pytestmark = pytest.mark.anyio

REQUEST, ANSWER = "request", "answer"
# Bytes after which it is cut: none, within the first word, here and there, and after all of it.
CUTS = [0, 1, 7, 40, 90, 180, 300, 500, 900, 100_000]


class Proxy:
    """Between a client and its server. It breaks once, when so many bytes of a request, or an answer, have passed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._left: dict[str, int | None] = {REQUEST: None, ANSWER: None}
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            self.cut()
            await server.wait_closed()
            await asyncio.sleep(0.01)

    def cut_after(self, direction: str, count: int) -> None:
        self._left[direction] = count

    def mend(self) -> None:
        self._left = {REQUEST: None, ANSWER: None}

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        mine = {writer, back}
        self._writers |= mine
        try:
            await asyncio.gather(self._pass(REQUEST, reader, back), self._pass(ANSWER, there, writer))
        except OSError:
            pass
        finally:
            for one in mine:
                one.transport.abort()
            self._writers -= mine

    async def _pass(self, direction: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            left = self._left[direction]
            if left is not None and len(data) > left:
                self._left[direction] = None  # whoever tries again gets through
                writer.write(data[:left])
                await writer.drain()
                raise ConnectionResetError
            if left is not None:
                self._left[direction] = left - len(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError


@asynccontextmanager
async def stores(proxy: Proxy, port: int, address: str) -> AsyncIterator[tuple[Storage, Storage]]:
    """One whose connections break, and one whose do not."""
    parts = urlsplit(address)
    credentials, at, _ = parts.netloc.rpartition("@")
    broken = open_storage(parts._replace(netloc=f"{credentials}{at}127.0.0.1:{port}").geturl())
    sound = open_storage(address)
    await sound.open()
    await broken.open()
    try:
        yield broken, sound
    finally:
        proxy.mend()
        await broken.close()
        await sound.close()


@pytest.fixture(params=["postgres", "redis"])
def address(request: pytest.FixtureRequest) -> Any:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        with new_schema(url) as name:
            yield f"{url}?schema={name}"
    else:
        url, prefix = request.getfixturevalue("redis_url"), f"bullpen-test-{secrets.token_hex(6)}"
        yield f"{url}?prefix={prefix}"
        with redis.Redis.from_url(url) as client:
            client.delete(*client.scan_iter(match=f"*{prefix}:*", count=1000))


@pytest.mark.parametrize("direction", [REQUEST, ANSWER])
async def test_a_claim_and_a_settlement_are_made_once_wherever_the_connection_breaks(
    address: str, direction: str
) -> None:
    proxy = Proxy(address)
    async with proxy.serving() as port, stores(proxy, port, address) as (broken, sound):
        ids = [f"{number:04d}" for number in range(2 * len(CUTS))]
        await sound.add([Task(id=task_id, func_path="f", payload=b"[]") for task_id in ids])
        for number, count in enumerate(CUTS):
            proxy.cut_after(direction, count)
            claimed = await exchange(broken, f"c{number}", limit=1)
            proxy.mend()
            found = await settled_view(sound, f"c{number}")
            assert len(found) <= 1, "claimed twice"
            assert claimed is None or [task.id for task in claimed] == [task.id for task in found]
            if not found:
                continue
            (task,) = found
            assert task.attempt == 1
            proxy.cut_after(direction, count)
            was_answered = await exchange(broken, "", succeed(task, b"1")) is not None
            proxy.mend()
            again = await sound.exchange([succeed(task, b"2")], worker="w", queues=(), limit=0, lease=60.0, claim_id="")
            (after,) = await sound.get([task.id])
            assert after is not None
            assert after.status is SUCCESS
            assert after.result == (b"1" if again.refused else b"2")
            assert again.refused or not was_answered
        kept = await sound.get(ids)
        assert {task.status for task in kept if task is not None} <= {PENDING, SUCCESS}
        assert all(task is not None and task.attempt <= 1 for task in kept)
        assert sum(task is not None and task.status is SUCCESS for task in kept) >= 1
        await sound.delete([task.id for task in kept if task is not None and task.status is SUCCESS])


async def exchange(store: Storage, claim_id: str, *settlements: Any, limit: int = 0) -> Any:
    """What was claimed; None if nobody knows."""
    try:
        answer = await store.exchange(
            settlements, worker="w", queues=("default",), limit=limit, lease=60.0, claim_id=claim_id
        )
    except StorageError:
        return None
    assert not answer.refused
    return answer.claimed


async def settled_view(store: Storage, claim_id: str) -> list[Task]:
    """What was claimed, once a server that lost its client is done with what that one asked for."""
    found: list[Task] = []
    for _ in range(3):
        await asyncio.sleep(0.01)
        found = list(await store.find_claim(claim_id))
    return found

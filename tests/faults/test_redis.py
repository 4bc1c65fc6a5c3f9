"""A Redis server that is away, restarts, or cannot be trusted with tasks."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from bullpen import AsyncWorkerPool, StorageError, StorageUnavailable, TaskQueue
from bullpen.storage.open import open_storage
from bullpen.storage.redis.store import RedisStorage
from bullpen.tasks.task import Task, TaskStatus
from tests.servers import OwnRedis, free_port

PATIENCE = 30.0
pytestmark = pytest.mark.anyio

NewServer = Callable[..., OwnRedis]


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    servers: list[OwnRedis] = []

    def start(*options: str) -> OwnRedis:
        servers.append(OwnRedis(tmp_path, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


async def test_a_server_that_is_not_there_is_one_clear_line() -> None:
    with pytest.raises(StorageUnavailable) as refused:
        await RedisStorage("redis://:s3cret@127.0.0.1:1/0").open()
    assert "\n" not in str(refused.value).strip()
    assert "s3cret" not in str(refused.value)


async def test_a_server_that_drops_keys_is_refused(new_server: NewServer) -> None:
    server = new_server("--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StorageError, match="maxmemory-policy allkeys-lru"):
        await RedisStorage(server.url).open()


async def test_a_server_that_forgets_is_named_when_it_is_opened(
    new_server: NewServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = new_server().url
    for _ in range(2):
        store = RedisStorage(url)
        await store.open()
        await store.close()
    assert caplog.text.count("appendonly off") == 1  # in one process


async def test_a_server_with_tls_is_reached_if_its_certificate_is_trusted(
    new_server: NewServer, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    port = str(free_port())
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-ca-cert-file", str(certificate))
    await asyncio.to_thread(new_server, "--tls-port", port, *files, "--tls-auth-clients", "no")
    with pytest.raises(StorageUnavailable, match=r"(?i)certificate") as refused:
        await open_storage(f"rediss://:s3cret@127.0.0.1:{port}/0").open()
    assert "s3cret" not in str(refused.value)
    store = open_storage(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
    await store.open()
    try:
        await store.add([Task(id="1", func_path="f", payload=b"[]")])
        assert await store.counts()
    finally:
        await store.close()


async def test_a_worker_goes_on_when_its_server_was_killed_and_nothing_is_lost(new_server: NewServer) -> None:
    server = await asyncio.to_thread(new_server, "--appendonly", "yes", "--appendfsync", "always")
    queue = TaskQueue(server.url)
    ran: list[int] = []
    enough = asyncio.Event()

    @queue.task(name="note")
    async def note(number: int) -> int:
        ran.append(number)
        if len(ran) >= 50:
            enough.set()
        await asyncio.sleep(0.002)
        return number

    async with queue:
        jobs = await note.aenqueue_many([(number,) for number in range(200)])
        async with AsyncWorkerPool(queue, concurrency=5):
            await enough.wait()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            results = [await _patiently(job.aresult) for job in jobs]
            assert (await queue.acounts())["default"] == {TaskStatus.SUCCESS: 200}
    assert results == list(range(200))
    assert set(ran) == set(range(200))


async def _patiently(ask: Callable[..., Awaitable[int]]) -> int:
    """Whoever waits for a result may be cut off as well, and asks again."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask(timeout=PATIENCE)
        except StorageUnavailable:
            assert time.monotonic() < deadline

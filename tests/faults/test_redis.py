"""A Redis server is away, restarts, or is configured so that it may lose tasks."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeout

from bullpen import StorageError, StorageFull, StorageReadOnly, StorageUnavailable, TaskQueue, WorkerPool
from bullpen.tasks.model.task import Progress, Task, TaskStatus, succeed
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import Renewal, WorkerRecord
from bullpen.tasks.storage.redis import adding, scripts
from bullpen.tasks.storage.redis.blocking_connection import BlockingConnection
from bullpen.tasks.storage.redis.connection import RedisConnection
from bullpen.tasks.storage.redis.loop_connection import LoopConnection
from bullpen.tasks.storage.redis.store import RedisStorage
from bullpen.testing.storage_contract.base import FAR, claim, claimed_one, hold, ids, new_task, new_tasks, settle
from bullpen.testing.storage_contract.waiting import waits
from tests.faults.proxy import Proxy
from tests.servers import OwnRedis, free_port

PATIENCE = 60.0
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


async def test_the_error_of_a_server_that_is_away_is_one_line() -> None:
    with pytest.raises(StorageUnavailable) as caught:
        await RedisStorage("redis://:s3cret@127.0.0.1:1/0").open()
    assert "\n" not in str(caught.value).strip()
    assert "s3cret" not in str(caught.value)


async def test_a_server_that_does_not_answer_is_not_waited_for_without_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = RedisStorage(f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.1")
        with pytest.raises(StorageUnavailable, match="TimeoutError"):
            await store.open()
        with TaskQueue(store.url) as queue, pytest.raises(StorageUnavailable, match="TimeoutError"):
            await asyncio.to_thread(queue.counts)


def test_threads_use_connections_of_their_own(new_server: NewServer) -> None:
    with TaskQueue(new_server().url) as queue, ThreadPoolExecutor(4) as threads:
        step = queue.task(name="step")(lambda number: number)
        jobs = list(threads.map(step.enqueue, range(40)))
        assert len({job.id for job in jobs}) == 40
        assert {job.status for job in jobs} == {TaskStatus.PENDING}
        assert not [thread for thread in threading.enumerate() if thread.name == "bullpen-portal"]


async def test_connections_are_few_however_many_queues_and_callers_there_are(new_server: NewServer) -> None:
    server = new_server()
    store = RedisStorage(server.url)
    try:
        await store.add([new_task(queue=f"q{number}") for number in range(200)])
        assert await asyncio.gather(*(store.get([f"none {number}"]) for number in range(20))) == [[None]] * 20
        assert len(await store.counts()) == 200
        async with Redis.from_url(server.url) as client:
            assert (await client.info("clients"))["connected_clients"] <= 11
    finally:
        await store.close()


async def test_connections_of_threads_are_few_when_they_are_idle(new_server: NewServer) -> None:
    server = new_server()
    with TaskQueue(f"{server.url}?socket_timeout={PATIENCE}") as queue, ThreadPoolExecutor(60) as threads:
        step = queue.task(name="step")(lambda number: number)
        async with Redis.from_url(server.url) as client:
            await client.client_pause(1000 * int(PATIENCE), all=False)
            jobs = [threads.submit(step.enqueue, number) for number in range(60)]
            async with asyncio.timeout(PATIENCE):
                while (await client.info("clients"))["connected_clients"] < 61:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await client.client_unpause()
            for job in jobs:
                await asyncio.wrap_future(job)
            async with asyncio.timeout(PATIENCE):  # the server notices closed connections a moment later
                while (await client.info("clients"))["connected_clients"] > 33:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_all_callers_that_want_a_connection_wait_for_a_silent_server_once() -> None:
    callers = 0

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal callers
        callers += 1
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        link = LoopConnection(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}/0?socket_timeout=1")
        answers = await asyncio.gather(*(link.execute("PING") for _ in range(50)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [RedisTimeout] * 50
        assert callers <= 10
        await link.close()


async def test_a_caller_that_stops_waiting_for_a_connection_leaves_it_to_others(redis_url: str) -> None:
    link = LoopConnection(redis_url)
    taken = [await link._wire() for _ in range(10)]
    waiting = [asyncio.ensure_future(link._wire()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    link._give_back(taken[0])
    waiting[1].cancel()  # it had its turn
    assert await waiting[2] is taken[0]
    for wire in taken:
        link._give_back(wire)
    await asyncio.wait(waiting)
    await link.close()


async def follow(server: OwnRedis, primary: OwnRedis | None) -> None:
    """Make a server the replica of another one, or a primary."""
    words = ("NO", "ONE") if primary is None else ("127.0.0.1", str(urlsplit(primary.url).port))
    client: Any = Redis.from_url(server.url)
    async with client:
        await client.execute_command("REPLICAOF", *words)


async def on_loop(link: RedisConnection, *words: str) -> Any:
    return await link.execute(*words)


async def on_loop_with_others(link: RedisConnection, *words: str) -> Any:
    return (await link.execute_many([words, ("TIME",)]))[0]


async def on_thread(link: RedisConnection, *words: str) -> Any:
    return await asyncio.to_thread(asyncio.run, on_loop(link, *words))


async def on_thread_with_others(link: RedisConnection, *words: str) -> Any:
    return await asyncio.to_thread(asyncio.run, on_loop_with_others(link, *words))


@pytest.mark.parametrize(
    ("kind", "execute"),
    [
        (LoopConnection, on_loop),
        (LoopConnection, on_loop_with_others),
        (BlockingConnection, on_thread),
        (BlockingConnection, on_thread_with_others),
    ],
)
@pytest.mark.parametrize("words", [("SET", "a", "1"), ("EVAL", "return redis.call('SET', KEYS[1], '1')", "1", "a")])
async def test_no_connection_to_a_primary_that_has_become_a_replica_is_used_again(
    new_server: NewServer,
    kind: type[LoopConnection | BlockingConnection],
    execute: Callable[..., Any],
    words: tuple[str, ...],
) -> None:
    old, new = new_server(), new_server()
    async with Proxy(old.url) as proxy:
        link = kind(proxy.address)
        try:
            await asyncio.gather(*(execute(link, *words) for _ in range(8)))  # on several connections
            await follow(old, new)
            proxy.lead_to(new.url)
            for _ in range(9):
                assert await execute(link, *words) == b"OK"
        finally:
            await link.close()


async def test_workers_continue_at_the_new_primary_while_the_old_one_stays_up(new_server: NewServer) -> None:
    old, new = new_server(), new_server()
    async with Proxy(old.url) as proxy, Redis.from_url(old.url) as before, Redis.from_url(new.url) as after:
        store = RedisStorage(proxy.address)
        try:
            (first,) = await store.add([new_task()])
            await follow(new, old)
            async with asyncio.timeout(PATIENCE):
                while (await after.info("replication"))["master_link_status"] != "up":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await before.wait(1, 1000 * int(PATIENCE))
            await follow(new, None)
            await follow(old, new)
            proxy.lead_to(new.url)
            (second,) = await store.add([new_task()])  # the old primary rejects the write, so nothing has changed
            assert ids(await claim(store, 2)) == ids([first, second])
        finally:
            await store.close()


@pytest.mark.parametrize("verb", ["claims", "runs many", "executes", "adds without a loop"])
async def test_no_call_fails_when_the_primary_has_become_a_replica(new_server: NewServer, verb: str) -> None:
    old, new = new_server(), new_server()
    async with Proxy(old.url) as proxy:
        store, blocking = RedisStorage(proxy.address), RedisStorage(proxy.address).another_blocking()
        assert blocking is not None
        try:
            await store.add([new_task(queue=name) for name in ("a", "b")])
            await asyncio.to_thread(blocking.add_blocking, [new_task()])
            await follow(old, new)
            proxy.lead_to(new.url)
            if verb == "claims":
                assert await claim(store) == []
            elif verb == "runs many":
                await store._run_each(scripts.RENEW_LEASES, [("a", ["1"]), ("b", ["1"])])
            elif verb == "executes":
                await store.delete_worker("nobody")
            else:
                await asyncio.to_thread(blocking.add_blocking, [new_task()])
        finally:
            await store.close()
            blocking.close_blocking()


async def test_a_call_fails_if_no_primary_is_found(new_server: NewServer) -> None:
    old, new = new_server(), new_server()
    store = RedisStorage(old.url)
    try:
        await store.add([new_task()])
        await follow(old, new)
        with pytest.raises(StorageReadOnly):
            await store.add([new_task()])
    finally:
        await store.close()


async def test_a_server_that_evicts_keys_is_rejected(new_server: NewServer) -> None:
    server = new_server("--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StorageError, match="maxmemory-policy allkeys-lru"):
        await RedisStorage(server.url).open()


async def test_while_the_memory_is_full_workers_keep_their_tasks_and_no_new_one_is_added(
    new_server: NewServer,
) -> None:
    server = new_server()
    store, another = RedisStorage(server.url), RedisStorage(server.url)
    try:
        keyed, lone, _ = await store.add([new_task(concurrency_key="k"), new_task(), new_task()])
        running = {task.id: task for task in await claim(store, 3)}
        async with Redis.from_url(server.url) as client:
            await client.config_set("maxmemory", 1)
        with pytest.raises(StorageFull):
            await store.add([new_task()])
        with pytest.raises(StorageFull):
            await store.add([new_task(concurrency_key="k")])
        holds = [hold(task) for task in running.values()]
        assert await store.renew(holds, FAR) == Renewal(frozenset(), frozenset())
        assert await store.note_progress(holds[0], Progress(0.5))
        record = WorkerRecord(
            id="w", host="h", pid=1, boot_id="b", process_started=0.0, queues=("default",), concurrency=1
        )
        await store.save_worker(record)
        assert [one.id for one in await store.workers()] == ["w"]
        async with waits(store.wait_for_result(lone.id, 0, FAR)) as ended:
            assert await settle(store, succeed(running.pop(lone.id), b"1")) == frozenset()
        assert ended.result() is not None
        async with waits(store.wait_for_result(keyed.id, 0, FAR)) as ended:
            assert await settle(store, *(succeed(task, b"1") for task in running.values())) == frozenset()
        assert ended.result() is not None
        await another.pause("mail")  # by a client that is not connected yet
        assert await store.paused() == {"mail"}
    finally:
        await store.close()
        await another.close()


async def test_many_tasks_are_added_in_several_steps_and_removed_if_one_step_fails(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "STEP", 300)
    server = new_server()
    store = RedisStorage(server.url)
    try:
        async with Redis.from_url(server.url) as client:
            few = new_tasks(1000)
            assert ids(await store.add(few)) == ids(few)
            assert (await client.info("commandstats"))["cmdstat_eval"][
                "calls"
            ] == 1  # the later calls send only its digest
            assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] == 4
            await client.config_set("maxmemory", (await client.info("memory"))["used_memory"] + 8_000_000)
        with pytest.raises(StorageFull):
            await store.add(new_tasks(1000, payload=b'["' + b"x" * 10_000 + b'"]'))
        assert await store.counts() == {"default": {TaskStatus.PENDING: 1000}}
    finally:
        await store.close()


async def test_a_large_request_gets_a_longer_timeout(new_server: NewServer) -> None:
    url = f"{new_server().url}?socket_timeout=1"
    link, blocking = LoopConnection(url), BlockingConnection(url)
    async with Redis.from_url(url) as client:
        await client.client_pause(1500, all=False)  # longer than the timeout, and nothing is written meanwhile
    words = ("HSET", "h", "large", bytes(20_000_000))
    assert (
        sum(await asyncio.gather(link.execute(*words), asyncio.to_thread(asyncio.run, blocking.execute(*words)))) == 1
    )
    await link.close()
    await blocking.close()


async def test_running_tasks_can_be_cancelled_while_the_memory_is_full(new_server: NewServer) -> None:
    server = new_server()
    store = RedisStorage(server.url)
    try:
        task = await claimed_one(store)
        async with Redis.from_url(server.url) as client:
            await client.config_set("maxmemory", 1)
        assert [one.cancel_requested for one in await store.cancel([task.id])] == [True]
    finally:
        await store.close()


def test_a_user_needs_no_dangerous_commands_and_no_keys_but_those_of_its_prefix(new_server: NewServer) -> None:
    url = new_server().url
    with redis.Redis.from_url(url) as client:
        rights = ("on", ">s3cret", "~bullpen:*", "~{bullpen:*", "&bullpen:*", "+@all", "-@dangerous")
        client.execute_command("ACL", "SETUSER", "app", *rights)
        client.execute_command("ACL", "SETUSER", "default", "off")
    queue = TaskQueue(url.replace("redis://", "redis://app:s3cret@"))
    double = queue.task(name="double")(lambda number: 2 * number)
    with queue, WorkerPool(queue, concurrency=1):
        assert double.enqueue(2).result(timeout=PATIENCE) == 4
        assert double.using(concurrency_key="k").enqueue(3).result(timeout=PATIENCE) == 6
        assert queue.counts() == {"default": {TaskStatus.SUCCESS: 2}}


async def test_opening_a_server_without_persistence_warns(
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
    with pytest.raises(StorageUnavailable, match=r"(?i)certificate") as caught:
        await open_storage(f"rediss://:s3cret@127.0.0.1:{port}/0").open()
    assert "s3cret" not in str(caught.value)
    store = open_storage(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
    await store.open()
    try:
        await store.add([Task(id="1", func_path="f", payload=b"[]")])
        assert await store.counts()
    finally:
        await store.close()


async def test_a_result_that_is_published_while_no_listener_is_connected_is_not_missed(new_server: NewServer) -> None:
    """A client that waits for one task after the other registers each wait with the add, and does not read the task."""
    server = new_server()
    store, other = open_storage(server.url), open_storage(server.url)

    async def ends(number: int) -> None:
        exchange = await other.exchange([], worker="w", queues=["default"], limit=1, lease=60.0, claim_id=str(number))
        await other.exchange(
            [succeed(task, b"1") for task in exchange.claimed], worker="w", queues=[], limit=0, lease=0.0, claim_id=""
        )

    async with asyncio.timeout(PATIENCE):
        await store.add([Task(id="first", func_path="f", payload=b"")])
        waiting = asyncio.ensure_future(store.wait_for_result("first", 0, 3600.0))
        await asyncio.sleep(0)
        await ends(1)
        await waiting
        await store.add([Task(id="second", func_path="f", payload=b"")])
        async with Redis.from_url(server.url) as client:
            assert await client.client_kill_filter(_type="pubsub") == 1
            await ends(2)
            while not await client.pubsub_channels():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await store.wait_for_result("second", 0, 3600.0)
    await store.close()
    await other.close()

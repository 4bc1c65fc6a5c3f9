"""A Redis user with all channels and no keys reads no argument or result, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from bullpen import AsyncWorkerPool, TaskFailed, TaskQueue, chain
from tests.redis_users import add_user, documented_rights
from tests.servers import OwnRedis

pytestmark = pytest.mark.anyio

PATIENCE = 30.0
TOO_LARGE = 40 * 2**20  # bytes; a server disconnects a subscriber with more than 32 MB of unsent messages


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path)
    yield server
    server.kill()


class Spy:
    """Subscribes to every channel."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self.heard: list[tuple[bytes, bytes]] = []  # channel and message

    async def listen(self, begin: Callable[[], None]) -> None:
        async with self._client.pubsub() as listener:
            await listener.psubscribe("*")
            async for message in listener.listen():
                if message["type"] == "psubscribe":
                    begin()
                else:
                    self.heard.append((message["channel"], message["data"]))

    async def publish_everywhere(self, *messages: bytes) -> None:
        for channel in dict.fromkeys(channel for channel, _ in self.heard):
            for message in messages:
                await self._client.publish(channel, message)


@asynccontextmanager
async def spying(server: OwnRedis) -> AsyncIterator[Spy]:
    url = add_user(server.url, "spy", "allchannels", "+psubscribe", "+publish")
    async with Redis.from_url(url) as client:
        spy, begun = Spy(client), asyncio.Event()
        listening = asyncio.create_task(spy.listen(begun.set))
        await begun.wait()
        try:
            yield spy
        finally:
            listening.cancel()
            await asyncio.wait([listening])


async def denied(server: OwnRedis) -> set[tuple[str, str]]:
    """The commands, keys and channels that the server has denied the app, each with its kind."""
    async with Redis.from_url(server.url) as client:
        entries: Any = await client.acl_log()
    of_driver = ("command", "client|setinfo")  # redis-py sends its version, if it has the right to
    return {(one["reason"], one["object"]) for one in entries if one["username"] == "app"} - {of_driver}


async def test_a_user_with_all_channels_and_no_keys_learns_and_changes_nothing(
    server: OwnRedis, caplog: pytest.LogCaptureFixture
) -> None:
    queue = TaskQueue(add_user(server.url, "app", *documented_rights()))
    ran: list[str] = []
    began, may_end = asyncio.Event(), asyncio.Event()

    @queue.task(name="pay", max_retries=0)
    async def pay(card: str) -> str:
        ran.append(card)
        if card == "secret-held":
            began.set()
            await may_end.wait()
        if card == "secret-bad":
            raise ValueError("secret-error")
        return f"secret-receipt of {card}"

    async with spying(server) as spy, queue, AsyncWorkerPool(queue, poll_interval=PATIENCE):
        for number in range(3):  # an idle worker is woken, and a waiting client
            job = await pay.aenqueue(f"secret-{number}")
            assert await job.aresult(PATIENCE) == f"secret-receipt of secret-{number}"
        keyed = await pay.using(concurrency_key="k", unique_key="u").aenqueue("secret-keyed")
        linked = await chain(pay.call("secret-first"), pay.call("secret-last")).aenqueue()
        await keyed.aresult(PATIENCE)
        await linked.aresult(PATIENCE)
        with pytest.raises(TaskFailed):
            await (await pay.aenqueue("secret-bad")).aresult(PATIENCE)
        honest = [*ran]

        held = await pay.aenqueue("secret-held")
        waiting = asyncio.create_task(held.aresult(PATIENCE))
        await asyncio.wait_for(began.wait(), PATIENCE)
        assert await denied(server) == set()

        replayed = [message for _, message in spy.heard]
        forged = [message.replace(job.id.encode(), held.id.encode()) for message in replayed]
        as_end = f"r{held.id}".encode()
        garbage = [
            b"",
            b"\0",
            b"r",
            b"w",
            b"c",
            b"\xff\xfe\x00",
            as_end,
            as_end + b"\x001:1",
            as_end + b"\0-9:",
            b"wdefault",
        ]
        await spy.publish_everywhere(*replayed, *forged, *garbage)
        await (await pay.aenqueue("secret-next")).aresult(PATIENCE)  # its messages come after the forged ones
        assert not waiting.done()
        assert not [record for record in caplog.records if "notifications" in record.getMessage()]
        await spy.publish_everywhere(bytes(TOO_LARGE))
        may_end.set()
        assert await waiting == "secret-receipt of secret-held"
        after = await pay.aenqueue("secret-after")
        assert await after.aresult(PATIENCE) == "secret-receipt of secret-after"
        assert ran == [*honest, "secret-held", "secret-next", "secret-after"]
    assert len(spy.heard) > 10
    assert not [message for _, message in spy.heard if b"secret" in message]

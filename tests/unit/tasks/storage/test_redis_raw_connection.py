"""Connections: how many there are, and how long a reply may take."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions

from bullpen.tasks.storage.redis import raw_connection
from bullpen.tasks.storage.redis.blocking_connection import BlockingConnection
from bullpen.tasks.storage.redis.loop_connection import LoopConnection
from bullpen.tasks.storage.redis.raw_connection import PING, Wire


def test_connections_are_made_for_as_long_as_they_are_lost(redis_url: str) -> None:
    """redis-py allows a hundred in the life of a client for threads, if they are made by its own means."""

    async def lose_many() -> None:
        link = BlockingConnection(redis_url)
        for _ in range(120):
            link._wire().close()
        assert await link.execute("PING") == b"PONG"
        await link.close()

    asyncio.run(lose_many())


class SlowReplies:
    """A connection whose replies arrive after a number of polls."""

    def __init__(self, polls: int) -> None:
        self.polls, self.polled = polls, 0

    def send_packed_command(self, packed: list[bytes]) -> None:
        self.polled = 0

    def can_read(self, timeout: float) -> bool:
        self.polled += 1
        return self.polled > self.polls

    def read_response(self) -> bytes:
        return b"OK"


def test_a_blocking_caller_polls_for_its_reply_ever_more_rarely_if_that_is_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raw_connection, "_CAN_SPIN", True)
    monkeypatch.setattr(raw_connection, "SPIN", 60.0)  # a busy machine may need long for four polls
    connection = SlowReplies(polls=3)
    wire = raw_connection.BlockingWire(connection, exceptions)
    assert wire.execute(PING) == b"OK"
    assert connection.polled == 4, "the reply was there at the fourth poll"
    monkeypatch.setattr(raw_connection, "SPIN", -1.0)  # no reply is in time
    polled = []
    for _ in range(20):
        assert wire.execute(PING) == b"OK"
        polled.append(connection.polled)
    assert [number for number, count in enumerate(polled) if count] == [0, 2, 6, 14]
    monkeypatch.setattr(raw_connection, "SPIN", 60.0)
    for _ in range(40):
        wire.execute(PING)
    assert connection.polled == 4, "it polls for every reply again"


def test_a_system_that_does_not_tell_its_cpus_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no `os.sched_getaffinity`."""
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    source = Path(raw_connection.__file__).read_text()
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec(compile(source, raw_connection.__file__, "exec"), names)
    assert names["_CAN_SPIN"] is False


def test_with_one_cpu_a_blocking_caller_sleeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_connection, "_CAN_SPIN", False)
    connection = SlowReplies(polls=3)
    wire = raw_connection.BlockingWire(connection, exceptions)
    assert [wire.execute(PING), wire.execute(PING)] == [b"OK", b"OK"]
    assert connection.polled == 0


IN_A_WHILE = b"*3\r\n$5\r\nBLPOP\r\n$20\r\nbullpen-test-nothing\r\n$4\r\n0.05\r\n"


@pytest.mark.parametrize("has_parser", [True, False])
def test_a_reply_to_many_bytes_may_take_longer(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, has_parser: bool
) -> None:
    """With and without a parser."""
    if not has_parser:
        monkeypatch.setattr(raw_connection, "_hiredis", None)

    async def ask() -> None:
        link = LoopConnection(redis_url)
        one = await link._wire()
        try:
            monkeypatch.setattr(raw_connection, "BYTES_PER_SECOND", 10.0)
            assert await one.execute_many([PING, IN_A_WHILE], 0.01) == [b"PONG", None]
        finally:
            await link._drop(one, ConnectionError())
            await link.close()

    asyncio.run(ask())


def test_a_command_of_many_pieces_arrives_whole_on_a_blocking_connection(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_connection, "PIECE", 10)

    async def ask() -> None:
        link = BlockingConnection(redis_url)
        assert await link.execute("ECHO", "é" * 1000) == ("é" * 1000).encode()
        assert await link.execute_many([("ECHO", "a" * 100), ("PING",)]) == [b"a" * 100, b"PONG"]
        await link.close()

    asyncio.run(ask())


def test_an_event_loop_uses_the_private_transport_of_the_installed_redis_py(redis_url: str) -> None:
    """If this fails with a new redis-py, every connection is a PlainWire: correct, but slower."""

    async def ask() -> None:
        link = LoopConnection(redis_url)
        one = await link._wire()
        assert type(one) is Wire
        link._give_back(one)
        await link.close()

    asyncio.run(ask())

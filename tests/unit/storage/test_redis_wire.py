"""Connections: as many as it takes. Who waits for an answer stays awake, if that is of use and costs others nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import exceptions
from redis.asyncio import Redis as AsyncRedis

from bullpen.storage.redis import alertness, wire
from bullpen.storage.redis.alertness import Alertness
from bullpen.storage.redis.link import BlockingLink, LoopLink
from bullpen.storage.redis.wire import PING, BlockingWire, Wire

PONG = b"+PONG\r\n"


def test_connections_are_made_for_as_long_as_they_are_lost(redis_url: str) -> None:
    """redis-py allows a hundred in the life of a client, if they are made by its own means."""

    async def lose_many(kind: type[BlockingLink] | type[LoopLink]) -> None:
        link: Any = kind(redis_url)
        for _ in range(120):
            lost = link._wire() if kind is BlockingLink else await link._wire()
            if kind is BlockingLink:
                lost.close()
            else:
                await link._drop(lost, ConnectionError())
        assert await link.say("PING") == b"PONG"
        await link.close()

    for kind in (BlockingLink, LoopLink):
        asyncio.run(lose_many(kind))


def attempts(of: Alertness, count: int, *, comes: bool) -> int:
    """How often somebody stays awake for one of so many answers."""
    tried = 0
    for _ in range(count):
        if of.is_worth_it(100):
            tried += 1
            of.ended(in_vain=not comes)
    return tried


@pytest.fixture
def of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertness, "_IS_OF_USE", True)


@pytest.mark.usefixtures("of_use")
def test_who_stays_awake_in_vain_does_so_less_and_less() -> None:
    one = Alertness()
    assert attempts(one, 100, comes=True) == 100
    assert attempts(one, 126, comes=False) == 6
    assert attempts(one, 6400, comes=False) == 100
    assert attempts(one, 64, comes=True) >= 1
    assert attempts(one, 100, comes=True) == 100


@pytest.mark.usefixtures("of_use")
def test_nobody_stays_awake_for_the_answer_to_much() -> None:
    one = Alertness()
    assert not one.is_worth_it(1_000_000)
    assert one.is_worth_it(100)


def test_nobody_stays_awake_where_the_server_could_not_run_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alertness, "_IS_OF_USE", False)
    assert attempts(Alertness(), 100, comes=True) == 0


class Parser:
    parse_error = exceptions.ResponseError


class Connection:
    """What a blocking wire wants of one of redis-py, with a server that answers after a while."""

    _parser = Parser()

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._sock, server = socket.socketpair()
        self._sock.settimeout(5.0)
        self._thread = threading.Thread(target=answer, args=(server,))
        self._thread.start()

    def disconnect(self) -> None:
        self._sock.close()
        self._thread.join()


@pytest.fixture
def connect() -> Iterator[Callable[[Callable[[socket.socket], None]], BlockingWire]]:
    made: list[Connection] = []

    def connected(answer: Callable[[socket.socket], None]) -> BlockingWire:
        made.append(Connection(answer))
        return BlockingWire(made[-1], exceptions, Alertness())

    yield connected
    for one in made:
        one.disconnect()


def answers_after(seconds: float, *parts: bytes) -> Callable[[socket.socket], None]:
    def answer(server: socket.socket) -> None:
        with server:
            while server.recv(1000):
                for part in parts:
                    time.sleep(seconds)
                    server.sendall(part)

    return answer


@pytest.mark.usefixtures("of_use")
def test_a_slow_server_is_slept_for(connect: Callable[..., BlockingWire], monkeypatch: pytest.MonkeyPatch) -> None:
    slow, reads = connect(answers_after(0.002, PONG)), 0
    read_awake = slow._read_awake

    def read_and_count() -> bytes:
        nonlocal reads
        reads += 1
        return read_awake()

    monkeypatch.setattr(wire, "LONGEST", 1e-9)
    monkeypatch.setattr(slow, "_read_awake", read_and_count)
    assert [slow.say(PING) for _ in range(40)] == [b"PONG"] * 40
    assert reads == 5


@pytest.mark.usefixtures("of_use")
def test_of_several_threads_none_stays_awake(
    connect: Callable[..., BlockingWire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LONGEST", 60.0)
    one, yields = connect(answers_after(0.05, PONG)), 0

    def another_comes() -> None:
        nonlocal yields
        yields += 1
        one._alertness.waiting.add("another")

    monkeypatch.setattr(os, "sched_yield", another_comes)
    assert [one.say(PING) for _ in range(3)] == [b"PONG"] * 3
    assert yields == 1
    one._alertness.waiting.remove("another")
    assert one._alertness.waiting == set()
    assert one._alertness.is_worth_it(100)


@pytest.mark.usefixtures("of_use")
def test_an_answer_may_come_in_pieces(connect: Callable[..., BlockingWire], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 0.01)
    assert connect(answers_after(0.001, b"+PO", b"NG\r\n")).say(PING) == b"PONG"


@pytest.mark.usefixtures("of_use")
@pytest.mark.parametrize("longest", [0.0, 5.0])
def test_who_stays_awake_sees_that_the_server_goes(
    connect: Callable[..., BlockingWire], monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    def go(server: socket.socket) -> None:
        server.recv(1000)
        server.close()

    monkeypatch.setattr(wire, "LONGEST", longest)
    with pytest.raises(exceptions.ConnectionError, match="closed by server"):
        connect(go).say(PING)


@pytest.mark.usefixtures("of_use")
def test_others_go_on_while_somebody_stays_awake(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 5.0)

    async def stay_awake() -> None:
        client: Any = AsyncRedis.from_url(redis_url)
        connection = client.connection_pool.make_connection()
        await connection.connect()
        one = wire.wire_of(connection, exceptions, Alertness())
        assert isinstance(one, Wire)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        counting = asyncio.ensure_future(count())
        try:
            in_a_while = b"*3\r\n$5\r\nBLPOP\r\n$20\r\nbullpen-test-nothing\r\n$4\r\n0.05\r\n"
            assert await one.say(in_a_while, 5.0) is None
            assert turns >= 5
            assert await one.say(PING, 5.0) == b"PONG"
        finally:
            counting.cancel()
            await one.close()
            await client.aclose()

    asyncio.run(stay_awake())

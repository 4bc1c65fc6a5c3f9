"""Connections: as many as it takes. Who waits for an answer stays awake, if that is of use and costs others nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import exceptions

from bullpen.storage.redis import alertness, wire
from bullpen.storage.redis.alertness import Alertness
from bullpen.storage.redis.link import BlockingLink, LoopLink
from bullpen.storage.redis.wire import PING, BlockingWire, Wire

PONG = b"+PONG\r\n"


def test_connections_are_made_for_as_long_as_they_are_lost(redis_url: str) -> None:
    """redis-py allows a hundred in the life of a client for threads, if they are made by its own means."""

    async def lose_many() -> None:
        link = BlockingLink(redis_url)
        for _ in range(120):
            link._wire().close()
        assert await link.say("PING") == b"PONG"
        await link.close()

    asyncio.run(lose_many())


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
    monkeypatch.setattr(alertness, "has_several_cpus", lambda: True)


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
    monkeypatch.setattr(alertness, "has_several_cpus", lambda: False)
    assert attempts(Alertness(), 100, comes=True) == 0


@pytest.mark.parametrize(
    ("quota", "cpus", "several"),
    [
        ("max 100000", {0, 1}, True),
        ("max 100000", {1}, False),
        ("100000 100000", {0, 1}, False),
        ("250000 100000", {0, 1}, True),
        (None, {0, 1}, True),
    ],
)
def test_a_quota_counts_as_much_as_the_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str | None, cpus: set[int], several: bool
) -> None:
    monkeypatch.setattr(alertness, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert alertness.has_several_cpus() is several


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


IN_A_WHILE = b"*3\r\n$5\r\nBLPOP\r\n$20\r\nbullpen-test-nothing\r\n$4\r\n0.05\r\n"


@pytest.mark.usefixtures("of_use")
@pytest.mark.parametrize(("longest", "is_awake"), [(5.0, True), (0.0, False)])
def test_an_event_loop_stays_awake_and_others_go_on(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, longest: float, is_awake: bool
) -> None:
    monkeypatch.setattr(wire, "LONGEST", longest)
    looks = turns = 0
    stay_awake = Wire._stay_awake

    def look(one: Wire) -> None:
        nonlocal looks
        looks += 1
        stay_awake(one)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def ask() -> None:
        link = LoopLink(redis_url)
        one = await link._wire()
        assert isinstance(one, Wire)
        counting = asyncio.ensure_future(count())
        assert await one.say(IN_A_WHILE, 5.0) is None
        assert turns >= 5
        assert looks > 100 if is_awake else looks == 1
        await asyncio.sleep(0.01)
        before = looks
        await asyncio.sleep(0.05)
        assert looks == before
        counting.cancel()
        link._give_back(one)
        await link.close()

    monkeypatch.setattr(Wire, "_stay_awake", look)
    asyncio.run(ask())


def test_what_is_said_last_is_answered_behind_something_else(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one piece: so what it publishes is written before its answer."""
    said: list[bytes] = []

    async def ask() -> None:
        link = LoopLink(redis_url)
        one = await link._wire()
        assert isinstance(one, Wire)
        monkeypatch.setattr(one, "_transport", Ear(one._transport, said))
        link._give_back(one)
        assert await link.run("return ARGV[1]", ["k"], ["é"], others_first=True) == "é".encode()
        with pytest.raises(exceptions.ResponseError, match="unknown command"):
            await link.say_last("NO_SUCH_COMMAND")
        assert await link.run("return ARGV[1]", ["k"], ["1"]) == b"1"
        assert link._idle == [one]
        await link.close()

    asyncio.run(ask())
    assert all(piece.startswith(PING) for piece in said[:-1])
    assert not said[-1].startswith(PING)


class Ear:
    """Hears what is written."""

    def __init__(self, transport: Any, said: list[bytes]) -> None:
        self._transport, self._said = transport, said

    def write(self, data: bytes) -> None:
        self._said.append(data)
        self._transport.write(data)


@pytest.mark.parametrize("has_parser", [True, False])
def test_much_that_is_said_last_may_take_longer(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, has_parser: bool
) -> None:
    """With and without a parser."""
    if not has_parser:
        monkeypatch.setattr(wire, "_hiredis", None)

    async def ask() -> None:
        link = LoopLink(redis_url)
        one = await link._wire()
        try:
            monkeypatch.setattr(wire, "BYTES_PER_SECOND", 10.0)
            assert await one.say_each([PING, IN_A_WHILE], 0.01) == [b"PONG", None]
        finally:
            await link._drop(one, ConnectionError())
            await link.close()

    asyncio.run(ask())

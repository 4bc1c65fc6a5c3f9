"""The pool of connections to a PostgreSQL server."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from bullpen.tasks.storage.postgres import connection_pool as module
from bullpen.tasks.storage.postgres.connection_pool import ConnectionPool

LONG = 60.0
pytestmark = pytest.mark.anyio


class Connection:
    def __init__(self) -> None:
        self.is_cut = False

    def is_closed(self) -> bool:
        return self.is_cut

    def terminate(self) -> None:
        self.is_cut = True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_cut = True


class Server:
    """Which allows so many connections, and lets no more in while its `door` is shut."""

    def __init__(self, most: int = 99) -> None:
        self.most = most
        self.made: list[Connection] = []
        self.door = asyncio.Event()
        self.door.set()

    async def connect(self) -> Connection:
        await self.door.wait()
        await asyncio.sleep(0)
        if sum(not one.is_cut for one in self.made) >= self.most:
            raise asyncpg.TooManyConnectionsError("too many")
        self.made.append(Connection())
        return self.made[-1]


async def turn() -> None:
    """All that can go on does."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("most", "allowed"), [(2, 99), (9, 2)])
async def test_connections_are_limited_and_callers_are_served_in_order(most: int, allowed: int) -> None:
    server = Server(allowed)
    connections = ConnectionPool(server.connect, most=most, timeout=LONG)
    served: list[int] = []

    async def use(number: int) -> None:
        connection = await connections.acquire()
        served.append(number)
        await turn()
        connections.release(connection)

    await asyncio.gather(*(use(number) for number in range(8)))
    assert served == list(range(8))
    assert len(server.made) == 2
    await connections.close(LONG)
    assert all(one.is_cut for one in server.made)


async def test_no_caller_waits_for_a_lost_connection() -> None:
    server = Server()
    connections = ConnectionPool(server.connect, most=1, timeout=LONG)
    first = await connections.acquire()
    waiting = [asyncio.ensure_future(connections.acquire()) for _ in range(2)]
    await turn()
    first.terminate()
    connections.release(first)
    second = await waiting[0]
    connections.release(second)
    assert await waiting[1] is second is server.made[1]
    second.terminate()
    connections.release(second)
    assert await connections.acquire() is server.made[2]
    await connections.close(0)


async def test_a_caller_that_is_cancelled_while_it_gets_a_connection_leaves_it_to_the_next() -> None:
    server = Server()
    connections = ConnectionPool(server.connect, most=1, timeout=LONG)
    first = await connections.acquire()
    waiting = [asyncio.ensure_future(connections.acquire()) for _ in range(3)]
    await turn()
    waiting[0].cancel()
    await turn()
    connections.release(first)
    waiting[1].cancel()  # it has got it, and does not know yet
    assert await waiting[2] is first
    await connections.close(0)


async def test_one_that_is_not_free_in_time_is_not_waited_for() -> None:
    connections = ConnectionPool(Server().connect, most=1, timeout=0.01)
    await connections.acquire()
    with pytest.raises(TimeoutError):
        await connections.acquire()
    await connections.close(0)


async def test_one_that_arrives_after_all_were_closed_is_closed() -> None:
    server = Server()
    connections = ConnectionPool(server.connect, most=2, timeout=LONG)
    connections.release(await connections.acquire())
    in_use = await connections.acquire()
    server.door.clear()
    late = asyncio.ensure_future(connections.acquire())
    await turn()
    closing = asyncio.ensure_future(connections.close(LONG))
    await turn()
    server.door.set()
    with pytest.raises(ConnectionError):
        await late
    assert not closing.done()
    connections.release(in_use)
    await closing
    assert [one.is_cut for one in server.made] == [True, True]
    with pytest.raises(ConnectionError):
        await connections.acquire()


async def test_a_server_that_breaks_at_the_goodbye_is_left() -> None:
    class Broken(Connection):
        async def close(self) -> None:
            raise asyncpg.InternalClientError("cannot switch to that state")

    async def connect() -> Broken:
        made.append(Broken())
        return made[-1]

    made: list[Broken] = []
    connections = ConnectionPool(connect, most=2, timeout=LONG)
    for connection in [await connections.acquire() for _ in range(2)]:
        connections.release(connection)
    await connections.close(LONG)
    assert [one.is_cut for one in made] == [True, True]


async def test_a_connection_that_is_unused_for_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
    server = Server()
    connections = ConnectionPool(server.connect, most=9, timeout=LONG)
    for connection in [await connections.acquire() for _ in range(3)]:
        connections.release(connection)
    while sum(not one.is_cut for one in server.made) > 0:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert await connections.acquire() is server.made[3]
    await connections.close(0)

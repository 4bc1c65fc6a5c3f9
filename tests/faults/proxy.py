"""A proxy with the faults of a network between clients and a server."""

from __future__ import annotations

import asyncio
import random
from urllib.parse import urlsplit

REQUEST, ANSWER = "request", "answer"


class Proxy:
    """Forwards bytes between clients and a server. It can break connections, hold bytes back, or delay them."""

    def __init__(self, url: str, host: str = "127.0.0.1") -> None:
        """`host`: the address that it listens on."""
        self._url = urlsplit(url)
        self._host = host
        self._left: dict[str, int | None] = {REQUEST: None, ANSWER: None}
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_whole = asyncio.Event()
        self._is_whole.set()
        self._delay = (0.0, 0.0)
        self._luck = random.Random(1)
        self.passed = 0  # pieces, in both directions

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        credentials, at, _ = self._url.netloc.rpartition("@")
        port = self._server.sockets[0].getsockname()[1]
        self.address = self._url._replace(netloc=f"{credentials}{at}{self._host}:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._is_whole.set()
        self.cut()
        await self._server.wait_closed()
        await asyncio.sleep(0.01)

    def lead_to(self, url: str) -> None:
        """Send new connections to `url`. Existing connections keep their server."""
        self._url = urlsplit(url)

    # Break connections.

    def cut_after(self, direction: str, count: int) -> None:
        """Break one connection after `count` bytes of a request or of an answer have passed."""
        self._left[direction] = count

    def mend(self) -> None:
        self._left = {REQUEST: None, ANSWER: None}

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    # Hold bytes back.

    def part(self) -> None:
        """Forward nothing, and close no connection. New connections get no answer either."""
        self._is_whole.clear()

    def join(self) -> None:
        """Forward the bytes that were held back, and all later ones."""
        self._is_whole.set()

    def slow_down(self, shortest: float, longest: float) -> None:
        """Delay each piece, in both directions, by a random time between these seconds."""
        self._delay = (shortest, longest)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._url.hostname, self._url.port)
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
            await asyncio.sleep(self._luck.uniform(*self._delay))
            await self._is_whole.wait()
            self.passed += 1
            left = self._left[direction]
            if left is not None and len(data) > left:
                self._left[direction] = None  # the next connection is not broken
                writer.write(data[:left])
                await writer.drain()
                raise ConnectionResetError
            if left is not None:
                self._left[direction] = left - len(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

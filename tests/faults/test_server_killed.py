"""A server is killed while tasks run, and started again: workers continue without help, and no task is lost.

Acknowledged writes survive as far as the server promises it: PostgreSQL with `synchronous_commit = on` and Redis with
`appendfsync always` keep all of them. With `appendfsync everysec` Redis may lose its last two seconds.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.errors import StorageError
from bullpen.tasks.model.task import SUCCESS
from tests.faults.storm import WITHIN, Storm
from tests.servers import OwnPostgres, OwnRedis, OwnServer

pytestmark = pytest.mark.anyio

FORGETS = 2.0  # seconds, with `everysec`: so long Redis may delay a write while its disk is busy


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OwnServer]:
    folder = tmp_path / "server"
    folder.mkdir()
    if request.param == "postgres":
        own: OwnServer = OwnPostgres(folder)
    else:
        own = OwnRedis(folder, "--appendonly", "yes", "--appendfsync", request.param)
    yield own
    own.kill()


class Feed:
    """Enqueues one task after the other. Each call succeeds or raises an error of Bullpen."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._answered = asyncio.Event()
        self._feeding = asyncio.ensure_future(self._feed())
        self.acknowledged: dict[str, float] = {}  # when, by id
        self.errors = 0

    async def _feed(self) -> None:
        while True:
            try:
                job = await self._storm.queue.aenqueue("nap", [0.02])
            except StorageError:
                self.errors += 1
            else:
                self.acknowledged[job.id] = time.monotonic()
            self._answered.set()
            await asyncio.sleep(0.005)

    async def gets(self, count: int) -> None:
        """Wait until `more` further tasks are acknowledged."""
        enough = len(self.acknowledged) + count
        async with asyncio.timeout(WITHIN):
            while len(self.acknowledged) < enough:
                await self._answer()

    async def fails(self) -> None:
        """Wait until a call has raised an error."""
        enough = self.errors + 1
        async with asyncio.timeout(WITHIN):
            while self.errors < enough:
                await self._answer()

    async def _answer(self) -> None:
        self._answered.clear()
        answered = asyncio.ensure_future(self._answered.wait())
        await asyncio.wait([answered, self._feeding], return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        if self._feeding.done():
            self._feeding.result()  # raises an unexpected error of the feeding task

    async def stop(self) -> None:
        self._feeding.cancel()
        await asyncio.wait([self._feeding])


async def interrupt(storm: Storm, feed: Feed, server: OwnServer, number: signal.Signals) -> None:
    """Kill the server under load, and start it again."""
    await storm.at_work()
    await feed.gets(30)
    storm.note("fault", "storm", f"the server is sent {number.name}")
    await asyncio.to_thread(server.kill, number)
    await feed.fails()
    await asyncio.to_thread(server.start)
    await feed.gets(30)
    storm.note("fault", "storm", "calm")


@pytest.mark.parametrize("server", ["postgres", "always"], indirect=True)
async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    tmp_path: Path, server: OwnServer, thorough: bool
) -> None:
    numbers = [signal.SIGKILL] if isinstance(server, OwnRedis) else [signal.SIGKILL, signal.SIGQUIT]
    async with Storm(tmp_path, server.url, lease=5.0, workers=1) as storm:
        feed = Feed(storm)
        for number in numbers * (10 if thorough else 1):
            await interrupt(storm, feed, server, number)
        await feed.stop()
        await storm.all_ended()
        await storm.stop()
        await storm.judged()
        kept = {task.id: task for task in await storm.storage.get(list(feed.acknowledged)) if task is not None}
    assert dict.fromkeys(feed.acknowledged, SUCCESS) == {task_id: task.status for task_id, task in kept.items()}


@pytest.mark.parametrize("server", ["everysec"], indirect=True)
async def test_redis_loses_its_last_two_seconds_at_most(tmp_path: Path, server: OwnServer, thorough: bool) -> None:
    """With `everysec`. All writes that were acknowledged before, or after the restart, are there."""
    async with Storm(tmp_path, server.url, lease=5.0, workers=1) as storm:
        feed = Feed(storm)
        killed: list[tuple[float, float]] = []
        for _ in range(10 if thorough else 1):
            await storm.at_work()
            await asyncio.sleep(FORGETS)
            began = time.monotonic()
            await interrupt(storm, feed, server, signal.SIGKILL)
            killed.append((began - FORGETS, time.monotonic()))
        await feed.stop()
        await storm.all_ended()
        await storm.stop()
        kept = {task.id: task for task in await storm.storage.get(list(feed.acknowledged)) if task is not None}
    assert {task.status for task in kept.values()} == {SUCCESS}
    lost = [at for task_id, at in feed.acknowledged.items() if task_id not in kept]
    assert all(any(first <= at <= last for first, last in killed) for at in lost)
    assert len(lost) < len(kept)

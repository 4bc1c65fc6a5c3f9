"""Wake-ups: only hints, but prompt ones."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from bullpen.tasks.storage.sqlite.wakeups import Waker, WakeupListener

pytestmark = pytest.mark.anyio


async def rung(listener: WakeupListener, waker: Waker, told: set[str], done: set[str], **interest: object) -> bool:
    """Whether one who waits for `interest` hears it."""
    with listener.listening(**interest) as waiting:  # type: ignore[arg-type]
        waker.wake_all(told, done)
        for _ in range(5):
            await asyncio.sleep(0)
        return waiting.is_news


@pytest.mark.parametrize("place", ["near", "far" * 40])
@pytest.mark.parametrize("own", [True, False])
async def test_a_waiting_caller_is_woken_by_its_own_subject(tmp_path: Path, place: str, own: bool) -> None:
    """Also when the path is longer than a socket's address, in this process or another."""
    folder = tmp_path / place
    folder.mkdir()
    mine = Waker(folder)
    waker = mine if own else Waker(folder)
    listener = WakeupListener(mine, folder)
    try:
        assert await rung(listener, waker, {"mail"}, set(), queues={"mail", "cpu"})
        assert not await rung(listener, waker, {"other"}, {"t"}, queues={"mail", "cpu"})
        assert await rung(listener, waker, set(), {"t"}, task="t")
        assert not await rung(listener, waker, {"mail"}, {"u"}, task="t")
        (path,) = folder.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        listener.close()
        waker.close()
    assert list(folder.iterdir()) == []


async def test_a_message_about_too_many_tasks_wakes_all_callers(tmp_path: Path) -> None:
    listener, waker = WakeupListener(Waker(tmp_path), tmp_path), Waker(tmp_path)
    assert await rung(listener, waker, set(), {f"{number:036}" for number in range(5000)}, task="t")
    listener.close()
    waker.close()


async def test_a_flood_of_hints_blocks_nobody(tmp_path: Path) -> None:
    listener, waker = WakeupListener(Waker(tmp_path), tmp_path), Waker(tmp_path)
    for _ in range(1000):
        waker.wake_all({"mail"}, set())
    with listener.listening(queues={"mail"}) as waiting:
        await asyncio.sleep(0)
        assert not waiting.is_news  # that was before
    listener.close()
    waker.close()


async def test_the_sockets_of_the_dead_are_cleared_away(tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(tmp_path / "4.0.wakeup"))
    dead.close()
    waker = Waker(tmp_path)
    waker.wake_all({"mail"}, set())
    waker.close()
    assert list(tmp_path.iterdir()) == []


async def test_nonsense_is_not_heard(tmp_path: Path) -> None:
    listener = WakeupListener(Waker(tmp_path), tmp_path)
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with listener.listening(queues={"mail"}) as waiting:
        stranger.sendto(b"\xff\x00nonsense", str(next(tmp_path.iterdir())))
        await asyncio.sleep(0.01)
        assert not waiting.is_news
    stranger.close()
    listener.close()

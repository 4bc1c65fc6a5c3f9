"""The io thread, and state of a process that other threads share with it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from bullpen.pools.runtimes.process import supervised, wire
from bullpen.pools.runtimes.process.io_thread import Channel, IOThread, TimerHandle
from bullpen.pools.runtimes.process.supervised import Supervised

PATIENCE = 30


def test_only_its_own_thread_takes_a_timer_away() -> None:
    board = IOThread()
    held, go_on, done = threading.Event(), threading.Event(), threading.Event()
    timer = board.call_later(PATIENCE, lambda: None)
    board.post(held.set)
    board.post(lambda: go_on.wait(PATIENCE))
    assert held.wait(PATIENCE)
    board.cancel_timer(timer)
    there = [handle for _, handle in board._timers]
    board.post(done.set)
    go_on.set()
    assert done.wait(PATIENCE)
    assert there == [timer]
    assert board._timers == []


def test_a_timer_that_is_cancelled_before_the_thread_has_it_is_never_there() -> None:
    board = IOThread()
    held, go_on, done = threading.Event(), threading.Event(), threading.Event()
    timers: list[TimerHandle] = []

    def cancel_before_the_rest() -> None:
        held.set()
        go_on.wait(PATIENCE)
        board.cancel_timer(timers[0])

    board.post(cancel_before_the_rest)
    assert held.wait(PATIENCE)
    timers.append(board.call_later(PATIENCE, lambda: None))
    board.post(done.set)
    go_on.set()
    assert done.wait(PATIENCE)
    assert board._timers == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("free", [0, 1, 2])
def test_it_begins_later_if_there_are_no_descriptors_now(free: int) -> None:
    board = IOThread()
    done = threading.Event()
    never: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(free):
            os.close(taken.pop())
        with pytest.raises(OSError, match="Too many open files"):
            board.post(lambda: never.append(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    board.post(done.set)
    assert done.wait(PATIENCE)
    assert never == [], "whoever gets an error has posted nothing"


def test_messages_from_before_the_end_are_received_however_large_they_are() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    try:
        large = bytes(wire.CHUNK + 1000)
        wire.send_all(theirs, [*wire.pack(7, 1, large), *wire.pack(7, 2)])
        theirs.close()
        assert [(number, bytes(data)) for _, number, data, _ in channel.rest()] == [(1, large), (2, b"")]
    finally:
        channel.close()


class Ending(dict[int, Any]):
    """Requests, all of which end as soon as somebody looks at them without having the lock."""

    lock: Any

    def __contains__(self, number: object) -> bool:
        there = super().__contains__(number)
        if not self.lock.locked():
            self.clear()
        return there


class Quiet(Supervised):
    def _hear_the_rest(self) -> bool:
        return False

    def _close(self) -> None:
        pass


def a_process() -> Quiet:
    return Quiet(MagicMock(capacity=1), MagicMock(), cancel_grace=PATIENCE)


def test_a_request_may_end_while_it_is_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "io_thread", board := MagicMock())
    process = a_process()
    process._requests = Ending({1: None, 2: None})
    process._requests.lock = process._lock
    process._told = {2: None}
    process._insist(2)
    assert process._told == {2: board.call_later.return_value}


def test_a_request_may_be_cancelled_while_its_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "io_thread", board := MagicMock())
    process = a_process()
    process._told = {1: MagicMock(), 2: MagicMock()}
    board.cancel_timer.side_effect = lambda timer: process._told.update({3: timer})
    process._stopping = True
    process.ended(0, "")
    assert board.cancel_timer.call_count == 2
    assert process.join(0)


def test_the_rest_of_a_channel_ends_at_garbage() -> None:
    mine, its = socket.socketpair()
    channel = Channel(mine)
    valid = b"".join(wire.pack(wire.NEWS, 1, bytes(1000)))
    count = 70  # frames; more than one read takes
    its.sendall(valid * count + b"garbage" * 1000)
    assert len(channel.rest()) >= count // 2
    mine.close()
    its.close()

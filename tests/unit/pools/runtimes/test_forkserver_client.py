"""The app's side of a forkserver that ends at a bad moment."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from bullpen.pools.runtimes.process import wire
from bullpen.pools.runtimes.process.forkserver_client import ForkserverClient
from bullpen.pools.runtimes.process.io_thread import Channel, io_thread
from tests.scenarios.process_support import eventually

PATIENCE = 30


def test_descriptors_of_an_order_are_closed_once_though_the_forkserver_ends_while_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    opened: list[int] = []
    ended = threading.Event()
    client = ForkserverClient(((), None))
    send_fds = socket.send_fds

    def end() -> None:
        client._end("")
        ended.set()

    def ends_meanwhile(*order: Any) -> int:
        io_thread.post(end)
        ended.wait(0.1)  # it could close them now
        opened.extend(os.open(precious, os.O_RDONLY) for _ in range(8))
        return send_fds(*order)

    client.expect(MagicMock(), {}, list(os.pipe()))
    monkeypatch.setattr(socket, "send_fds", ends_meanwhile)
    client.order()
    assert ended.wait(PATIENCE)
    for fd in opened:
        os.close(fd)  # fails if somebody else has done so


class StartingWorker:
    """Keeps what it is told when it has started."""

    unwanted = overdue = is_over = False

    peak_memory: int | None = None

    def __init__(self) -> None:
        self.pidfd: int | None = None

    def orphaned(self) -> None:
        pass

    def started(self, pid: int, pidfd: int | None) -> None:
        self.pidfd = pidfd

    def ended(self, code: int | None, why: str) -> None:
        pass


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no such descriptors")
@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_descriptor_that_is_missing_is_not_replaced_by_that_of_another_worker(missing: int) -> None:
    client = ForkserverClient(((), None))
    forkserver = client._channel
    eventually(lambda: forkserver.sock.fileno() in io_thread._watched)
    ours, theirs = socket.socketpair()
    client._channel = Channel(ours)
    all_starting = {number: StartingWorker() for number in (1, 2, 3)}
    client._workers.update(all_starting)
    with theirs:
        for number in all_starting:
            pidfds = [] if number == missing else [os.pidfd_open(os.getpid())]
            socket.send_fds(theirs, wire.pack(wire.STARTED, number, bytes(8)), pidfds)
            for fd in pidfds:
                os.close(fd)
        for _ in all_starting:
            client._heard()
    got = {number for number, starting in all_starting.items() if starting.pidfd is not None}
    for starting in all_starting.values():
        if starting.pidfd is not None:
            os.close(starting.pidfd)
    ended = threading.Event()
    for action in (forkserver.close, lambda: client._end(""), ended.set):
        io_thread.post(action)
    assert ended.wait(PATIENCE)
    assert got == {1, 2, 3} - {missing}

"""How a spare process gets its orders."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bullpen.pools.runtimes.process import bootstrap

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="how sockets cut what they are given is Linux's way")


@pytest.fixture
def stand_in() -> Iterator[int]:
    """A process that may be killed."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_orders_that_a_socket_takes_in_pieces_arrive_whole(stand_in: int, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[bytes, list[int]]] = []
    monkeypatch.setattr(bootstrap, "become_worker", lambda data, fds, *_: became.append((data, fds)))
    orders = os.urandom(25_000)
    ours, its = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)  # a piece is half of what it holds at most
    descriptors = os.pipe()
    assert bootstrap.SpareProcess(stand_in, ours).take(orders, list(descriptors))
    bootstrap.wait_for_orders(its, 0, 0)
    ((data, fds),) = became
    for fd in (*descriptors, *fds):
        os.close(fd)
    assert len(fds) == 2
    assert data == orders


def test_a_spare_whose_forkserver_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "become_worker", lambda *_: pytest.fail("there were no orders"))
    ours, its = socket.socketpair()
    ours.close()
    bootstrap.wait_for_orders(its, 0, 0)

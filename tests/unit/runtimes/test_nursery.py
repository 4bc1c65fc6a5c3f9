"""The app's side of a keeper that ends at a bad moment."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from bullpen.runtimes.process.nursery import Nursery
from bullpen.runtimes.process.switchboard import switchboard

PATIENCE = 30


def test_descriptors_of_an_order_are_closed_once_though_the_keeper_ends_while_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    opened: list[int] = []
    ended = threading.Event()
    nursery = Nursery(((), None))
    send_fds = socket.send_fds

    def end() -> None:
        nursery._end("")
        ended.set()

    def ends_meanwhile(*order: Any) -> int:
        switchboard.post(end)
        ended.wait(0.1)  # it could close them now
        opened.extend(os.open(precious, os.O_RDONLY) for _ in range(8))
        return send_fds(*order)

    nursery.expect(MagicMock(), {}, list(os.pipe()))
    monkeypatch.setattr(socket, "send_fds", ends_meanwhile)
    nursery.order()
    assert ended.wait(PATIENCE)
    for fd in opened:
        os.close(fd)  # fails if somebody else has done so

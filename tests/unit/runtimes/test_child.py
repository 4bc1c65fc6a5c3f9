"""A worker process that is sent something which it cannot have."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator

import pytest

from bullpen.runtimes.process import arena, child, failures, wire

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no such memory here")


@pytest.fixture
def app() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    before = signal.getsignal(wire.NUDGE)
    shared = arena.new_files()
    try:
        with ours, theirs:
            child.worker = child.Worker(theirs, shared)
            yield ours
    finally:
        del child.worker
        signal.signal(wire.NUDGE, before)
        for fd in shared:
            os.close(fd)


def test_a_call_whose_memory_cannot_be_had_fails_alone(app: socket.socket) -> None:
    too_large = struct.pack("<2q", 0, 1 << 62)
    wire.send_all(app, wire.pack(wire.CALL | wire.SHARED, 1, too_large))
    wire.send_all(app, wire.pack(wire.CALL, 2, b"the next"))
    kind, number, data, _ = child.worker.next_frame()
    assert (kind, number, bytes(data)) == (wire.CALL, 2, b"the next")
    *_, (kind, number, data, _) = wire.Reader().read(app)
    assert (kind, number) == (wire.REFUSED, 1)
    assert "mmap length" in str(failures.rebuild(wire.loads(data, ()), RuntimeError))

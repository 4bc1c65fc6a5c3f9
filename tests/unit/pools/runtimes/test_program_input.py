"""What is written to the stdin of a program that reads slowly."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from bullpen.pools.runtimes.process.io_thread import io_thread
from bullpen.pools.runtimes.program.program import Input

LARGE = 8 * 1024 * 1024
SOME = 64 * 1024


def test_a_large_message_is_not_copied_for_each_piece_that_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_thread, "post", lambda action: None)  # this test says when there is room
    monkeypatch.setattr(io_thread, "forget", lambda fd: None)
    its, ours = os.pipe()
    stdin = Input(ours, lambda: pytest.fail("it is read"))
    message = os.urandom(LARGE)
    read: list[bytes] = []
    tracemalloc.start()
    try:
        stdin.write(message)
        stdin.write(b"the next")
        while sum(map(len, read)) < LARGE + len(b"the next"):
            read.append(os.read(its, SOME))
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            stdin._flush()
            assert tracemalloc.get_traced_memory()[1] - before < SOME
    finally:
        tracemalloc.stop()
        os.close(its)
        stdin.close()
    assert b"".join(read) == message + b"the next"

"""A worker process that is sent something which it cannot have."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.errors import RemoteError
from bullpen.pools.runtimes.process import arena, child, failures, wire

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no such memory here")


@pytest.fixture
def app() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    before = signal.getsignal(wire.NUDGE)
    shared = arena.new_files()
    try:
        with ours, theirs:
            child.worker = child.ChildWorker(theirs, shared)
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
    *_, (kind, number, data, _) = wire.FrameReader().read(app)
    assert (kind, number) == (wire.UNPICKLABLE, 1)
    assert "mmap length" in str(failures.rebuild(wire.loads(data, ()), RuntimeError))


@pytest.mark.parametrize("runtime", ["ProcessRuntime()", 'ProgramRuntime(["no such program"])'])
def test_what_a_worker_imports_starts_nothing_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    source = "from bullpen import Pool, ProcessRuntime, ProgramRuntime\npool = Pool(2, min_workers=2, runtime={})\n"
    (tmp_path / "module_with_a_pool.py").write_text(source.format(runtime))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "module_with_a_pool", raising=False)
    monkeypatch.setattr(child, "of_an_app", True)
    with importlib.import_module("module_with_a_pool").pool as pool:
        assert pool.stats().workers == 0
        assert pool.wait_ready(0)
    del sys.modules["module_with_a_pool"]


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("places", [(0,), (2, 3), (5,), (0, 1, 2, 3, 4, 5)])
@pytest.mark.parametrize("kind", [ValueError, StopIteration, KeyboardInterrupt])
def test_each_item_of_a_chunk_runs_once_and_goes_on_behind_one_that_failed(
    kind: type[BaseException], places: tuple[int, ...]
) -> None:
    ran = []

    def add(a: int, b: int) -> int:
        ran.append(a)
        if a in places:
            raise kind
        return a + b

    outcomes = child.run_items(add, list(range(6)), [10] * 6)
    assert ran == list(range(6))
    assert outcomes.values == [None if a in places else a + 10 for a in range(6)]
    assert tuple(outcomes.errors) == places
    assert {type(failures.rebuild(entries, RemoteError)) for entries in outcomes.errors.values()} == {kind}


@pytest.mark.usefixtures("app")
def test_a_chunk_without_columns_has_no_outcomes() -> None:
    assert child.run_items(int).values == []

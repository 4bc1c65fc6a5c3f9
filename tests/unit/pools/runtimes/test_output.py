"""The output of workers, which one thread reads for all of them."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading

import pytest

from bullpen.pools.runtimes.process import output
from bullpen.pools.runtimes.process.io_thread import io_thread, log_thread
from bullpen.pools.runtimes.process.output import Output


def until_logged() -> None:
    """Wait until the log thread has run all that it has."""
    logged = threading.Event()
    log_thread.run_after(logged.set)
    assert logged.wait(30)


def test_one_turn_passes_on_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.output")
    there, here = os.pipe()
    os.write(here, b"\n" * 60_000)
    os.close(here)
    reader = Output(there, "worker", "stdout")
    reader.read()
    until_logged()
    assert 0 < len(caplog.records) <= 4096
    read = len(caplog.records)
    while reader.drain():
        until_logged()
        assert len(caplog.records) - read <= 4096
        read = len(caplog.records)
    assert len(caplog.records) == 60_000, "the end of a worker loses none"
    assert len(reader.tail) == output.KEPT


def test_control_characters_of_workers_are_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.output")
    there, here = os.pipe()
    os.write(here, "\x1b[2Jred\tone\rtwo\x9b \u202eabc\n".encode())
    os.close(here)
    reader = Output(there, "worker", "stderr")
    while reader.drain():
        pass
    until_logged()
    assert [record.getMessage() for record in caplog.records] == ["worker: \\x1b[2Jred\tone\\rtwo\\x9b \\u202eabc"]


@pytest.mark.parametrize("line", [b"y" * 100, b"y" * 8000], ids=["short", "long"])
def test_a_stream_of_the_app_without_room_holds_up_no_other_worker(
    monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setattr(logging.getLogger("bullpen.output"), "propagate", False)
    page, app = os.pipe()  # that of a pager
    fcntl.fcntl(app, fcntl.F_SETPIPE_SZ, 4096)
    there, here = os.pipe()
    lines = 50_000 // len(line)
    os.write(here, (line + b"\n") * lines)
    os.close(here)
    with open(app, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        reader = Output(there, "worker", "stdout")
        io_thread.post(reader.watch)
        for _ in range(20):  # the thread of all workers goes on
            passed = threading.Event()
            io_thread.call_later(0.001, passed.set)
            assert passed.wait(30)
        came = b""
        while len(came) < (len(line) + 1) * lines:
            came += os.read(page, 65536)
        assert came == (line + b"\n") * lines
        ended = threading.Event()
        io_thread.post(ended.set)
        assert ended.wait(30)
    os.close(page)


def test_the_last_output_of_a_worker_waits_for_a_stream_without_room_and_no_other_worker_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("bullpen.output"), "propagate", False)
    page, app = os.pipe()
    fcntl.fcntl(app, fcntl.F_SETPIPE_SZ, 4096)
    there, here = os.pipe()
    os.write(here, b"y" * 50_000 + b"\n")
    os.close(here)
    with open(app, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        reader = Output(there, "worker", "stdout")
        while reader.drain():  # its worker has ended
            pass
        reader.close()
        came = b""
        while came.count(b"y") < 50_000:
            came += os.read(page, 65536)
        until_logged()
    os.close(page)
    assert came.replace(b"\n", b"") == b"y" * 50_000

"""The output of workers, which one thread reads for all of them."""

from __future__ import annotations

import logging
import os

import pytest

from bullpen.pools.runtimes.process import output
from bullpen.pools.runtimes.process.output import Output


def test_one_turn_passes_on_a_bounded_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.output")
    there, here = os.pipe()
    os.write(here, b"\n" * 60_000)
    os.close(here)
    reader = Output(there, "worker", "stdout")
    reader.read()
    assert 0 < len(caplog.records) <= 4096
    read = len(caplog.records)
    while reader.drain():
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
    assert [record.getMessage() for record in caplog.records] == ["worker: \\x1b[2Jred\tone\\rtwo\\x9b \\u202eabc"]

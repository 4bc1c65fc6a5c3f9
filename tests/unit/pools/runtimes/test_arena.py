"""Shared memory between app and worker, when its end comes while somebody writes."""

from __future__ import annotations

import gc
import itertools
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from bullpen.pools.runtimes.process import arena

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there is no such memory here")


def test_a_piece_is_never_written_into_a_file_that_was_opened_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    call, result, log = arena.new_files()
    os.close(log)
    os.close(result)
    outbox = arena.Outbox(call)
    opened: list[int] = []
    pwrite = os.pwrite

    def ends_meanwhile(fd: int, data: Any, offset: int) -> int:
        if not opened:
            outbox.close()
            opened.extend(os.open(precious, os.O_RDWR) for _ in range(8))
        return pwrite(fd, data[: arena.LEAST // 2], offset)

    monkeypatch.setattr(os, "pwrite", ends_meanwhile)
    outbox.place([b"Z" * arena.LEAST])
    for fd in opened:
        os.close(fd)
    assert precious.read_bytes() == b"precious"
    with pytest.raises(OSError, match="Bad file descriptor"):  # the writer has closed it
        os.fstat(call)


def test_pieces_after_the_close_have_to_be_sent() -> None:
    call, result, log = arena.new_files()
    os.close(log)
    os.close(result)
    outbox = arena.Outbox(call)
    outbox.close()
    outbox.close()
    piece = b"Z" * arena.LEAST
    assert outbox.place([piece])[1] == [piece]


def test_pieces_of_which_one_cannot_be_had_are_all_free_again() -> None:
    call, result, log = arena.new_files()
    os.close(log)
    os.close(result)
    outbox, inbox = arena.Outbox(call), arena.Inbox(os.dup(call))
    description, _ = outbox.place([b"Z" * arena.LEAST] * 3)
    places = list(struct.iter_unpack("<qq", description))
    places[1] = (places[1][0], 1 << 62)
    with pytest.raises(ValueError, match="mmap length"):
        inbox.collect(struct.pack("<6q", *itertools.chain(*places)), [])
    gc.collect()
    outbox.freed(inbox.take_freed())
    assert outbox._used == {}
    outbox.close()
    inbox.close()


def test_calls_begin_in_any_order_and_only_marked_ones_have_begun() -> None:
    files = arena.new_files()
    marks, inbox = arena.open_marks(files[1]), arena.Inbox(files[1])
    places = len(marks)
    for number in (7, 5, places + 2):
        arena.mark_begun(marks, number)
    arena.mark_begun(marks, 2)  # after one that has the same place
    seen = inbox.marks()
    assert seen is not None
    begun = [number for number in range(1, places + 10) if arena.has_begun(seen, number)]
    assert begun == [2, 5, 7, places + 2]
    os.ftruncate(files[1], 8)
    assert inbox.marks() is None, "then nothing is known"
    marks.release()
    for fd in files:
        os.close(fd)

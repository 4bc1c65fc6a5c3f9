"""An app for ``bullpen worker``."""

from __future__ import annotations

import os

from bullpen import TaskQueue

from .clock import note_time

queue = TaskQueue(os.environ["BULLPEN_BENCH_ADDRESS"])
note = queue.task(name="note")(note_time)


def enqueue() -> None:
    note.enqueue()
    queue.close()

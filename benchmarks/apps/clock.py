"""Writes the time to a file, on the clock that all processes of a machine share."""

from __future__ import annotations

import os
import time

VARIABLE = "BULLPEN_BENCH_TIMES"


def note_time() -> None:
    with open(os.environ[VARIABLE], "a") as file:
        file.write(f"{time.monotonic()}\n")

"""The functions that all peers run. A peer that does not fork the app imports this module in every worker."""

from __future__ import annotations

import os
import signal
from time import perf_counter, sleep

PATIENCE_SECONDS = 30.0  # for workers to start


def noop(x: object = None) -> object:
    """Cost nothing, so that only the pool is measured. Also returns its argument."""
    return x


def nap(seconds: float) -> float:
    sleep(seconds)
    return seconds


def die(note: str) -> None:
    """Kill this process. The file gets the time, on the clock that all processes share."""
    with open(note, "w") as file:
        file.write(repr(perf_counter()))
    os.kill(os.getpid(), signal.SIGKILL)


def meet(folder: str, count: int) -> None:
    """Wait until that many workers, each in its own process, are here."""
    open(os.path.join(folder, str(os.getpid())), "w").close()
    until = perf_counter() + PATIENCE_SECONDS
    while len(os.listdir(folder)) < count and perf_counter() < until:
        sleep(0.0005)

"""From enqueue to the start of the function, with an idle worker in another process: one task at a time."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from benchmarks.metrics import latency_of
from benchmarks.model import Measure
from benchmarks.servers.trace import LOOK_CLOSELY, Trace, new_trace

from .ours import Ours, in_file, in_file_normal
from .peers import Huey, LiteQueue
from .plain import Plain, new_row
from .remote import WAKEUPS, running
from .settings import Sizes, new_folder

WARM_UP = 10
TIMEOUT = 30.0  # seconds

Put = Callable[[int], object]


def until_it_runs(opened: Callable[[Path], AbstractContextManager[Put]], peer: str, **options: Any) -> Measure:
    """`options` are those of the worker."""

    def measure(sizes: Sizes) -> Mapping[str, float]:
        spans = list[float]()
        with (
            new_trace() as trace,
            new_folder() as folder,
            opened(folder) as put,
            running(peer, folder, trace=trace.path, **options),
        ):
            for number in range(WARM_UP):
                _span(put, trace, number)
            gc.collect()
            for number in range(sizes.calls):
                sleep(sizes.pause)
                spans.append(_span(put, trace, number))
        return latency_of(span * 1e9 for span in spans)

    return measure


def _span(put: Put, trace: Trace, number: int) -> float:
    before, began = trace.count(), monotonic()
    put(number)
    while trace.count() <= before:
        if monotonic() > began + TIMEOUT:
            raise TimeoutError(f"task {number} has not run after {TIMEOUT:g} s")
        sleep(LOOK_CLOSELY)
    return trace.entries()[-1][1] - began


# The contestants.


def ours(*, normal: bool = False) -> Callable[[Path], AbstractContextManager[Put]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[Put]:
        with Ours(in_file_normal(folder) if normal else in_file(folder)) as ours:
            yield ours.noop.enqueue

    return opened


@contextmanager
def huey(folder: Path) -> Iterator[Put]:
    yield Huey(folder).noop


def litequeue(*, full: bool) -> Callable[[Path], AbstractContextManager[Put]]:
    @contextmanager
    def opened(folder: Path) -> Iterator[Put]:
        queue = LiteQueue(folder, full=full).queue
        yield lambda number: queue.put(str(number))

    return opened


def plain(synchronous: str) -> Callable[[Path], AbstractContextManager[Put]]:
    """The floor: one commit, one datagram."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Put]:
        with (
            Plain(folder, synchronous=synchronous) as plain,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeups,
        ):

            def put(number: int) -> None:
                plain.add(new_row())
                wakeups.sendto(str(number).encode(), str(folder / WAKEUPS))

            yield put

    return opened

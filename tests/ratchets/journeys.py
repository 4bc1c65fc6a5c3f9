"""Five journeys through the code, traced. `python -m tests.ratchets.journeys NAME` prints the route of one.

The figures are the length of the way that a reader follows: how many calls, in how many files.

- A call is a `call` event of `sys.setprofile` in a file below `src/bullpen`: a Python function that starts, or a
  generator or coroutine that starts or resumes. Calls of C functions, of the standard library and of generated code
  (`__init__` of a dataclass) do not count. Comprehensions do not count either, because Python 3.12 inlines them.
- Every thread of the app counts. The profile function is installed before the first thread starts, and a flag
  switches the recording on. Worker processes are not traced: the crash counts the app's side.
- The journey is warm: it has run before, and nothing else is under way when it starts.
- A recording ends when the result is there and no thread has called anything for `QUIET` seconds.
- Timers, heartbeats, samples and lost races add calls. The figure is the smallest of several repetitions.
- Each journey runs in a process of its own, because the tests' lock checker and coverage add calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import bullpen
from bullpen import AsyncPool, Pool, TaskQueue, WorkerLost, WorkerPool

ROOT = Path(__file__).parents[2]
SOURCE = os.path.dirname(bullpen.__file__) + os.sep
INLINED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
QUIET = 0.05
REPETITIONS = 40  # races between threads make most routes a little longer than the shortest


class Call(NamedTuple):
    file: str
    function: str
    thread: str


class Figures(NamedTuple):
    calls: int
    files: int


Route = list[Call]
Routes = Generator[Route, None, None]


def figures_of(route: Route) -> Figures:
    return Figures(len(route), len({call.file for call in route}))


class Tracer:
    """Records the calls of every thread that starts after `install`, while `recording`."""

    def __init__(self) -> None:
        self._recording = False
        self._route: Route = []

    def install(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    @contextmanager
    def recording(self) -> Iterator[Route]:
        time.sleep(QUIET)  # what went before has ended, and the next id is of another moment
        route = self._route = []
        self._recording = True
        try:
            yield route
            wait_until_quiet(route)
        finally:
            self._recording = False

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._recording or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(SOURCE) and code.co_name not in INLINED:
            file = code.co_filename.removeprefix(SOURCE)
            self._route.append(Call(file, code.co_qualname, threading.current_thread().name))


def wait_until_quiet(route: Route) -> None:
    seen = -1
    while len(route) != seen:
        seen = len(route)
        time.sleep(QUIET)


def echo(value: int) -> int:
    return value


async def aecho(value: int) -> int:
    return value


def submit(tracer: Tracer) -> Routes:
    """`Pool(4).submit(f)` → `result()`."""
    with Pool(4) as pool:
        for _ in range(50):
            pool.submit(echo, 1).result()
        while True:
            with tracer.recording() as route:
                pool.submit(echo, 1).result()
            yield route


def do(tracer: Tracer) -> Routes:
    """`await AsyncPool.do(coro)`."""

    async def measure() -> list[Route]:
        async with AsyncPool(4) as pool:
            for _ in range(50):
                await pool.do(aecho, 1)
            return [await once(pool) for _ in range(REPETITIONS)]

    async def once(pool: AsyncPool) -> Route:
        await asyncio.sleep(QUIET)
        with tracer.recording() as route:
            await pool.do(aecho, 1)
            await asyncio.sleep(QUIET)  # `recording` stops the loop while it waits
        return route

    yield from asyncio.run(measure())


def enqueue(tracer: Tracer) -> Routes:
    """`enqueue` of a task into SQLite, without a worker."""
    with tempfile.TemporaryDirectory() as folder:
        queue = TaskQueue(f"sqlite:///{folder}/tasks.db")
        task = queue.task(name="echo")(echo)
        for _ in range(50):
            task.enqueue(1)
        while True:
            with tracer.recording() as route:
                task.enqueue(1)
            yield route


def task(tracer: Tracer) -> Routes:
    """`enqueue` into SQLite → a worker in the same process → `job.result()`."""
    with tempfile.TemporaryDirectory() as folder:
        queue = TaskQueue(f"sqlite:///{folder}/tasks.db")
        function = queue.task(name="echo")(echo)
        with WorkerPool(queue):
            for _ in range(30):
                function.enqueue(1).result(timeout=30)
            while True:
                with tracer.recording() as route:
                    function.enqueue(1).result(timeout=30)
                yield route


def crash(tracer: Tracer) -> Routes:
    """A worker process is killed with SIGKILL → `WorkerLost` → its replacement answers. A new pool each time."""
    logging.getLogger("bullpen").disabled = True
    while True:
        with Pool(1, runtime="process") as pool:
            for _ in range(10):
                pool.submit(os.getpid).result()
            with tracer.recording() as route:
                lost = pool.submit(signal.raise_signal, signal.SIGKILL).exception()
                pool.submit(os.getpid).result()
            assert isinstance(lost, WorkerLost)
            yield route


JOURNEYS: dict[str, Callable[[Tracer], Routes]] = {
    journey.__name__: journey for journey in (submit, do, enqueue, task, crash)
}


def shortest_route(name: str, repetitions: int) -> Route:
    """The shortest of so many routes, traced in this process, which must not have started a thread."""
    tracer = Tracer()
    tracer.install()
    with closing(JOURNEYS[name](tracer)) as routes:
        return min(islice(routes, repetitions), key=figures_of)


def trace(name: str, repetitions: int = REPETITIONS) -> Route:
    """The shortest route, traced in a process of its own."""
    command = [sys.executable, "-m", __name__, name, "--json", "--repetitions", str(repetitions)]
    traced = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [Call(*call) for call in json.loads(traced.stdout)]


def print_route(name: str, route: Route) -> None:
    """First what costs most, by file; then each call in order."""
    print(f"{name}: {JOURNEYS[name].__doc__}")
    print("{} calls in {} files".format(*figures_of(route)), f"on {len({call.thread for call in route})} threads\n")
    for file, calls in Counter(call.file for call in route).most_common():
        print(f"{calls:6}  {file}")
    print()
    for number, call in enumerate(route, 1):
        print(f"{number:4}  {call.thread:24}  {call.file:36}  {call.function}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.ratchets.journeys")
    parser.add_argument("journey", choices=JOURNEYS)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, help="the route is the shortest of so many")
    wanted = parser.parse_args()
    route = shortest_route(wanted.journey, wanted.repetitions)
    if wanted.json:
        print(json.dumps(route))
    else:
        print_route(wanted.journey, route)


if __name__ == "__main__":
    main()

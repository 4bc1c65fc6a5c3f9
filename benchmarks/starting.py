"""How long whole programs take to start: from the command to the first result, or to the first task of a worker.

`benchmarks.apps` has the programs. Each is started several times; the figure is the median.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from .apps import clock
from .model import Measure, Metric

ROOT = Path(__file__).parents[1]
FIRST = "first"
STARTS = 5
TIMEOUT = 30.0  # seconds
LOOK_EVERY = 0.001  # seconds

Place = Callable[[], AbstractAsyncContextManager[str]]


class NeverBegan(Exception):
    """The program ended, or did nothing in time."""


def metric(what: str) -> tuple[Metric, ...]:
    return (Metric(FIRST, f"from the command to {what}, median", "ms", "lower"),)


def script(name: str, *arguments: str) -> Measure:
    """A script of `benchmarks.apps`, which ends by itself."""
    command = [sys.executable, str(Path(__file__).parent / "apps" / f"{name}.py"), *arguments]

    def measure(sizes: Any) -> dict[str, float]:
        return {FIRST: median(_milliseconds(command) for _ in range(STARTS))}

    return measure


def imports(*modules: str) -> Measure:
    """The floor of a worker: an interpreter that imports these modules, and does nothing else."""
    program = f"import {', '.join(modules)}; from benchmarks.apps.clock import note_time; note_time()"

    def measure(sizes: Any) -> dict[str, float]:
        return {FIRST: median(_milliseconds([sys.executable, "-c", program]) for _ in range(STARTS))}

    return measure


def worker(app: str, place: Place, *command: str) -> Measure:
    """A worker that finds a task in its queue. `command` follows the name of the interpreter."""

    def at(address: str) -> float:
        os.environ["BULLPEN_BENCH_ADDRESS"] = address
        enqueue = [sys.executable, "-c", f"from benchmarks.apps.{app} import enqueue; enqueue()"]
        subprocess.run(enqueue, check=True)
        return _milliseconds([sys.executable, *command])

    async def start() -> float:
        async with place() as address:
            return at(address)

    def measure(sizes: Any) -> dict[str, float]:
        return {FIRST: median(asyncio.run(start()) for _ in range(STARTS))}

    return measure


@asynccontextmanager
async def sqlite_place() -> AsyncIterator[str]:
    """The address of a new file, where TMPDIR says."""
    with tempfile.TemporaryDirectory(prefix="bullpen-bench-", ignore_cleanup_errors=True) as folder:
        yield f"sqlite:///{folder}/jobs.db"


def _milliseconds(command: list[str]) -> float:
    """From the start of a program until it has noted the time. It is killed then."""
    with tempfile.NamedTemporaryFile("r", prefix="bullpen-bench-") as times:
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, clock.VARIABLE: times.name, "PYTHONPATH": paths}
        began = monotonic()
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as program:
            try:
                while not (noted := Path(times.name).read_text()).endswith("\n"):
                    if program.poll() is not None or monotonic() > began + TIMEOUT:
                        raise NeverBegan(f"{' '.join(command)} did not begin")
                    sleep(LOOK_EVERY)
            finally:
                program.kill()
    return (float(noted.split()[0]) - began) * 1000

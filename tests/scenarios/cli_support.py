"""`bullpen` as people run it: an app in a folder, commands that end, and workers that are told to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.scenarios.support import eventually

PATIENCE = 90.0  # seconds; interpreters start slowly where many do so at once

APP = """
import asyncio
import logging
import os
import time

from bullpen import TaskQueue, current_task

queue = TaskQueue("sqlite:///jobs.db")
log = logging.getLogger(__name__)


@queue.task
def add(a: int, b: int = 1) -> int:
    return a + b


@queue.task
async def nap(seconds: float) -> float:
    print("napping", os.getpid(), flush=True)
    await asyncio.sleep(seconds)
    return seconds


@queue.task
async def block(seconds: float) -> None:
    print("blocking", os.getpid(), flush=True)
    time.sleep(seconds)


@queue.task(max_retries=1, backoff=0.001)
def fail(secret: str) -> None:
    log.warning("about to fail")
    raise ValueError("as told")


@queue.task(queue="mail")
def pid() -> int:
    return os.getpid()
"""


class Folder:
    """A folder with an app in it, and `bullpen` in it."""

    def __init__(self, path: Path, app: str = APP) -> None:
        self.path = path
        self.write("app.py", app)

    def write(self, name: str, source: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))
        return file

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return subprocess.run(
            command(*words),
            cwd=self.path,
            env=environment(**variables),
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )

    def tell(self, *words: str) -> str:
        """What a command that has to succeed prints."""
        done = self.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.tell(*words, "--json"))

    def python(self, code: str) -> str:
        """Run code that may use the app; what it prints."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", "from app import *\n" + textwrap.dedent(code)],
            cwd=self.path,
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def worker(self, *words: str, app: str = "app") -> Worker:
        return Worker(self, ["worker", app, *words])


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "bullpen", *words]


def environment(**changes: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BULLPEN_")}
    return inherited | {"PYTHONUTF8": "1", "NO_COLOR": "1", "PYTHONPATH": ""} | changes


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """What is started here heeds SIGINT, also if the tests run in the background of a shell, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Worker:
    """A `bullpen worker` that runs; at the end nothing of it is left."""

    def __init__(self, folder: Folder, words: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command(*words),
            cwd=folder.path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self._folder = folder.path
        self._known: set[int] = set()  # pids of children
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=_copy, args=(self.process.stdout, self.out)),
            threading.Thread(target=_copy, args=(self.process.stderr, self.err)),
        ]
        for reader in self._readers:
            reader.start()

    def seen(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until `pattern` was seen so often, on either stream; what its groups, or it, have found."""

        def found() -> list[str]:
            return re.findall(pattern, "".join([*self.out, *self.err]), re.MULTILINE)

        assert eventually(lambda: len(found()) >= times, PATIENCE), (
            f"{pattern!r} not seen {times} times in:\n{self.told}"
        )
        return found()

    def runs(self) -> Worker:
        self.seen(r"serves default")
        return self

    @property
    def told(self) -> str:
        return "".join([*self.out, *self.err])

    def send(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def stop(self) -> int:
        self.send()
        return self.ends()

    def children(self) -> list[int]:
        """The pids of its child processes."""
        pids = [int(pid) for pid in _read(f"/proc/{self.process.pid}/task/{self.process.pid}/children").split()]
        self._known |= set(pids)
        return pids

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.children()
        self.process.kill()
        self.process.wait()
        for pid in self._known:
            if is_running(pid) and f"{self._folder}" == _cwd_of(pid):  # not another one with that number
                os.kill(pid, signal.SIGKILL)
        for reader in self._readers:
            reader.join(PATIENCE)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


def _copy(stream: Any, into: list[str]) -> None:
    for line in stream:
        into.append(line)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _cwd_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])

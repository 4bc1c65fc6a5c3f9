"""A worker in another process: ``python -m benchmarks.tasks.remote PEER FOLDER OPTIONS``, until its input ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bullpen import WorkerPool

from .ours import Ours, in_file
from .peers import Huey
from .settings import CONCURRENCY

_READY = "ready"


@contextmanager
def running(peer: str, folder: Path, **options: Any) -> Iterator[int]:
    """Start one, and end it with the block; its process id."""
    command = [sys.executable, "-m", "benchmarks.tasks.remote", peer, str(folder), json.dumps(options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != _READY:
            raise RuntimeError(f"the worker of {peer} did not start")
        try:
            yield process.pid
        finally:
            process.communicate()  # which ends its input


def main(peer: str, folder: Path, options: dict[str, Any]) -> None:
    if peer == "bullpen":
        with Ours(in_file(folder)) as ours, WorkerPool(ours.queue, concurrency=CONCURRENCY):
            _wait()
    else:
        with Huey(folder, fsync=options.pop("fsync")).consuming(**options):
            _wait()


def _wait() -> None:
    print(_READY, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))

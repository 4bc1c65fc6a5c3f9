"""A worker in another process: ``python -m benchmarks.tasks.remote PEER FOLDER OPTIONS``, until its input ends."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

from benchmarks.servers.trace import Trace
from bullpen import WorkerPool

from .ours import Ours, in_file, in_file_normal
from .peers import Huey, LiteQueue
from .plain import Plain
from .settings import CONCURRENCY

_READY = "ready"
WAKEUPS = "wakeups"  # the socket of the floor


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
    seen = Trace(options.pop("trace")) if "trace" in options else None
    if peer == "bullpen":
        url = in_file_normal(folder) if options.get("normal") else in_file(folder)
        is_async = options.get("is_async", True)
        with Ours(url, is_async=is_async, seen=seen) as ours, WorkerPool(ours.queue, concurrency=CONCURRENCY):
            _wait()
    elif peer == "litequeue":
        assert seen is not None
        _pop_each(LiteQueue(folder, full=options["full"]).queue, seen)
    elif peer == "plain SQL":
        assert seen is not None
        _claim_each(folder, seen)
    else:
        with Huey(folder, fsync=options.pop("fsync"), seen=seen or (lambda x: None)).consuming(**options):
            _wait()


def _pop_each(queue: Any, seen: Trace) -> None:
    """litequeue has no worker: this one polls every ms."""
    print(_READY, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        message = queue.pop()
        if message is None:
            sleep(0.001)
        else:
            seen(int(message.data))
            queue.done(message.message_id)


def _claim_each(folder: Path, seen: Trace) -> None:
    """The floor: a datagram wakes a bare loop, which claims one row without waiting for the disk."""
    with Plain(folder, synchronous="NORMAL") as plain, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeups:
        wakeups.bind(str(folder / WAKEUPS))
        print(_READY, flush=True)
        while sys.stdin not in select.select([wakeups, sys.stdin], [], [])[0]:
            number = int(wakeups.recv(100))
            if plain.exchange(1):
                seen(number)


def _wait() -> None:
    print(_READY, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))

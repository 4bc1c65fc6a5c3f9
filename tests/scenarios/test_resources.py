"""What tasks took is given back: the invariant I21, on histories of real runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bullpen import TaskQueue, WorkerPool
from bullpen.testing import Record, check, note_resources

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here")


def run_tasks(folder: Path, count: int) -> None:
    """Producers and workers, from open to closed: on the loop, on threads, failing and cancelled."""
    with TaskQueue(f"sqlite:///{folder / 'jobs.db'}") as queue:

        @queue.task(name="on_the_loop")
        async def on_the_loop(number: int) -> int:
            await asyncio.sleep(0)
            return number

        @queue.task(name="on_a_thread")
        def on_a_thread(number: int) -> float:
            return 1 / number

        later = on_the_loop.using(delay=3600).enqueue(0)
        jobs = [*on_the_loop.enqueue_many([(number,) for number in range(count)])]
        threads = on_a_thread.enqueue_many([(number,) for number in range(10)])
        with WorkerPool(queue, concurrency=8):
            assert [job.result(30) for job in jobs] == list(range(count))
            assert [job.result(30) for job in threads[1:]] == [1 / number for number in range(1, 10)]
        assert later.cancel()


def test_a_queue_and_its_workers_give_back_what_they_took(tmp_path: Path) -> None:
    history = list[Record]()
    run_tasks(tmp_path, 20)
    note_resources(history.append, "this process", "before")
    for _ in range(3):
        run_tasks(tmp_path, 200)
    note_resources(history.append, "this process", "after")
    check(history, only={"I21"}).raise_for_violations()
    assert history[0].counts is not None
    assert history[0].counts.keys() == {"fds", "threads", "children", "rss"}


@pytest.mark.parametrize("what", ["fds", "threads", "children", "rss"])
def test_what_is_not_given_back_is_found(what: str) -> None:
    history = list[Record]()
    note_resources(history.append, "this process", "before")
    end = threading.Event()
    match what:
        case "fds":
            held = os.open(os.devnull, os.O_RDONLY)
            note_resources(history.append, "this process", "after")
            os.close(held)
        case "threads":
            thread = threading.Thread(target=end.wait)
            thread.start()
            note_resources(history.append, "this process", "after")
            end.set()
            thread.join()
        case "children":
            with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
                note_resources(history.append, "this process", "after")
                child.communicate(b"\n")
        case "rss":
            memory = bytearray(b"x" * (1 << 28))
            note_resources(history.append, "this process", "after")
            del memory
    broken = check(history, only={"I21"})
    assert broken.broken == {"I21"}
    assert what in str(broken.violations[0])

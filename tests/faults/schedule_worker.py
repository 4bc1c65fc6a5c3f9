"""A worker with schedules. The tests kill it at any moment, or at a failpoint.

python -m tests.faults.schedule_worker URL EFFECTS FATAL HITS
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from bullpen import AsyncWorkerPool, TaskQueue, current_task, primitives

EVERY_SECOND = "* * * * * *"


def new_queue(url: str, effects: str) -> TaskQueue:
    queue = TaskQueue(url, max_retries=3)

    def note(what: str) -> None:
        task = current_task()
        descriptor = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        at = "none" if task.scheduled_at is None else f"{task.scheduled_at.timestamp():.0f}"
        os.write(descriptor, f"{task.name} {at} {os.getpid()} {what}\n".encode())
        os.close(descriptor)

    @queue.task(name="alone", cron=EVERY_SECOND)
    async def alone() -> None:
        note("begins")
        await asyncio.sleep(0.1)
        note("ends")

    @queue.task(name="beside", cron=EVERY_SECOND, overlap="allow")
    async def beside() -> None:
        note("begins")
        await asyncio.sleep(0.3)
        note("ends")

    @queue.task(name="again", interval=0.5)
    async def again() -> None:
        note("begins")
        note("ends")

    return queue


def end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


async def main(url: str, effects: str, fatal: str = "", hits: str = "0") -> None:
    left = int(hits)

    def failpoint(name: str) -> None:
        nonlocal left
        if name == fatal:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    primitives.failpoint = failpoint
    threading.Thread(target=end_with_parent, daemon=True).start()
    await AsyncWorkerPool(new_queue(url, effects), 4, 0.2, lease=2.0).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

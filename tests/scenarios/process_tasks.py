"""Tasks that run in processes in these tests. Every process imports this, so it does nothing else."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from bullpen import Inject, Pool, Retry, TaskQueue, WorkerBroken, WorkerStartFailed, current_task
from bullpen.tasks.worker.in_process import TaskProcess
from tests.scenarios import process_support
from tests.scenarios.process_support import note_pid

queue = TaskQueue("memory://")
plain = TaskQueue("memory://")  # without anything around its tasks
others = TaskQueue("memory://")


@plain.task
def pid() -> int:
    return os.getpid()


@plain.task
def next_day(day: date) -> date:
    return date.fromordinal(day.toordinal() + 1)


@plain.task(runtime="process")
def pid_of_own_choice() -> int:
    return os.getpid()


@plain.task(runtime="process")
def complain() -> None:
    print("the disk is nearly full", file=sys.stderr, flush=True)


@plain.task(runtime="thread")
def pid_of_a_thread() -> int:
    return os.getpid()


@plain.task
async def pid_of_the_loop() -> int:
    return os.getpid()


@plain.task(name="renamed", aliases=["former"])
def has_a_name_of_its_own() -> int:
    return os.getpid()


@plain.task
def ask_again() -> None:
    try:
        raise KeyError("missing")
    except KeyError as error:
        raise Retry("busy") from error


def not_decorated() -> int:
    return os.getpid()


registered_elsewhere = plain.task(name="elsewhere")(not_decorated)


class MyError(Exception):
    pass


@plain.task(max_retries=3, give_up_on=MyError)
def fail_for_good(text: str) -> None:
    raise MyError(text)


def fail_to_initialize() -> None:
    raise MyError("no worker starts")


def raise_an_error_of_pools(name: str) -> None:
    """What a task that has a pool of its own may get from it."""
    if name == "PoolFailed":
        Pool(1, initializer=fail_to_initialize).do(abs, 1)
    elif name == "PoolSaturated":
        with Pool(1, max_queue=0) as pool:
            pool.submit(time.sleep, 0.2)
            pool.submit(abs, 1)
    elif name == "WorkerLost":
        with Pool(1, runtime="process") as pool:
            pool.do(os._exit, 1)
    else:
        raise WorkerStartFailed("of another pool", worker="one of it")


@plain.task(max_retries=0)
def use_a_pool(file: str, name: str) -> None:
    with Path(file).open("a") as notes:
        notes.write("x")
    raise_an_error_of_pools(name)


@plain.task(at_most_once=True)
def use_a_pool_once(file: str, name: str) -> None:
    with Path(file).open("a") as notes:
        notes.write("x")
    raise_an_error_of_pools(name)


@plain.task
def break_its_process(file: str) -> int:
    """Say so with the first attempt."""
    note_pid(Path(f"{file}-{current_task().attempt}"))
    if current_task().attempt == 1:
        raise WorkerBroken("lost the card")
    return os.getpid()


@plain.task
def forget_to_await() -> object:
    return pid_of_the_loop()


@plain.task(max_retries=0)
def fail_with(name: str) -> None:
    process_support.fail_with(name)


@plain.task
def leave() -> None:
    sys.exit(3)


@plain.task
def crash_first(file: str) -> int:
    """Die with the first two attempts."""
    with Path(file).open("a") as notes:
        notes.write("x")
    if Path(file).stat().st_size < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return current_task().attempt


@plain.task
def crash_always() -> None:
    os._exit(9)


@plain.task(at_most_once=True)
def crash_once() -> None:
    os._exit(9)


@plain.task
def hold_the_gil(file: str) -> None:
    note_pid(Path(file))
    deque(itertools.repeat(0), maxlen=0)


@plain.task
def sleep(file: str, child: bool = False) -> None:
    if child:
        subprocess.Popen(["sleep", "600"])
    note_pid(Path(file))
    try:
        time.sleep(600)
    finally:
        Path(f"{file}-ended").touch()


@plain.task
def report(folder: str) -> str:
    task = current_task()
    for number in range(1000):
        task.progress(number, 1000)
    task.progress(1000, 1000, "all")
    while not Path(folder, "go").exists():
        time.sleep(0.005)
    return f"{task.id} {task.attempt} {task.is_cancelled} {task.deadline is not None}"


@plain.task
def complete() -> None:
    current_task().complete(None)


class ReluctantProcess(TaskProcess):
    """Cannot be made while there is a file `broken`."""

    def __init__(self) -> None:
        if Path(os.environ["PROCESS_TASKS_FOLDER"], "broken").exists():
            raise MyError("not now")
        super().__init__()


# With everything around it.


@queue.lifespan
async def lifespan() -> AsyncIterator[None]:
    _note(f"opened-{os.getpid()}")
    yield
    _note(f"closed-{os.getpid()}")


@queue.middleware
def surround(task: object) -> Iterator[None]:
    before.append("entered")
    yield
    before.append("left")


def get_number() -> int:
    return 40 + len(before)


before: list[str] = []


@queue.task
def surrounded(*, number: int = Inject(get_number)) -> tuple[int, int]:
    return number, os.getpid()


def _note(name: str) -> None:
    folder = os.environ.get("PROCESS_TASKS_FOLDER")
    if folder is not None:
        Path(folder, name).touch()


@plain.task(max_retries=1, backoff=0)
def stepped() -> tuple[str, str, list[int]]:
    """Its first attempt ends with its process."""
    task = current_task()
    first = task.step(token)
    again = task.using(key="pid").step(os.getpid)
    if task.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return first, task.step(same, first), [again, os.getpid()]


@plain.task
def in_transaction() -> str:
    return current_task().using(connection=object()).step(token)


def token() -> str:
    return os.urandom(8).hex()


def same(value: str) -> str:
    return value


@plain.task
def sleeper(catches: bool) -> int:
    try:
        current_task().sleep(0.02)
    except BaseException:
        if not catches:
            raise
    return current_task().attempt


@plain.task(timeout=0.5)
def hangs_after_logging(secret: str) -> None:
    logging.getLogger("shop").warning("login with %s", secret)
    time.sleep(process_support.PATIENCE)


@plain.task(timeout=0.5)
def hangs_and_ignores_its_end() -> None:
    logging.getLogger("shop").warning("begins")
    while True:
        try:
            time.sleep(process_support.PATIENCE)
        except BaseException:
            pass


@plain.task
def is_killed_after_logging() -> None:
    kept = bytearray(50 * 1024 * 1024)
    for number in range(60):
        logging.getLogger("shop").warning("line %d of %d bytes", number, len(kept))
        time.sleep(0.01)  # lines in quick succession may be on their way
    os.kill(os.getpid(), signal.SIGSEGV)


@plain.task(black_box=False)
def is_killed_without_black_box() -> None:
    logging.getLogger("shop").warning("private")
    os.kill(os.getpid(), signal.SIGKILL)


@plain.task
def waiter(event: str) -> Any:
    return current_task().wait_event(event, timeout=60)


@plain.task
def naps() -> None:
    time.sleep(process_support.PATIENCE)

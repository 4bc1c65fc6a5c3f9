"""`bullpen demo`: thousands of durable tasks, two worker processes, and one of them is killed."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol, TextIO

from bullpen.cli.app import import_module
from bullpen.cli.command import CommandError, ExitCode, Stopped
from bullpen.cli.demo import app, view
from bullpen.cli.demo.view import TasksSnapshot, TasksSummary
from bullpen.cli.terminal.output import show_json
from bullpen.cli.terminal.screen import Screen, is_live
from bullpen.cli.worker_process.parent_link import open_pair
from bullpen.tasks.client.task_queue import LARGEST_PAGE, TaskQueue
from bullpen.tasks.model.info import TaskInfo
from bullpen.tasks.model.task import FINAL, ErrorKind, TaskStatus

WORKERS, CONCURRENCY, REPORTS = 2, 50, 4
QUEUES = ("default", "reports")
LOGS = tuple(f"worker-{number}.log" for number in range(1, WORKERS + 1))
FRAME = 0.1  # seconds between two frames
COLUMN = 0.2  # seconds of throughput in one column
LONGEST = 60.0  # seconds; a longer run has failed
KILL_AT = 0.3  # the share of finished tasks at which a worker is killed


def run(arguments: argparse.Namespace) -> int:
    stopped = Stopped()
    folder = _make_folder(arguments.folder)
    with ExitStack() as stack:
        stack.enter_context(stopped.by_signals())
        stage = stack.enter_context(_open_stage(sys.stdout, plain=arguments.plain, as_json=arguments.json))
        summary = TasksDemo(folder, arguments.tasks, stage, stopped).play()
        if summary is not None:
            stage.close(summary)
    if stopped.signal is not None:
        print(f"bullpen demo: stopped; the tasks are in {folder}", file=sys.stderr)
        return 128 + stopped.signal
    return ExitCode.OK if summary is not None and not summary.lost else ExitCode.FAILED


def _make_folder(wanted: str | None) -> Path:
    if wanted is None:
        folder = Path(tempfile.mkdtemp(prefix="bullpen-demo-"))
    else:
        folder = Path(wanted).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # ValueError: no file system can have this name
            why = error.strerror if isinstance(error, OSError) else error
            raise CommandError(f"--folder {folder}: {why}", ExitCode.USAGE) from None
    for name in ("jobs.db", *LOGS):
        if os.path.lexists(folder / name):
            raise CommandError(f"{folder} has a {name} already; give another --folder", ExitCode.USAGE)
    try:
        with (folder / "app.py").open("xb") as file:
            file.write(Path(app.__file__).read_bytes())
    except OSError as error:
        why = "has an app.py already" if isinstance(error, FileExistsError) else f"cannot be written: {error.strerror}"
        raise CommandError(f"{folder} {why}; give another --folder", ExitCode.USAGE) from None
    return folder


class DemoStage(Protocol):
    """Shows the demo to the user."""

    def moment(self, words: str) -> None: ...
    def update(self, shot: TasksSnapshot) -> None: ...
    def close(self, summary: TasksSummary) -> None: ...


class LiveStage:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._moments: list[str] = []

    def moment(self, words: str) -> None:
        self._moments.append(words)

    def update(self, shot: TasksSnapshot) -> None:
        self._screen.draw(view.frame(shot, self._moments, self._screen.size().columns))

    def close(self, summary: TasksSummary) -> None:
        self._screen.leave(view.told(summary, self._screen.size().columns))


class PlainStage:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def moment(self, words: str) -> None:
        print(words, file=self._out, flush=True)

    def update(self, shot: TasksSnapshot) -> None:
        pass

    def close(self, summary: TasksSummary) -> None:
        print(*view.as_text(view.told(summary)), sep="\n", file=self._out, flush=True)


class JsonStage:
    def moment(self, words: str) -> None:
        pass

    def update(self, shot: TasksSnapshot) -> None:
        pass

    def close(self, summary: TasksSummary) -> None:
        show_json(summary)


def _open_stage(out: TextIO, *, plain: bool, as_json: bool) -> AbstractContextManager[DemoStage]:
    if as_json:
        return nullcontext(JsonStage())
    if plain or not is_live(out, os.environ.get("TERM", "")):
        return nullcontext(PlainStage(out))
    return _live(Screen(out, colours=not os.environ.get("NO_COLOR")))


@contextmanager
def _live(screen: Screen) -> Iterator[DemoStage]:
    with screen:
        yield LiveStage(screen)


class TasksDemo:
    """One run of the demo: enqueues tasks, kills one worker, stops the other, and sums up."""

    def __init__(self, folder: Path, tasks: int, stage: DemoStage, stopped: Stopped) -> None:
        self._folder = folder
        self._tasks = tasks
        self._stage = stage
        self._stopped = stopped
        self._began = time.monotonic()
        self._meter = Meter(COLUMN)
        self._victim: int | None = None

    def play(self) -> TasksSummary | None:
        """Run the demo. Returns the summary; None if the user has stopped it."""
        app = import_module(str(self._folder / "app.py"), "app.py")
        queue: TaskQueue = app.queue
        with queue, ExitStack() as workers:
            processes = [workers.enter_context(_worker(self._folder, number)) for number in range(1, WORKERS + 1)]
            self._say(f"{WORKERS} workers are starting: bullpen worker app.py")
            for name in QUEUES:
                queue.pause(name)
            began = time.monotonic()
            expected: int = app.enqueue_all(self._tasks)
            took = time.monotonic() - began
            self._say(f"{expected} tasks enqueued in {took:.2f} s, each on disk before enqueue returned")
            self._wait_for_workers(queue, expected, processes)
            for name in QUEUES:
                queue.resume(name)
            resumed = self._elapsed()
            self._say("the workers are up; the queues, paused until now, are resumed")
            self._watch(queue, expected, processes)
            if self._stopped:
                return None
            elapsed = self._elapsed()
            self._say("all done; SIGTERM stops the worker that is left")
            for process in processes:
                process.terminate()
            codes = [process.wait(LONGEST) for process in processes]
            return _sum_up(queue, self._folder, expected, took, elapsed, elapsed - resumed, self._meter.rates, codes)

    def _wait_for_workers(self, queue: TaskQueue, expected: int, processes: list[subprocess.Popen[bytes]]) -> None:
        """Wait until both workers are up, so that each runs a share of the tasks."""
        while not self._stopped:
            shot = self._look(queue, expected)
            self._stage.update(shot)
            if len(shot.workers) == WORKERS:
                return
            self._check(processes)
            time.sleep(FRAME)

    def _check(self, processes: list[subprocess.Popen[bytes]]) -> None:
        if self._elapsed() > LONGEST or all(process.poll() is not None for process in processes):
            raise CommandError(f"the workers make no progress; see {self._folder / 'worker-1.log'}")

    def _watch(self, queue: TaskQueue, expected: int, processes: list[subprocess.Popen[bytes]]) -> None:
        """Show frames until every task that is not periodic is final."""
        while not self._stopped:
            shot = self._look(queue, expected)
            self._stage.update(shot)
            if shot.finished >= expected:
                return
            if self._victim is None and shot.finished >= KILL_AT * expected:
                self._kill_one(processes[-1])
            self._check(processes)
            time.sleep(FRAME)

    def _kill_one(self, process: subprocess.Popen[bytes]) -> None:
        self._victim = process.pid
        process.kill()
        process.wait()
        self._say(f"kill -9 {process.pid}: a worker is dead; the other one takes over its tasks")

    def _look(self, queue: TaskQueue, expected: int) -> TasksSnapshot:
        totals = dict.fromkeys(TaskStatus, 0)
        for counts in queue.counts().values():
            for status, many in counts.items():
                totals[status] += many
        finished = sum(totals[status] for status in FINAL)
        elapsed = self._elapsed()
        self._meter.read(elapsed, finished)
        return TasksSnapshot(
            folder=str(self._folder),
            elapsed=elapsed,
            expected=expected,
            totals=totals,
            finished=finished,
            rates=tuple(self._meter.rates),
            workers=tuple(sorted(queue.workers(), key=lambda worker: worker.pid)),
            victim=self._victim,
            reports=tuple(queue.list(queue="reports", limit=REPORTS)),
        )

    def _say(self, words: str) -> None:
        self._stage.moment(f"{self._elapsed():4.1f} s  {words}")

    def _elapsed(self) -> float:
        return time.monotonic() - self._began


@contextmanager
def _worker(folder: Path, number: int) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process that ends with this process, even if this one is killed."""
    ours, theirs, variable = open_pair(number, is_first=True)
    with ours, (folder / LOGS[number - 1]).open("xb") as log:
        with theirs:
            process = _start(folder, log.fileno(), theirs, variable)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _start(folder: Path, log: int, line: socket.socket, variable: dict[str, str]) -> subprocess.Popen[bytes]:
    lanes = ("--lane", f"default:{CONCURRENCY}", "--lane", f"reports:{REPORTS // WORKERS}")
    return subprocess.Popen(
        [sys.executable, "-m", "bullpen", "worker", "app.py", *lanes],
        cwd=folder,
        env={**os.environ, **variable},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(line.fileno(),),
        process_group=0,  # Ctrl-C reaches only this process
    )


def _sum_up(
    queue: TaskQueue,
    folder: Path,
    expected: int,
    enqueue_seconds: float,
    elapsed: float,
    working: float,
    rates: list[float],
    codes: list[int],
) -> TasksSummary:
    tasks = list(_all_tasks(queue))
    once = [task for task in tasks if task.interval is None]
    periodic = [task for task in tasks if task.interval is not None]
    failed = [task for task in once if task.status is TaskStatus.FAILED]
    return TasksSummary(
        url=f"sqlite:///{folder / 'jobs.db'}",
        folder=str(folder),
        seconds=elapsed,
        working_seconds=working,
        enqueued=expected,
        enqueue_seconds=enqueue_seconds,
        succeeded=sum(task.status is TaskStatus.SUCCESS for task in once),
        failed=len(failed),
        lost=expected - sum(task.status in FINAL for task in once),
        retried=sum(task.status is TaskStatus.SUCCESS and _has_error(task, "exception") for task in once),
        rescued=sum(_has_error(task, "crash") for task in tasks),
        periodic=len(periodic),
        periodic_runs=sum(task.completed_runs for task in periodic),
        best_rate=max(rates, default=0.0),
        stopped_in_order=codes == [0] * (WORKERS - 1) + [-signal.SIGKILL],
        a_failed_task=failed[0].id if failed else None,
        a_periodic_task=periodic[0].id if periodic else None,
    )


def _has_error(task: TaskInfo, kind: ErrorKind) -> bool:
    return any(error.kind == kind for error in task.errors)


def _all_tasks(queue: TaskQueue) -> Iterator[TaskInfo]:
    after: str | None = None
    while page := queue.list(limit=LARGEST_PAGE, after=after):
        yield from page
        after = page[-1].id


class Meter:
    """How many tasks end per second: one value for each `step` seconds."""

    def __init__(self, step: float) -> None:
        self._step = step
        self._since = 0.0
        self._before = 0
        self.rates: list[float] = []

    def read(self, elapsed: float, ended: int) -> None:
        passed = elapsed - self._since
        if passed >= self._step:
            self.rates.append((ended - self._before) / passed)
            self._since, self._before = elapsed, ended

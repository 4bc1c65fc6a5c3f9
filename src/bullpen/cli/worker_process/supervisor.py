"""`bullpen worker --processes N`: N processes of the same command, each a fresh interpreter.

- The supervisor starts the first process alone. If it cannot start, its error is logged once and the command ends.
- The supervisor replaces a process that dies: at once at first, after growing pauses if processes keep dying.
- 1st signal: the processes finish their tasks. 2nd: they release their tasks and exit. 3rd: the supervisor kills them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from bullpen.cli.command import CommandError, ExitCode
from bullpen.cli.worker_process.parent_link import LEVELS, MARGIN, READY, open_pair
from bullpen.pools.supervision.restarts import Restarts

FORGIVEN, WINDOW = 3, 60.0  # deaths within these seconds are replaced without a pause

# Exit codes after a stop; by signal if the process had not started to work.
ENDS_IN_ORDER = (0, -signal.SIGTERM, -signal.SIGINT)

logger = logging.getLogger("bullpen.worker")


ServeMetrics = Callable[[Callable[[], Mapping[str, int]]], AbstractContextManager[object]]


def supervise(words: Sequence[str], processes: int, grace: float, serve_metrics: ServeMetrics | None = None) -> int:
    """Run the command `words` in `processes` processes until a stop signal. Returns the exit code. `serve_metrics`
    gets a function that returns the loopback ports on which the processes serve their metrics.
    """
    if sys.platform == "win32":  # pragma: no cover
        raise CommandError("--processes needs Unix signals and sockets; start several workers instead")
    command = [sys.executable, "-m", "bullpen", *words]
    supervisor = ProcessSupervisor(command, processes, grace, with_metrics=serve_metrics is not None)
    with nullcontext() if serve_metrics is None else serve_metrics(supervisor.metrics_ports):
        return asyncio.run(supervisor.run())


class ProcessSupervisor:
    def __init__(self, command: Sequence[str], processes: int, grace: float, *, with_metrics: bool = False) -> None:
        self._command = command
        self._with_metrics = with_metrics
        self._processes = processes
        self._grace = grace
        self._children: dict[int, Child] = {}
        self._restarts = Restarts(FORGIVEN, WINDOW)
        self._signals = 0
        self._code: int = ExitCode.OK

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._handle, number)
        try:
            await self._start_all()
        finally:
            for child in self._children.values():
                child.kill()
        return self._code

    def metrics_ports(self) -> dict[str, int]:
        """By the name of the process. On any thread."""
        return {f"worker-{number}": child.metrics_port for number, child in sorted(self._children.copy().items())}

    async def _start_all(self) -> None:
        first = await self._start(1, is_first=True)
        if not await first.is_ready():
            code = await self._ended(first)
            self._code = ExitCode.OK if self._stopping.is_set() else 128 - code if code < 0 else code
            return
        loops = [asyncio.create_task(self._keep(number)) for number in range(1, self._processes + 1)]
        await self._stopping.wait()
        _, late = await asyncio.wait(loops, timeout=self._grace + MARGIN)
        if late:
            logger.error("%d processes did not exit in time; killing them", len(late))
            self._kill_all()
            self._code = self._code or ExitCode.FAILED
            await asyncio.wait(late)

    async def _keep(self, number: int) -> None:
        """Keep one process running until a stop signal."""
        while number in self._children or not self._stopping.is_set():
            try:
                end = _told(await self._run_one(number))
            except OSError as error:  # the system cannot start a process now
                end = f"cannot be started ({error})"
            if self._stopping.is_set():
                return
            pause = self._pause()
            logger.error("worker-%d %s; starting another in %.1f s", number, end, pause)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                pass

    async def _run_one(self, number: int) -> int:
        """Start a process if needed, wait for its end, and return its exit code."""
        child = self._children.get(number) or await self._start(number)
        ready = asyncio.create_task(self._note_ready(child))
        code = await self._ended(child)
        await ready
        if self._stopping.is_set() and code not in ENDS_IN_ORDER:
            self._code = self._code or ExitCode.FAILED
        return code

    async def _start(self, number: int, *, is_first: bool = False) -> Child:
        child = self._children[number] = await Child.start(
            self._command, number, is_first=is_first, with_metrics=self._with_metrics
        )
        if self._signals:  # a signal came while it was started
            child.tell(self._signals)
        return child

    async def _note_ready(self, child: Child) -> None:
        if await child.is_ready():
            self._restarts.came_up(_now())

    async def _ended(self, child: Child) -> int:
        code = await child.ended()
        del self._children[child.number]
        return code

    def _pause(self) -> float:
        now = _now()
        self._restarts.recover(now)
        return self._restarts.died(now, random.random(), others_up=bool(self._children))

    def _handle(self, number: int) -> None:
        self._signals += 1
        self._stopping.set()
        name = signal.Signals(number).name
        if self._signals > len(LEVELS):
            self._code = 128 + number
            self._kill_all()
            return
        then = "finish their tasks and exit" if self._signals == 1 else "release their tasks and exit"
        level = logging.INFO if self._signals == 1 else logging.WARNING
        logger.log(level, "%s: %d processes %s", name, len(self._children), then)
        for child in list(self._children.values()):
            child.tell(self._signals)

    def _kill_all(self) -> None:
        for child in list(self._children.values()):
            child.kill()


class Child:
    """One worker process, and the supervisor's end of its parent link."""

    def __init__(
        self, process: asyncio.subprocess.Process, line: socket.socket, number: int, metrics_port: int = 0
    ) -> None:
        self._process = process
        self._line = line
        self._readiness: asyncio.Future[bytes] = asyncio.ensure_future(_receive(line))
        self.number = number
        self.metrics_port = metrics_port  # on loopback; 0: it has none

    @classmethod
    async def start(cls, command: Sequence[str], number: int, *, is_first: bool, with_metrics: bool = False) -> Child:
        metrics = socket.create_server(("127.0.0.1", 0)) if with_metrics else None
        ours, theirs, variable = open_pair(number, is_first=is_first, metrics=metrics)
        ours.setblocking(False)
        with theirs, metrics or nullcontext():
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    env={**os.environ, **variable},
                    pass_fds=[one.fileno() for one in (theirs, metrics) if one is not None],
                    process_group=0,  # Ctrl-C is for the supervisor alone
                )
            except BaseException:
                ours.close()
                raise
            port = 0 if metrics is None else metrics.getsockname()[1]
        return cls(process, ours, number, port)

    async def is_ready(self) -> bool:
        """Wait until the process is ready or dead. Returns whether it is ready."""
        return await asyncio.shield(self._readiness) == READY

    def tell(self, level: int) -> None:
        try:
            self._line.send(LEVELS[level - 1])
        except OSError:  # it has just died
            pass

    def kill(self) -> None:
        try:
            self._process.kill()
        except ProcessLookupError:
            pass

    async def ended(self) -> int:
        code = await self._process.wait()
        await self._readiness
        self._line.close()
        return code


async def _receive(line: socket.socket) -> bytes:
    try:
        return await asyncio.get_running_loop().sock_recv(line, 1)
    except OSError:
        return b""


def _now() -> float:
    return asyncio.get_running_loop().time()


def _told(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

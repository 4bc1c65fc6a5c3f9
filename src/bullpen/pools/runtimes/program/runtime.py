"""Workers that are programs in any language: `Pool(runtime=ProgramRuntime(["node", "worker.js"]))`.

A program is started once, reads calls as lines of JSON from its stdin, and answers on its stdout. It is supervised
like a worker process. If it breaks the protocol, does not answer in time, or ends, that is a crash.
"""

from __future__ import annotations

import _thread
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bullpen.errors import InvalidOption, InvalidOptionType, ProgramError
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import CallsMethod, WorkerEvents, only_by_name
from bullpen.pools.runtimes.process.io_thread import io_thread, log_thread
from bullpen.pools.runtimes.process.supervised import checked_bytes, checked_seconds, may_prestart
from bullpen.pools.runtimes.program import messages
from bullpen.pools.runtimes.program.program import CallProgress, Program

MAX_MESSAGE = 4 * 1024 * 1024


class ProgramRuntime:
    """Runs the methods of a program.

    `command` is the program and its arguments. `env` is added to the app's environment, `cwd` is its folder. The
    program has to be ready within `start_timeout` seconds. After `ping_interval` idle seconds it gets a ping, which it
    has to answer within `ping_timeout`. A cancelled call has `cancel_grace` seconds to end, a stopped program
    `stop_grace`. The pool replaces a program that has more than `max_rss` bytes in memory after a call. `on_progress`
    is called with each `CallProgress`.

        with Pool(2, runtime=ProgramRuntime(["node", "worker.js"])) as pool:
            pool.do("resize", "cat.png", width=100)
    """

    name = "program"
    capabilities = frozenset({"cancel_running", "kill_running", "survive_crash"})
    by_name_only = True

    def __init__(
        self,
        command: Iterable[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        start_timeout: float | None = 30.0,
        cancel_grace: float = 1.0,
        stop_grace: float | None = 5.0,
        ping_interval: float | None = 30.0,
        ping_timeout: float = 10.0,
        max_message: int = MAX_MESSAGE,
        max_rss: int | None = None,
        on_progress: Callable[[CallProgress], object] | None = None,
    ) -> None:
        if not hasattr(socket, "AF_UNIX") or not hasattr(os, "fork"):
            raise InvalidOption("runtime", "program", "'thread' on this system, which has no program runtime")
        self.command = _checked_command(command)
        self.env = _checked_environment(env)
        self.cwd = None if cwd is None else os.path.abspath(cwd)
        self.start_timeout = None if start_timeout is None else checked_seconds("start_timeout", start_timeout)
        self.cancel_grace = checked_seconds("cancel_grace", cancel_grace)
        self.stop_grace = None if stop_grace is None else checked_seconds("stop_grace", stop_grace)
        self.ping_interval = None if ping_interval is None else checked_seconds("ping_interval", ping_interval)
        self.ping_timeout = checked_seconds("ping_timeout", ping_timeout)
        if isinstance(max_message, bool) or not isinstance(max_message, int):
            raise InvalidOptionType("max_message", max_message, "a number of bytes")
        if max_message < 1:
            raise InvalidOption("max_message", max_message, "≥ 1 byte")
        if on_progress is not None and not callable(on_progress):
            raise InvalidOptionType("on_progress", on_progress, "a function, or None")
        self.max_message = max_message
        self.max_rss = checked_bytes("max_rss", max_rss)
        self.on_progress = on_progress

    # Translation between Python and the protocol, for `Program`.

    def describe(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[str, tuple[Any, ...], dict[str, Any] | None]:
        """The method that a program calls for `fn`, and its arguments."""
        if not isinstance(fn, CallsMethod):
            raise only_by_name(fn)
        return fn.__name__, args, kwargs

    def value(self, value: Any) -> Any:
        """The Python value of a result or an item."""
        return value

    def error(self, said: messages.ErrorMessage) -> BaseException:
        """The exception for an error message."""
        return ProgramError(said.name, said.message, said.details)

    # The runtime port, for the pool.

    def reports_here(self) -> bool:
        """Whether this is the thread on which results arrive, or the one that logs, for which a worker's end waits.
        Waiting here would wait forever.
        """
        return _thread.get_ident() in (io_thread.ident, log_thread.ident)

    def can_prestart(self) -> bool:
        """Whether programs may start before there are requests for them."""
        return may_prestart()

    def start(self, worker: Worker, events: WorkerEvents) -> None:
        worker.handle = program = Program(worker, events, self)
        program.start()

    def cancel(self, worker: Worker, request: Request) -> bool:
        return bool(worker.handle.cancel(request))

    def kill(self, worker: Worker) -> bool:
        worker.handle.kill()
        return True

    def join(self, worker: Worker, timeout: float | None) -> bool:
        return bool(worker.handle.join(timeout))


def _checked_command(command: Any) -> list[str]:
    parts = (None,) if isinstance(command, str | bytes) or not isinstance(command, Iterable) else tuple(command)
    if not all(isinstance(part, str | os.PathLike) for part in parts):
        raise InvalidOptionType(
            "command", command, 'a list of texts: the program and its arguments, ["node", "worker.js"]'
        )
    if not parts or not os.fspath(parts[0]):
        raise InvalidOption("command", command, "a list with at least the name of the program")
    return [os.fspath(part) for part in parts]


def _checked_environment(env: Any) -> dict[str, str]:
    if env is None:
        return {}
    texts = isinstance(env, Mapping) and all(isinstance(part, str) for pair in env.items() for part in pair)
    if not texts:
        raise InvalidOptionType("env", env, "a dict of texts, or None")
    return dict(env)

"""The commands that `main` runs, and their exit codes."""

from __future__ import annotations

import argparse
import enum
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


class ExitCode(enum.IntEnum):
    """The exit codes of all commands. A command that a signal ends exits with 128 + the number of the signal."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """A verb after `bullpen`, or after the name of its group. `run` returns the exit code."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A word after `bullpen` with commands of its own. Without a verb, the first command runs."""

    name: str
    summary: str
    commands: tuple[Command, ...]


class CommandError(Exception):
    """A command fails, and the user can fix the cause. `main` prints the message, without a traceback."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


class Stopped:
    """Whether SIGINT or SIGTERM has come. The handler only sets a flag, so no exception interrupts a step."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._mark) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _mark(self, number: int, _: FrameType | None) -> None:
        self.signal = number

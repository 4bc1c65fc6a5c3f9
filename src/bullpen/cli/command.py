"""What `main` has to know about commands, and how they end."""

from __future__ import annotations

import argparse
import enum
from collections.abc import Callable
from dataclasses import dataclass


class ExitCode(enum.IntEnum):
    """What every command of `bullpen` means by its exit code. Ended by a signal, it is 128 + the signal's number."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One word after `bullpen`, or after the word of its group. `run` returns the exit code."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Group:
    """A word after `bullpen` that has commands of its own; the first of them is meant if none is named."""

    name: str
    summary: str
    commands: tuple[Command, ...]


class CommandError(Exception):
    """A command cannot go on, and its user can do something about it: the message is all that is shown."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code

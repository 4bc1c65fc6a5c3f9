"""The black box of an attempt: its last log lines, which the attempt keeps if it fails, and the stack in the output of
a process.

The factory of log records passes each line to the task of the current context. A handler would change the log: if the
root logger has one, `logging.basicConfig()` does nothing, and warnings no longer go to stderr by default. And a logger
with `propagate=False` would never call it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from bullpen.tasks.model.arguments import redacted_text, secret_texts
from bullpen.tasks.model.context import log_of_current_task
from bullpen.tasks.model.registry import TaskDefinition
from bullpen.tasks.model.task import writable
from bullpen.tasks.worker.error_data import text_of, type_of

LINES = 50
LONGEST = 1_000  # characters of a line
KEPT = 10_000  # bytes of all lines of an attempt

_is_captured = False


def capture_log() -> None:
    """From now on, each log line of this process also goes to the task that logs it."""
    global _is_captured  # noqa: PLW0603 — one process, one factory
    if not _is_captured:
        _is_captured = True
        logging.setLogRecordFactory(_passing_on(logging.getLogRecordFactory()))


def _passing_on(make: Callable[..., logging.LogRecord]) -> Callable[..., logging.LogRecord]:
    def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            log = log_of_current_task()
            if log is not None:
                log(_line(record))
        except Exception:  # arguments that do not fit the message, for example: the handlers report that
            pass
        return record

    return make_record


def _line(record: logging.LogRecord) -> str:
    """`12:57:49.123 WARNING shop.mail: no answer (TimeoutError: 5 s)`, in UTC."""
    message = record.getMessage()
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    raised = "" if error is None else f" ({type_of(error)}: {text_of(error)})"
    at = time.strftime("%H:%M:%S", time.gmtime(record.created))
    return f"{at}.{int(record.msecs):03d} {record.levelname} {record.name}: {message[:LONGEST]}{raised}"[:LONGEST]


def kept_log(lines: Iterable[str], definition: TaskDefinition, payload: bytes) -> tuple[str, ...]:
    """The lines that a failed attempt keeps: without secrets, and at most `KEPT` bytes, those at the end first."""
    redact = definition.options.redact
    try:
        args, kwargs = definition.codec.decode_plain(payload)
        secrets = secret_texts(definition.function, args, kwargs, redact)
    except Exception:  # the arguments cannot be read, so none of them was logged
        secrets = []
    kept: list[str] = []
    room = KEPT
    for line in reversed(list(lines)):
        shown = writable(redacted_text(_without_begun_secret(line, secrets), redact, secrets))
        room -= len(shown.encode())
        if room < 0:
            break
        kept.append(shown)
    return tuple(reversed(kept))


def _without_begun_secret(line: str, secrets: Iterable[str]) -> str:
    """A line that was cut may end within a secret."""
    if len(line) < LONGEST:
        return line
    begun = [
        size for secret in secrets for size in range(min(len(secret), len(line)), 0, -1) if line.endswith(secret[:size])
    ]
    return line[: len(line) - max(begun, default=0)]


# The stack of a process: `faulthandler` writes it, the innermost frame first.

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_CALLER = "in_process.py"  # its `_call` calls the function
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


def stack_in_output(output: str) -> TracebackType | None:
    """The stack of the thread that ran the function, from the last dump in the output of a process."""
    from bullpen.pools.runtimes.process.failures import traceback_of  # imported late: most workers have no processes

    frames: list[tuple[str, str, int]] = []
    for found in _stacks(output):
        calls = [place for place, (file, name, _) in enumerate(found) if name == "_call" and file.endswith(_CALLER)]
        if calls:
            frames = found[calls[0] + 1 :]
    return traceback_of(frames)


def _stacks(output: str) -> Iterable[list[tuple[str, str, int]]]:
    frames: list[tuple[str, str, int]] | None = None
    for line in output.splitlines():
        if _THREAD.match(line):
            if frames:
                yield frames[::-1]
            frames = []
        elif frames is not None and (found := _FRAME.match(line)):
            frames.append((found[1], found[3], int(found[2])))
    if frames:
        yield frames[::-1]

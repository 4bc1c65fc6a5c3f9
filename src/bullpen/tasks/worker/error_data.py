"""Exceptions as data: type, message and traceback, within limits. No exception is rebuilt from it."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from bullpen.tasks.model.task import AttemptError, ErrorKind, Task, writable
from bullpen.tasks.worker.fingerprint import fingerprint_of, place_of_error

MESSAGE_KEPT, TRACEBACK_KEPT = 2_000, 20_000  # characters


def describe_error(
    task: Task,
    kind: ErrorKind,
    error: BaseException | None,
    *,
    at: float,
    worker: str = "",
    message: str = "",
    stack: TracebackType | None = None,
) -> AttemptError:
    """A failure as data, with the message of the error unless another is given. `stack`: of a failure without an error,
    where its function was.
    """
    if error is not None and not message:
        message = text_of(error)
    kind_of_error = "" if error is None else type_of(error)
    place, where = place_of_error(error)
    return AttemptError(
        kind=kind,
        attempt=task.attempt,
        at=at,
        type=kind_of_error,
        message=writable(message)[:MESSAGE_KEPT],
        traceback=writable(stack_text(stack) if error is None else _traceback_of(error))[-TRACEBACK_KEPT:],
        worker=worker,
        where=where,
        fingerprint=fingerprint_of(task.func_path, kind_of_error or kind, place),
        started_at=task.started_at,
    )


def type_of(error: BaseException) -> str:
    # Not by the attributes of the class: its metaclass may define others.
    module, name = (vars(type)[field].__get__(type(error)) for field in ("__module__", "__qualname__"))
    return writable(name if module == "builtins" else f"{module}.{name}")


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return f"<{type(error).__name__}: its __str__ raised>"


def stack_text(stack: TracebackType | None) -> str:
    """A stack in words, from the function on."""
    return "".join(traceback.format_tb(_from_function(stack)))


def _from_function(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    return frames


def _traceback_of(error: BaseException) -> str:
    """The traceback, from the function on."""
    try:
        return "".join(traceback.format_exception(type(error), error, _from_function(error.__traceback__)))
    except BaseException:
        return ""


def _is_ours(frame: TracebackType) -> bool:
    """Decides by file name: frames from a process have little else."""
    return frame.tb_frame.f_code.co_filename.startswith(_OURS)


_PACKAGE = Path(__file__).parents[2]
_OURS = tuple(str(_PACKAGE / layer) for layer in ("tasks/worker", "pools/runtimes"))

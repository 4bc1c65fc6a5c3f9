"""Stored rows that cannot be read: another program has written to the store, or a newer version of Bullpen has. Pure.

One such row must not stop the others. A store decodes row by row. A row that it cannot decode becomes a `Task` with the
fields that can be read, the defaults of the others, and the reason in `unreadable`. Such a task can be listed, claimed,
cancelled and deleted. It never runs: the worker that claims it settles it by `set_aside`. Nothing overwrites the values
that cannot be read, so that an operator can repair or export them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from bullpen.tasks.model.task import FAILED, FORMAT, AttemptError, Task, cancelled_by_operator, expired, writable

UNKNOWN_NAME = "(unreadable)"
NOT_AS_TEXT = (bytes,)  # for `msgspec.convert`, which else reads bytes from text in base64
_REASON_KEPT = 500  # characters
FIELD_TYPES: Mapping[str, Any] = typing.get_type_hints(Task, include_extras=True)
_OPTIONAL = frozenset(name for name, kind in FIELD_TYPES.items() if type(None) in typing.get_args(kind))
_MOVES = (cancelled_by_operator, expired)

Decoders = Mapping[str, Callable[[Any], Any]]
_NO_DECODERS: Decoders = {}


def unreadable_task(stored: Mapping[str, Any], decoders: Decoders = _NO_DECODERS, reasons: Sequence[str] = ()) -> Task:
    """The task of a row that cannot be read. `stored`: the values by the names of their fields; `decoders`: of those
    that are stored encoded. A value that is no field of a task encodes several fields. None means the default.
    `reasons`: problems that the store has found itself.
    """
    fields: dict[str, Any] = {}
    problems = list(reasons)
    for name, value in stored.items():
        if value is None and name not in _OPTIONAL:
            continue
        try:
            decoded = decoders[name](value) if name in decoders and value is not None else value
            fields |= {name: _checked(name, decoded)} if name in FIELD_TYPES else decoded
        except Exception as error:  # whatever a decoder makes of arbitrary bytes
            problems.append(f"{name}: {error}")
    fields.setdefault("id", repr(stored.get("id")))
    fields.setdefault("func_path", UNKNOWN_NAME)
    fields.setdefault("payload", b"")
    if fields.get("format", FORMAT) > FORMAT:
        problems.insert(0, f"it has format {fields['format']}, this version of Bullpen reads format {FORMAT}")
    why = writable("; ".join(problems) or "its values contradict each other")[:_REASON_KEPT]
    if "status" not in fields:
        fields["status"] = FAILED  # no store finds work in a row with an unknown status
    task = Task(**fields, unreadable=why)
    if task.status is not FAILED or task.error is not None:
        return task
    return msgspec.structs.replace(task, errors=(_error_of(task),))


def _checked(name: str, value: Any) -> Any:
    return msgspec.convert(value, FIELD_TYPES[name], builtin_types=NOT_AS_TEXT)


def _error_of(task: Task) -> AttemptError:
    message = unreadable_message(task)
    return AttemptError(kind="poison", attempt=task.attempt, at=task.finished_at or task.created_at, message=message)


def unreadable_message(task: Task) -> str:
    return f"its stored row cannot be read ({task.unreadable})"


def moved(task: Task, move: Callable[[Task, float], Task | None], now: float) -> Task | None:
    """The result of `move`. A task that cannot be read can be cancelled and can expire, and does not change else."""
    return None if task.unreadable and move not in _MOVES else move(task, now)

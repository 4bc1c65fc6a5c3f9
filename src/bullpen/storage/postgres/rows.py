"""A task as a row, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bullpen.tasks.retry import Backoff
from bullpen.tasks.schedule import Schedule
from bullpen.tasks.task import NEVER, Follows, Progress, Settlement, Task, TaskError, TaskStatus

NEW = {  # of tasks that are added
    "id": "text",
    "queue": "text",
    "priority": "smallint",
    "eta": "float8",
    "expires": "float8",
    "unique_key": "text",
    "unique_scope": "text",
    "unique_until": "float8",
    "concurrency_key": "text",
    "func_path": "text",
    "codec": "text",
    "repeats": "float8",
    "max_retries": "integer",
    "backoff": "text",
    "timeout": "float8",
    "at_most_once": "boolean",
    "on_failure": "text",
    "schedule": "text",
    "fire": "float8",
    "result_ttl": "float8",
    "headers": "text",
    "then_id": "text",
    "follows": "text",
    "waits_for": "integer",
    "payload": "bytea",
}
CHANGING = {  # by what people do
    "status": "text",
    "eta": "float8",
    "expires": "float8",
    "failures": "integer",
    "crashes": "integer",
    "fire": "float8",
    "hold": "text",
    "waits_for": "integer",
    "worker": "text",
    "cancel_requested": "boolean",
    "finished_at": "float8",
    "prune_at": "float8",
    "errors": "text[]",
}
RAN = {  # by those that run
    "attempt": "integer",
    "runs": "integer",
    "claim_id": "text",
    "lease_until": "float8",
    "started_at": "float8",
    "progress": "text",
    "result": "bytea",
    "result_dropped": "text",
    "created_at": "float8",
}
_ABOUT = ("prune_at", "awaited")  # what is no field of a task
# What a task is read from.
READ = {name: kind for name, kind in {**NEW, **CHANGING, **RAN}.items() if name not in _ABOUT}
# All that is read. By name: others may add columns meanwhile, and `*` would be another type of row then.
COLUMNS = ", ".join((*READ, *_ABOUT))
# What is read of a task that was just claimed: not what the claim has made of it. Nor is said what is as usual.
_OF_CLAIM = ("status", "worker", "claim_id", "lease_until", "started_at", "progress")
CLAIMED = {name: kind for name, kind in READ.items() if name not in _OF_CLAIM}
USUAL = {
    "queue": "'default'",
    "priority": "0",
    "unique_scope": "'alive'",
    "codec": "'json'",
    "max_retries": "0",
    "at_most_once": "false",
    "on_failure": "'fail'",
    "waits_for": "0",
    "failures": "0",
    "crashes": "0",
    "hold": "''",
    "cancel_requested": "false",
    "errors": "'{}'",
    "runs": "0",
    "result_dropped": "''",
}
# Of `NEW`, what is no term of a task.
FIXED = ("id", "queue", "eta", "expires", "unique_key", "fire", "then_id", "follows", "waits_for")
TERMS = tuple(name for name in NEW if name not in FIXED)

SETTLED = {  # of tasks that have run
    "id": "text",
    "attempt": "integer",
    "status": "text",
    "delay": "float8",
    "eta": "float8",
    "fire": "float8",
    "next_run": "boolean",
    "failures": "integer",
    "crashes": "integer",
    "runs": "integer",
    "result": "bytea",
    "result_dropped": "text",
    "error": "text",
}

FORGOTTEN = "forgotten"  # in place of a status: a success of which nothing need be kept

_USUAL_BACKOFF = Backoff()


def json_of(value: object) -> str:
    return msgspec.json.encode(value).decode()


def headers_of(task: Task) -> str | None:
    return json_of(task.headers) if task.headers else None


def new_row(task: Task) -> tuple[Any, ...]:
    """`NEW`; an `eta` of NULL is the present."""
    return (
        task.id,
        to_text(task.queue),
        task.priority,
        NEVER if task.waits_for > 0 else task.eta if task.eta > 0 else None,
        task.expires,
        to_text(task.unique_key),
        task.unique_scope,
        task.unique_until,
        to_text(task.concurrency_key),
        to_text(task.func_path),
        task.codec,
        task.interval,
        task.max_retries,
        None if task.backoff == _USUAL_BACKOFF else json_of(task.backoff),
        task.timeout,
        task.at_most_once,
        task.on_failure,
        None if task.schedule is None else json_of(task.schedule),
        task.fire,
        task.result_ttl,
        headers_of(task),
        task.then,
        None if task.follows is None else json_of(task.follows),
        task.waits_for,
        task.payload,
    )


def terms_row(task: Task) -> tuple[Any, ...]:
    """`TERMS`."""
    return tuple(value for name, value in zip(NEW, new_row(task), strict=True) if name not in FIXED)


def changed_row(task: Task) -> tuple[Any, ...]:
    """`CHANGING`, and the id."""
    return (
        task.status.value,
        task.eta,
        task.expires,
        task.failures,
        task.crashes,
        task.fire,
        task.hold,
        task.waits_for,
        to_text(task.worker),
        task.cancel_requested,
        task.finished_at,
        _prune_at(task),
        [json_of(error) for error in task.errors],
        task.id,
    )


def whole_row(task: Task) -> dict[str, Any]:
    """Every column of a task that does not run, as JSON has it."""
    return {
        **dict(zip(NEW, new_row(task), strict=True)),
        **dict(zip(CHANGING, changed_row(task), strict=False)),
        "prune_at": _as_json(_prune_at(task)),
        "payload": _hex(task.payload),
        "result": _hex(task.result),
        "result_dropped": to_text(task.result_dropped),
        "attempt": task.attempt,
        "runs": task.runs,
        "progress": None if task.progress is None else json_of(task.progress),
        "created_at": task.created_at,
        "started_at": task.started_at,
        "awaited": False,
    }


def _as_json(number: float | None) -> float | str | None:
    return "Infinity" if number == math.inf else number


def _hex(data: bytes | None) -> str | None:
    return None if data is None else f"\\x{data.hex()}"


def settled_row(one: Settlement) -> tuple[Any, ...]:
    """`SETTLED`."""
    return (
        one.id,
        one.attempt,
        FORGOTTEN if one.forgotten else one.status.value,
        one.delay,
        one.eta,
        one.fire,
        one.next_run,
        one.failures,
        one.crashes,
        one.runs,
        one.result,
        to_text(one.result_dropped),
        None if one.error is None else json_of(one.error),
    )


# Arrays go to the server as text, which it reads in less time than the driver takes to check the elements of a list.


def arrays(columns: Mapping[str, str], rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """One array for each column."""
    lists: Iterable[tuple[Any, ...]] = zip(*rows, strict=True)
    literals = [_LITERALS[kind](values) for kind, values in zip(columns.values(), lists, strict=False)]
    return literals or ["{}"] * len(columns)


def array_places(columns: Mapping[str, str], first: int = 1) -> str:
    """Where they are in a statement."""
    return ", ".join(f"${place}::text::{kind}[]" for place, kind in enumerate(columns.values(), start=first))


def _texts(values: Iterable[str | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def _numbers(values: Iterable[float | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else repr(value) for value in values]) + "}"


def _bytes(values: Iterable[bytes | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]) + "}"


_LITERALS: dict[str, Callable[[Iterable[Any]], str]] = {
    "text": _texts,
    "bytea": _bytes,
    "smallint": _numbers,
    "integer": _numbers,
    "float8": _numbers,
    "boolean": _numbers,
}


def new_json(tasks: Sequence[Task]) -> str:
    """For `add_all`."""
    return json_of([dict(zip(NEW, map(_plain, new_row(task)), strict=True)) for task in tasks])


def settlement_json(settlement: Settlement) -> str:
    """For `settle`."""
    return json_of([dict(zip(SETTLED, map(_plain, settled_row(settlement)), strict=True))])


def _plain(value: Any) -> Any:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value


def task_of(row: Iterable[Any]) -> Task:
    """Of `COLUMNS`."""
    return Task(**_fields(READ_AS, row))


def claimed_task(row: Iterable[Any], **of_claim: Any) -> Task:
    """Of `CLAIMED`, with what the claim has made of it."""
    return Task(**_fields(CLAIMED_AS, row), **of_claim)


def _fields(names: Iterable[str], row: Iterable[Any]) -> dict[str, Any]:
    """What is not there is as it is by default, with one exception."""
    fields = {name: value for name, value in zip(names, row, strict=False) if value is not None}
    fields.setdefault("result_ttl", None)
    for name, decode in _DECODED:
        if name in fields:
            fields[name] = decode(fields[name])
    return fields


def _prune_at(task: Task) -> float | None:
    if not task.is_final or task.finished_at is None:
        return None
    return math.inf if task.result_ttl is None else max(task.finished_at + task.result_ttl, task.unique_until or 0.0)


# PostgreSQL has no text with a NUL in it. JSON escapes it; elsewhere it is written in two characters.


def to_text(text: Any) -> Any:
    if text is not None and ("\0" in text or "\x1a" in text):
        return text.replace("\x1a", "\x1a1").replace("\0", "\x1a0")
    return text


def from_text(text: Any) -> Any:
    if text is not None and "\x1a" in text:
        return text.replace("\x1a0", "\0").replace("\x1a1", "\x1a")
    return text


def _as_fields(columns: Iterable[str]) -> tuple[str, ...]:
    return tuple({"repeats": "interval", "then_id": "then"}.get(name, name) for name in columns)


READ_AS, CLAIMED_AS = _as_fields(READ), _as_fields(CLAIMED)

_decode_error = msgspec.json.Decoder(TaskError).decode
_DECODED: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("func_path", from_text),
    ("queue", from_text),
    ("status", {status.value: status for status in TaskStatus}.__getitem__),
    ("schedule", msgspec.json.Decoder(Schedule).decode),
    ("backoff", msgspec.json.Decoder(Backoff).decode),
    ("unique_key", from_text),
    ("concurrency_key", from_text),
    ("headers", msgspec.json.Decoder(dict[str, str]).decode),
    ("follows", msgspec.json.Decoder(Follows).decode),
    ("worker", from_text),
    ("claim_id", from_text),
    ("progress", msgspec.json.Decoder(Progress).decode),
    ("result_dropped", from_text),
    ("errors", lambda errors: tuple(map(_decode_error, errors))),
)

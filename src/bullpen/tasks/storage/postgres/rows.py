"""A task as a row of the task table, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import (
    FAILED,
    FINAL,
    FORMAT,
    NEVER,
    AttemptError,
    DependsOn,
    Progress,
    Settlement,
    Step,
    Task,
    TaskStatus,
    prune_at,
    stored_steps,
)
from bullpen.tasks.model.task_batch import OWN, RowReader
from bullpen.tasks.model.unreadable import unreadable_task
from bullpen.tasks.storage.port import TaskFilter

NEW = {  # the columns that are written when a task is added
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
    "scheduled_at": "float8",
    "result_ttl": "float8",
    "failure_ttl": "float8",
    "headers": "text",
    "next_task_id": "text",
    "depends_on": "text",
    "waits_for": "integer",
    "payload": "bytea",
}
CHANGING = {  # the columns that `change`, `cancel`, `retry` and `expire` write
    "status": "text",
    "eta": "float8",
    "expires": "float8",
    "failures": "integer",
    "crashes": "integer",
    "scheduled_at": "float8",
    "hold": "text",
    "waits_for": "integer",
    "worker": "text",
    "cancel_requested": "boolean",
    "finished_at": "float8",
    "prune_at": "float8",
    "errors": "text[]",
    "steps": "integer",
    "awaits": "text",
}
RAN = {  # the columns that only an attempt writes
    "attempt": "integer",
    "completed_runs": "integer",
    "claim_id": "text",
    "lease_until": "float8",
    "started_at": "float8",
    "progress": "text",
    "result": "bytea",
    "result_dropped": "text",
    "created_at": "float8",
}
_FORMAT = {"format": "smallint"}  # of the row; a newer version may write a higher one
_NO_FIELDS = ("prune_at", "awaited")  # columns that are no fields of a task
# The columns that a task is made of.
READ = {name: kind for name, kind in {**NEW, **CHANGING, **RAN, **_FORMAT}.items() if name not in _NO_FIELDS}
# `steps` says whether there are kept steps; the table `step` has them. It and `id` are columns of the outer query.
_STEPS_OF = "CASE WHEN {0}steps > 0 THEN ARRAY(SELECT s.record FROM {{schema}}.step s WHERE s.task_id = {0}id) END"
# Everything that is written or read, by name: a migration may add columns, and `*` would then return other rows.
WHOLE = ", ".join((*READ, *_NO_FIELDS))
COLUMNS = WHOLE.replace("steps", f"{_STEPS_OF.format('')} AS steps")
# The columns that a claim returns: without those that the client knows already. A column with its default is NULL.
_SET_BY_CLAIM = ("status", "worker", "claim_id", "lease_until", "started_at")
CLAIMED = {name: READ[name] for name in (*OWN, *READ) if name not in _SET_BY_CLAIM} | {"steps": "text[]"}
CLAIMED_STEPS = _STEPS_OF.format("t.")
DEFAULTS = {
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
    "completed_runs": "0",
    "result_dropped": "''",
}
# The columns of `NEW` that stay when the terms of a task change.
FIXED = ("id", "queue", "eta", "expires", "unique_key", "scheduled_at", "next_task_id", "depends_on", "waits_for")
TERMS = tuple(name for name in NEW if name not in FIXED)

SETTLED = {  # the columns of a settlement
    "id": "text",
    "attempt": "integer",
    "status": "text",
    "delay": "float8",
    "eta": "float8",
    "scheduled_at": "float8",
    "next_run": "boolean",
    "failures": "integer",
    "crashes": "integer",
    "completed_runs": "integer",
    "result": "bytea",
    "result_dropped": "text",
    "error": "text",
    "progress": "text",
    "suspended": "boolean",
    "awaits": "text",
    "linked": "boolean",
}

FORGOTTEN = "forgotten"  # the status in a settlement of a task that succeeded and is not kept

_DEFAULT_BACKOFF = Backoff()


def json_of(value: object) -> str:
    return msgspec.json.encode(value).decode()


def headers_of(task: Task) -> str | None:
    return json_of(task.headers) if task.headers else None


def new_row(task: Task) -> tuple[Any, ...]:
    """The values of `NEW`. An `eta` of NULL means now."""
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
        None if task.backoff == _DEFAULT_BACKOFF else json_of(task.backoff),
        task.timeout,
        task.at_most_once,
        task.on_failure,
        None if task.schedule is None else json_of(task.schedule),
        task.scheduled_at,
        task.result_ttl,
        task.failure_ttl,
        headers_of(task),
        task.next_task_id,
        None if task.depends_on is None else json_of(task.depends_on),
        task.waits_for,
        task.payload,
    )


def terms_row(task: Task) -> tuple[Any, ...]:
    """The values of `TERMS`."""
    return tuple(value for name, value in zip(NEW, new_row(task), strict=True) if name not in FIXED)


def changed_row(task: Task) -> tuple[Any, ...]:
    """The values of `CHANGING`, and the id."""
    return (
        task.status.value,
        task.eta,
        task.expires,
        task.failures,
        task.crashes,
        task.scheduled_at,
        task.hold,
        task.waits_for,
        to_text(task.worker),
        task.cancel_requested,
        task.finished_at,
        prune_at(task),
        [json_of(error) for error in task.errors],
        len(task.steps),
        to_text(task.awaits),
        task.id,
    )


def whole_row(task: Task) -> dict[str, Any]:
    """Every column of a task that is not running, as JSON values."""
    return {
        **dict(zip(NEW, new_row(task), strict=True)),
        **dict(zip(CHANGING, changed_row(task), strict=False)),
        "prune_at": _as_json(prune_at(task)),
        "payload": _hex(task.payload),
        "result": _hex(task.result),
        "result_dropped": to_text(task.result_dropped),
        "attempt": task.attempt,
        "completed_runs": task.completed_runs,
        "progress": None if task.progress is None else json_of(task.progress),
        "created_at": task.created_at,
        "started_at": task.started_at,
        "awaited": False,
        "format": task.format,
    }


def _as_json(number: float | None) -> float | str | None:
    return "Infinity" if number == math.inf else number


def _hex(data: bytes | None) -> str | None:
    return None if data is None else f"\\x{data.hex()}"


def settled_row(one: Settlement) -> tuple[Any, ...]:
    """The values of `SETTLED`."""
    return (
        one.id,
        one.attempt,
        FORGOTTEN if one.forgotten else one.status.value,
        one.delay,
        one.eta,
        one.scheduled_at,
        one.next_run,
        one.failures,
        one.crashes,
        one.completed_runs,
        one.result,
        to_text(one.result_dropped),
        None if one.error is None else json_of(one.error),
        None if one.progress is None else json_of(one.progress),
        one.suspended,
        to_text(one.awaits),
        one.linked,
    )


# Arrays go to the server as text: it parses that faster than the driver checks the elements of a list.


def arrays(columns: Mapping[str, str], rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """One array literal for each column."""
    lists: Iterable[tuple[Any, ...]] = zip(*rows, strict=True)
    literals = [_LITERALS[kind](values) for kind, values in zip(columns.values(), lists, strict=False)]
    return literals or ["{}"] * len(columns)


def array_places(columns: Mapping[str, str], first: int = 1) -> str:
    """The parameters for them in a statement."""
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
    """The parameter of `add_all`."""
    return json_of([dict(zip(NEW, map(_bytes_as_hex, new_row(task)), strict=True)) for task in tasks])


def step_json(task_id: str, attempt: int, step: Step) -> str:
    """The parameter of `save_step`."""
    return json_of({"task_id": task_id, "attempt": attempt, "name": to_text(step.name), "record": json_of(step)})


def settlement_json(settlement: Settlement) -> str:
    """The parameter of `settle`."""
    return json_of([dict(zip(SETTLED, map(_bytes_as_hex, settled_row(settlement)), strict=True))])


def _bytes_as_hex(value: Any) -> Any:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value


def task_of(row: Iterable[Any]) -> Task:
    """From a row of `COLUMNS`; of a row that cannot be read, see `unreadable.py`."""
    return _task_of(READ_AS, row, {})


def claimed_tasks(rows: Iterable[Any], **set_by_claim: Any) -> list[Task]:
    """From rows of `CLAIMED`, and the fields that the claim has set."""
    reader = RowReader(lambda row: _task_of(CLAIMED_AS, row, set_by_claim))
    return [reader.task_of(row) for row in rows]


def _task_of(names: Iterable[str], row: Iterable[Any], others: Mapping[str, Any]) -> Task:
    """NULL means the default of the field; in a time to live it means None."""
    stored = {name: value for name, value in zip(names, row, strict=False) if value is not None}
    stored.setdefault("result_ttl", None)
    stored.setdefault("failure_ttl", None)
    fields = {**stored, **others}
    try:
        for name, decode in _DECODED.items():
            if name in stored:
                fields[name] = decode(stored[name])
        if fields["format"] <= FORMAT:
            return msgspec.convert(fields, Task)
    except Exception:  # whatever the decoders make of arbitrary values
        pass
    return unreadable_task({**stored, **others}, {name: one for name, one in _DECODED.items() if name in stored})


def changes_of_unreadable(row: Iterable[Any], after: Task) -> dict[str, Any]:
    """The columns of `CHANGING` that have changed in a row of `COLUMNS` that cannot be read. The others stay as they
    are, and so do errors that cannot be read.
    """
    row = tuple(row)
    pairs = zip(CHANGING, changed_row(task_of(row)), changed_row(after), strict=False)
    changes = {name: new for name, old, new in pairs if new != old}
    try:
        _DECODED["errors"](row[READ_AS.index("errors")])
    except Exception:
        changes.pop("errors", None)
    return changes


def where_of(which: TaskFilter, after: str | None = None, newest: bool = False) -> tuple[str, list[Any]]:
    """The condition of a filter, and its values."""
    conditions: list[str] = []
    values: list[Any] = []

    def add(condition: str, value: Any) -> None:
        values.append(value)
        conditions.append(condition.format(f"${len(values)}"))

    if which.ids is not None:
        add("id = ANY ({})", list(which.ids))
    if which.queues is not None:
        add("queue = ANY ({})", [to_text(queue) for queue in which.queues])
    if which.statuses is not None and FINAL.issubset(which.statuses):  # also a status that does not exist
        others = [status.value for status in TaskStatus if status not in which.statuses]
        add("status <> ALL ({})", others)
    elif which.statuses is not None:
        names = ", ".join(f"'{status.value}'" for status in which.statuses)  # written out: some have their own index
        conditions.append(f"status IN ({names})" if names else "false")
    if which.func_path is not None:
        name = to_text(which.func_path)
        add(f"(func_path = {{0}} OR pg_catalog.right(func_path, {len(name) + 1}) = '.' || {{0}})", name)
    if which.key is not None:
        add("(unique_key = {0} OR concurrency_key = {0})", to_text(which.key))
    if which.header is not None:
        add("headers ~ {}", _pattern(*which.header))
    if which.awaits is not None:
        conditions.append("status = 'pending'")
        add("awaits = {}", to_text(which.awaits)) if which.awaits else conditions.append("awaits IS NOT NULL")
    if which.worker is not None:
        add("worker = {}", to_text(which.worker))
    if which.error is not None:
        add("errors[pg_catalog.cardinality(errors)] ~ {}", _error_pattern(which.error))
    if which.fingerprint is not None:
        latest = "errors[pg_catalog.cardinality(errors)]"
        values += [_pattern(field, which.fingerprint) for field in ("fingerprint", "kind")]
        field = f"CASE WHEN {latest} ~ '{_HAS_FINGERPRINT}' THEN ${len(values) - 1} ELSE ${len(values)} END"
        conditions.append(f"{latest} ~ {field}")
    for comparison, instant in ((">", which.since), ("<=", which.until)):
        if instant is not None:
            add(f"{_ENDED_OR_ADDED} {comparison} {{}}", instant)
    if after is not None:
        add("id < {}" if newest else "id > {}", after)
    return f"WHERE {' AND '.join(conditions)}" if conditions else "", values


_ENDED_OR_ADDED = (
    "CASE WHEN status IN ('pending', 'running') THEN created_at ELSE coalesce(finished_at, created_at) END"
)


def _error_pattern(name: str) -> str:
    """A regular expression for the JSON of an error with this name. It is text that need not be JSON, so it is not
    parsed; a quotation mark without a backslash cannot be part of a value.
    """
    word = re.escape(json_of(name)[1:-1])
    module = "" if "." in name else '([^"]*[.])?'
    return f'"(kind" ?: ?"|type" ?: ?"{module}){word}"'


_HAS_FINGERPRINT = '"fingerprint" ?: ?"[^"]'


def _pattern(field: str, value: str) -> str:
    """A regular expression for JSON with this field, as `_error_pattern` is one."""
    return f"{re.escape(json_of(field))} ?: ?{re.escape(json_of(value))}"


# PostgreSQL does not store NUL in a text. JSON escapes it; elsewhere it is written as two characters.


def to_text(text: Any) -> Any:
    if text is not None and ("\0" in text or "\x1a" in text):
        return text.replace("\x1a", "\x1a1").replace("\0", "\x1a0")
    return text


def from_text(text: Any) -> Any:
    if text is not None and "\x1a" in text:
        return text.replace("\x1a0", "\0").replace("\x1a1", "\x1a")
    return text


def _as_fields(columns: Iterable[str]) -> tuple[str, ...]:
    return tuple({"repeats": "interval"}.get(name, name) for name in columns)


READ_AS, CLAIMED_AS = _as_fields(READ), _as_fields(CLAIMED)

_decode_error = msgspec.json.Decoder(AttemptError).decode
_decode_step = msgspec.json.Decoder(Step).decode
_DECODED: dict[str, Callable[[Any], Any]] = {
    "func_path": from_text,
    "queue": from_text,
    "schedule": msgspec.json.Decoder(Schedule).decode,
    "backoff": msgspec.json.Decoder(Backoff).decode,
    "unique_key": from_text,
    "concurrency_key": from_text,
    "headers": msgspec.json.Decoder(dict[str, str]).decode,
    "depends_on": msgspec.json.Decoder(DependsOn).decode,
    "worker": from_text,
    "claim_id": from_text,
    "progress": msgspec.json.Decoder(Progress).decode,
    "result_dropped": from_text,
    "errors": lambda errors: tuple(map(_decode_error, errors)),
    "steps": lambda records: stored_steps(map(_decode_step, records)),
}
_statuses = {status.value: status for status in TaskStatus}


def status_of(written: str) -> TaskStatus:
    """A status that does not exist counts as failed: no statement finds work in such a row."""
    return _statuses.get(written, FAILED)

"""A task as a row, and back.

A field that queries read, or that changes often, has a column. The options that only the worker reads are one value.
Most tasks of a function share it, so it is encoded and decoded once for all of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import (
    FAILED,
    FORMAT,
    PENDING,
    AttemptError,
    Count,
    DependsOn,
    OnFailure,
    Progress,
    Seconds,
    Step,
    Task,
    TaskStatus,
    UniqueScope,
    prune_at,
    stored_steps,
)
from bullpen.tasks.model.task_batch import OWN
from bullpen.tasks.model.unreadable import FIELD_TYPES, unreadable_task

Row = tuple[Any, ...]

COLUMNS = (
    f"{', '.join(OWN)}, queue, priority, status, expires, unique_key, concurrency_key, attempt, failures, crashes, "
    "completed_runs, scheduled_at, hold, unique_until, next_task_id, depends_on, waits_for, worker, claim_id, "
    "lease_until, cancel_requested, started_at, finished_at, result_ttl, failure_ttl, func_path, options, "
    "headers, progress, errors, result_dropped, result, format, steps, awaits"
)
# Of tasks that are new, and need nothing else; those enqueued together differ in the last two only. To bind a value
# takes longer than to store it, so nothing is bound that need not be.
SHARED = "queue, priority, eta, created_at, result_ttl, failure_ttl, func_path, options"
PLAIN = f"{SHARED}, id, payload"
CHANGING = (
    "status, eta, expires, attempt, failures, crashes, completed_runs, scheduled_at, hold, waits_for, worker, "
    "claim_id, lease_until, cancel_requested, started_at, finished_at, prune_at, progress, steps, errors, "
    "result_dropped, result, awaits"
)
# Changed by people, if at all.
TERMS = "priority, concurrency_key, result_ttl, failure_ttl, func_path, options, headers, payload"


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """What never changes, and no statement asks for."""

    codec: str = "json"
    interval: Seconds | None = None
    max_retries: Count = 0
    backoff: Backoff = Backoff()
    timeout: Seconds | None = None
    at_most_once: bool = False
    on_failure: OnFailure = "fail"
    schedule: Schedule | None = None
    unique_scope: UniqueScope = "alive"


_REMEMBERED = 1000
_encoded: dict[tuple[Any, ...], bytes] = {}
_decoded: dict[bytes, _Options] = {}
_encode = msgspec.msgpack.encode
_decode_options = msgspec.msgpack.Decoder(_Options).decode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_depends_on = msgspec.msgpack.Decoder(DependsOn).decode
_decode_progress = msgspec.msgpack.Decoder(Progress).decode
_decode_errors = msgspec.msgpack.Decoder(tuple[AttemptError, ...]).decode
_statuses = {status.value: status for status in TaskStatus}


STEPS = COLUMNS.split(", ").index("steps")  # 0 if the task has none; `bullpen_step` has them
encode_step = _encode
_decode_step = msgspec.msgpack.Decoder(Step).decode


def with_steps(task: Task, records: Sequence[bytes]) -> Task:
    """The task with its steps. If one cannot be read, neither can the task."""
    try:
        return msgspec.structs.replace(task, steps=stored_steps(map(_decode_step, records)))
    except Exception as error:  # whatever the decoder makes of arbitrary values
        return msgspec.structs.replace(task, unreadable=f"{task.unreadable}; steps: {error}".removeprefix("; "))


def row_of(task: Task, ahead: float) -> Row:
    """`COLUMNS` and `prune_at`. `ahead`: by how much the wall clock is ahead of the clock of leases."""
    return (
        task.id,
        task.payload,
        task.eta,
        task.created_at,
        task.queue,
        task.priority,
        task.status.value,
        task.expires,
        task.unique_key,
        task.concurrency_key,
        task.attempt,
        task.failures,
        task.crashes,
        task.completed_runs,
        task.scheduled_at,
        task.hold,
        task.unique_until,
        task.next_task_id,
        None if task.depends_on is None else _encode(task.depends_on),
        task.waits_for,
        task.worker,
        task.claim_id,
        None if task.lease_until is None else task.lease_until - ahead,
        task.cancel_requested,
        task.started_at,
        task.finished_at,
        task.result_ttl,
        task.failure_ttl,
        task.func_path,
        _options_of(task),
        headers_of(task),
        None if task.progress is None else _encode(task.progress),
        _encode(task.errors) if task.errors else None,
        task.result_dropped,
        task.result,
        task.format,
        len(task.steps),
        task.awaits,
        prune_at(task),
    )


def headers_of(task: Task) -> bytes | None:
    return _encode(task.headers) if task.headers else None


def is_plain(task: Task) -> bool:
    """Whether `PLAIN` says everything about it."""
    return (
        task.expires is None
        and task.unique_key is None
        and task.concurrency_key is None
        and not task.headers
        and task.next_task_id is None
        and task.waits_for == 0
        and task.attempt == 0
        and task.completed_runs == 0
        and task.scheduled_at is None
        and not task.hold
        and task.status is PENDING
        and task.started_at is None
        and task.finished_at is None
        and task.result is None
        and not task.errors
        and not task.cancel_requested
        and not task.result_dropped
        and not task.steps
        and task.awaits is None
    )


def shared_of(task: Task) -> Row:
    """`SHARED`."""
    return (
        task.queue,
        task.priority,
        task.eta,
        task.created_at,
        task.result_ttl,
        task.failure_ttl,
        task.func_path,
        _options_of(task),
    )


def changes_of(task: Task, ahead: float) -> Row:
    """`CHANGING`."""
    return (
        task.status.value,
        task.eta,
        task.expires,
        task.attempt,
        task.failures,
        task.crashes,
        task.completed_runs,
        task.scheduled_at,
        task.hold,
        task.waits_for,
        task.worker,
        task.claim_id,
        None if task.lease_until is None else task.lease_until - ahead,
        task.cancel_requested,
        task.started_at,
        task.finished_at,
        prune_at(task),
        None if task.progress is None else _encode(task.progress),
        len(task.steps),
        _encode(task.errors) if task.errors else None,
        task.result_dropped,
        task.result,
        task.awaits,
    )


def changes_of_unreadable(row: Row, after: Task, ahead: float) -> dict[str, Any]:
    """The columns that have changed in a row of `COLUMNS` that cannot be read. The others stay as they are, and so do
    errors that cannot be read.
    """
    pairs = zip(CHANGING.split(", "), changes_of(task_of(row, ahead), ahead), changes_of(after, ahead), strict=True)
    changes = {name: new for name, old, new in pairs if new != old}
    try:
        _decode_errors(row[_NAMES.index("errors")] or b"\x90")
    except Exception:
        changes.pop("errors", None)
    return changes


def has_error(errors: bytes | None, name: str) -> bool:
    """Whether the latest of stored errors has this name. A function of SQL, too."""
    try:
        return errors is not None and name in _decode_errors(errors)[-1].names
    except Exception:  # it cannot be read
        return False


def has_header(headers: bytes | None, name: str, value: str) -> bool:
    """Whether stored headers have this one. A function of SQL, too."""
    try:
        return headers is not None and _decode_headers(headers).get(name) == value
    except Exception:  # they cannot be read
        return False


def is_of_group(errors: bytes | None, fingerprint: str) -> bool:
    """Whether the latest of stored errors has this fingerprint. A function of SQL, too."""
    try:
        return errors is not None and _decode_errors(errors)[-1].group == fingerprint
    except Exception:  # it cannot be read
        return False


def status_of(written: object) -> TaskStatus:
    """A status that does not exist counts as failed: no statement finds work in such a row."""
    return _statuses.get(written, FAILED) if isinstance(written, str) else FAILED


def terms_of(task: Task) -> Row:
    """`TERMS`."""
    return (
        task.priority,
        task.concurrency_key,
        task.result_ttl,
        task.failure_ttl,
        task.func_path,
        _options_of(task),
        headers_of(task),
        task.payload,
    )


def task_of(row: Row, ahead: float) -> Task:
    """A row of `COLUMNS` as a task; of a row that cannot be read, see `unreadable.py`."""
    try:
        msgspec.convert(tuple(row), _CheckedRow)
        return _task_of(row, ahead)
    except Exception:  # whatever the decoders make of arbitrary values
        return _unreadable_task(row, ahead)


# The types of the columns, as they are stored: SQLite itself keeps any value in any column.
_ENCODED: dict[str, Any] = {
    "lease_until": Annotated[float, msgspec.Meta(ge=-1e10, le=1e11)] | None,  # of another clock
    "cancel_requested": Annotated[int, msgspec.Meta(ge=0, le=1)],
    "format": Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)],
    "steps": Count,
}
_ENCODED |= dict.fromkeys(("options", "headers", "depends_on", "progress", "errors", "payload", "result"), Any)
_NAMES = COLUMNS.split(", ")
_CheckedRow = msgspec.defstruct(
    "_CheckedRow", [(name, _ENCODED.get(name, FIELD_TYPES.get(name))) for name in _NAMES], array_like=True, gc=False
)


def _unreadable_task(row: Row, ahead: float) -> Task:
    stored = dict(zip(_NAMES, row, strict=True))
    del stored["steps"]  # it is no field of a task
    return unreadable_task(stored, _DECODERS | {"lease_until": lambda lease_until: lease_until + ahead})


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "options": lambda packed: msgspec.structs.asdict(_decode_options(packed)),
    "headers": _decode_headers,
    "depends_on": _decode_depends_on,
    "progress": _decode_progress,
    "errors": _decode_errors,
    "cancel_requested": (False, True).__getitem__,
}


def _task_of(row: Row, ahead: float) -> Task:
    (
        task_id,
        payload,
        eta,
        created_at,
        queue,
        priority,
        status,
        expires,
        unique_key,
        concurrency_key,
        attempt,
        failures,
        crashes,
        completed_runs,
        scheduled_at,
        hold,
        unique_until,
        next_task_id,
        depends_on,
        waits_for,
        worker,
        claim_id,
        lease_until,
        cancel_requested,
        started_at,
        finished_at,
        result_ttl,
        failure_ttl,
        func_path,
        packed,
        headers,
        progress,
        errors,
        result_dropped,
        result,
        _,
        _,
        awaits,
    ) = row
    if type(payload) is not bytes or (result is not None and type(result) is not bytes):
        raise TypeError
    options = _decoded.get(packed) or _remember(packed)
    return Task(
        id=task_id,
        func_path=func_path,
        payload=payload,
        codec=options.codec,
        queue=queue,
        priority=priority,
        status=_statuses[status],
        eta=eta,
        interval=options.interval,
        schedule=options.schedule,
        max_retries=options.max_retries,
        backoff=options.backoff,
        timeout=options.timeout,
        expires=expires,
        at_most_once=options.at_most_once,
        on_failure=options.on_failure,
        result_ttl=result_ttl,
        failure_ttl=failure_ttl,
        unique_key=unique_key,
        unique_scope=options.unique_scope,
        unique_until=unique_until,
        concurrency_key=concurrency_key,
        headers={} if headers is None else _decode_headers(headers),
        next_task_id=next_task_id,
        depends_on=None if depends_on is None else _decode_depends_on(depends_on),
        waits_for=waits_for,
        attempt=attempt,
        failures=failures,
        crashes=crashes,
        completed_runs=completed_runs,
        scheduled_at=scheduled_at,
        hold=hold,
        worker=worker,
        claim_id=claim_id,
        lease_until=None if lease_until is None else lease_until + ahead,
        cancel_requested=cancel_requested != 0,
        progress=None if progress is None else _decode_progress(progress),
        awaits=awaits,
        result=result,
        result_dropped=result_dropped,
        errors=() if errors is None else _decode_errors(errors),
        created_at=created_at,
        started_at=started_at,
        finished_at=finished_at,
    )


def _options_of(task: Task) -> bytes:
    key = (
        task.codec,
        task.interval,
        task.max_retries,
        task.backoff,
        task.timeout,
        task.at_most_once,
        task.on_failure,
        task.schedule,
        task.unique_scope,
    )
    packed = _encoded.get(key)
    if packed is None:
        if len(_encoded) >= _REMEMBERED:
            _encoded.clear()
        packed = _encoded[key] = _encode(_Options(*key))
    return packed


def _remember(packed: bytes) -> _Options:
    if len(_decoded) >= _REMEMBERED:
        _decoded.clear()
    options = _decoded[packed] = _decode_options(packed)
    return options


# `sqlite3` returns no row at all if a text in one of them is no UTF-8. Then such a text is read as bytes, which the
# reader of the row finds to be unreadable.

DECODING_ERRORS = (sqlite3.OperationalError, UnicodeDecodeError)


def readable_rows(db: sqlite3.Connection, statement: str, values: Sequence[object] = ()) -> list[Row]:
    """The rows of a query. A text that is no UTF-8 is bytes."""
    try:
        return db.execute(statement, values).fetchall()
    except DECODING_ERRORS as error:
        return read_again(db, error, lambda: db.execute(statement, values).fetchall())


def read_again(
    db: sqlite3.Connection, error: sqlite3.OperationalError | UnicodeDecodeError, read: Callable[[], list[Row]]
) -> list[Row]:
    """The rows that `read` reads, with bytes for a text that is no UTF-8. Raises `error` if it has another cause."""
    if isinstance(error, sqlite3.OperationalError) and "UTF-8" not in str(error):
        raise error
    usual, db.text_factory = db.text_factory, _text_or_bytes
    try:
        return read()
    finally:
        db.text_factory = usual


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored

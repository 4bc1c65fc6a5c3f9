"""A task as two packed values, and back: `TaskBody`, which no script reads, and `TaskState`, the rest.

Both are arrays in msgpack. Scripts read and write states. Lua has no None in an array: a state has 0, -1 or an empty
text instead. New fields go to the end and have a default, because older tasks do not have them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from bullpen.tasks.model.ids import is_schedule
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.task import (
    FORMAT,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    NEVER,
    AttemptError,
    Count,
    DependsOn,
    Instant,
    OnFailure,
    Progress,
    ScheduleHold,
    Seconds,
    Settlement,
    Step,
    Task,
    TaskStatus,
    stored_steps,
)
from bullpen.tasks.model.task_batch import TaskBatch, ids_of, templates_of
from bullpen.tasks.model.unreadable import UNKNOWN_NAME, unreadable_task

Packed = TypeVar("Packed", bound=msgspec.Struct)


class TaskBody(msgspec.Struct, array_like=True, gc=False):
    func_path: str
    payload: bytes
    codec: str
    interval: Seconds | None
    max_retries: Count
    backoff: Backoff
    timeout: Seconds | None
    at_most_once: bool
    on_failure: OnFailure
    headers: dict[str, str]
    schedule: Schedule | None = None


class TaskState(msgspec.Struct, array_like=True, gc=False):
    """Scripts use the names of the fields in capitals."""

    status: str = "pending"
    attempt: Count = 0
    priority: Annotated[int, msgspec.Meta(ge=LOWEST_PRIORITY, le=HIGHEST_PRIORITY)] = LOWEST_PRIORITY
    eta: Instant = 0.0
    failures: Count = 0
    crashes: Count = 0
    completed_runs: Count = 0
    worker: str = ""
    claim_id: str = ""
    created_at: Instant = 0.0
    started_at: Instant = 0.0
    finished_at: Instant = 0.0
    expires: Instant = 0.0
    result_ttl: Annotated[float, msgspec.Meta(ge=-1.0, le=1e11)] = -1.0
    unique_key: str = ""
    concurrency_key: str = ""
    cancel_requested: bool = False
    awaited: bool | str = False  # the channel of the client that waits for the end, or True for several clients
    has_result: bool = False
    result_dropped: str = ""
    progress: str = ""  # JSON
    errors: list[str] = []  # each JSON
    scheduled_at: Instant = -1.0
    hold: ScheduleHold = ""
    unique_until: Instant = 0.0
    keeps_key: bool = True  # whether it holds its unique key after it has started
    next_task_id: str = ""
    waits_for: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = 0
    run_always: bool = False  # even if a dependency fails
    depends_on: Count = 0  # how many; their ids are in a hash of their own
    many: bool = False
    place: str = ""
    format: Count = FORMAT  # of the body and of this; a newer version may write a higher one
    failure_ttl: Annotated[float, msgspec.Meta(ge=-1.0, le=1e11)] = -1.0
    unreadable: str = ""  # why a script had to replace the state; the original is in another hash
    steps: Count = 0  # how many kept steps it has; they are in a hash of its own
    awaits: str = ""  # the event that it waits for


def default_state_in_lua() -> str:
    """The fields of a new state, as a table of Lua."""
    values = [getattr(TaskState(), name) for name in TaskState.__struct_fields__]
    return "{" + ", ".join("{}" if value == [] else repr(value).lower() for value in values) + "}"


pack = msgspec.msgpack.Encoder().encode
_HEAD = 1  # bytes before the first field of an array with fewer than 16 fields
NEW_STATE = pack(TaskState())
_LOST = "another program has deleted it"
_NO_DEPENDENCIES = DependsOn(ids=())

_statuses = {status.value: status for status in TaskStatus}
_decode_state = msgspec.msgpack.Decoder(TaskState).decode
_decode_body = msgspec.msgpack.Decoder(TaskBody).decode
_decode_ids = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_error = msgspec.json.Decoder(AttemptError).decode
_decode_step = msgspec.json.Decoder(Step).decode


def body_of(task: Task) -> bytes:
    return pack(_body_of(task))


def ids_and_bodies(tasks: Sequence[Task]) -> list[Any]:
    """The id and body of each task. Of a batch, only the payloads are packed one by one."""
    words: list[Any] = []
    if type(tasks) is TaskBatch:
        before, behind = _around_payload(tasks.template)
        for task_id, payload in zip(tasks.ids, tasks.payloads, strict=True):
            words += (task_id, before + pack(payload) + behind)
    else:
        for task in tasks:
            words += (task.id, body_of(task))
    return words


_latest_around: tuple[Task | None, tuple[bytes, bytes]] = (None, (b"", b""))


def _around_payload(task: Task) -> tuple[bytes, bytes]:
    """The bytes of a body before and after the payload. The last answer is kept, because most calls repeat it."""
    global _latest_around  # noqa: PLW0603
    latest, around = _latest_around
    if latest is not task:
        body = _body_of(task)
        whole = pack(body)
        before = _HEAD + len(pack(body.func_path))
        around = whole[:before], whole[before + len(pack(body.payload)) :]
        _latest_around = task, around
    return around


def _body_of(task: Task) -> TaskBody:
    return TaskBody(
        task.func_path,
        task.payload,
        task.codec,
        task.interval,
        task.max_retries,
        task.backoff,
        task.timeout,
        task.at_most_once,
        task.on_failure,
        task.headers,
        task.schedule,
    )


def state_of(task: Task) -> bytes:
    """The packed state of a task that does not run."""
    state = TaskState(
        task.status.value,
        task.attempt,
        task.priority,
        task.eta,
        task.failures,
        task.crashes,
        task.completed_runs,
        task.worker or "",
        task.claim_id or "",
        task.created_at,
        task.started_at or 0.0,
        task.finished_at or 0.0,
        task.expires or 0.0,
        _or_none(task.result_ttl),
        task.unique_key or "",
        task.concurrency_key or "",
        task.cancel_requested,
        False,
        task.result is not None,
        task.result_dropped,
        "" if task.progress is None else _json(task.progress),
        list(map(_json, task.errors)),
        _or_none(task.scheduled_at),
        task.hold,
        task.unique_until or 0.0,
        task.unique_scope == "alive",
        *_links_of(task),
        task.format,
        _or_none(task.failure_ttl),
        "",
        len(task.steps),
        task.awaits or "",
    )
    return pack(state)


def step_of(step: Step) -> str:
    """A kept step, as JSON."""
    return _json(step)


def _links_of(task: Task) -> tuple[str, int, bool, int, bool, str]:
    depends_on = task.depends_on or _NO_DEPENDENCIES
    return (
        task.next_task_id or "",
        task.waits_for,
        depends_on.run_always,
        len(depends_on.ids),
        depends_on.many,
        depends_on.place,
    )


def dependency_ids(task: Task) -> tuple[str, ...]:
    """The ids that a task depends on. They are kept apart from the state, which is rewritten as each of them ends."""
    return () if task.depends_on is None else task.depends_on.ids


def _depends_on(state: TaskState, ids: bytes | None) -> DependsOn | None:
    if ids is None:
        if state.depends_on > 0:
            raise ValueError("another program has deleted them")
        return None
    return DependsOn(ids=_decode_ids(ids), place=state.place, many=state.many, run_always=state.run_always)


def new_task(task: Task, queue: int, body: int) -> tuple[Any, ...]:
    """A new task for scripts. `queue`: the number of its tag; `body`: the number of the argument that has its body."""
    return (
        queue,
        task.id,
        task.priority,
        NEVER if task.waits_for > 0 else task.eta,
        task.expires or 0.0,
        _or_none(task.result_ttl),
        task.unique_key or "",
        task.concurrency_key or "",
        _or_none(task.scheduled_at),
        task.unique_until or 0.0,
        task.unique_scope == "alive",
        body,
        *_links_of(task),
        dependency_ids(task),
        _or_none(task.failure_ttl),
    )


def plain_state(tasks: Sequence[Task]) -> tuple[Any, ...] | None:
    """The arguments of `add_plain.lua` for new tasks of one queue that share them: priority, eta or '', and the state
    in three parts, cut at the eta and at the time of creation. None if the tasks differ or are not plain.
    """
    looked_at = templates_of(tasks)
    first = looked_at[0]
    priority, eta, result_ttl, failure_ttl = first.priority, first.eta, first.result_ttl, first.failure_ttl
    if any(map(is_schedule, ids_of(tasks))):
        return None
    for task in looked_at:
        if (
            task.unique_key is not None
            or task.concurrency_key is not None
            or task.expires is not None
            or task.scheduled_at is not None
            or task.depends_on is not None
            or task.next_task_id is not None
            or task.unique_scope != "alive"
            or task.unique_until is not None
            or task.priority != priority
            or task.eta != eta
            or task.result_ttl != result_ttl
            or task.failure_ttl != failure_ttl
        ):
            return None
    parts = _plain_parts(priority, _or_none(result_ttl), _or_none(failure_ttl))
    return (priority, repr(eta) if eta > 0 else "", *parts)


@lru_cache(maxsize=100)
def _plain_parts(priority: int, result_ttl: float, failure_ttl: float) -> tuple[bytes, ...]:
    here = -2.0  # a value that no other field has
    state = TaskState(priority=priority, result_ttl=result_ttl, failure_ttl=failure_ttl, eta=here, created_at=here)
    before, between, behind = pack(state).split(pack(here))
    return before, between, behind


def settlement_of(
    one: Settlement, queue: int, result: int | None, lease_until: float | None, children: Sequence[Any]
) -> tuple[Any, ...]:
    """A settlement for `exchange.lua`. `result`: the number of the argument that has the result; `lease_until`: the
    lease that the task must still have; `children`: as `new_task` packs them.
    """
    return (
        queue,
        one.id,
        one.attempt,
        one.status.value,
        one.delay,
        one.eta,
        _or_none(one.scheduled_at),
        one.next_run,
        one.failures,
        one.crashes,
        one.completed_runs,
        result,
        one.result_dropped,
        None if one.error is None else _json(one.error),
        lease_until,
        children,
        None if one.progress is None else _json(one.progress),
        one.suspended,
        one.awaits or "",
    )


def change_of(before: Task, after: Task, body: int | None) -> tuple[Any, ...]:
    """A change for `change.lua`: fields of the task as it was, a new error, and the new values. `body`: the number of
    the argument that has the new body, if it differs.
    """
    is_new = after.errors[-1:] != before.errors[-1:] or len(after.errors) > len(before.errors)
    return (
        before.id,
        before.status.value,
        before.attempt,
        before.eta,
        before.hold,
        _json(after.errors[-1]) if after.errors and is_new else None,
        after.status.value,
        after.eta,
        after.expires or 0.0,
        after.failures,
        after.crashes,
        after.worker or "",
        after.cancel_requested,
        after.finished_at or 0.0,
        _or_none(after.scheduled_at),
        after.hold,
        after.priority,
        _or_none(after.result_ttl),
        after.concurrency_key or "",
        body,
        before.waits_for,
        _or_none(after.failure_ttl),
        not after.steps,
        after.awaits or "",
    )


def task_of(
    queue: str,
    lease_until: float | None,
    task_id: bytes,
    packed: bytes,
    body: bytes,
    result: bytes | None,
    followed: bytes | None,
    steps: Sequence[bytes] | None = None,
) -> Task:
    """The task of a row; of a row that cannot be read, see `unreadable.py`."""
    try:
        given, state = _decode_body(body), _decode_state(packed)
        if state.format <= FORMAT and not state.unreadable:
            task = _task_of(queue, lease_until, task_id, state, given, result, followed)
            return task if steps is None else msgspec.structs.replace(task, steps=_steps_of(steps))
    except Exception:  # whatever the decoders make of arbitrary bytes
        pass
    return _unreadable_task(queue, lease_until, task_id, packed, body, result, followed, steps)


def _steps_of(records: Sequence[bytes]) -> tuple[Step, ...]:
    return stored_steps(map(_decode_step, records))


def _unreadable_task(
    queue: str,
    lease_until: float | None,
    task_id: bytes,
    packed: bytes,
    body: bytes,
    result: bytes | None,
    followed: bytes | None,
    steps: Sequence[bytes] | None,
) -> Task:
    problems: list[str] = []
    given = _salvaged(TaskBody, body, TaskBody("", b"", "json", None, 0, Backoff(), None, False, "fail", {}), problems)
    state = _salvaged(TaskState, packed, TaskState(), problems)
    fields = {
        "id": task_id.decode(errors="backslashreplace"),
        "func_path": given.func_path or UNKNOWN_NAME,
        "status": state.status,
        "progress": state.progress or None,
        "errors": state.errors,
        "depends_on": followed or b"",
        "format": state.format,
        "steps": steps,
    }
    decoders: dict[str, Callable[[Any], Any]] = {
        "progress": _decode_progress,
        "errors": lambda errors: tuple(map(_decode_error, errors)),
        "depends_on": lambda ids: _depends_on(state, ids or None),
        "steps": _steps_of,
    }
    task = unreadable_task(fields, decoders, [*problems, *([state.unreadable] if state.unreadable else [])])
    state.status, state.progress, state.errors = task.status, "", []
    state.depends_on = 0
    sound = _task_of(queue, lease_until, task.id.encode(), state, given, result, None)
    kept = ("func_path", "progress", "errors", "depends_on", "format", "steps", "unreadable")
    return msgspec.structs.replace(sound, **{name: getattr(task, name) for name in kept})


def _salvaged(kind: type[Packed], packed: bytes, usual: Packed, problems: list[str]) -> Packed:
    """The fields of a packed value that can be read, and those of `usual` for the others."""
    try:
        values = msgspec.msgpack.decode(packed, type=list[msgspec.Raw])
    except Exception as error:
        problems.append(f"{'body' if kind is TaskBody else 'state'}: {error}")
        return usual
    types = typing.get_type_hints(kind, include_extras=True)
    for name, value in zip(kind.__struct_fields__, values, strict=False):
        try:
            setattr(usual, name, msgspec.msgpack.decode(value, type=types[name]))
        except Exception as error:
            problems.append(f"{name}: {error}")
    return usual


def _task_of(
    queue: str,
    lease_until: float | None,
    task_id: bytes,
    state: TaskState,
    given: TaskBody,
    result: bytes | None,
    followed: bytes | None,
) -> Task:
    return Task(
        id=task_id.decode(),
        func_path=given.func_path,
        payload=given.payload,
        codec=given.codec,
        queue=queue,
        priority=state.priority,
        status=_statuses[state.status],
        eta=state.eta,
        interval=given.interval,
        schedule=given.schedule,
        max_retries=given.max_retries,
        backoff=given.backoff,
        timeout=given.timeout,
        expires=state.expires or None,
        at_most_once=given.at_most_once,
        on_failure=given.on_failure,
        result_ttl=None if state.result_ttl < 0 else state.result_ttl,
        failure_ttl=None if state.failure_ttl < 0 else state.failure_ttl,
        unique_key=state.unique_key or None,
        unique_scope="alive" if state.keeps_key else "waiting",
        unique_until=state.unique_until or None,
        concurrency_key=state.concurrency_key or None,
        headers=given.headers,
        next_task_id=state.next_task_id or None,
        depends_on=_depends_on(state, followed),
        waits_for=state.waits_for,
        attempt=state.attempt,
        failures=state.failures,
        crashes=state.crashes,
        completed_runs=state.completed_runs,
        scheduled_at=None if state.scheduled_at < 0 else state.scheduled_at,
        hold=state.hold,
        worker=state.worker or None,
        claim_id=state.claim_id or None,
        lease_until=lease_until,
        cancel_requested=state.cancel_requested,
        progress=_decode_progress(state.progress) if state.progress else None,
        awaits=state.awaits or None,
        result=result,
        result_dropped=_LOST if state.has_result and result is None else state.result_dropped,
        errors=tuple(map(_decode_error, state.errors)) if state.errors else (),
        created_at=state.created_at,
        started_at=state.started_at or None,
        finished_at=state.finished_at or None,
    )


def _or_none(number: float | None) -> float:
    return -1.0 if number is None else number


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()

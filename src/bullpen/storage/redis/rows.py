"""A task as two values on the server, and back: what only people change about it (`Body`), and the rest (`State`).

Both are arrays in msgpack. A body is nobody's but ours; a state is read and written by scripts too, which know no None:
there it is 0, -1 or an empty text. New fields go to the end and have a default, for tasks that are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from bullpen.tasks.alike import Alike, different, ids_of
from bullpen.tasks.ids import is_schedule
from bullpen.tasks.retry import Backoff
from bullpen.tasks.schedule import Schedule
from bullpen.tasks.task import (
    NEVER,
    Follows,
    OnFailure,
    Progress,
    ScheduleHold,
    Settlement,
    Task,
    TaskError,
    TaskStatus,
)


class Body(msgspec.Struct, array_like=True, gc=False):
    func_path: str
    payload: bytes
    codec: str
    interval: float | None
    max_retries: int
    backoff: Backoff
    timeout: float | None
    at_most_once: bool
    on_failure: OnFailure
    headers: dict[str, str]
    schedule: Schedule | None = None


class State(msgspec.Struct, array_like=True, gc=False):
    """Scripts call the fields by these names, in capitals."""

    status: str = "pending"
    attempt: int = 0
    priority: int = 0
    eta: float = 0.0
    failures: int = 0
    crashes: int = 0
    runs: int = 0
    worker: str = ""
    claim_id: str = ""
    created_at: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0
    expires: float = 0.0
    result_ttl: float = -1.0
    unique_key: str = ""
    concurrency_key: str = ""
    cancel_requested: bool = False
    awaited: bool | str = False  # somebody waits for its end: the channel to tell it on, or True for more than one
    has_result: bool = False
    result_dropped: str = ""
    progress: str = ""  # JSON
    errors: list[str] = []  # each JSON
    fire: float = -1.0
    hold: ScheduleHold = ""
    unique_until: float = 0.0
    keeps_key: bool = True  # its unique key, after it has started
    then_id: str = ""
    waits_for: int = 0
    anyway: bool = False  # … whatever becomes of them
    follows: int = 0  # how many; their ids are kept apart
    many: bool = False
    place: str = ""


pack = msgspec.msgpack.Encoder().encode
_HEAD = 1  # bytes that an array of fewer than 16 begins with, as a body is
NEW_STATE = pack(State())
_NOBODY = Follows(ids=())

_statuses = {status.value: status for status in TaskStatus}
_decode_state = msgspec.msgpack.Decoder(State).decode
_decode_body = msgspec.msgpack.Decoder(Body).decode
_decode_ids = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_decode_progress = msgspec.json.Decoder(Progress).decode
_decode_error = msgspec.json.Decoder(TaskError).decode


def body_of(task: Task) -> bytes:
    return pack(_body_of(task))


def ids_and_bodies(tasks: Sequence[Task]) -> list[Any]:
    """One after the other. Of tasks that are alike only the payloads are packed one by one."""
    words: list[Any] = []
    if type(tasks) is Alike:
        before, behind = _around_payload(tasks.same)
        for task_id, payload in zip(tasks.ids, tasks.payloads, strict=True):
            words += (task_id, before + pack(payload) + behind)
    else:
        for task in tasks:
            words += (task.id, body_of(task))
    return words


_latest_around: tuple[Task | None, tuple[bytes, bytes]] = (None, (b"", b""))


def _around_payload(task: Task) -> tuple[bytes, bytes]:
    """What is before and behind the payload in a body. Mostly it is asked for the same task as before."""
    global _latest_around  # noqa: PLW0603
    latest, around = _latest_around
    if latest is not task:
        body = _body_of(task)
        whole = pack(body)
        before = _HEAD + len(pack(body.func_path))
        around = whole[:before], whole[before + len(pack(body.payload)) :]
        _latest_around = task, around
    return around


def _body_of(task: Task) -> Body:
    return Body(
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
    """Of one that does not run: the rest of it."""
    state = State(
        task.status.value,
        task.attempt,
        task.priority,
        task.eta,
        task.failures,
        task.crashes,
        task.runs,
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
        _or_none(task.fire),
        task.hold,
        task.unique_until or 0.0,
        task.unique_scope == "alive",
        *_links_of(task),
    )
    return pack(state)


def _links_of(task: Task) -> tuple[str, int, bool, int, bool, str]:
    follows = task.follows or _NOBODY
    return task.then or "", task.waits_for, follows.anyway, len(follows.ids), follows.many, follows.place


def ids_followed(task: Task) -> tuple[str, ...]:
    """The ids of those that it follows: nobody has to read them while they end one by one."""
    return () if task.follows is None else task.follows.ids


def _follows(state: State, ids: bytes | None) -> Follows | None:
    if ids is None:
        return None
    return Follows(ids=_decode_ids(ids), place=state.place, many=state.many, anyway=state.anyway)


def new_task(task: Task, queue: int, body: int) -> tuple[Any, ...]:
    """What scripts want to know of a task that is added. `queue`: the number of its tag; `body`: which word that is."""
    return (
        queue,
        task.id,
        task.priority,
        NEVER if task.waits_for > 0 else task.eta,
        task.expires or 0.0,
        _or_none(task.result_ttl),
        task.unique_key or "",
        task.concurrency_key or "",
        _or_none(task.fire),
        task.unique_until or 0.0,
        task.unique_scope == "alive",
        body,
        *_links_of(task),
        ids_followed(task),
    )


def plain_state(tasks: Sequence[Task], awaited: str | None = None) -> tuple[Any, ...] | None:
    """What `ADD_PLAIN` wants to know of new tasks of one queue, if it is the same for all of them: priority, eta or
    nothing, and the state in three parts, before and behind the eta and the moment of its creation. None if one needs
    more than that. `awaited`: the channel of whoever waits for their end.
    """
    looked_at = different(tasks)
    first = looked_at[0]
    priority, eta, result_ttl = first.priority, first.eta, first.result_ttl
    if any(map(is_schedule, ids_of(tasks))):
        return None
    for task in looked_at:
        if (
            task.unique_key is not None
            or task.concurrency_key is not None
            or task.expires is not None
            or task.fire is not None
            or task.follows is not None
            or task.then is not None
            or task.unique_scope != "alive"
            or task.unique_until is not None
            or task.priority != priority
            or task.eta != eta
            or task.result_ttl != result_ttl
        ):
            return None
    return (priority, repr(eta) if eta > 0 else "", *_plain_parts(priority, _or_none(result_ttl), awaited))


@lru_cache(maxsize=100)
def _plain_parts(priority: int, result_ttl: float, awaited: str | None) -> tuple[bytes, ...]:
    here = -2.0  # nothing else in it is
    state = State(priority=priority, result_ttl=result_ttl, eta=here, created_at=here, awaited=awaited or False)
    before, between, behind = pack(state).split(pack(here))
    return before, between, behind


def settlement_of(
    one: Settlement, queue: int, result: int | None, lease_until: float | None, children: Sequence[Any]
) -> tuple[Any, ...]:
    """What `EXCHANGE` wants to know of a settlement. `result`: which word it is, if there is one; `lease_until`: what
    the task must still have; `children`: as `new_task` makes them.
    """
    return (
        queue,
        one.id,
        one.attempt,
        one.status.value,
        one.delay,
        one.eta,
        _or_none(one.fire),
        one.next_run,
        one.failures,
        one.crashes,
        one.runs,
        result,
        one.result_dropped,
        None if one.error is None else _json(one.error),
        lease_until,
        children,
    )


def change_of(before: Task, after: Task, body: int | None) -> tuple[Any, ...]:
    """What `CHANGE` wants to know: what it was, an error that is new, and what it is now. `body`: which word it is, if
    it is another.
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
        _or_none(after.fire),
        after.hold,
        after.priority,
        _or_none(after.result_ttl),
        after.concurrency_key or "",
        body,
        before.waits_for,
    )


def task_of(
    queue: str,
    lease_until: float | None,
    task_id: bytes,
    packed: bytes,
    body: bytes,
    result: bytes | None,
    followed: bytes | None,
) -> Task:
    given, state = _decode_body(body), _decode_state(packed)
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
        unique_key=state.unique_key or None,
        unique_scope="alive" if state.keeps_key else "waiting",
        unique_until=state.unique_until or None,
        concurrency_key=state.concurrency_key or None,
        headers=given.headers,
        then=state.then_id or None,
        follows=_follows(state, followed),
        waits_for=state.waits_for,
        attempt=state.attempt,
        failures=state.failures,
        crashes=state.crashes,
        runs=state.runs,
        fire=None if state.fire < 0 else state.fire,
        hold=state.hold,
        worker=state.worker or None,
        claim_id=state.claim_id or None,
        lease_until=lease_until,
        cancel_requested=state.cancel_requested,
        progress=_decode_progress(state.progress) if state.progress else None,
        result=result,
        result_dropped=state.result_dropped,
        errors=tuple(map(_decode_error, state.errors)) if state.errors else (),
        created_at=state.created_at,
        started_at=state.started_at or None,
        finished_at=state.finished_at or None,
    )


def words_in(news: bytes) -> list[bytes | None]:
    """What `as_news` has written."""
    words: list[bytes | None] = []
    at = 0
    while at < len(news):
        begin = news.index(b":", at) + 1
        length = int(news[at : begin - 1])
        words.append(None if length < 0 else news[begin : begin + length])
        at = begin + max(length, 0)
    return words


def _or_none(number: float | None) -> float:
    return -1.0 if number is None else number


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()

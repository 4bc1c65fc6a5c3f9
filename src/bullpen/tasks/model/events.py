"""Events: a name and a payload, kept for tasks that wait for them. Pure.

The first event of a name wins, until its time to live is over. A task that waits keeps a step without a result
(`Step.event`); the next attempt completes it with the payload, or with nothing when the time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec

from bullpen.errors import InvalidEvent, InvalidOption, InvalidOptionType, InvalidResult
from bullpen.tasks.model.codec import MAX_PAYLOAD, CallCodec
from bullpen.tasks.model.options import MAX_KEY, seconds
from bullpen.tasks.model.steps import open_waits
from bullpen.tasks.model.task import NEVER, Instant, Step, Task, with_step

EVENT_TTL = 7 * 86_400.0  # seconds for which an event is kept


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event as a store keeps it."""

    name: str
    payload: bytes  # encoded
    at: Instant  # when it came, by the store's clock
    expires_at: Instant  # after this instant it may be pruned, and another event may take its name


def event_name(value: object, task_id: str | None = None) -> str:
    """The name under which an event is stored. `task_id`: the event is for this task alone. Raises InvalidOption."""
    allowed = f"a string of 1 to {MAX_KEY} printable characters"
    if not isinstance(value, str):
        raise InvalidOptionType("name", value, allowed)
    if not 1 <= len(value) <= MAX_KEY or not value.isprintable():
        raise InvalidOption("name", value, allowed)
    return value if task_id is None else f"{task_id}:{value}"


def ends_at(ttl: float | None, now: float) -> float:
    """When the time to live of an event is over. None: never."""
    return NEVER if ttl is None else min(now + ttl, NEVER)


def event_ttl(value: float | timedelta | None) -> float | None:
    return None if value is None else seconds("ttl", value, zero=False, none="to keep it for ever")


def encode_payload(name: str, payload: Any, limit: int = MAX_PAYLOAD) -> bytes:
    """Raises InvalidEvent if JSON cannot have the payload, or if it is too large."""
    try:
        return CallCodec(None, name, max_result=limit).encode_result(payload)
    except InvalidResult as error:
        raise InvalidEvent(error.reason, event=name) from error


def decode_payload(data: bytes) -> Any:
    return _codec.decode_result(data)


_codec = CallCodec(None, "event", max_result=2**40)


def complete_waits(task: Task, events: Mapping[str, Event], now: float) -> tuple[Task, list[Step]]:
    """The task with the outcome of its open waits, and the steps that are new: those whose event has come, and those
    whose time is over.
    """
    new = []
    for wait in open_waits(task):
        event = events.get(wait.event)
        if event is not None or (wait.until is not None and wait.until <= now):
            payload = b"null" if event is None else event.payload
            step = msgspec.structs.replace(wait, result=payload, attempt=task.attempt, ended_at=now)
            new.append(step)
            task = with_step(task, step)
    return task, new

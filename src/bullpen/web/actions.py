"""The actions: what a visitor may change. The gate has checked the visitor and the form before."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from bullpen.cli.commands.status import remarks
from bullpen.tasks.client.task_queue import LimitTerms, TaskQueue
from bullpen.tasks.storage.port import Limit
from bullpen.web.bulk import BulkRuns
from bullpen.web.parameters import WrongParameter, required
from bullpen.web.selection import TaskSelection, read_verb

LONGEST_NUMBER = 20  # characters

N = TypeVar("N")


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """What a visitor asks for."""

    queue: TaskQueue
    bulk: BulkRuns
    visitor: str
    form: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ActionDone:
    """What an action has done, in words for the audit log, and the page to show next."""

    message: str
    page: str


async def pause_queue(asked: ActionRequest) -> ActionDone:
    name = required(asked.form, "queue")
    await asked.queue.apause(name)
    return ActionDone(f"paused the queue {name}", "/queues?done=paused")


async def resume_queue(asked: ActionRequest) -> ActionDone:
    name = required(asked.form, "queue")
    await asked.queue.aresume(name)
    return ActionDone(f"resumed the queue {name}", "/queues?done=resumed")


async def set_limit(asked: ActionRequest) -> ActionDone:
    """Set all terms of the limit of a queue as the form has them; without a number there is no such term."""
    name = required(asked.form, "queue")
    terms: LimitTerms = {
        "max_running": _number(asked.form, "max_running", int),
        "max_running_per_key": _number(asked.form, "max_running_per_key", int),
        "rate": _number(asked.form, "rate", float),
        "in_order": bool(asked.form.get("in_order")),
    }
    await asked.queue.aset_limit(name, **terms)
    words = ", ".join(remarks(False, Limit(queue=name, **terms))) or "any number at once"
    return ActionDone(f"limited the queue {name}: {words}", "/limits?done=limited")


def _number(form: Mapping[str, str], name: str, kind: Callable[[str], N]) -> N | None:
    text = form.get(name, "").strip()[:LONGEST_NUMBER]
    try:
        return kind(text) if text else None
    except ValueError:
        words = "a whole number" if kind is int else "a number"
        raise WrongParameter(f"{name} must be {words}, or empty for no limit") from None


async def cancel_task(asked: ActionRequest) -> ActionDone:
    task_id = required(asked.form, "task")
    changed = await asked.queue.acancel(task_id)
    words = f"cancelled the task {task_id}" if changed else f"found nothing to cancel in the task {task_id}"
    return ActionDone(words, f"/tasks/{quote(task_id)}?done={'cancelled' if changed else 'unchanged'}")


async def retry_task(asked: ActionRequest) -> ActionDone:
    task_id = required(asked.form, "task")
    changed = await asked.queue.aretry(task_id)
    words = f"retried the task {task_id}" if changed else f"found nothing to retry in the task {task_id}"
    return ActionDone(words, f"/tasks/{quote(task_id)}?done={'retried' if changed else 'unchanged'}")


async def pause_schedule(asked: ActionRequest) -> ActionDone:
    key = required(asked.form, "key")
    await asked.queue.schedules.apause(key)
    return ActionDone(f"paused the schedule {key}", "/schedules?done=paused")


async def resume_schedule(asked: ActionRequest) -> ActionDone:
    key = required(asked.form, "key")
    await asked.queue.schedules.aresume(key)
    return ActionDone(f"resumed the schedule {key}", "/schedules?done=resumed")


async def run_schedule(asked: ActionRequest) -> ActionDone:
    key = required(asked.form, "key")
    await asked.queue.schedules.arun(key)
    return ActionDone(f"ran the schedule {key}", "/schedules?done=started")


async def emit_event(asked: ActionRequest) -> ActionDone:
    """Emit the event that tasks wait for, with the JSON of the form as its payload; without any it is null."""
    name = required(asked.form, "event")
    try:
        payload = json.loads(asked.form.get("payload", "").strip() or "null")
    except (ValueError, RecursionError) as error:
        raise WrongParameter(f'the payload is no JSON, such as {{"by": "ada"}}, "text" or true: {error}') from None
    is_new = await asked.queue.aemit(name, payload)
    words = f"emitted the event {name}" if is_new else f"found the event {name} emitted already"
    return ActionDone(words, f"/waits?done={'emitted' if is_new else 'emitted-before'}")


async def start_bulk(asked: ActionRequest) -> ActionDone:
    verb, selection = read_verb(asked.form), TaskSelection.read(asked.form)
    run = await asked.bulk.start(verb, selection, asked.visitor)
    return ActionDone(f"began to {verb} all {run.words} ({run.matching})", f"/bulk/{run.id}")


async def stop_bulk(asked: ActionRequest) -> ActionDone:
    run = asked.bulk.get(required(asked.form, "run"))
    if run is None:
        raise WrongParameter("there is no such action in this process")
    run.is_stopping = True
    return ActionDone(f"stopped to {run.verb} all {run.words}", f"/bulk/{run.id}")


ACTIONS: Mapping[str, Callable[[ActionRequest], Awaitable[ActionDone]]] = {
    "/queues/pause": pause_queue,
    "/queues/resume": resume_queue,
    "/limits/set": set_limit,
    "/task/cancel": cancel_task,
    "/task/retry": retry_task,
    "/schedules/pause": pause_schedule,
    "/schedules/resume": resume_schedule,
    "/schedules/run": run_schedule,
    "/waits/emit": emit_event,
    "/bulk/start": start_bulk,
    "/bulk/stop": stop_bulk,
}

# What a page says after an action. Only these words: the address of a page must not put text on it.
DONE = {
    "paused": "Paused. Running tasks continue.",
    "resumed": "Resumed.",
    "limited": "Changed, for all workers. Running tasks continue.",
    "cancelled": "Cancelled. A running task was asked to stop.",
    "retried": "The task runs again.",
    "unchanged": "Nothing had to be changed.",
    "emitted": "Emitted. The tasks that waited for this event go on as soon as a worker is free.",
    "emitted-before": "An event of this name exists. It stays as it is: the first one counts.",
    "started": "The run starts as soon as a worker is free.",
}

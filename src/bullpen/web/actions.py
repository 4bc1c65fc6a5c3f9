"""The actions: what a visitor may change. The gate has checked the visitor and the form before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.web.parameters import required

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ActionDone:
    """What an action has done, in words for the audit log, and the page to show next."""

    message: str
    page: str


async def pause_queue(queue: TaskQueue, form: Form) -> ActionDone:
    name = required(form, "queue")
    await queue.apause(name)
    return ActionDone(f"paused the queue {name}", "/queues?done=paused")


async def resume_queue(queue: TaskQueue, form: Form) -> ActionDone:
    name = required(form, "queue")
    await queue.aresume(name)
    return ActionDone(f"resumed the queue {name}", "/queues?done=resumed")


async def cancel_task(queue: TaskQueue, form: Form) -> ActionDone:
    task_id = required(form, "task")
    changed = await queue.acancel(task_id)
    words = f"cancelled the task {task_id}" if changed else f"found nothing to cancel in the task {task_id}"
    return ActionDone(words, f"/tasks/{quote(task_id)}?done={'cancelled' if changed else 'unchanged'}")


async def retry_task(queue: TaskQueue, form: Form) -> ActionDone:
    task_id = required(form, "task")
    changed = await queue.aretry(task_id)
    words = f"retried the task {task_id}" if changed else f"found nothing to retry in the task {task_id}"
    return ActionDone(words, f"/tasks/{quote(task_id)}?done={'retried' if changed else 'unchanged'}")


async def pause_schedule(queue: TaskQueue, form: Form) -> ActionDone:
    key = required(form, "key")
    await queue.schedules.apause(key)
    return ActionDone(f"paused the schedule {key}", "/schedules?done=paused")


async def resume_schedule(queue: TaskQueue, form: Form) -> ActionDone:
    key = required(form, "key")
    await queue.schedules.aresume(key)
    return ActionDone(f"resumed the schedule {key}", "/schedules?done=resumed")


async def run_schedule(queue: TaskQueue, form: Form) -> ActionDone:
    key = required(form, "key")
    await queue.schedules.arun(key)
    return ActionDone(f"ran the schedule {key}", "/schedules?done=started")


ACTIONS: Mapping[str, Callable[[TaskQueue, Form], Awaitable[ActionDone]]] = {
    "/queues/pause": pause_queue,
    "/queues/resume": resume_queue,
    "/task/cancel": cancel_task,
    "/task/retry": retry_task,
    "/schedules/pause": pause_schedule,
    "/schedules/resume": resume_schedule,
    "/schedules/run": run_schedule,
}

# What a page says after an action. Only these words: the address of a page must not put text on it.
DONE = {
    "paused": "Paused. Running tasks continue.",
    "resumed": "Resumed.",
    "cancelled": "Cancelled. A running task was asked to stop.",
    "retried": "The task runs again.",
    "unchanged": "Nothing had to be changed.",
    "started": "The run starts as soon as a worker is free.",
}

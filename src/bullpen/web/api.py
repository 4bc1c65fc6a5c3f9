"""The operations of the HTTP API: what each one needs, does and answers. `OPERATIONS` lists them all.

The gate has checked the host and the token before. An operation runs only with a token that has its scope; its address
and its body are decoded into the classes of `api_types.py`, which check and bound every value.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from bullpen.cli.commands.status import is_up
from bullpen.cli.reads import StoreReads
from bullpen.cli.terminal.output import as_json
from bullpen.errors import InvalidPayload, QueueError, ResultTimeout, UnknownTask, closest
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.task_queue import TaskFilters, TaskQueue
from bullpen.tasks.model.info import TaskInfo, as_datetime
from bullpen.tasks.model.task import TaskStatus
from bullpen.tasks.storage.port import WorkerRecord
from bullpen.web import api_types as types
from bullpen.web.parameters import MOST, WrongParameter
from bullpen.web.tokens import Scope

WORKERS_LISTED = 200
GROUPS_LISTED = 200

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request that may be answered. `query` and `body` are decoded."""

    queue: TaskQueue
    reads: StoreReads
    scopes: tuple[Scope, ...]
    id: str  # of a task, queue or schedule, in the path
    query: Any
    body: Any


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """What an operation answers. `done`: what it has changed, in words for the audit."""

    document: msgspec.Struct
    done: str = ""
    status: int = 200
    location: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answer` is the class of its document."""

    name: str
    method: str
    path: str  # below /api/v1
    scopes: tuple[Scope, ...]  # one of them is enough
    summary: str
    run: Callable[[ApiCall], Awaitable[ApiAnswer]]
    answer: type[msgspec.Struct]
    query: type[msgspec.Struct] = types.NoQuery
    body: type[msgspec.Struct] | None = None

    @property
    def changes(self) -> bool:
        return self.method == "POST"


def read_parameters(query: str, kind: type[Q]) -> Q:
    """The parameters of an address. Raises WrongParameter."""
    try:
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=MOST, errors="strict"
        )
    except ValueError:
        raise WrongParameter(f"the query cannot be read: at most {MOST} parameters as name=value, in UTF-8") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise WrongParameter("a parameter is given twice")
    if any(value.lower() == "null" for value in given.values()):
        raise WrongParameter("null is no value; leave the parameter out")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise WrongParameter(str(error)) from None


def read_body(written: bytes, kind: type[Q]) -> Q:
    """The body of a request. Raises WrongParameter."""
    try:
        return msgspec.json.decode(written or b"{}", type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WrongParameter(f"the body is wrong: {error}") from None


def encode(document: msgspec.Struct) -> bytes:
    """As `--json` of the command line: instants in ISO 8601, durations in seconds."""
    return json.dumps(as_json(document)).encode()


# Tasks.


async def enqueue(call: ApiCall) -> ApiAnswer:
    new: types.NewTask = call.body
    definition = call.queue.registry.get(new.function)
    if definition is None:
        known = call.queue.registry.names()
        raise UnknownTask(name=new.function, known=known, suggestion=closest(new.function, known))
    args, kwargs = definition.decode(json.dumps({"args": new.args, "kwargs": new.kwargs}).encode())
    job = await call.queue.aenqueue(definition.func_path, args, kwargs, **cast(Any, new.options.given))
    words = f"enqueued the task {job.id} of {definition.func_path}" if job.is_new else ""
    document = types.EnqueueAnswer(id=job.id, is_new=job.is_new)
    return ApiAnswer(document, words, 201 if job.is_new else 200, f"/tasks/{job.id}")


async def list_tasks(call: ApiCall) -> ApiAnswer:
    query: types.TaskListQuery = call.query
    names = ("status", "queue", "key", "worker", "error", "fingerprint")
    given: dict[str, Any] = {name: getattr(query, name) for name in names} | {"name": query.function}
    filters = cast(TaskFilters, {name: value for name, value in given.items() if value is not None})
    found = await call.queue.alist(limit=query.limit + 1, after=query.after, newest=query.newest, **filters)
    shown = found[: query.limit]
    following = shown[-1].id if len(found) > query.limit else None
    return ApiAnswer(types.TaskPage(tasks=list(map(types.TaskSummary.of, shown)), next=following))


async def get_task(call: ApiCall) -> ApiAnswer:
    """The task, at its end or after the wait."""
    query: types.TaskQuery = call.query
    job = call.queue.job(call.id)
    if query.wait:
        with suppress(ResultTimeout, QueueError):
            await job.aresult(timeout=query.wait)
    info = await job.ainfo()
    why = await job.awhy()
    sees_result = "operate" in call.scopes or "enqueue" in call.scopes
    return ApiAnswer(
        types.TaskAnswer(
            task=info,
            why=[cause.message for cause in why.causes],
            result=await _result(call.queue, info) if sees_result else None,
            arguments=await _arguments(job) if "operate" in call.scopes else None,
        )
    )


async def _result(queue: TaskQueue, info: TaskInfo) -> Any:
    """The stored result, which is JSON."""
    (stored,) = await (await queue.astorage()).get([info.id])
    try:
        return None if stored is None or stored.result is None else json.loads(stored.result)
    except (ValueError, RecursionError):
        return None


async def _arguments(job: Job[Any]) -> dict[str, Any] | None:
    try:
        return cast("dict[str, Any]", json.loads(json.dumps(await job.aarguments(), default=str)))
    except (UnknownTask, InvalidPayload):
        return None


async def cancel_task(call: ApiCall) -> ApiAnswer:
    job = call.queue.job(call.id)
    await job.ainfo()  # raises TaskNotFound
    changed = await job.acancel()
    return _task_changed(changed, await job.ainfo(), "cancelled")


async def retry_task(call: ApiCall) -> ApiAnswer:
    request: types.RetryRequest = call.body
    job = call.queue.job(call.id)
    await job.ainfo()
    changed = await job.aretry(from_step=request.from_step)
    return _task_changed(changed, await job.ainfo(), "retried")


def _task_changed(changed: bool, info: TaskInfo, verb: str) -> ApiAnswer:
    return ApiAnswer(types.TaskChanged(changed=changed, task=info), f"{verb} the task {info.id}" if changed else "")


# Events.


async def list_waits(call: ApiCall) -> ApiAnswer:
    query: types.WaitListQuery = call.query
    now = as_datetime(await (await call.queue.astorage()).now())
    found = await call.queue.alist(limit=query.limit + 1, after=query.after, awaits=query.event or True)
    shown = found[: query.limit]
    following = shown[-1].id if len(found) > query.limit else None
    waits = [types.WaitDocument.of(task, task.awaits, now) for task in shown if task.awaits is not None]
    return ApiAnswer(types.WaitPage(waits=waits, next=following))


async def emit(call: ApiCall) -> ApiAnswer:
    event: types.NewEvent = call.body
    waiting = await call.queue.acount(awaits=event.name)
    is_new = await call.queue.aemit(event.name, event.payload, ttl=event.ttl)
    document = types.EmitAnswer(name=event.name, is_new=is_new, waiting=waiting)
    return ApiAnswer(document, f"emitted the event {event.name}" if is_new else "", 201 if is_new else 200)


# Queues.


async def list_queues(call: ApiCall) -> ApiAnswer:
    seen = await call.reads.overview()
    limits = {limit.queue: limit for limit in seen.limits if limit.is_limit}
    found = []
    for name in seen.queues:
        oldest = seen.oldest.get(name, seen.now)
        found.append(
            types.QueueDocument(
                name=name,
                counts={str(status): seen.counts.get(name, {}).get(status, 0) for status in TaskStatus},
                paused=name in seen.paused,
                limit=limits.get(name),
                oldest_due=None if oldest >= seen.now else as_datetime(oldest),
                workers=sum(worker.serves(name) for worker in seen.up),
            )
        )
    return ApiAnswer(types.QueuePage(queues=found))


async def pause_queue(call: ApiCall) -> ApiAnswer:
    await call.queue.apause(call.id)
    return ApiAnswer(types.QueueChanged(queue=call.id, paused=True), f"paused the queue {call.id}")


async def resume_queue(call: ApiCall) -> ApiAnswer:
    await call.queue.aresume(call.id)
    return ApiAnswer(types.QueueChanged(queue=call.id, paused=False), f"resumed the queue {call.id}")


# Schedules.


async def list_schedules(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(types.SchedulePage(schedules=await call.queue.schedules.alist()))


async def run_schedule(call: ApiCall) -> ApiAnswer:
    return await _schedule_changed(call, (await call.queue.schedules.arun(call.id)).is_new, "ran")


async def pause_schedule(call: ApiCall) -> ApiAnswer:
    return await _schedule_changed(call, await call.queue.schedules.apause(call.id), "paused")


async def resume_schedule(call: ApiCall) -> ApiAnswer:
    return await _schedule_changed(call, await call.queue.schedules.aresume(call.id), "resumed")


async def _schedule_changed(call: ApiCall, changed: bool, verb: str) -> ApiAnswer:
    document = types.ScheduleChanged(changed=changed, schedule=await call.queue.schedules.aget(call.id))
    return ApiAnswer(document, f"{verb} the schedule {call.id}" if changed else "")


# Figures.


async def list_workers(call: ApiCall) -> ApiAnswer:
    seen = await call.reads.overview()
    now = as_datetime(seen.now)

    def state_of(worker: WorkerRecord) -> str:
        return "stopping" if worker.stopping and is_up(worker, now) else "up" if is_up(worker, now) else "lost"

    ordered = sorted(seen.workers, key=lambda worker: state_of(worker) != "lost")
    found = [
        msgspec.convert(
            {
                **{name: getattr(worker, name) for name in ("id", "host", "pid", "queues", "concurrency", "running")},
                "state": state_of(worker),
                "started_at": as_datetime(worker.started_at),
                "seen_at": as_datetime(worker.seen_at),
            },
            types.WorkerDocument,
        )
        for worker in ordered[:WORKERS_LISTED]
    ]
    return ApiAnswer(types.WorkerPage(workers=found, total=len(ordered)))


async def statistics(call: ApiCall) -> ApiAnswer:
    seen = await call.reads.overview()
    up = seen.up
    return ApiAnswer(
        types.Statistics(
            at=as_datetime(seen.now),
            tasks={str(status): seen.total(status) for status in TaskStatus},
            workers_up=len(up),
            workers_lost=len(seen.workers) - len(up),
            slots=sum(worker.concurrency for worker in up),
            findings=list(await call.reads.findings()),
        )
    )


async def history(call: ApiCall) -> ApiAnswer:
    query: types.HistoryQuery = call.query
    if query.since / (query.step or 60) > types.MOST_PERIODS:
        raise WrongParameter(f"step must be longer: at most {types.MOST_PERIODS} periods")
    names = ("since", "step", "queue", "function", "by")
    found = await call.queue.ahistory(**{name: getattr(query, name) for name in names})
    return ApiAnswer(types.HistoryAnswer(periods=list(map(types.PeriodDocument.of, found))))


async def failures(call: ApiCall) -> ApiAnswer:
    query: types.FailureQuery = call.query
    found = await call.queue.afailures(since=query.since)
    return ApiAnswer(types.FailurePage(groups=found[:GROUPS_LISTED]))


LOOK: tuple[Scope, ...] = ("read", "operate")
OPERATE: tuple[Scope, ...] = ("operate",)

OPERATIONS = (
    Operation(
        "enqueue",
        "POST",
        "/tasks",
        ("enqueue",),
        "Enqueue a call of a registered function. With a unique key it may be repeated.",
        enqueue,
        types.EnqueueAnswer,
        body=types.NewTask,
    ),
    Operation(
        "list_tasks",
        "GET",
        "/tasks",
        LOOK,
        "List tasks that match all filters, a page at a time.",
        list_tasks,
        types.TaskPage,
        types.TaskListQuery,
    ),
    Operation(
        "cancel_task",
        "POST",
        "/tasks/{id:path}/cancel",
        OPERATE,
        "Cancel a pending task, or ask a running one to stop.",
        cancel_task,
        types.TaskChanged,
    ),
    Operation(
        "retry_task",
        "POST",
        "/tasks/{id:path}/retry",
        OPERATE,
        "Run a finished task again.",
        retry_task,
        types.TaskChanged,
        body=types.RetryRequest,
    ),
    Operation(
        "get_task",
        "GET",
        "/tasks/{id:path}",
        ("read", "operate", "enqueue"),
        "Show a task, at once or after a wait for its end.",
        get_task,
        types.TaskAnswer,
        types.TaskQuery,
    ),
    Operation(
        "list_waits",
        "GET",
        "/waits",
        LOOK,
        "List the tasks that wait for events, a page at a time.",
        list_waits,
        types.WaitPage,
        types.WaitListQuery,
    ),
    Operation(
        "emit",
        "POST",
        "/events",
        OPERATE,
        "Emit an event: tasks that wait for it go on. The first event of a name counts.",
        emit,
        types.EmitAnswer,
        body=types.NewEvent,
    ),
    Operation("list_queues", "GET", "/queues", LOOK, "List the queues.", list_queues, types.QueuePage),
    Operation(
        "pause_queue",
        "POST",
        "/queues/{id:path}/pause",
        OPERATE,
        "Start no task of a queue; running ones continue.",
        pause_queue,
        types.QueueChanged,
    ),
    Operation(
        "resume_queue",
        "POST",
        "/queues/{id:path}/resume",
        OPERATE,
        "Start tasks of a queue again.",
        resume_queue,
        types.QueueChanged,
    ),
    Operation("list_schedules", "GET", "/schedules", LOOK, "List the schedules.", list_schedules, types.SchedulePage),
    Operation(
        "run_schedule",
        "POST",
        "/schedules/{id:path}/run",
        OPERATE,
        "Run a schedule once, now.",
        run_schedule,
        types.ScheduleChanged,
    ),
    Operation(
        "pause_schedule",
        "POST",
        "/schedules/{id:path}/pause",
        OPERATE,
        "Start no further run of a schedule.",
        pause_schedule,
        types.ScheduleChanged,
    ),
    Operation(
        "resume_schedule",
        "POST",
        "/schedules/{id:path}/resume",
        OPERATE,
        "Resume a schedule with its next time.",
        resume_schedule,
        types.ScheduleChanged,
    ),
    Operation("list_workers", "GET", "/workers", LOOK, "List the workers.", list_workers, types.WorkerPage),
    Operation("stats", "GET", "/stats", LOOK, "Show totals and what needs attention.", statistics, types.Statistics),
    Operation(
        "history",
        "GET",
        "/history",
        LOOK,
        "Show what ran in each period, and how long it took.",
        history,
        types.HistoryAnswer,
        types.HistoryQuery,
    ),
    Operation(
        "failures",
        "GET",
        "/failures",
        LOOK,
        "List failed attempts by their cause.",
        failures,
        types.FailurePage,
        types.FailureQuery,
    ),
)


def error_code(error: Exception) -> str:
    """`task_not_found` for TaskNotFound."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(error).__name__)
    return words.strip("_")

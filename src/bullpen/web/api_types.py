"""What programs send to the HTTP API and get from it. `openapi.py` makes the schemas from these classes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from bullpen.tasks.model.events import EVENT_TTL
from bullpen.tasks.model.failure_groups import FailureGroup
from bullpen.tasks.model.history import COUNTED, Histogram, HistoryPeriod
from bullpen.tasks.model.info import EventWait, ScheduleInfo, TaskInfo
from bullpen.tasks.model.options import MAX_KEY, MAX_SECONDS, QUEUE_NAME
from bullpen.tasks.model.task import Progress, TaskStatus, UniqueScope
from bullpen.tasks.model.unique import OnDuplicate
from bullpen.tasks.storage.port import HealthFinding, Limit

QUEUE = f"^{QUEUE_NAME.pattern}$"
LONGEST_VALUE = 512  # characters of a parameter
LARGEST_PAGE = 200
LONGEST_WAIT = 60.0
LONGEST_HISTORY = 30 * 86_400.0
MOST_PERIODS = 1500

Text = Annotated[str, Meta(min_length=1, max_length=LONGEST_VALUE)]
EventName = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]
Duration = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description="seconds")]

# Parameters in the address.


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class TaskListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks, and which page of them."""

    status: Annotated[TaskStatus, Meta(description="only tasks with this status")] | None = None
    queue: Annotated[str, Meta(pattern=QUEUE, description="only tasks of this queue")] | None = None
    function: Annotated[Text, Meta(description="name of a function, or its last parts")] | None = None
    key: Annotated[Text, Meta(description="unique key or concurrency key")] | None = None
    worker: Annotated[Text, Meta(description="worker that runs them, or ran them last")] | None = None
    error: Annotated[Text, Meta(description="kind or type of their latest error")] | None = None
    fingerprint: Annotated[Text, Meta(description="fingerprint of their latest error")] | None = None
    newest: Annotated[bool, Meta(description="newest first; otherwise oldest first")] = False
    after: Annotated[Text, Meta(description="`next` of the page before")] | None = None
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PAGE, description="tasks on a page")] = 50


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to look at a task."""

    wait: Annotated[
        float, Meta(ge=0, le=LONGEST_WAIT, description="seconds to wait for the end of the task, before the answer")
    ] = 0.0


class WaitListQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which waits, and which page of them."""

    event: Annotated[EventName, Meta(description="only waits for this event")] | None = None
    after: Annotated[Text, Meta(description="`next` of the page before")] | None = None
    limit: Annotated[int, Meta(ge=1, le=LARGEST_PAGE, description="waits on a page")] = 50


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the history."""

    since: Annotated[float, Meta(ge=60, le=LONGEST_HISTORY, description="seconds before now")] = 3600.0
    step: (
        Annotated[float, Meta(ge=60, le=LONGEST_HISTORY, multiple_of=60, description="seconds of a period")] | None
    ) = None
    queue: Annotated[str, Meta(pattern=QUEUE, description="only tasks of this queue")] | None = None
    function: Annotated[Text, Meta(description="only tasks of this function")] | None = None
    by: Annotated[Literal["queue", "function"], Meta(description="one period for each of them")] | None = None


class FailureQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which failures."""

    since: Annotated[float, Meta(ge=3600, le=7 * 86_400, description="seconds before now")] = 86_400.0


# Bodies.


class NewTaskOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a call. What is left out is as the function has it."""

    queue: Annotated[str, Meta(pattern=QUEUE)] | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    delay: Duration | UnsetType = UNSET
    eta: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    expires: Duration | UnsetType = UNSET
    timeout: Duration | UnsetType | None = UNSET
    max_retries: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    at_most_once: bool | UnsetType = UNSET
    result_ttl: Duration | UnsetType | None = UNSET
    failure_ttl: Duration | UnsetType | None = UNSET
    unique_key: Text | UnsetType = UNSET
    unique_scope: UniqueScope | UnsetType = UNSET
    unique_for: Duration | UnsetType = UNSET
    on_duplicate: OnDuplicate | UnsetType = UNSET
    debounce: Duration | UnsetType = UNSET
    debounce_limit: Duration | UnsetType = UNSET
    concurrency_key: Text | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}


class NewTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a registered function."""

    function: Text
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    options: NewTaskOptions = NewTaskOptions()


class RetryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a task runs again."""

    from_step: Annotated[Text, Meta(description="run this step and those after it again")] | None = None


class NewEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event. `payload` is any JSON value."""

    name: Annotated[EventName, Meta(description="of an event for one task: its id, a colon and the name")]
    payload: Any = None
    ttl: (
        Annotated[float, Meta(gt=0, le=MAX_SECONDS, description="seconds for which the event is kept; null: for ever")]
        | None
    ) = EVENT_TTL


# Answers.


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Every error has this form (RFC 9457)."""

    status: int
    code: Annotated[str, Meta(description="one word for programs, such as task_not_found")]
    detail: Annotated[str, Meta(description="what is wrong, for people")]


class EnqueueAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a call. `is_new` is false if another task holds the unique key: `id` is that task."""

    id: str
    is_new: bool


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A task in a list."""

    id: str
    name: str
    queue: str
    status: TaskStatus
    priority: int
    attempt: int
    failures: int
    created_at: datetime
    eta: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    unique_key: str | None
    concurrency_key: str | None
    headers: dict[str, str]
    progress: Progress | None
    error: Annotated[str, Meta(description="type or kind of its latest error")] | None

    @classmethod
    def of(cls, task: TaskInfo) -> TaskSummary:
        values = {name: getattr(task, name) for name in cls.__struct_fields__ if name != "error"}
        return cls(**values, error=None if task.error is None else task.error.type or task.error.kind)


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks, and `after` of the next page; null on the last one."""

    tasks: list[TaskSummary]
    next: str | None


class WaitDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A task that waits for an event, or that the event has just woken: then it is due."""

    id: str
    name: str
    queue: str
    event: str
    since: datetime
    until: Annotated[datetime, Meta(description="null: without a limit")] | None
    is_due: bool

    @classmethod
    def of(cls, task: TaskInfo, wait: EventWait, now: datetime) -> WaitDocument:
        return cls(
            id=task.id,
            name=task.name,
            queue=task.queue,
            event=wait.event,
            since=wait.since,
            until=wait.until,
            is_due=task.eta <= now,
        )


class WaitPage(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that wait for events, and `after` of the next page; null on the last one."""

    waits: list[WaitDocument]
    next: str | None


class EmitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An event. `is_new` is false if one of this name exists: it stays as it is."""

    name: str
    is_new: bool
    waiting: Annotated[int, Meta(description="tasks that waited for it just before")]


class TaskAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A task. `result` and `arguments` are for tokens with the scope operate; a token with the scope enqueue gets the
    result, too. Arguments that look like secrets are redacted.
    """

    task: TaskInfo
    why: list[str]
    result: Any = None
    arguments: dict[str, Any] | None = None


class TaskChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A task after a change. `changed` is false if there was nothing to change."""

    changed: bool
    task: TaskInfo


class QueueDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A queue. `counts` has the number of tasks by status; 1001 stands for more than 1000."""

    name: str
    counts: dict[str, int]
    paused: bool
    limit: Limit | None
    oldest_due: Annotated[datetime, Meta(description="when its oldest due task was due")] | None
    workers: int


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """All queues."""

    queues: list[QueueDocument]


class QueueChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A queue after a change."""

    queue: str
    paused: bool


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    """All schedules."""

    schedules: list[ScheduleInfo]


class ScheduleChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule after a change. `changed` is false if there was nothing to change."""

    changed: bool
    schedule: ScheduleInfo


class WorkerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A worker."""

    id: str
    host: str
    pid: int
    state: Literal["up", "stopping", "lost"]
    queues: tuple[str, ...]
    concurrency: int
    running: int
    started_at: datetime
    seen_at: datetime


class WorkerPage(msgspec.Struct, frozen=True, kw_only=True):
    """The first workers, lost ones first, and how many there are in all."""

    workers: list[WorkerDocument]
    total: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """All queues together, and what needs attention."""

    at: datetime
    tasks: dict[str, int]
    workers_up: int
    workers_lost: int
    slots: int
    findings: list[HealthFinding]


class DurationDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds; null without any."""

    p50: float | None
    p95: float | None
    p99: float | None

    @classmethod
    def of(cls, histogram: Histogram) -> DurationDocument:
        return cls(p50=histogram.p50, p95=histogram.p95, p99=histogram.p99)


class PeriodDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one period."""

    at: datetime
    seconds: int
    queue: str | None
    function: str | None
    enqueued: int
    started: int
    success: int
    failed: int
    retried: int
    cancelled: int
    expired: int
    crashed: int
    released: int
    wait: DurationDocument
    run: DurationDocument

    @classmethod
    def of(cls, period: HistoryPeriod) -> PeriodDocument:
        names = ("at", "seconds", "queue", "function", *COUNTED)
        values = {name: getattr(period, name) for name in names}
        return cls(**values, wait=DurationDocument.of(period.wait), run=DurationDocument.of(period.run))


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Periods, oldest first."""

    periods: list[PeriodDocument]


class FailurePage(msgspec.Struct, frozen=True, kw_only=True):
    """Failed attempts, grouped by their cause."""

    groups: list[FailureGroup]

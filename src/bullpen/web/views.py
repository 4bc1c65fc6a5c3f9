"""The pages: what each of them reads from the store, as values for its template."""

from __future__ import annotations

import json
import platform
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from bullpen import __version__
from bullpen.cli.commands.status import is_up, remarks
from bullpen.cli.reads import MOST_COUNTED, StoreOverview, StoreReads, StoreSample, sample_of, sum_text
from bullpen.cli.store import address_of
from bullpen.cli.terminal.output import duration
from bullpen.errors import InvalidPayload, UnknownTask
from bullpen.pools.async_pool import AsyncPool
from bullpen.pools.pool import Pool
from bullpen.pools.pools import Pools
from bullpen.pools.stats_by_name import stats_by_name
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.context import PARENT_HEADER
from bullpen.tasks.model.history import HOUR, HistoryPeriod
from bullpen.tasks.model.info import (
    TaskError,
    TaskInfo,
    as_datetime,
    describe_attempts,
    in_zone,
    info_of,
    schedule_info_of,
)
from bullpen.tasks.model.schedule_changes import next_times
from bullpen.tasks.model.task import FINAL, Task, TaskStatus, writable
from bullpen.tasks.storage.port import Limit, WorkerRecord
from bullpen.tasks.storage.schedules import all_schedules
from bullpen.web.access import Visitor
from bullpen.web.attention import attention
from bullpen.web.audit import AuditLog
from bullpen.web.bulk import BulkRuns
from bullpen.web.chart import MiniChart, draw, draw_durations, draw_hours, draw_runs, draw_samples
from bullpen.web.graph import ChildrenReads, read_graph
from bullpen.web.parameters import WrongParameter, instant, one_of
from bullpen.web.selection import STATUSES, TIMES, TaskSelection, Verb, read_verb

PAGE_SIZE = 50
LARGEST_TEXT = 20_000  # characters of a result or of arguments
GROUPS_SHOWN = 100
WORKERS_SHOWN = 100
SCHEDULES_SHOWN = 200
NEXT_RUNS = 3
FUNCTIONS_SHOWN = 200
AUDIT_SHOWN = 50
SINCE: Mapping[str, int] = {"hour": HOUR, "day": 24 * HOUR, "week": 7 * 24 * HOUR}
SAMPLE = 5  # tasks that are shown before an action on many
VERBS: Mapping[Verb, str] = {"retry": "Run again", "cancel": "Cancel", "delete": "Delete"}

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Visit:
    """One request for a page."""

    queue: TaskQueue
    reads: StoreReads
    bulk: BulkRuns
    children: ChildrenReads
    pools: Sequence[Pool | AsyncPool | Pools]
    audit: AuditLog
    visitor: Visitor
    parameters: Mapping[str, str]
    id: str = ""  # at the end of the path: of a task, or of an action on many tasks


@dataclass(frozen=True, slots=True)
class View:
    """One page: where it is, its template, and the function that reads its values."""

    name: str
    path: str
    read: Callable[[Visit], Awaitable[Values]]

    @property
    def template(self) -> str:
        return f"{self.name}.html"


async def overview(visit: Visit) -> Values:
    seen = await visit.reads.overview()
    up, minutes = seen.up, await visit.reads.minutes()
    return {
        "now": as_datetime(seen.now),
        "findings": attention(await visit.reads.findings()),
        "chart": draw(minutes),
        "minis": _minis(visit.reads.samples, seen, minutes),
        "totals": {str(status): seen.total_text(status) for status in TaskStatus},
        "workers_up": len(up),
        "workers_lost": len(seen.workers) - len(up),
        "slots": sum(worker.concurrency for worker in up),
        "queues": [_queue_row(name, seen) for name in seen.queues],
        "running": list(seen.running)[:8],
    }


def _minis(samples: Iterable[StoreSample], seen: StoreOverview, minutes: Sequence[HistoryPeriod]) -> list[MiniChart]:
    """How long tasks waited and ran, from the history; the backlog and the slots, since the dashboard has been open."""
    slots = sum(worker.concurrency for worker in seen.up)
    last = sample_of(seen)
    known = [*samples, last]
    most, longest = max(one.pending for one in known), max(one.oldest for one in known)
    return [
        draw_durations("Waited", minutes, lambda one: one.wait),
        draw_durations("Ran", minutes, lambda one: one.run),
        draw_samples(
            "Pending",
            [(one.at, one.pending) for one in known],
            seen.now,
            value=seen.total_text(TaskStatus.PENDING),
            note="",
            most=most,
            words=f"{most:,}",
        ),
        draw_samples(
            "Oldest due",
            [(one.at, one.oldest) for one in known],
            seen.now,
            value=duration(last.oldest) if last.oldest else "–",
            note="",
            most=longest,
            words=duration(longest),
        ),
        draw_samples(
            "Slots busy",
            [(one.at, one.busy) for one in known],
            seen.now,
            value=f"{last.busy:.0%}" if slots else "–",
            note=f"of {slots:,}" if slots else "",
            most=1.0,
            words="100%",
        ),
    ]


async def queues(visit: Visit) -> Values:
    seen = await visit.reads.overview()
    return {"now": as_datetime(seen.now), "queues": [_queue_row(name, seen) for name in seen.queues]}


def _queue_row(name: str, seen: StoreOverview) -> Values:
    now = as_datetime(seen.now)
    by_status = seen.counts.get(name, {})
    oldest = seen.oldest.get(name, now.timestamp())
    return {
        "name": name,
        "counts": {str(status): by_status.get(status, 0) for status in TaskStatus},
        "oldest": None if oldest >= now.timestamp() else as_datetime(oldest),
        "paused": name in seen.paused,
        "remarks": remarks(False, _limit_of(name, seen.limits)),
        "workers": sum(worker.serves(name) for worker in seen.up),
    }


def _limit_of(name: str, limits: Sequence[Limit]) -> Limit | None:
    return next((limit for limit in limits if limit.queue == name), None)


async def tasks(visit: Visit) -> Values:
    """A page of tasks, the newest first; of pending ones, in the order in which they are due. Pages begin behind a
    task, so they are quick at any depth.
    """
    selection, after = TaskSelection.read(visit.parameters), visit.parameters.get("after")
    seen = await visit.reads.overview()
    order = one_of(visit.parameters, "order", ("newest", "oldest"))
    newest = (order or _usual_order(seen, selection)) == "newest"
    is_due = selection.status == TaskStatus.PENDING and not selection.chosen.keys() - {"status", "queue"}
    if is_due:
        shown, more = await _due(visit, selection)
    else:
        which = selection.filters
        found = await visit.queue.alist(limit=PAGE_SIZE + 1, after=after or None, newest=newest, **which)
        following = (
            {"after": found[PAGE_SIZE - 1].id, "order": "newest" if newest else "oldest"} if found[PAGE_SIZE:] else None
        )
        shown, more = found[:PAGE_SIZE], following
    return {
        "now": as_datetime(seen.now),
        "tasks": shown,
        "chosen": selection,
        "statuses": STATUSES,
        "times": TIMES,
        "queue_names": seen.queues,
        "links": [(one or "all", _count(seen, selection, one), selection.query(status=one)) for one in ("", *STATUSES)],
        "verbs": [(verb, VERBS[verb], selection.query(verb=verb)) for verb in selection.verbs()],
        "is_later": bool(after),
        "order": "due" if is_due else "newest" if newest else "oldest",
        "other_order": selection.query(order="oldest" if newest else "newest"),
        "first": selection.query(order=order),
        "next": None if more is None else selection.query(**more),
    }


def _usual_order(seen: StoreOverview, selection: TaskSelection) -> str:
    """The newest first. But behind a long backlog, which is newer than them, the store would search long for tasks that
    have ended; those that failed have an index.
    """
    is_over = selection.status in (TaskStatus.SUCCESS, TaskStatus.CANCELLED)
    return "oldest" if is_over and seen.total(TaskStatus.PENDING) > MOST_COUNTED else "newest"


async def _due(visit: Visit, selection: TaskSelection) -> tuple[list[TaskInfo], dict[str, str] | None]:
    """A page of pending tasks, and where the next one begins."""
    storage, after = await visit.queue.astorage(), visit.parameters.get("after")
    behind = (instant(visit.parameters, "due"), writable(after)) if after else None
    found = await storage.list_pending(limit=PAGE_SIZE + 1, queue=selection.queue or None, after=behind)
    last = found[PAGE_SIZE - 1] if len(found) > PAGE_SIZE else None
    more = None if last is None else {"after": last.id, "due": repr(last.eta)}
    return [info_of(task) for task in found[:PAGE_SIZE]], more


def _count(seen: StoreOverview, selection: TaskSelection, status: str) -> str:
    """How many tasks a state has, as far as the store keeps counts: by queue, and by no other filter."""
    if selection.chosen.keys() - {"status", "queue"}:
        return ""
    counts = [by_status for name, by_status in seen.counts.items() if selection.queue in ("", name)]
    return sum_text(many for by_status in counts for one, many in by_status.items() if status in ("", str(one)))


async def failures(visit: Visit) -> Values:
    """Failed attempts by their cause, the latest first."""
    days = int(one_of(visit.parameters, "days", ("1", "7")) or "1")
    found = await visit.reads.failures(days)
    storage = await visit.queue.astorage()
    return {
        "now": as_datetime(await storage.now()),
        "days": days,
        "groups": [{"group": group, "bars": draw_hours(group.hours)} for group in found[:GROUPS_SHOWN]],
        "more": max(len(found) - GROUPS_SHOWN, 0),
    }


async def bulk(visit: Visit) -> Values:
    """The question before an action on many tasks, with their number."""
    verb, selection = read_verb(visit.parameters), TaskSelection.read(visit.parameters)
    filters = selection.filters_for(verb)
    return {
        "verb": verb,
        "label": VERBS[verb],
        "words": selection.words_for(verb),
        "many": await visit.queue.acount(**filters),
        "first": await visit.queue.alist(limit=SAMPLE, **filters),
        "chosen": selection.chosen,
        "back": selection.query(),
        "now": as_datetime(await (await visit.queue.astorage()).now()),
    }


async def bulk_run(visit: Visit) -> Values:
    """An action on many tasks, which runs or has ended."""
    run = visit.bulk.get(visit.id)
    if run is None:
        raise WrongParameter("there is no such action in this process")
    return {"run": run, "label": VERBS[run.verb]}


async def task(visit: Visit) -> Values:
    """One task. Its arguments and its result are shown to operators only: they may be secrets."""
    job = visit.queue.job(visit.id)
    info = await job.ainfo()
    why = await job.awhy()
    storage = await visit.queue.astorage()
    (stored,) = await storage.get([info.id])
    children = await visit.children.of(storage, info)
    return {
        "now": as_datetime(await storage.now()),
        "task": info,
        "why": [cause.message for cause in why.causes],
        "attempts": _attempts(info),
        "tries": describe_attempts(info),
        "may_retry": info.status in FINAL,
        "may_cancel": info.status not in FINAL and not info.cancel_requested,
        "result": _result(stored) if visit.visitor.may_operate else None,
        "arguments": await _arguments(job) if visit.visitor.may_operate else None,
        "has_result": stored is not None and stored.result is not None,
        "graph": await read_graph(visit.queue, info, children),
        "parent": info.headers.get(PARENT_HEADER),
        "headers": {name: value for name, value in info.headers.items() if name != PARENT_HEADER},
        "children": children,
        "children_query": f"?{urlencode({'header': f'{PARENT_HEADER}={info.id}'})}",
    }


def _attempts(info: TaskInfo) -> list[Values]:
    """The failed attempts that the store has kept, and the latest attempt if it did not fail; the latest first."""
    found: list[Values] = [
        {
            "number": error.attempt,
            "status": "failed",
            "started_at": error.started_at,
            "ended_at": error.at,
            "seconds": None if error.started_at is None else max((error.at - error.started_at).total_seconds(), 0.0),
            "worker": error.worker,
            "error": error,
            "box": _black_box(error),
        }
        for error in info.errors
    ]
    if info.started_at is not None and info.status in (TaskStatus.RUNNING, TaskStatus.SUCCESS):
        ended = info.finished_at if info.status is TaskStatus.SUCCESS else None
        found.append(
            {
                "number": info.attempt,
                "status": str(info.status),
                "started_at": info.started_at,
                "ended_at": ended,
                "seconds": None if ended is None else (ended - info.started_at).total_seconds(),
                "worker": info.worker or "",
                "error": None,
                "box": [],
            }
        )
    return found[::-1]


SHOWN_ANYWAY = frozenset("kind attempt at type message traceback worker started_at where fingerprint".split())


def _black_box(error: TaskError) -> list[tuple[str, str, bool]]:
    """What else the store has kept of a failed attempt: names, values, and whether these have several lines."""
    found = []
    for name in error.__struct_fields__:
        value = getattr(error, name)
        if name in SHOWN_ANYWAY or value in (None, "", ()):
            continue
        words = name.replace("_", " ")
        if name == "exit_code":
            found.append((words, _exit_of(value), False))
        elif isinstance(value, tuple):
            found.append((words, "\n".join(map(str, value)), True))
        elif name.endswith("memory"):
            found.append((words, f"{value / (1 << 20):,.0f} MiB", False))
        else:
            found.append((words, str(value), "\n" in str(value)))
    return found


def _exit_of(code: int) -> str:
    try:
        return f"{code} ({signal.Signals(-code).name})" if code < 0 else str(code)
    except ValueError:
        return str(code)


async def _arguments(job: Job[Any]) -> str:
    """The arguments as JSON, without those that look like secrets; or why they cannot be shown."""
    try:
        return _bounded(json.dumps(await job.aarguments(), indent=2, ensure_ascii=False, default=str))
    except UnknownTask:
        return "Its function is not known here. Start the dashboard with an APP, not with --url, to see arguments."
    except InvalidPayload as error:
        return str(error)


def _result(stored: Task | None) -> str | None:
    """The stored result, which is JSON, for people."""
    if stored is None or stored.result is None:
        return None
    written = stored.result.decode(errors="backslashreplace")
    try:
        return _bounded(json.dumps(json.loads(written), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return _bounded(written)


def _bounded(text: str) -> str:
    more = len(text) - LARGEST_TEXT
    return text if more <= 0 else f"{text[:LARGEST_TEXT]}\n… {more} more characters"


async def workers(visit: Visit) -> Values:
    seen = await visit.reads.overview()
    by_worker: dict[str | None, list[TaskInfo]] = {}
    for running in seen.running:
        by_worker.setdefault(running.worker, []).append(running)
    states = [(_worker_state(record, seen), record) for record in seen.workers]
    states.sort(key=lambda one: one[0] != "lost")  # these first
    return {
        "now": as_datetime(seen.now),
        "workers": [
            {
                "record": record,
                "state": state,
                "started_at": as_datetime(record.started_at),
                "seen_at": as_datetime(record.seen_at),
                "running": by_worker.get(record.id, []),
            }
            for state, record in states[:WORKERS_SHOWN]
        ],
        "pools": list(stats_by_name(visit.pools)),
        "more": max(len(states) - WORKERS_SHOWN, 0),
    }


def _worker_state(record: WorkerRecord, seen: StoreOverview) -> str:
    if not is_up(record, as_datetime(seen.now)):
        return "lost"
    return "stopping" if record.stopping else "up"


async def schedules(visit: Visit) -> Values:
    storage = await visit.queue.astorage()
    now = await storage.now()
    found = sorted(await all_schedules(storage), key=lambda task: schedule_info_of(task, now).key)
    return {
        "now": as_datetime(now),
        "schedules": [
            {
                "info": schedule_info_of(task, now),
                "next": [in_zone(task, at) for at in next_times(task, now, NEXT_RUNS)],
            }
            for task in found[:SCHEDULES_SHOWN]
        ],
        "more": max(len(found) - SCHEDULES_SHOWN, 0),
    }


async def waits(visit: Visit) -> Values:
    """The tasks that wait for an event, in the order in which they were enqueued."""
    event, after = visit.parameters.get("event", "").strip(), visit.parameters.get("after")
    storage = await visit.queue.astorage()
    found = await visit.queue.alist(limit=PAGE_SIZE + 1, after=after or None, awaits=event or True)
    shown = [task for task in found[:PAGE_SIZE] if task.awaits is not None]
    query = {"event": event} if event else {}
    return {
        "now": as_datetime(await storage.now()),
        "tasks": shown,
        "event": event,
        "is_later": bool(after),
        "first": f"?{urlencode(query)}" if query else "",
        "next": f"?{urlencode({**query, 'after': found[PAGE_SIZE - 1].id})}" if len(found) > PAGE_SIZE else None,
    }


async def functions(visit: Visit) -> Values:
    """What ran of each function: how often, how it ended, and how long it took."""
    chosen = one_of(visit.parameters, "since", tuple(SINCE)) or "day"
    found = await visit.reads.functions(SINCE[chosen])
    storage = await visit.queue.astorage()
    rows = []
    for period in sorted(found, key=lambda one: (-one.started, one.function or "")):
        ended = period.success + period.failed + period.crashed + period.retried
        rows.append(
            {
                "period": period,
                "failed": period.failed + period.crashed + period.retried,
                "rate": None if not ended else (ended - period.success) / ended * 100,
                "histogram": draw_runs(period.run),
            }
        )
    shown = rows[:FUNCTIONS_SHOWN]
    return {
        "now": as_datetime(await storage.now()),
        "since": chosen,
        "choices": [(name, f"last {name}") for name in SINCE],
        "functions": shown,
        "more": len(rows) - len(shown),
    }


async def limits(visit: Visit) -> Values:
    seen = await visit.reads.overview()
    rows = [limit for limit in seen.limits if limit.is_limit]
    return {
        "now": as_datetime(seen.now),
        "limits": [
            {
                "limit": limit,
                "running": seen.counts.get(limit.queue, {}).get(TaskStatus.RUNNING, 0),
                "pending": seen.counts.get(limit.queue, {}).get(TaskStatus.PENDING, 0),
            }
            for limit in sorted(rows, key=lambda one: one.queue)
        ],
    }


async def system(visit: Visit) -> Values:
    seen = await visit.reads.overview()
    return {
        "now": as_datetime(seen.now),
        "store": address_of(visit.queue.storage),
        "version": __version__,
        "python": platform.python_version(),
        "functions": visit.queue.registry.names(),
        "findings": attention(await visit.reads.findings()),
        "releases": _releases(seen),
        "audit": visit.audit.latest[:AUDIT_SHOWN] if visit.visitor.may_operate else None,
        "audit_survives": visit.audit.survives,
    }


def _releases(seen: StoreOverview) -> list[Values]:
    """The workers that are up, by the version of Bullpen and by what they register: a deploy shows as two rows."""
    groups: dict[tuple[str, tuple[str, ...]], list[WorkerRecord]] = {}
    for record in seen.up:
        digests = tuple(sorted(f"{one.queue} {one.digest}" for one in record.functions))
        groups.setdefault((record.version, digests), []).append(record)
    return [
        {
            "version": version,
            "functions": sum(one.count for one in records[0].functions),
            "queues": sorted({one.queue for one in records[0].functions}),
            "workers": len(records),
            "hosts": sorted({record.host for record in records})[:5],
            "since": as_datetime(min(record.started_at for record in records)),
        }
        for (version, _), records in sorted(groups.items(), key=lambda one: -len(one[1]))
    ][:GROUPS_SHOWN]


VIEWS = (
    View("overview", "/", overview),
    View("queues", "/queues", queues),
    View("tasks", "/tasks", tasks),
    View("task", "/tasks/{id:path}", task),
    View("failures", "/failures", failures),
    View("bulk", "/bulk", bulk),
    View("bulk_run", "/bulk/{id:path}", bulk_run),
    View("workers", "/workers", workers),
    View("functions", "/functions", functions),
    View("schedules", "/schedules", schedules),
    View("waits", "/waits", waits),
    View("limits", "/limits", limits),
    View("system", "/system", system),
)


def find_view(path: str) -> tuple[View, str] | None:
    """The page at a path below the dashboard, and the id at the end of the path."""
    for view in VIEWS:
        if view.path == path:
            return view, ""
    for view in VIEWS:
        folder, has_id, _ = view.path.partition("{id:path}")
        if has_id and path.startswith(folder) and path != folder:
            return view, path.removeprefix(folder)
    return None

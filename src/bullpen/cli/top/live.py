"""`bullpen top`: a live view of one store in the terminal.

The view reads the store once a second, on the event loop of the terminal: a slow store delays the next picture, and no
key. It reads with `StoreReads`, as the dashboard does. All text may come from callers that enqueue, so it is escaped,
and never read as markup.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, ClassVar

from bullpen.cli.commands.status import is_up, worker_row
from bullpen.cli.reads import StoreOverview, StoreReads, count_text
from bullpen.cli.store import address_of
from bullpen.cli.terminal.output import counted, duration, state, when
from bullpen.errors import BullpenError, MissingExtra
from bullpen.escaping import escape, escape_lines
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.client.why import Why
from bullpen.tasks.model.failure_groups import FailureGroup
from bullpen.tasks.model.history import HistoryPeriod
from bullpen.tasks.model.info import ScheduleInfo, TaskInfo, as_datetime
from bullpen.tasks.model.task import TaskStatus
from bullpen.tasks.storage.port import HealthFinding

try:
    from rich.text import Text
    from textual import on, work
    from textual.app import App, ComposeResult
    from textual.binding import Binding
    from textual.containers import Horizontal, VerticalScroll
    from textual.screen import ModalScreen
    from textual.widgets import DataTable, Footer, Input, Sparkline, Static, TabbedContent, TabPane
except ModuleNotFoundError as error:
    raise MissingExtra("the live view", extra="top") from error

EVERY = 1.0  # seconds
SHOWN = 200  # rows of a table
BACKLOG_SHOWN = 300  # pictures
TITLES = {
    "queues": "Queues",
    "workers": "Workers",
    "tasks": "Tasks",
    "failures": "Failures",
    "schedules": "Schedules",
    "attention": "Attention",
}
COLUMNS = {
    "queues": ("queue", "state", "waiting", "running", "failed", "oldest"),
    "workers": ("worker", "state", "queues", "running"),
    "tasks": ("state", "function", "queue", "tries", "when", "error"),
    "failures": ("count", "last", "function", "error", "where"),
    "schedules": ("schedule", "when", "next", "state"),
    "attention": ("", "what the doctor says"),
}

# In the first line; what does not fit is cut off at its end.
FIRST_LINE = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.FAILED, TaskStatus.SUCCESS, TaskStatus.CANCELLED)
MARKS = {"problem": "✕", "warning": "!"}

Row = tuple[str, Sequence[str]]  # its key, and its cells


class TaskScreen(ModalScreen[None]):
    """One task: why, and its attempts with their errors and log lines; or one finding and its advice."""

    BINDINGS: ClassVar[list[Any]] = [Binding("escape,q,enter", "dismiss", "Close")]

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="task"):
            yield Static(Text(self._words))


class TopApp(App[None]):
    """The live view."""

    CSS = """
    #rates { height: 3; }
    #rates Static { width: 12; }
    Sparkline { height: 2; width: 1fr; margin: 0 1; }
    #status { height: 1; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    TabbedContent { height: 1fr; }
    TabPane { padding: 0; }
    DataTable { height: 1fr; }
    #task { padding: 1 2; margin: 1 2; border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "Quit"),
        *(
            Binding(str(place), f"tab('{name}')", title, show=False)
            for place, (name, title) in enumerate(TITLES.items(), 1)
        ),
        Binding("slash", "filter", "Filter"),
        Binding("enter", "open", "Open"),
        Binding("r", "retry", "Retry"),
        Binding("c", "cancel", "Cancel"),
        Binding("R", "retry_group", "Retry all", show=False),
        Binding("p", "pause", "Pause/resume"),
        Binding("escape", "clear", "Clear", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, queue: TaskQueue) -> None:
        super().__init__()
        self._tasks = queue
        self._reads = StoreReads(queue)
        self._queue_name: str | None = None  # of the tasks that are listed
        self._filter = ""
        self._is_reading = False
        self._paused: frozenset[str] = frozenset()
        self._backlog: deque[int] = deque(maxlen=BACKLOG_SHOWN)  # waiting tasks in each picture
        self._groups: dict[str, FailureGroup] = {}  # of the failures that are shown, by the task that failed last
        self._schedules: dict[str, ScheduleInfo] = {}  # those that are shown, by id
        self._findings: dict[str, HealthFinding] = {}  # by the key of the row
        self.pictures = 0  # how often it has read the store

    # The picture.

    def compose(self) -> ComposeResult:
        yield Static("reading the store …", id="status")
        with Horizontal(id="rates"):
            for name in ("done", "failed", "enqueued", "waiting"):
                yield Static(name, id=f"{name}-words")
                yield Sparkline([0], id=name, summary_function=max)
        with TabbedContent(id="tabs"):
            for place, (name, title) in enumerate(TITLES.items(), 1):
                with TabPane(f"{place} {title}", id=name):
                    yield DataTable(id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield Input(placeholder="part of a function, queue, worker or error", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in COLUMNS.items():
            self._table(name).add_columns(*columns)
        self._focus_table()
        self.set_interval(EVERY, self.refresh_picture)
        self.refresh_picture()

    async def on_unmount(self) -> None:
        await self._reads.close()

    def refresh_picture(self) -> None:
        """Read the store, unless a read is under way."""
        if not self._is_reading:
            self._is_reading = True
            self._read()

    @work
    async def _read(self) -> None:
        try:
            seen = await self._reads.overview()
            self._show_status(seen)
            self._show_rates(await self._reads.minutes())
            self._show_backlog(seen)
            self._show(self.tab, await self._rows(seen))
            self.pictures += 1
            self._show_attention(await self._reads.findings())
        except (BullpenError, OSError, TimeoutError) as error:
            self._words("status", f"the store does not answer: {type(error).__name__}: {error}")
        finally:
            self._is_reading = False

    def _show_status(self, seen: StoreOverview) -> None:
        self._paused = seen.paused
        counts = ", ".join(f"{seen.total_text(status)} {status}" for status in FIRST_LINE if seen.total(status))
        now = as_datetime(seen.now)
        up = sum(is_up(record, now) for record in seen.workers)
        workers = counted(up, "worker", "workers")
        if lost := len(seen.workers) - up:
            workers += f", {lost} lost"
        place = address_of(self._tasks.storage)
        self._words("status", f"{now:%H:%M:%S} UTC · {workers} · {counts or 'no tasks'} · {place}")

    def _show_rates(self, minutes: Sequence[HistoryPeriod]) -> None:
        counts = {
            "done": [one.success for one in minutes],
            "failed": [one.failed + one.crashed + one.expired + one.retried for one in minutes],
            "enqueued": [one.enqueued for one in minutes],
        }
        for name, values in counts.items():
            last = sum(values[-2:]) / 2 if values else 0
            self._words(f"{name}-words", f"{name}\n{last:g}/min\n{sum(values)}/hour")
            self.query_one(f"#{name}", Sparkline).data = values or [0]

    def _show_backlog(self, seen: StoreOverview) -> None:
        """The store keeps no history of the backlog, so the line begins with the view."""
        self._backlog.append(seen.total(TaskStatus.PENDING))
        self._words("waiting-words", f"waiting\n{seen.total_text(TaskStatus.PENDING)}")
        self.query_one("#waiting", Sparkline).data = list(self._backlog)

    def _show_attention(self, findings: Sequence[HealthFinding]) -> None:
        """How many findings there are, whichever tab is open."""
        title = f"{len(TITLES)} {TITLES['attention']}{f' ({len(findings)})' if findings else ''}"
        self.query_one("#tabs", TabbedContent).get_tab("attention").label = title

    async def _rows(self, seen: StoreOverview) -> list[Row]:
        now = as_datetime(seen.now)
        if self.tab == "queues":
            return [_queue_row(name, seen) for name in seen.queues]
        if self.tab == "workers":
            running: dict[str | None, list[TaskInfo]] = {}
            for task in seen.running:
                running.setdefault(task.worker, []).append(task)
            rows: list[Row] = []
            for record in seen.workers:
                tasks = running.get(record.id, [])
                *_, health = worker_row(record, len(tasks), now)
                used = f"{len(tasks)} of {record.concurrency}"
                rows.append((record.id, [record.id, health.text, ",".join(record.queues), used]))
                rows += [(task.id, _running_row(task, now)) for task in tasks]
            return rows
        if self.tab == "tasks":
            terms: dict[str, Any] = {} if self._queue_name is None else {"queue": self._queue_name}
            found = await self._tasks.alist(limit=SHOWN, newest=True, **terms)
            return [(task.id, _task_row(task, now)) for task in found]
        if self.tab == "failures":
            self._groups = {group.example: group for group in await self._reads.failures(1)}
            return [(example, _failure_row(group, now)) for example, group in self._groups.items()]
        if self.tab == "attention":
            findings = await self._reads.findings()
            self._findings = {f"{place} {one.kind}": one for place, one in enumerate(findings)}
            return [(key, [MARKS[one.level], one.message]) for key, one in self._findings.items()]
        self._schedules = {one.id: one for one in await self._tasks.schedules.alist()}
        return [(task_id, _schedule_row(one, now)) for task_id, one in self._schedules.items()]

    def _show(self, name: str, rows: Sequence[Row]) -> None:
        """Replace the rows of a table; the cursor stays on its row."""
        if name != self.tab:  # another tab was chosen meanwhile
            return
        table = self._table(name)
        key, place = self._selected(), table.cursor_row
        wanted = [row for row in rows if self._filter in " ".join((row[0], *row[1])).lower()][:SHOWN]
        with self.batch_update():
            table.clear()
            for row_key, cells in _unique(wanted):
                table.add_row(*(Text(escape(cell), overflow="ellipsis", no_wrap=True) for cell in cells), key=row_key)
            keys = [row_key for row_key, _ in wanted]
            table.move_cursor(row=keys.index(key) if key in keys else min(place, max(len(keys) - 1, 0)))

    # Keys.

    def action_tab(self, name: str) -> None:
        self.query_one("#tabs", TabbedContent).active = name

    @on(TabbedContent.TabActivated)
    def _tab_chosen(self) -> None:
        self._focus_table()
        self.refresh_picture()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    @on(Input.Changed)
    def _filter_typed(self, event: Input.Changed) -> None:
        self._filter = event.value.lower()
        self.refresh_picture()

    @on(Input.Submitted)
    def _filter_done(self) -> None:
        self._focus_table()

    def action_clear(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("shown")
        self._queue_name = None
        self._focus_table()

    @on(DataTable.RowSelected)
    def _row_chosen(self) -> None:
        self.action_open()

    def action_open(self) -> None:
        """Open the selected task; of a queue, its tasks."""
        key = self._selected()
        if key is None:
            return
        if self.tab == "queues":
            self._queue_name = key
            self.action_tab("tasks")
        elif self.tab == "attention":
            finding = self._findings[key]
            self.push_screen(TaskScreen(escape_lines(f"{finding.message}\n\n{finding.advice}")))
        else:
            self._open(key)

    @work
    async def _open(self, task_id: str) -> None:
        async def read() -> None:
            job = self._tasks.job(task_id)
            info, why = await job.ainfo(), await job.awhy()
            now = as_datetime(await (await self._tasks.astorage()).now())
            self.push_screen(TaskScreen(described(info, why, now)))

        await self._try(read, "")

    def action_retry(self) -> None:
        self._change(self._tasks.aretry, "runs again")

    @work
    async def action_retry_group(self) -> None:
        """Retry all failed tasks of the selected cause."""
        group = self._groups.get(self._selected() or "") if self.tab == "failures" else None
        if group is None:
            self.notify("choose a failure", severity="warning")
            return

        async def act() -> None:
            many = await self._tasks.aretry_all(fingerprint=group.fingerprint, name=group.function)
            self.notify(escape(f"{counted(many, 'task runs', 'tasks run')} again"), markup=False)

        await self._try(act, group.function)

    def action_cancel(self) -> None:
        self._change(self._tasks.acancel, "is cancelled, or asked to stop")

    @work
    async def _change(self, change: Callable[[str], Awaitable[int]], outcome: str) -> None:
        """Change the selected task."""
        key = self._selected()
        if key is None or self.tab in ("queues", "schedules", "attention"):
            self.notify("choose a task", severity="warning")
            return

        async def act() -> None:
            changed = await change(key)
            self.notify(escape(f"{key} {outcome}" if changed else f"{key}: nothing to change"), markup=False)

        await self._try(act, key)

    @work
    async def action_pause(self) -> None:
        """Pause the selected queue or schedule, or resume it."""
        key, schedule = self._selected(), None
        if self.tab == "schedules":
            schedule = self._schedules.get(key or "")
        if key is None or (self.tab != "queues" and schedule is None):
            self.notify("choose a queue or a schedule", severity="warning")
            return
        paused = key in self._paused if schedule is None else schedule.paused
        name = key if schedule is None else schedule.key
        parts = self._tasks if schedule is None else self._tasks.schedules

        async def act() -> None:
            await (parts.aresume(name) if paused else parts.apause(name))
            what = "queue" if schedule is None else "schedule"
            self.notify(escape(f"{what} {name} is {'resumed' if paused else 'paused'}"), markup=False)

        await self._try(act, key)

    async def _try(self, act: Callable[[], Awaitable[None]], what: str) -> None:
        try:
            await act()
        except (BullpenError, OSError, TimeoutError) as error:
            self.notify(escape(f"{what} {type(error).__name__}: {error}".strip()), severity="error", markup=False)
        self._reads.forget()
        self.refresh_picture()

    # Helpers.

    @property
    def tab(self) -> str:
        return self.query_one("#tabs", TabbedContent).active or "queues"

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}-table", DataTable)

    def _focus_table(self) -> None:
        self._table(self.tab).focus()

    def _selected(self) -> str | None:
        table = self._table(self.tab)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def _words(self, name: str, words: str) -> None:
        self.query_one(f"#{name}", Static).update(Text(escape_lines(words), overflow="ellipsis"))


def _unique(rows: Sequence[Row]) -> list[Row]:
    """A table has each key once."""
    return list({key: (key, cells) for key, cells in rows}.values())


def _queue_row(name: str, seen: StoreOverview) -> Row:
    counts = seen.counts.get(name, {})
    oldest = seen.oldest.get(name)
    waits = "" if oldest is None or oldest > seen.now else duration(seen.now - oldest)
    numbers = [count_text(counts.get(one, 0)) for one in (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.FAILED)]
    return name, [name, "‖ paused" if name in seen.paused else "▶ open", *numbers, waits]


def _running_row(task: TaskInfo, now: datetime) -> list[str]:
    begun = task.started_at or task.created_at
    return [f"  {task.name}", "◐ running", task.queue, f"for {duration((now - begun).total_seconds())}"]


def _task_row(task: TaskInfo, now: datetime) -> list[str]:
    at = task.finished_at or task.started_at or task.created_at
    error = "" if task.error is None else f"{task.error.type or task.error.kind}: {task.error.message}"
    return [state(task, now).text, task.name, task.queue, str(task.attempt), when(at, now), error[:60]]


def _failure_row(group: FailureGroup, now: datetime) -> list[str]:
    error = f"{group.type or group.kind}: {group.message}"
    return [
        f"{group.count}{' ↑' if group.is_rising else ''}",
        when(group.last, now),
        group.function,
        error[:60],
        group.where,
    ]


def _schedule_row(schedule: ScheduleInfo, now: datetime) -> list[str]:
    following = "" if schedule.next_run is None else when(schedule.next_run, now)
    return [schedule.key, schedule.description, following, "‖ paused" if schedule.paused else str(schedule.status)]


def described(task: TaskInfo, why: Why, now: datetime) -> str:
    """A task in words."""
    lines = [
        f"{task.name}  {state(task, now).text}",
        f"{task.id}  queue {task.queue}  attempt {task.attempt}",
        *(f"why: {cause.message}" for cause in why.causes),
    ]
    if task.progress is not None:
        lines.append(f"progress: {task.progress}")
    for error in reversed(task.errors):
        lines += ["", f"attempt {error.attempt}: {error.kind}, {when(error.at, now)}"]
        lines.append(error.traceback.rstrip() or f"{error.type}: {error.message}")
        if error.log:
            lines += ["last log lines (UTC)", *(escape(line) for line in error.log)]
    return escape_lines("\n".join(lines))

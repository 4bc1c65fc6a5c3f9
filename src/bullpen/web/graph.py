"""The tasks before and after a task, and those that it has enqueued, as places of boxes and lines in an SVG. Pure, but
for the reads of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.context import PARENT_HEADER
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.task import TaskStatus
from bullpen.tasks.storage.port import Storage, TaskFilter

MOST_NODES = 24  # tasks in a picture
MOST_CHILDREN = 12
MOST_READ = 500  # tasks that are read from either end of the time in which the parent ran
APART = 5.0  # seconds that clocks may differ
REMEMBERED = 256  # parents whose children are known
MOST_STEPS = 4  # to either side of the task
WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 44, 40, 12


class GraphNode(NamedTuple):
    """A box."""

    task: TaskInfo
    x: int
    y: int
    is_here: bool


class GraphEdge(NamedTuple):
    """A line from one box to the next; "child": it leads to a task that was enqueued there."""

    path: str
    style: str


class TaskGraph(NamedTuple):
    """Boxes and lines, and the size of the picture. `more`: how many tasks it leaves out."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    width: int
    height: int
    more: int


class Children(NamedTuple):
    """The tasks that a task has enqueued with its success, as far as they were found."""

    ids: tuple[str, ...]
    is_all: bool


class ChildrenReads:
    """Finds the tasks that a task has enqueued with its success. The store keeps only the way from a child to its
    parent, so the tasks are read that were enqueued while the parent ran: a bounded number of them, and once, because
    a task enqueues no more children after its success.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, datetime], Children] = {}

    async def of(self, storage: Storage, parent: TaskInfo) -> Children:
        if parent.started_at is None or parent.finished_at is None or parent.status is not TaskStatus.SUCCESS:
            return Children((), True)
        key = (parent.id, parent.finished_at)
        if key not in self._known:
            self._known[key] = await _find_children(storage, parent.id, parent.started_at, parent.finished_at)
            for old in list(self._known)[:-REMEMBERED]:
                del self._known[old]
        return self._known[key]


async def _find_children(storage: Storage, parent: str, started: datetime, finished: datetime) -> Children:
    """Ids begin with the time at which they were made."""
    first, last = _id_at(started.timestamp() - APART), _id_at(finished.timestamp() + APART)
    read = await storage.list(TaskFilter(), limit=MOST_READ, after=first)
    is_all = len(read) < MOST_READ or read[-1].id >= last
    if not is_all:  # most tasks enqueue others at their end
        read = [*read, *await storage.list(TaskFilter(), limit=MOST_READ, after=last, newest=True)]
    ids = {task.id for task in read if task.headers.get(PARENT_HEADER) == parent}
    return Children(tuple(sorted(ids)), is_all)


def _id_at(instant: float) -> str:
    milliseconds = f"{max(int(instant * 1000), 0):012x}"
    return f"{milliseconds[:8]}-{milliseconds[8:]}-"


async def read_graph(queue: TaskQueue, here: TaskInfo, children: Children) -> TaskGraph | None:
    """The picture; None if the task depends on no other one, and none on it."""
    parent = here.headers.get(PARENT_HEADER)
    if not here.after and here.next_task_id is None and parent is None and not children.ids:
        return None
    found, columns, more = {here.id: here}, {here.id: 0}, 0
    enqueued: list[tuple[str, str]] = []  # a parent and its child
    for one in await _read(queue, children.ids[:MOST_CHILDREN]):  # in the order in which they were made
        before_it = [columns[other] for other in one.after if other in columns]
        found[one.id], columns[one.id] = one, max(before_it, default=0) + 1
        if not before_it:
            enqueued.append((here.id, one.id))
    if parent is not None:
        for one in await _read(queue, [parent]):
            found[one.id], columns[one.id] = one, -1
            enqueued.append((one.id, here.id))
    before: Sequence[TaskInfo] = [here]
    for step in range(1, MOST_STEPS + 1):
        wanted = list(dict.fromkeys(one for task in before for one in task.after if one not in found))
        room = MOST_NODES - len(found)
        more += max(len(wanted) - room, 0)
        before = await _read(queue, wanted[:room])
        found |= {task.id: task for task in before}
        columns |= {task.id: -step for task in before}
        if step == 1 and here.next_task_id is not None:  # the other members of its group
            for at, one in enumerate(await _read_after(queue, here)):
                found[one.id], columns[one.id] = one, at + 1
    return draw_graph(here.id, found, columns, enqueued)._replace(more=more)


async def _read_after(queue: TaskQueue, here: TaskInfo) -> list[TaskInfo]:
    chain: list[TaskInfo] = []
    task = here
    while task.next_task_id is not None and len(chain) < MOST_STEPS:
        following = await _read(queue, [task.next_task_id])
        if not following or following[0].id in {here.id, *(one.id for one in chain)}:
            break
        task = following[0]
        chain.append(task)
    return chain


async def _read(queue: TaskQueue, ids: Sequence[str]) -> list[TaskInfo]:
    if not ids:
        return []
    stored = await (await queue.astorage()).get(list(ids))
    return [info_of(task) for task in stored if task is not None]


def draw_graph(
    here: str, found: dict[str, TaskInfo], columns: dict[str, int], enqueued: Sequence[tuple[str, str]]
) -> TaskGraph:
    """Columns from left to right, in the order in which the tasks run."""
    first = min(columns.values())
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for task_id, column in sorted(columns.items(), key=lambda one: one[1]):
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[task_id] = ((column - first) * (WIDTH + GAP_X), row * (HEIGHT + GAP_Y))
    links = [(start, end, "") for task in found.values() for start, end in _links(task, found)]
    edges = [_edge(places[start], places[end], style) for start, end, style in links]
    depends = {(start, end) for start, end, _ in links}
    edges += [_edge(places[start], places[end], "child") for start, end in enqueued if (start, end) not in depends]
    return TaskGraph(
        nodes=[GraphNode(found[one], x, y, one == here) for one, (x, y) in places.items()],
        edges=edges,
        width=max(x for x, _ in places.values()) + WIDTH,
        height=max(y for _, y in places.values()) + HEIGHT,
        more=0,
    )


def _links(task: TaskInfo, found: Mapping[str, TaskInfo]) -> list[tuple[str, str]]:
    """From each task to the one that waits for it."""
    links = [(one, task.id) for one in task.after if one in found]
    following = task.next_task_id
    if following is not None and following in found and task.id not in found[following].after:
        links.append((task.id, following))
    return links


def _edge(start: tuple[int, int], end: tuple[int, int], style: str) -> GraphEdge:
    (x1, y1), (x2, y2) = start, end
    x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
    middle = (x1 + x2) // 2
    return GraphEdge(f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}", style)

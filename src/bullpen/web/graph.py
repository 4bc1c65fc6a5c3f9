"""The tasks before and after a task, as places of boxes and lines in an SVG. Pure, but for the reads of the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.info import TaskInfo, info_of

MOST_NODES = 24  # tasks in a picture
MOST_STEPS = 4  # to either side of the task
WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 44, 40, 12


class GraphNode(NamedTuple):
    """A box."""

    task: TaskInfo
    x: int
    y: int
    is_here: bool


class GraphEdge(NamedTuple):
    """A line from one box to the next."""

    path: str


class TaskGraph(NamedTuple):
    """Boxes and lines, and the size of the picture. `more`: how many tasks it leaves out."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    width: int
    height: int
    more: int


async def read_graph(queue: TaskQueue, here: TaskInfo) -> TaskGraph | None:
    """The picture; None if the task depends on no other one, and none on it."""
    if not here.after and here.next_task_id is None:
        return None
    found, columns, more = {here.id: here}, {here.id: 0}, 0
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
    return draw_graph(here.id, found, columns, more)


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


def draw_graph(here: str, found: dict[str, TaskInfo], columns: dict[str, int], more: int) -> TaskGraph:
    """Columns from left to right, in the order in which the tasks run."""
    first = min(columns.values())
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for task_id, column in sorted(columns.items(), key=lambda one: one[1]):
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[task_id] = ((column - first) * (WIDTH + GAP_X), row * (HEIGHT + GAP_Y))
    edges = []
    for task in found.values():
        links = [*((one, task.id) for one in task.after if one in found)]
        if task.next_task_id in found and task.id not in found[task.next_task_id].after:
            links.append((task.id, task.next_task_id))
        for start, end in links:
            (x1, y1), (x2, y2) = places[start], places[end]
            x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT // 2, y2 + HEIGHT // 2
            middle = (x1 + x2) // 2
            edges.append(GraphEdge(f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"))
    return TaskGraph(
        nodes=[GraphNode(found[one], x, y, one == here) for one, (x, y) in places.items()],
        edges=edges,
        width=max(x for x, _ in places.values()) + WIDTH,
        height=max(y for _, y in places.values()) + HEIGHT,
        more=more,
    )

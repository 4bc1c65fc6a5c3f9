"""Draws docs/explanation/state-machines.md from the tables in `pools/dispatch/states.py` and `tasks/model/task.py`.

    python -m tests.docs.state_machines     writes the page anew

The prose of the page stays; what stands between `<!-- generated: name -->` and `<!-- end -->` is replaced.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bullpen.pools.dispatch.states import POOL_MOVES, REQUEST_MOVES, WORKER_MOVES, PoolState, RequestState, WorkerStatus
from bullpen.tasks.model.task import TASK_MOVES, TaskStatus
from tests.docs.markdown import ROOT
from tests.docs.steps import END, EXECUTION, POOL_STAYS, QUEUE, START, TASK, TASK_WAYS, WORKER_STAYS, Arrow

PAGE = ROOT / "docs" / "explanation" / "state-machines.md"

Q, R = RequestState.QUEUED, RequestState.RUNNING
REQUEST = "bullpen.pools.dispatch.request.Request"
REQUEST_METHODS = {
    (Q, R): f"{REQUEST}.start",
    (Q, RequestState.EXPIRED): f"{REQUEST}.expire",
    (Q, RequestState.CANCELLED): f"{REQUEST}.cancel_queued",
    (Q, RequestState.FAILED): f"{REQUEST}.fail_queued",
    (R, RequestState.DONE): f"{REQUEST}.settle",
    (R, RequestState.FAILED): f"{REQUEST}.settle",
    (R, RequestState.CANCELLED): f"{REQUEST}.cancel_running",
    (R, RequestState.LOST): f"{REQUEST}.lose",
    (R, RequestState.ABANDONED): f"{REQUEST}.abandon",
    (R, Q): f"{REQUEST}.requeue",
}

S = WorkerStatus
DISPATCHER = "bullpen.pools.dispatch.dispatcher.Dispatcher"
DEATHS = "bullpen.pools.supervision.deaths.Deaths"
WORKER_METHODS = {
    (S.STARTING, S.READY): f"{DISPATCHER}.started",
    (S.STARTING, S.STOPPING): f"{DISPATCHER}.stop",
    (S.STARTING, S.DEAD): f"{DEATHS}.died",
    (S.READY, S.BUSY): f"{DISPATCHER}.reserve_ready_worker",
    (S.READY, S.TAINTED): f"{DISPATCHER}.taint",
    (S.READY, S.STOPPING): f"{DISPATCHER}.stop",
    (S.READY, S.DEAD): f"{DEATHS}.died",
    (S.BUSY, S.READY): f"{DISPATCHER}.finished",
    (S.BUSY, S.TAINTED): f"{DISPATCHER}.taint",
    (S.BUSY, S.STOPPING): f"{DISPATCHER}.stop",
    (S.BUSY, S.DEAD): f"{DEATHS}.died",
    (S.TAINTED, S.READY): f"{DISPATCHER}.recover",
    (S.TAINTED, S.STOPPING): f"{DISPATCHER}.stop",
    (S.TAINTED, S.DEAD): f"{DEATHS}.died",
    (S.STOPPING, S.EXITED): f"{DEATHS}.exited",
    (S.STOPPING, S.DEAD): f"{DEATHS}.died",
}

P = PoolState
ENGINE = "bullpen.pools.supervision.engine.Engine"
STARTUP = "bullpen.pools.supervision.startup.Startup"
SHUTDOWN = "bullpen.pools.supervision.shutdown.Shutdown"
DRAIN_WATCH = "bullpen.pools.supervision.shutdown.DrainWatch"
POOL_METHODS = {
    (P.CONFIGURING, P.INITIALIZING): f"{ENGINE}.start",
    (P.CONFIGURING, P.FAILED): "bullpen.errors.InvalidOption",
    (P.INITIALIZING, P.RUNNING): f"{STARTUP}.worker_is_ready",
    (P.INITIALIZING, P.DRAINING): f"{SHUTDOWN}.reject_new_work",
    (P.INITIALIZING, P.FAILED): f"{STARTUP}.fail",
    (P.RUNNING, P.DRAINING): f"{SHUTDOWN}.reject_new_work",
    (P.DRAINING, P.CLOSED): f"{DRAIN_WATCH}.closed_if_done",
}


T = TaskStatus
TASK_METHODS = {
    (T.PENDING, T.RUNNING): f"{TASK}.claimed",
    (T.PENDING, T.FAILED): f"{TASK}.expired",
    (T.PENDING, T.CANCELLED): f"{TASK}.cancelled_by_operator",
    (T.RUNNING, T.PENDING): f"{TASK}.release",
    (T.RUNNING, T.SUCCESS): f"{TASK}.succeed",
    (T.RUNNING, T.FAILED): f"{TASK}.fail",
    (T.RUNNING, T.CANCELLED): f"{TASK}.cancel",
    (T.SUCCESS, T.PENDING): f"{TASK}.redriven",
    (T.FAILED, T.PENDING): f"{TASK}.redriven",
    (T.CANCELLED, T.PENDING): f"{TASK}.redriven",
}


@dataclass(frozen=True)
class Machine:
    name: str
    moves: Mapping[Any, frozenset[Any]]
    methods: Mapping[tuple[Any, Any], str | None]

    def steps(self) -> list[tuple[enum.Enum, enum.Enum]]:
        """Every move of the table, in the order in which the states are declared."""
        order = list(self.moves)
        return [(old, new) for old in order for new in order if new in self.moves[old]]

    def arrows(self) -> list[Arrow]:
        """Every move, named after what makes it."""
        return [self._arrow(old, new) for old, new in self.steps()]

    def _arrow(self, old: enum.Enum, new: enum.Enum) -> Arrow:
        by = self.methods[old, new]
        return Arrow(self.name, old.value, new.value, "" if by is None else by.rpartition(".")[2], by)

    def drawn(self, *stays: Arrow) -> list[Arrow]:
        """From the beginning to the end."""
        first = next(iter(self.moves))
        last = [state for state, following in self.moves.items() if not following]
        ends = [Arrow(self.name, state.value, END, "", None) for state in last]
        return [Arrow(self.name, START, first.value, "", None), *self.arrows(), *stays, *ends]


MACHINES = [
    Machine("request", REQUEST_MOVES, REQUEST_METHODS),
    Machine("worker", WORKER_MOVES, WORKER_METHODS),
    Machine("pool", POOL_MOVES, POOL_METHODS),
    Machine("task", TASK_MOVES, TASK_METHODS),
]
_REQUEST, _WORKER, _POOL, _TASK = MACHINES

DIAGRAMS: dict[str, list[Arrow]] = {
    "request": _REQUEST.drawn(),
    "worker": _WORKER.drawn(*WORKER_STAYS),
    "pool": _POOL.drawn(*POOL_STAYS),
    "execution": EXECUTION,
    "queue": QUEUE,
    "task": _TASK.drawn(*TASK_WAYS),
}

# What the seed draws, and a test drives: without the moves that nothing makes yet.
DRIVEN = [
    arrow
    for arrow in (*_POOL.arrows(), *POOL_STAYS, *EXECUTION, *_WORKER.arrows(), *WORKER_STAYS, *QUEUE)
    if arrow.by is not None
]


def draw(arrows: list[Arrow]) -> str:
    """The diagram and the table of one machine."""
    return "\n".join(["", "```mermaid", *_diagram(arrows), "```", "", *_table(arrows), "", ""])


def _diagram(arrows: list[Arrow]) -> Iterator[str]:
    yield "stateDiagram-v2"
    for arrow in arrows:
        yield f"    {arrow.old} --> {arrow.new}" + (f": {arrow.when}" if arrow.when else "")


def _table(arrows: list[Arrow]) -> Iterator[str]:
    yield "| from | to | by |"
    yield "|---|---|---|"
    for arrow in arrows:
        if START not in (arrow.old, arrow.new):
            by = "nothing yet" if arrow.by is None else f"`{_short(arrow.by)}`"
            named_after = arrow.by is None or arrow.by.endswith(f".{arrow.when}") or not arrow.when
            yield f"| {arrow.old} | {arrow.new} | {by if named_after else f'{arrow.when}: {by}'} |"


def _short(method: str) -> str:
    return ".".join(method.split(".")[-2:])


def redrawn(page: str) -> str:
    """The page with its generated parts made anew."""
    for name, arrows in DIAGRAMS.items():
        start, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"the page has no part {start.strip()} … {end}")
        page = before + start + draw(arrows) + end + after
    return page


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))

"""What happened to tasks, as data: one record per event, one line of JSON each, for `check` to judge.

Several processes may each append to a file of their own (`HistoryFile`, or any to the same one); `read_history` merges
them. Two sources write records:

- `RecordingStorage` wraps a store: everything that was asked of it, and what it answered.
- `HistoryObserver` is an observer of workers: when functions really began and ended.

`take_stock` adds what the store holds in the end.

A record has a `call` if it was written before its outcome was known: `outcome="unknown"`. The answer, if there ever was
one, has the same `call` and replaces it. A process that is killed in between leaves the question behind, and a checker
has to reckon with both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from bullpen.tasks.model.task import Task
from bullpen.tasks.storage.port import Storage, TaskFilter
from bullpen.telemetry import Kind, TelemetryEvent

Op = Literal[
    # Of tasks, at the store.
    "enqueue",  # `terms`; rejected: another one with its unique key is alive
    "claim",  # `lease`, `permits` asked for if it is unknown
    "renew",  # `lease`
    "progress",
    "step",  # a step was kept; `step`: its name, if it has ended
    "settle",  # by the worker that held it; `status` after it
    "rescue",  # taken back from a worker, by another one
    "expire",
    "cancel",  # `status` after it: cancelled, or running and asked to stop
    "redrive",  # it is over, and runs again
    "change",  # of a schedule: paused, resumed, run now, or with new terms
    "forget",  # `count` of them
    # Of tasks, at the worker.
    "begin",
    "end",
    "abandon",  # it is given up, and goes on
    "return",  # an abandoned function has returned after all
    "lose",  # it is out of its worker's hands, and the worker knows
    "effect",  # something that it did to the world
    # Of workers and queues.
    "worker",  # `state`
    "limit",  # `permits`, `per_key` and `rate` of `queue`
    "pause",
    "resume",
    "fault",  # `state`: the injected fault; "calm" when it is over
    # What there is in the end.
    "row",  # an effect that was committed together with the acknowledgement
    "kept",  # a task as the store has it
    "counts",  # of tasks, by status
    "resources",  # of a process, `state` before or after
]
Outcome = Literal["ok", "rejected", "unknown"]


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How a task is to be run, as far as a promise depends on it."""

    queue: str = "default"
    priority: int = 0
    max_retries: int = 0
    interval: float | None = None
    expires: float | None = None  # by the store's clock
    at_most_once: bool = False
    unique_key: str | None = None
    concurrency_key: str | None = None
    schedule: str | None = None  # what it is the task of
    tick: float | None = None  # … and at which of its instants
    starts_others: bool = False  # its runs are tasks of their own
    in_transaction: bool = False  # its effect and its acknowledgement are committed together

    @property
    def repeats(self) -> bool:
        """Whether it runs again after it has succeeded."""
        return self.interval is not None or self.schedule is not None


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One event. Fields that say nothing for its kind are left out."""

    at: float  # seconds, by a clock that all actors share and that is never adjusted
    actor: str
    op: Op
    outcome: Outcome = "ok"
    task: str = ""
    attempt: int = 0
    step: str = ""
    since: float | None = None  # when it was asked for, if that was earlier: it happened somewhere between
    call: str = ""
    store_at: float | None = None  # by the store's clock, by which `eta` and `expires` are too
    lease: float | None = None  # seconds
    late: bool = False  # a claim whose caller had stopped waiting
    status: str = ""
    eta: float | None = None  # of a task that is to run
    scheduled_at: float | None = None  # … and the time of its schedule that it is for
    failures: int = 0
    crashes: int = 0
    completed_runs: int = 0
    suspended: bool = False  # the attempt ended in a sleep or a wait: `expires` no longer applies
    error: str = ""  # the kind of it
    terms: Terms | None = None
    queue: str = ""
    permits: int = 0
    per_key: int = 0
    rate: float = 0.0
    state: str = ""
    host: str = ""
    owner: str = ""  # the worker that lost the task, or that ran it last
    reason: str = ""
    size: int = 0  # bytes of its arguments
    count: int = 0
    counts: dict[str, int] | None = None

    @property
    def first(self) -> float:
        """The earliest instant at which it can have happened; `at` is the latest."""
        return self.at if self.since is None else self.since

    def __str__(self) -> str:
        said = msgspec.to_builtins(self)
        at, op, actor = said.pop("at"), said.pop("op"), said.pop("actor")
        rest = " ".join(f"{name}={value}" for name, value in said.items())
        return f"{at:12.6f}  {actor}  {op}  {rest}"


Write = Callable[[Record], object]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def as_lines(records: Iterable[Record]) -> bytes:
    """As a file has them."""
    return b"".join(_encode(record) + b"\n" for record in records)


class HistoryFile:
    """Appends to a file, each record whole: `write(2)` on a descriptor that appends is never mixed with another's.

    A written record survives the death of the process.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __call__(self, record: Record) -> None:
        os.write(self._descriptor, _encode(record) + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def read_history(*paths: str | os.PathLike[str]) -> list[Record]:
    """The records of all files in the order of time. A last line that was cut off by a crash is left out."""
    records: list[Record] = []
    for path in paths:
        *whole, _cut = Path(path).read_bytes().split(b"\n")
        records += map(_decode, whole)
    records.sort(key=lambda record: record.at)
    return without_answered(records)


def without_answered(records: Sequence[Record]) -> list[Record]:
    """Without questions that have an answer."""
    answered = {record.call for record in records if record.call and record.outcome != "unknown"}
    return [record for record in records if record.outcome != "unknown" or record.call not in answered]


class HistoryObserver:
    """An observer of workers: `AsyncWorkerPool(queue, observer=HistoryObserver(write))`."""

    _OPS: dict[Kind, Op] = {  # noqa: RUF012 — it is never written to
        Kind.TASK_STARTED: "begin",
        Kind.TASK_ENDED: "end",
        Kind.TASK_ABANDONED: "abandon",
        Kind.TASK_RETURNED: "return",
        Kind.TASK_LOST: "lose",
    }

    def __init__(self, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock

    def __call__(self, event: TelemetryEvent) -> None:
        op = self._OPS.get(event.kind)
        if op is not None:
            self._write(
                Record(
                    at=self._clock(),
                    actor=event.worker or "",
                    op=op,
                    task=event.task or "",
                    attempt=event.attempt or 0,
                    queue=event.queue or "",
                )
            )
        elif event.kind is Kind.TASK_WORKER_STATE and str(event.detail) in ("running", "stopped"):
            state = "started" if str(event.detail) == "running" else "stopped"
            self._write(Record(at=self._clock(), actor=event.worker or "", op="worker", state=state))


async def take_stock(storage: Storage, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
    """Record every task that the store has, and how many of each status it says there are."""
    after: str | None = None
    store_at = await storage.now()
    while page := await storage.list(TaskFilter(), limit=500, after=after):
        after = page[-1].id
        for task in page:
            write(_kept(task, clock(), store_at))
    counts: dict[str, int] = {}
    for statuses in (await storage.counts()).values():
        for status, count in statuses.items():
            counts[str(status)] = counts.get(str(status), 0) + count
    write(Record(at=clock(), actor="store", op="counts", counts=dict(sorted(counts.items()))))


def _kept(task: Task, at: float, store_at: float) -> Record:
    error = task.error
    return Record(
        at=at,
        actor="store",
        op="kept",
        store_at=store_at,
        task=task.id,
        attempt=task.attempt,
        status=str(task.status),
        eta=task.eta,
        failures=task.failures,
        crashes=task.crashes,
        completed_runs=task.completed_runs,
        error="" if error is None else error.kind,
        reason="" if error is None else error.message,
        owner=task.worker or "",
        size=len(task.payload),
        queue=task.queue,
    )

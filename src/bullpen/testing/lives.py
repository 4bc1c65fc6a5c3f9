"""A history, sorted by tasks and workers, with the questions that its invariants ask.

Records of several processes say only between which instants something happened, and a killed process leaves questions
without an answer. So everything here states only certain facts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bullpen.testing.history import Record, Terms, without_answered

FINAL_STATUSES = frozenset({"success", "failed", "cancelled"})


@dataclass(slots=True, eq=False)
class Try:
    """One attempt at a task."""

    number: int
    claims: list[Record] = field(default_factory=list)
    renewals: list[Record] = field(default_factory=list)  # also progress: writes that leave it running
    begins: list[Record] = field(default_factory=list)
    ends: list[Record] = field(default_factory=list)
    abandoned: list[Record] = field(default_factory=list)
    settles: list[Record] = field(default_factory=list)  # and rescues: writes that free it
    effects: list[Record] = field(default_factory=list)
    losses: list[Record] = field(default_factory=list)

    @property
    def claim(self) -> Record | None:
        return self.claims[0] if self.claims else None

    @property
    def freed(self) -> Record | None:
        """The write that certainly took the task out of its hands, if there is one."""
        return next((record for record in self.settles if record.outcome == "ok"), None)

    @property
    def may_be_freed(self) -> bool:
        """Whether such a write was sent, and its outcome is unknown."""
        return any(record.outcome == "unknown" for record in self.settles)

    @property
    def leased_until(self) -> float:
        """Until when the worker certainly holds the task, unless it is released."""
        until = -math.inf
        for record in (*self.claims, *self.renewals):
            if record.outcome == "ok" and record.lease is not None:
                until = max(until, record.first + record.lease)
        return until


@dataclass(slots=True, eq=False)
class Life:
    """Everything that happened to one task."""

    id: str
    enqueues: list[Record] = field(default_factory=list)
    tries: dict[int, Try] = field(default_factory=dict)
    moves: list[Record] = field(default_factory=list)  # every write that changed it, in order, claims included
    cancels: list[Record] = field(default_factory=list)
    redrives: list[Record] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    kept: Record | None = None

    @property
    def terms(self) -> Terms:
        return next((record.terms for record in self.enqueues if record.terms is not None), Terms())

    @property
    def enqueued(self) -> Record | None:
        """The acknowledgement that it is kept, if there was one."""
        return next((record for record in self.enqueues if record.outcome == "ok"), None)

    def in_order(self) -> list[Try]:
        return [self.tries[number] for number in sorted(self.tries)]

    def ends(self) -> Iterator[Record]:
        """The writes that made it final."""
        return (record for record in self.moves if record.status in FINAL_STATUSES)


@dataclass(slots=True, eq=False)
class WorkerLife:
    """Everything that happened to one worker."""

    id: str
    records: list[Record] = field(default_factory=list)

    def at(self, *states: str) -> Record | None:
        return next((record for record in self.records if record.state in states), None)

    @property
    def permits(self) -> int:
        return max((record.permits for record in self.records), default=0)

    @property
    def gone(self) -> Record | None:
        """When it certainly was no more."""
        return self.at("crashed", "stopped")


_OF_TRIES = {
    "claim": "claims",
    "renew": "renewals",
    "progress": "renewals",
    "step": "renewals",
    "begin": "begins",
    "end": "ends",
    "abandon": "abandoned",
    "settle": "settles",
    "rescue": "settles",
    "effect": "effects",
    "lose": "losses",
}
_OF_LIVES = {"enqueue": "enqueues", "cancel": "cancels", "redrive": "redrives", "row": "rows"}
_MOVES = frozenset({"enqueue", "claim", "settle", "rescue", "expire", "cancel", "redrive", "change"})


class Course:
    """The whole history."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records: Sequence[Record] = without_answered(list(records))
        self._place = {id(record): number for number, record in enumerate(self.records)}
        self.lives: dict[str, Life] = {}
        self.workers: dict[str, WorkerLife] = {}
        self.doubts: dict[str, list[Record]] = defaultdict(list)  # calls about no task that were never answered, by op
        self.others: dict[str, list[Record]] = defaultdict(list)  # about no task, by op
        for record in self.records:
            self._sort(record)
        self.is_exact = all(record.since is None and record.outcome != "unknown" for record in self.records)

    def _sort(self, record: Record) -> None:
        op = record.op
        if op == "worker":
            self.workers.setdefault(record.actor, WorkerLife(record.actor)).records.append(record)
            return
        if not record.task:
            (self.doubts if record.outcome == "unknown" else self.others)[op].append(record)
            return
        life = self.lives.get(record.task)
        if life is None:
            life = self.lives[record.task] = Life(record.task)
        if op in _OF_TRIES:
            attempt = life.tries.get(record.attempt)
            if attempt is None:
                attempt = life.tries[record.attempt] = Try(record.attempt)
            getattr(attempt, _OF_TRIES[op]).append(record)
        elif op in _OF_LIVES:
            getattr(life, _OF_LIVES[op]).append(record)
        elif op == "kept":
            life.kept = record
        if op in _MOVES and record.outcome == "ok":
            if op == "enqueue":
                life.moves.insert(0, record)  # its producer may have heard of it later than others did
            else:
                life.moves.append(record)

    def gone(self, worker: str) -> Record | None:
        known = self.workers.get(worker)
        return None if known is None else known.gone

    def before(self, one: Record, other: Record) -> bool:
        """Whether `one` had certainly happened when `other` began. At one instant, the order in the history counts."""
        if one.at == other.first:
            return self._place[id(one)] < self._place[id(other)]
        return one.at < other.first

    def generation(self, life: Life, record: Record) -> int:
        """How often a task had been let run again before that."""
        return sum(redrive.outcome == "ok" and self.before(redrive, record) for redrive in life.redrives)

    def may_be_rescued(self, since: Record, until: Record) -> bool:
        """Whether a worker may have rescued tasks in between, and died before it recorded that."""
        return any(not self.before(doubt, since) and not self.before(until, doubt) for doubt in self.doubts["rescue"])

    def holds(self, attempt: Try, at: Record) -> bool:
        """Whether a task certainly was in the hands of `attempt` when `at` happened, by an unexpired lease."""
        claim, freed = attempt.claim, attempt.freed
        if claim is None or not self.before(claim, at) or attempt.may_be_freed or self.may_be_rescued(claim, at):
            return False
        return at.at < attempt.leased_until and (freed is None or self.before(at, freed))

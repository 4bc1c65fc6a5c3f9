"""Judges a history of tasks.

    records = read_history(*directory.glob("*.jsonl"))
    check(records).raise_for_violations()

The invariants are those of `bullpen.testing.invariants`, I1 to I22: nothing is lost, nothing runs that should not, what
comes too late is rejected. Some need more than others: what the store holds in the end (`take_stock`), what became of
workers, what a process holds open. Without that they have nothing to judge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bullpen.testing.history import Record
from bullpen.testing.invariants import INVARIANTS, Violation, violations
from bullpen.testing.lives import Course

SHOWN = 10


class InvariantBroken(AssertionError):
    """A history that cannot be; `violations` has them all."""

    def __init__(self, broken: tuple[Violation, ...]) -> None:
        shown = [str(violation) for violation in broken[:SHOWN]]
        more = [f"… and {len(broken) - SHOWN} more"] if len(broken) > SHOWN else []
        super().__init__("\n".join([f"{len(broken)} violations", *shown, *more]))
        self.violations = broken


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check."""

    records: int
    tasks: int
    violations: tuple[Violation, ...]

    @property
    def broken(self) -> frozenset[str]:
        """The invariants that do not hold."""
        return frozenset(violation.invariant for violation in self.violations)

    def raise_for_violations(self) -> None:
        if self.violations:
            raise InvariantBroken(self.violations)


def check(records: Iterable[Record], *, only: Iterable[str] | None = None) -> Verdict:
    """Judge a history by all invariants, or `only` by those that are named."""
    wanted = None if only is None else frozenset(only)
    if wanted is not None and not wanted <= set(INVARIANTS):
        raise ValueError(f"only must be of {', '.join(INVARIANTS)}, got {', '.join(sorted(wanted - set(INVARIANTS)))}")
    course = Course(records)
    return Verdict(len(course.records), len(course.lives), tuple(violations(course, only=wanted)))

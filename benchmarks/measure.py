"""Rounds of measurements, interleaved so that a slow minute of the machine hits every peer alike.

In each round every work is measured with every contestant, in an order shuffled anew, each in a fresh process. A ratio
compares two measurements of the same round, seconds apart; the median and the spread are then taken over the ratios.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .model import Contestant, Metric, Sizes, Suite, Work

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT_SECONDS = 300
PAIRED = "/reference"  # after the key of a metric: its ratio to the reference, as the measurement itself has taken it
DISTORTING_VARIABLES = ("PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONMALLOC", "PYTHONPROFILEIMPORTTIME")


class InterpreterUnusable(Exception):
    """An interpreter given with ``--python`` could not run the benchmarks at all."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python to measure under, and what it can import."""

    command: str
    python: str
    implementation: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.implementation} {self.python}"


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, and the smallest and largest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement that is about to be made, for those who show progress."""

    number: int
    total: int
    round: int
    rounds: int
    interpreter: Interpreter
    work: Work
    contestant: Contestant


@dataclass(slots=True)
class Results:
    """Figures by interpreter, work and contestant; one entry per round, None where a measurement crashed."""

    rounds: dict[tuple[str, str, str], list[Mapping[str, float] | None]] = field(default_factory=dict)
    crashes: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def of(self, interpreter: Interpreter, work: Work, contestant: Contestant) -> list[Mapping[str, float] | None]:
        return self.rounds.get((interpreter.command, work.name, contestant.label), [])

    def value(self, interpreter: Interpreter, work: Work, contestant: Contestant, metric: Metric) -> Spread | None:
        figures = self.of(interpreter, work, contestant)
        return Spread.of([round_[metric.key] for round_ in figures if round_ and metric.key in round_])

    def ratio(self, interpreter: Interpreter, work: Work, contestant: Contestant, metric: Metric) -> Spread | None:
        """This contestant's figure over the reference's of the same round, if the round itself has no ratio."""
        key = metric.key
        own = self.of(interpreter, work, contestant)
        if any(round_ and key + PAIRED in round_ for round_ in own):
            return Spread.of([round_[key + PAIRED] for round_ in own if round_])
        pairs = zip(own, self.of(interpreter, work, work.reference), strict=False)
        return Spread.of([mine[key] / ref[key] for mine, ref in pairs if mine and ref and key in mine and ref.get(key)])

    def crash(self, interpreter: Interpreter, work: Work, contestant: Contestant) -> str | None:
        return self.crashes.get((interpreter.command, work.name, contestant.label))


def probe(command: str, suite: Suite) -> Interpreter:
    """Ask an interpreter what it is and which peers of the suite it has."""
    answer = _run(command, [suite.name, "--probe"])
    if isinstance(answer, str):
        raise InterpreterUnusable(
            f"{command} cannot run the benchmarks (Python 3.11 or newer): {answer.splitlines()[-1]}"
        )
    return Interpreter(command, **answer)


def able(interpreter: Interpreter, contestant: Contestant) -> bool:
    return contestant.peer.requires not in interpreter.missing


def measure(
    interpreters: Sequence[Interpreter],
    suite: Suite,
    sizes: Sizes,
    *,
    rng: random.Random,
    before: Callable[[Step], None],
) -> Results:
    """Run all rounds. A contestant that crashes is left out of the rounds that follow."""
    results = Results()
    written = json.dumps(asdict(sizes))  # type: ignore[call-overload]
    plan = [
        (number, interpreter, work, contestant)
        for number in range(1, sizes.rounds + 1)
        for interpreter in interpreters
        for work in suite.works
        for contestant in rng.sample(work.contestants, len(work.contestants))
        if able(interpreter, contestant)
    ]
    for index, (number, interpreter, work, contestant) in enumerate(plan, start=1):
        key = (interpreter.command, work.name, contestant.label)
        rounds = results.rounds.setdefault(key, [])
        if key in results.crashes:
            rounds.append(None)
            continue
        before(Step(index, len(plan), number, sizes.rounds, interpreter, work, contestant))
        answer = _run(interpreter.command, [suite.name, work.name, contestant.label, written])
        if isinstance(answer, str):
            results.crashes[key] = answer
            rounds.append(None)
        else:
            rounds.append(answer)
    return results


def _run(command: str, arguments: Sequence[str]) -> dict[str, Any] | str:
    """A child's answer, or what went wrong."""
    try:
        done = subprocess.run(
            [command, "-m", "benchmarks.child", *arguments],
            cwd=ROOT,
            env=_environment(),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=TIME_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIME_LIMIT_SECONDS} s"
    except OSError as error:
        return str(error)
    if done.returncode != 0:
        return done.stderr.strip() or f"exit code {done.returncode}"
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _environment() -> dict[str, str]:
    """The caller's environment with this checkout in front, and without what would slow every peer down."""
    environment = {name: value for name, value in os.environ.items() if name not in DISTORTING_VARIABLES}
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONIOENCODING": "utf-8"}

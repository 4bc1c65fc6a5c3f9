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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .guard import Guarded
from .model import Contestant, Metric, Sizes, Suite, Work

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT_SECONDS = 300
PAIRED = "/reference"  # after the key of a metric: its ratio to the reference, if the measurement itself took it
DISTORTING_VARIABLES = (
    "PYTHONDEVMODE",
    "PYTHONTRACEMALLOC",
    "PYTHONMALLOC",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONDONTWRITEBYTECODE",  # it would make every process compile its modules again
)


class InterpreterUnusable(Exception):
    """An interpreter given with ``--python`` could not run the benchmarks at all."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter for the measurements, and its peers. Some peers have their own environment."""

    command: str
    python: str
    implementation: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    environments: Mapping[str, str] = field(default_factory=dict)  # the command of each peer, by its name

    @property
    def name(self) -> str:
        return f"{self.implementation} {self.python}"

    def command_for(self, contestant: Contestant) -> str:
        return self.environments.get(contestant.peer.name, self.command)


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
    """One measurement that begins now, for the progress line."""

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
    loads: list[float] = field(default_factory=list)  # of the machine, before each command that measured

    def keep(self, file: Path) -> None:
        entries = [[*key, rounds, self.crashes.get(key)] for key, rounds in self.rounds.items()]
        file.write_text(json.dumps({"loads": self.loads, "entries": entries}) + "\n", encoding="utf-8")

    @classmethod
    def kept(cls, file: Path) -> Results:
        """The results of earlier commands. Empty if there is no such file."""
        if not file.exists():
            return cls()
        found = json.loads(file.read_text(encoding="utf-8"))
        results = cls(loads=found["loads"])
        for command, work, label, rounds, crash in found["entries"]:
            results.rounds[command, work, label] = rounds
            if crash:
                results.crashes[command, work, label] = crash
        return results

    def of(self, interpreter: Interpreter, work: Work, contestant: Contestant) -> list[Mapping[str, float] | None]:
        return self.rounds.get((interpreter.command, work.name, contestant.label), [])

    def value(self, interpreter: Interpreter, work: Work, contestant: Contestant, metric: Metric) -> Spread | None:
        figures = self.of(interpreter, work, contestant)
        return Spread.of([round_[metric.key] for round_ in figures if round_ and metric.key in round_])

    def best(
        self, interpreter: Interpreter, work: Work, among: Sequence[Contestant], metric: Metric
    ) -> Contestant | None:
        """The contestant with the best median. None if there is no measurement."""
        medians = [
            (spread.median, number)
            for number, one in enumerate(among)
            if (spread := self.value(interpreter, work, one, metric))
        ]
        if not medians:
            return None
        return among[(max(medians) if metric.better == "higher" else min(medians))[1]]

    def ratio(
        self,
        interpreter: Interpreter,
        work: Work,
        contestant: Contestant,
        metric: Metric,
        reference: Contestant | None = None,
    ) -> Spread | None:
        """This contestant's figure over the reference's of the same round, if the round itself has no ratio."""
        key = metric.key
        own = self.of(interpreter, work, contestant)
        if reference is None and any(round_ and key + PAIRED in round_ for round_ in own):
            return Spread.of([round_[key + PAIRED] for round_ in own if round_])
        reference = reference or self.best(interpreter, work, work.rivals, metric)
        if reference is None:
            return None
        pairs = zip(own, self.of(interpreter, work, reference), strict=False)
        return Spread.of([mine[key] / ref[key] for mine, ref in pairs if mine and ref and key in mine and ref.get(key)])

    def crash(self, interpreter: Interpreter, work: Work, contestant: Contestant) -> str | None:
        return self.crashes.get((interpreter.command, work.name, contestant.label))


def probe(command: str, suite: Suite, environments: Path | None = None) -> Interpreter:
    """Ask an interpreter for its version and its peers, including those with an environment in this folder."""
    answer = _run(command, [suite.name, "--probe"])
    if isinstance(answer, str):
        raise InterpreterUnusable(
            f"{command} cannot run the benchmarks (Python 3.11 or newer): {answer.splitlines()[-1]}"
        )
    interpreter = Interpreter(command, **answer)
    return _with_environments(interpreter, suite, environments) if environments else interpreter


def _with_environments(interpreter: Interpreter, suite: Suite, folder: Path) -> Interpreter:
    versions, missing, commands = dict(interpreter.versions), dict(interpreter.missing), dict[str, str]()
    for peer in suite.peers():
        command = folder.resolve() / peer.name / "bin" / "python"
        if not command.exists():
            continue
        answer = _run(str(command), [suite.name, "--probe", peer.name])
        if isinstance(answer, str) or answer["python"] != interpreter.python:
            missing[peer.requires] = answer if isinstance(answer, str) else f"{command} is Python {answer['python']}"
            continue
        commands[peer.name] = str(command)
        missing.pop(peer.requires, None)
        if peer.requires in answer["missing"]:
            missing[peer.requires] = answer["missing"][peer.requires]
        elif peer.distribution:
            versions[peer.distribution] = answer["versions"][peer.distribution]
    return replace(interpreter, versions=versions, missing=missing, environments=commands)


def able(interpreter: Interpreter, contestant: Contestant) -> bool:
    return contestant.peer.requires not in interpreter.missing


def measure(
    interpreters: Sequence[Interpreter],
    suite: Suite,
    sizes: Sizes,
    *,
    rng: random.Random,
    before: Callable[[Step], None],
    results: Results | None = None,
) -> Results:
    """Run all rounds, in addition to those of earlier `results`. A contestant that crashes is left out of the rounds
    that follow.
    """
    results = results or Results()
    failed: set[tuple[str, str, str]] = set()
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
        if key in failed:
            rounds.append(None)
            continue
        results.crashes.pop(key, None)
        before(Step(index, len(plan), number, sizes.rounds, interpreter, work, contestant))
        answer = _run(interpreter.command_for(contestant), [suite.name, work.name, contestant.label, written])
        if isinstance(answer, str):
            failed.add(key)
            results.crashes[key] = answer
            rounds.append(None)
        else:
            rounds.append(answer)
    return results


def _run(command: str, arguments: Sequence[str]) -> dict[str, Any] | str:
    """A child's answer, or its error."""
    pipe = subprocess.PIPE
    try:
        child = Guarded(
            [command, "-m", "benchmarks.child", *arguments],
            cwd=ROOT,
            env=_environment(),
            stdout=pipe,
            stderr=pipe,
            text=True,
            encoding="utf-8",
        )
    except OSError as error:
        return str(error)
    with child:
        try:
            output, errors = child.communicate(timeout=TIME_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"no answer within {TIME_LIMIT_SECONDS} s"
        finally:
            child.end()
    if child.returncode != 0:
        return str(errors).strip() or f"exit code {child.returncode}"
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def _environment() -> dict[str, str]:
    """The caller's environment with this checkout in front, and without variables that slow every peer down."""
    environment = {name: value for name, value in os.environ.items() if name not in DISTORTING_VARIABLES}
    paths = [str(ROOT / "src"), str(ROOT), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONIOENCODING": "utf-8"}

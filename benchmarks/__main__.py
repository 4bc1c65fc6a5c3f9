"""``python -m benchmarks``: runs the rounds, prints the report, and writes the requested files."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from . import chart, report
from .measure import Interpreter, InterpreterUnusable, Results, Step, measure, probe
from .model import Contestant, Suite, Work
from .suites import SUITES

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str]) -> int:
    """Exit 0, or 1 when a work crashed or, with --check, a bar was missed; 2 when nothing could be run as asked."""
    named = arguments[0] if arguments and arguments[0] in SUITES else None
    suite = SUITES[named or "pool"]
    options = _parser(suite).parse_args(arguments[1:] if named else arguments)
    sizes = suite.quick if options.quick else suite.full
    chosen_sizes = dict(options.size or ())
    if options.rounds is not None:
        chosen_sizes["rounds"] = options.rounds
    sizes = replace(sizes, **chosen_sizes)  # type: ignore[type-var]
    chosen = _chosen(suite, options.only, options.peer)
    try:
        interpreters = _interpreters(options.python or [sys.executable], suite, options.environments)
    except InterpreterUnusable as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    started = datetime.now(UTC)
    results = Results.kept(options.keep) if options.keep else Results()
    if hasattr(os, "getloadavg"):
        results.loads.append(os.getloadavg()[0])
    progress = Progress()
    measure(interpreters, chosen, sizes, rng=random.Random(), before=progress.show, results=results)
    progress.done()
    if options.keep:
        results.keep(options.keep)
        chosen = _measured(suite, results)
    run = report.Run(interpreters, chosen, sizes, results, started)
    print(report.text(run), end="")
    _write(run, options.json, options.markdown, options.svg)
    missed = options.check and not run.bars_met()
    return 1 if results.crashes or missed else 0


class Progress:
    """A single updating line on a terminal; otherwise a plain line whenever a work of a round begins."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = ""

    def show(self, step: Step) -> None:
        where = f"round {step.round}/{step.rounds} · {step.interpreter.name} · {step.work.name}"
        if self._terminal:
            line = f"[{step.number}/{step.total}] {where} · {step.contestant.label}"
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{line[:width]}", end="", file=sys.stderr, flush=True)
        elif where != self._last:
            print(f"[{step.number}/{step.total}] {where}", file=sys.stderr, flush=True)
        self._last = where

    def done(self) -> None:
        if self._terminal:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def _parser(suite: Suite) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks {suite.name}",
        description="Bullpen beside its peers, in one run.",
        epilog=f"Suites: {', '.join(SUITES)}; the first word says which, pool if it is left out.",
    )
    names = [work.name for work in suite.works]
    peers = sorted({contestant.peer.name for work in suite.works for contestant in work.contestants})
    parser.add_argument(
        "--rounds", type=_positive, metavar="N", help=f"default {suite.full.rounds}, quick {suite.quick.rounds}"
    )
    parser.add_argument("--only", action="append", choices=names, metavar="WORK", help=f"of: {', '.join(names)}")
    parser.add_argument("--peer", action="append", choices=peers, metavar="PEER", help=f"of: {', '.join(peers)}")
    parser.add_argument("--quick", action="store_true", help="fewer items and rounds: a look, not a measurement")
    sizes = [field.name for field in fields(suite.full)]  # type: ignore[arg-type]
    parser.add_argument(
        "--size", action="append", type=partial(_size, sizes), metavar="NAME=N", help=f"of: {', '.join(sizes)}"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed or was not measured")
    parser.add_argument("--python", action="append", metavar="PATH", help="measure under this interpreter; repeatable")
    parser.add_argument(
        "--environments", type=Path, metavar="FOLDER", help="of python -m benchmarks.environments: one for each peer"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="keep the rounds there, and report those that are there already too"
    )
    for option, ending, text in (
        ("--markdown", "md", "tables with all settings"),
        ("--json", "json", "every round of every figure"),
    ):
        default = RESULTS / f"{suite.name}.{ending}"
        where = f"{text}; into benchmarks/results/{default.name} if no FILE is given"
        parser.add_argument(option, type=Path, nargs="?", const=default, metavar="FILE", help=where)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="a chart; one file per interpreter")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number ≥ 1, got {text}")
    return int(text)


def _size(names: Sequence[str], text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    if name not in names:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(names)}, got {name}")
    return name, int(number) if number.isdecimal() else float(number)


def _chosen(suite: Suite, only: Sequence[str] | None, peers: Sequence[str] | None) -> Suite:
    """The selected works. A filter by peer keeps the reference, because every ratio needs it."""
    works = [work for work in suite.works if not only or work.name in only]
    if peers:
        kept = [
            replace(work, contestants=tuple(c for c in work.contestants if c.peer.name in peers or c is _kept(work)))
            for work in works
        ]
        works = [work for work in kept if any(c.peer.name in peers for c in work.contestants)]
    return replace(suite, works=tuple(works))


def _measured(suite: Suite, results: Results) -> Suite:
    """The works that have figures."""
    names = {work for _, work, _ in results.rounds}
    return replace(suite, works=tuple(work for work in suite.works if work.name in names))


def _kept(work: Work) -> Contestant | None:
    return work.contestants[0] if work.reference == "first" else None


def _interpreters(commands: Sequence[str], suite: Suite, environments: Path | None) -> list[Interpreter]:
    found = [shutil.which(command) or command for command in commands]
    return [probe(command, suite, environments) for command in dict.fromkeys(found)]


def _write(run: report.Run, json_file: Path | None, markdown_file: Path | None, svg_file: Path | None) -> None:
    if json_file:
        json_file.write_text(json.dumps(report.as_json(run), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if markdown_file:
        markdown_file.write_text(report.markdown(run), encoding="utf-8")
    if svg_file:
        for number, interpreter in enumerate(run.interpreters):
            short = ".".join(interpreter.python.split(".")[:2])
            path = svg_file if number == 0 else svg_file.with_stem(f"{svg_file.stem}-{short}")
            path.write_text(chart.draw(run, interpreter), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

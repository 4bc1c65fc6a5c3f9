"""How `bullpen demo pool` looks: lines from a snapshot, and nothing else. No clock, no pool, no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bullpen.cli.demo_pool_story import Phase
from bullpen.cli.terminal import Line, Span, bar, fit, pad, plain, sparkline, width_of
from bullpen.core.lifecycle import WorkerStatus
from bullpen.pool.stats import GIVEN_UP, Percentiles, PoolStats, WorkerInfo

WIDEST = 100
CELL = 19
MARGIN = 1
LABEL = 10
FIXED_ROWS = 15  # all of a frame but the workers, and the row that the cursor waits in


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a frame shows."""

    stats: PoolStats
    workers: Sequence[WorkerInfo]
    phases: Sequence[Phase]
    phase: int  # index into `phases`
    elapsed: float
    max_queue: int
    slots: int  # the most that there have been
    rates: Sequence[float]
    promised: float
    longest_wait: float | None
    wait: Percentiles | None  # the richest sample so far: that of a worker goes when the worker goes

    @property
    def current(self) -> Phase:
        return self.phases[self.phase]


def frame(shot: Snapshot, width: int, height: int) -> list[Line]:
    """The live picture of a pool."""
    inner = max(min(width, WIDEST) - 2 * MARGIN, 20)
    lines: list[Line] = [
        _header(shot, inner),
        _chapters(shot),
        (),
        (Span(shot.current.caption),),
        (Span(shot.current.call, "accent"),),
        (),
        _headcount(shot),
        *_worker_rows(shot, inner, height - FIXED_ROWS),
        (),
        _backlog(shot, inner),
        *_throughput(shot, inner),
        (),
        *_counters(shot.stats),
        _promise(shot),
    ]
    return [(Span(" " * MARGIN), *fit(line, inner)) for line in lines]


def _header(shot: Snapshot, width: int) -> Line:
    title, state = Span("bullpen demo", "strong"), Span(f"{shot.stats.state}   {shot.elapsed:4.1f} s", "quiet")
    return title, Span(" " * max(width - width_of((title, state)), 1)), state


def _chapters(shot: Snapshot) -> Line:
    line: list[Span] = []
    for index, phase in enumerate(shot.phases):
        here = index == shot.phase
        line.append(Span(f"{'▸' if here else ' '} {phase.name}   ", "title" if here else "quiet"))
    return tuple(line)


def _headcount(shot: Snapshot) -> Line:
    there = [worker for worker in shot.workers if _in_slot(worker)]
    busy = sum(worker.load > 0 for worker in there)
    free = max(shot.stats.max_workers - len(there), 0)
    return (
        Span("workers".ljust(LABEL), "quiet"),
        Span(f"{len(there)} of {shot.stats.max_workers}".ljust(12), "strong"),
        Span("●", "running"),
        Span(f" {busy} busy".ljust(11)),
        Span("○", "good"),
        Span(f" {len(there) - busy} idle".ljust(11)),
        Span("·", "quiet"),
        Span(f" {free} free"),
    )


def _worker_rows(shot: Snapshot, width: int, height: int) -> list[Line]:
    """A cell for each slot; where they would not fit on the screen, a glyph for each."""
    cells = _cells(shot)
    fitting = max(width // CELL, 1)
    per_row = fitting - fitting % 4 if fitting > 4 else fitting  # people like even rows
    rows = [cells[start : start + per_row] for start in range(0, len(cells), per_row)]
    if len(rows) <= max(height, 1):
        return [tuple(span for cell in row for span in pad(cell, width // per_row)) for row in rows]
    glyphs = [cell[0] for cell in cells]
    return [tuple(glyphs[start : start + width]) for start in range(0, len(glyphs), width)]


def _cells(shot: Snapshot) -> list[Line]:
    by_slot = {worker.slot: worker for worker in shot.workers if _in_slot(worker)}
    slots = max([shot.slots, *(slot + 1 for slot in by_slot if slot is not None)])
    return [_cell(slot, by_slot.get(slot), open=slot < shot.stats.max_workers) for slot in range(slots)]


def _in_slot(worker: WorkerInfo) -> bool:
    return worker.slot is not None and worker.slot >= 0


def _cell(slot: int, worker: WorkerInfo | None, *, open: bool) -> Line:
    number = Span(f" {slot + 1:<2} ", "quiet")
    if worker is None:
        return (Span("·", "quiet"), number) if open else (Span(" "),)
    if worker.load:
        what = ", ".join(name.rpartition(".")[2] for name in worker.running)
        given_up = GIVEN_UP in worker.running
        return Span("●", "late" if given_up else "running"), number, Span(what, "late" if given_up else "")
    if worker.status in (WorkerStatus.STARTING, WorkerStatus.STOPPING):
        return Span("◌", "quiet"), number, Span(str(worker.status), "quiet")
    return Span("○", "good"), number, Span("idle", "quiet")


def _backlog(shot: Snapshot, width: int) -> Line:
    queued = shot.stats.queued
    style = "late" if queued >= shot.max_queue else "accent"
    tail = f"  {queued} of {shot.max_queue}" + (" full" if queued >= shot.max_queue else "")
    return (
        Span("backlog".ljust(LABEL), "quiet"),
        *bar(queued, shot.max_queue, _chart_width(width), style),
        Span(tail, "late" if queued >= shot.max_queue else ""),
    )


def _throughput(shot: Snapshot, width: int) -> list[Line]:
    columns = _chart_width(width)
    rates = shot.rates[-columns:]
    latest = f"  {rates[-1]:.0f} per second" if rates else ""
    return [(Span("finished".ljust(LABEL), "quiet"), Span(sparkline(rates).ljust(columns), "accent"), Span(latest))]


def _chart_width(width: int) -> int:
    return max(min(width - LABEL - 18, 50), 5)


def _counters(stats: PoolStats) -> list[Line]:
    """What became of the requests."""
    return [
        (
            Span("requests".ljust(LABEL), "quiet"),
            *_counter("→", "running", stats.submitted, "submitted".ljust(16)),
            *_counter("✓", "good", stats.completed, "completed".ljust(16)),
            *_counter("✕", "bad", stats.failed, "failed"),
        ),
        (
            Span(" " * LABEL),
            *_counter("↩", "late", stats.saturated, "turned away".ljust(16)),
            *_counter("◔", "late", stats.timed_out, "deadline passed".ljust(16)),
            *_counter("◔", "late", stats.queue_timeouts, "waited too long"),
        ),
    ]


def _counter(glyph: str, style: str, number: int, word: str) -> Line:
    quiet = "" if number else "quiet"
    return Span(glyph, quiet or style), Span(f" {number:>4} ", quiet or "strong"), Span(word, quiet)


def _promise(shot: Snapshot) -> Line:
    if shot.longest_wait is None:
        return ()
    return (
        Span("promise".ljust(LABEL), "quiet"),
        Span(f"an answer within {milliseconds(shot.promised)}; the longest wait was {milliseconds(shot.longest_wait)}"),
    )


def opening(workers: int, max_queue: int, seconds: float) -> list[str]:
    return [f"bullpen demo pool: a pool of at most {workers} workers, a backlog of {max_queue}, about {seconds:g} s"]


def report_start(shot: Snapshot) -> list[str]:
    """A phase begins, for output that is not a terminal."""
    phase = shot.current
    return ["", f"{shot.phase + 1}/{len(shot.phases)} {phase.name}: {phase.caption}", f"    {phase.call}"]


def report_end(shot: Snapshot) -> list[str]:
    """A phase ends, for output that is not a terminal."""
    stats = shot.stats
    parts = [f"{len(shot.workers)} of {stats.max_workers} workers", f"backlog {stats.queued} of {shot.max_queue}"]
    parts += [f"{stats.completed} completed", f"{stats.failed} failed", f"{stats.saturated} turned away"]
    parts += [f"{stats.timed_out + stats.queue_timeouts} timed out"]
    return ["    " + ", ".join(parts)]


def summary(shot: Snapshot) -> list[Line]:
    """What happened, in words, from the closed pool's own numbers."""
    stats = shot.stats
    ways = [f"{stats.completed} completed", f"{stats.failed} failed"]
    ways.append(f"{stats.timed_out} passed their deadline")
    ways.append(f"{stats.queue_timeouts} waited too long")
    ways += [f"{number} {word}" for number, word in ((stats.cancelled, "cancelled"), (stats.lost, "lost")) if number]
    lines: list[Line] = [
        (),
        (Span(f"In {shot.elapsed:.1f} s", "strong"),),
        _fact(stats.submitted, "submitted and accepted, of which"),
        (Span(f"      {', '.join(ways)}"),),
        _fact(stats.saturated, "turned away at once: every worker busy, the backlog full"),
        _fact(
            stats.spawned, f"workers started when needed, never more than {shot.slots} at once; {stats.retired} ended"
        ),
    ]
    if shot.wait is not None:
        waits = f"p50 {milliseconds(shot.wait.p50)}, p99 {milliseconds(shot.wait.p99)}"
        lines.append(_fact(shot.wait.samples, f"waits for a worker sampled: {waits}"))
    if shot.longest_wait is not None:
        lines.append((Span("      with a deadline: "), *_promise(shot)[1:]))
    lines += [
        (),
        (Span("You saw workers come and go, a backlog with a limit, and deadlines that hold."),),
        (Span("Next: ", "strong"), Span("see README.md for the same in your code.")),
    ]
    return [(Span(" " * MARGIN), *line) if line else line for line in lines]


def _fact(number: int, words: str) -> Line:
    return Span(f"{number:>5} ", "strong"), Span(words)


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 or seconds == 0 else f"{seconds * 1e3:.1f} ms"


def as_text(lines: Sequence[Line]) -> list[str]:
    return [plain(line) for line in lines]

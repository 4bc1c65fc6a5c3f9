from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bullpen.cli.demo_pool_story import CLOSING, Jobs, make_plan
from bullpen.cli.demo_pool_view import Snapshot, as_text, frame, milliseconds, report_end, report_start, summary
from bullpen.cli.terminal import coloured, width_of
from bullpen.core.lifecycle import PoolState, WorkerStatus
from bullpen.pool.stats import Percentiles, PoolStats, WorkerInfo

PLAN = make_plan(Jobs(), workers=8, seconds=10.0)
PHASES = (*PLAN.phases, CLOSING)


def stats(**known: Any) -> PoolStats:
    values: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(PoolStats)}
    values.update(name="demo", state=PoolState.RUNNING, max_workers=8, wait=None, run=None)
    return PoolStats(**values | known)


def worker(slot: int | None, *running: str, status: WorkerStatus | None = None) -> WorkerInfo:
    values: dict[str, Any] = {field.name: 0 for field in dataclasses.fields(WorkerInfo)}
    status = status or (WorkerStatus.BUSY if running else WorkerStatus.READY)
    values.update(
        id=slot, name=f"demo_{slot}", slot=slot, status=status, load=len(running), running=running, capacity=1
    )
    return WorkerInfo(**values)


def shot(**known: Any) -> Snapshot:
    values: dict[str, Any] = {
        "stats": stats(),
        "workers": [],
        "phases": PHASES,
        "phase": 0,
        "elapsed": 1.25,
        "max_queue": 16,
        "slots": 8,
        "rates": [],
        "promised": 0.25,
        "longest_wait": None,
        "wait": None,
    }
    return Snapshot(**values | known)


def text(snapshot: Snapshot, width: int = 80, height: int = 24) -> str:
    return "\n".join(as_text(frame(snapshot, width, height)))


def test_each_worker_has_a_cell_with_its_state_and_what_it_runs() -> None:
    workers = [
        worker(0, "Jobs.render_page"),
        worker(1),
        worker(2, status=WorkerStatus.STARTING),
        worker(4, "given up"),
    ]
    shown = text(shot(workers=workers))
    assert "● 1  render_page" in shown
    assert "○ 2  idle" in shown
    assert "◌ 3  starting" in shown
    assert "· 4 " in shown
    assert "● 5  given up" in shown
    assert "4 of 8      ● 2 busy    ○ 2 idle    · 4 free" in shown


def test_work_that_was_given_up_looks_different() -> None:
    def cell(running: str) -> str:
        return "".join(coloured(line) for line in frame(shot(workers=[worker(0, running)]), 80, 24) if "●" in str(line))

    assert "\x1b[33mgiven up" in cell("given up")
    assert "\x1b[33m" not in cell("send_email")


def test_a_worker_in_a_slot_that_was_taken_away_is_shown_until_it_ends() -> None:
    shrunk = stats(max_workers=2)
    leaving = worker(7, "Jobs.send_email", status=WorkerStatus.STOPPING)
    assert "● 8  send_email" in text(shot(stats=shrunk, workers=[leaving]))
    gone = text(shot(stats=shrunk))
    assert "· 2" in gone
    assert "· 3" not in gone


def test_a_worker_without_a_slot_has_no_cell() -> None:
    assert "●" not in text(shot(workers=[worker(None, "f"), worker(-1, "f")])).replace("● 0 busy", "")


def test_the_backlog_is_shown_with_its_limit() -> None:
    half, full = text(shot(stats=stats(queued=8))), text(shot(stats=stats(queued=16)))
    assert "━" * 25 + "─" * 25 + "  8 of 16\n" in half
    assert "━" * 50 + "  16 of 16 full" in full


def test_throughput_is_a_sparkline_with_the_latest_value() -> None:
    assert "finished  ▁▅█" in text(shot(rates=[0.0, 50.0, 100.0]))
    assert "100 per second" in text(shot(rates=[0.0, 50.0, 100.0]))
    assert "per second" not in text(shot())


def test_counters_come_from_the_stats() -> None:
    counted = stats(submitted=61, completed=11, failed=12, saturated=13, timed_out=14, queue_timeouts=15)
    shown = text(shot(stats=counted))
    for words in ("61 submitted", "11 completed", "12 failed", "13 turned away", "14 deadline passed", "15 waited too"):
        assert words in shown


def test_the_promise_is_shown_once_somebody_was_promised_something() -> None:
    assert "promise" not in text(shot())
    assert "an answer within 250 ms; the longest wait was 251 ms" in text(shot(longest_wait=0.2512))


def test_the_current_phase_is_marked_also_without_colours() -> None:
    assert "▸ rush" in text(shot(phase=1))
    assert "▸ trickle" not in text(shot(phase=1))


@pytest.mark.parametrize("phase", range(len(PHASES)))
def test_nothing_is_cut_at_80_columns(phase: int) -> None:
    counted = stats(submitted=9999, completed=9999, failed=9999, saturated=9999, timed_out=9999, queue_timeouts=9999)
    workers = [worker(slot, "Jobs.resize_image") for slot in range(8)]
    snapshot = shot(phase=phase, stats=counted, workers=workers, rates=[1.0] * 80, longest_wait=0.25)
    for line in frame(snapshot, 80, 24):
        assert "…" not in str(line)


@pytest.mark.parametrize("slots", [1, 8, 12, 96])
@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (100, 30), (120, 40), (300, 60)])
def test_a_frame_fits_its_terminal(width: int, height: int, slots: int) -> None:
    workers = [worker(slot, "Jobs.resize_image") for slot in range(slots)]
    lines = frame(shot(workers=workers, slots=slots, stats=stats(max_workers=slots)), width, height)
    assert len(lines) < height
    assert max(map(width_of, lines)) < width


def test_many_workers_become_a_glyph_each() -> None:
    workers = [worker(slot, "Jobs.resize_image") for slot in range(40)]
    shown = text(shot(workers=workers, slots=64, stats=stats(max_workers=64)))
    assert "●" * 40 + "·" * 24 in shown


def test_a_frame_keeps_its_height_from_phase_to_phase() -> None:
    heights = {len(frame(shot(phase=phase, longest_wait=wait), 80, 24)) for phase in range(6) for wait in (None, 0.2)}
    assert len(heights) == 1


def test_the_summary_tells_all_numbers() -> None:
    counted = stats(submitted=52, completed=11, failed=12, saturated=13, timed_out=14, queue_timeouts=15, spawned=9)
    wait = Percentiles(0.012, 0.1, 0.345, 77)
    told = as_text(summary(shot(stats=counted, wait=wait, longest_wait=0.25, slots=12)))
    assert "    52 submitted and accepted, of which" in told
    assert "       11 completed, 12 failed, 14 passed their deadline, 15 waited too long" in told
    assert "    13 turned away at once: every worker busy, the backlog full" in told
    assert "     9 workers started when needed, never more than 12 at once; 0 ended" in told
    assert "    77 waits for a worker sampled: p50 12 ms, p99 345 ms" in told
    assert any(line.startswith(" Next: see README") for line in told)
    assert max(map(len, told)) < 80


def test_what_should_not_happen_is_told_too() -> None:
    told = "\n".join(as_text(summary(shot(stats=stats(cancelled=2, lost=1)))))
    assert "2 cancelled, 1 lost" in told


def test_plain_reports_have_no_escape_codes() -> None:
    lines = [*report_start(shot(phase=1)), *report_end(shot(stats=stats(timed_out=2, queue_timeouts=3)))]
    assert "2/6 rush: " in lines[1]
    assert "5 timed out" in lines[-1]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0 ms"), (0.0004, "0.4 ms"), (0.0123, "12 ms"), (1.5, "1500 ms")])
def test_milliseconds(seconds: float, shown: str) -> None:
    assert milliseconds(seconds) == shown

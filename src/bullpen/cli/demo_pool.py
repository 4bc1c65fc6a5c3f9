"""`bullpen demo pool`: a pool under load, live in the terminal, or told in a few lines where there is no terminal."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TextIO

from bullpen.cli import demo_pool_view
from bullpen.cli.demo_pool_story import CLOSING, LAST_CALLS, Jobs, Phase, Plan, Traffic, make_plan
from bullpen.cli.demo_pool_view import Snapshot
from bullpen.cli.meter import Meter
from bullpen.cli.stopped import Stopped
from bullpen.cli.terminal import Screen, is_live
from bullpen.core.lifecycle import PoolState
from bullpen.pool.pool import Pool
from bullpen.pool.stats import Percentiles

TICK = 0.02  # between two looks at what to send
FRAME = 0.1  # between two pictures
COLUMNS = 50  # of throughput for the whole demo


def run(arguments: argparse.Namespace) -> int:
    jobs = Jobs()
    plan = make_plan(jobs, arguments.workers, arguments.seconds)
    stopped = Stopped()
    with stopped.by_signals(), _open_show(sys.stdout, arguments.plain) as show:
        demo = Demo(plan, jobs, show, stopped)
        try:
            demo.play()
        finally:
            demo.end()
    if stopped.signal is not None:
        print("bullpen demo pool: stopped; every worker has ended.", file=sys.stderr)
        return 128 + stopped.signal
    return 0


class Show(Protocol):
    """Whoever tells the story to people."""

    def open(self, plan: Plan) -> None: ...
    def begin(self, shot: Snapshot) -> None: ...
    def update(self, shot: Snapshot) -> None: ...
    def finish(self, shot: Snapshot) -> None: ...
    def close(self, shot: Snapshot) -> None: ...


class LiveShow:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def open(self, plan: Plan) -> None:
        pass

    def update(self, shot: Snapshot) -> None:
        size = self._screen.size()
        self._screen.draw(demo_pool_view.frame(shot, size.columns, size.lines))

    begin = finish = update

    def close(self, shot: Snapshot) -> None:
        self._screen.leave(demo_pool_view.summary(shot))


class PlainShow:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def open(self, plan: Plan) -> None:
        self._print(demo_pool_view.opening(plan.workers, plan.max_queue, plan.seconds))

    def begin(self, shot: Snapshot) -> None:
        self._print(demo_pool_view.report_start(shot))

    def update(self, shot: Snapshot) -> None:
        pass

    def finish(self, shot: Snapshot) -> None:
        self._print(demo_pool_view.report_end(shot))

    def close(self, shot: Snapshot) -> None:
        self._print(demo_pool_view.as_text(demo_pool_view.summary(shot)))

    def _print(self, lines: list[str]) -> None:
        print(*lines, sep="\n", file=self._out, flush=True)


def _open_show(out: TextIO, plain: bool) -> AbstractContextManager[Show]:
    if plain or not is_live(out, os.environ.get("TERM", "")):
        return nullcontext(PlainShow(out))
    return _live(Screen(out, colours=not os.environ.get("NO_COLOR")))


@contextmanager
def _live(screen: Screen) -> Iterator[Show]:
    with screen:
        yield LiveShow(screen)


class Demo:
    """One run: sends the traffic, takes the snapshots, shows them."""

    def __init__(self, plan: Plan, jobs: Jobs, show: Show, stopped: Stopped) -> None:
        self._plan = plan
        self._phases = (*plan.phases, CLOSING)
        self._jobs = jobs
        self._show = show
        self._stopped = stopped
        self._pool = Pool(
            plan.workers,
            name="demo",
            max_queue=plan.max_queue,
            idle_timeout=plan.idle_timeout,
            log_errors=False,
        )
        self._traffic = Traffic(self._pool, plan, time.monotonic)
        self._meter = Meter(plan.seconds / COLUMNS)
        self._began = time.monotonic()
        self._next_frame = 0.0
        self._slots = plan.workers
        self._wait: Percentiles | None = None

    def play(self) -> None:
        self._show.open(self._plan)
        for index, phase in enumerate(self._plan.phases):
            self._play_phase(index, phase)
        if not self._stopped:
            self._play_closing()

    def end(self) -> None:
        """Whatever happened: nothing runs any more."""
        self._jobs.stop()
        self._pool.close(drain=False)

    def _play_phase(self, index: int, phase: Phase) -> None:
        if self._stopped:
            return
        if phase.resize_to is not None:
            self._pool.resize(phase.resize_to)
            self._slots = max(self._slots, phase.resize_to)
        seconds = self._plan.phase_seconds
        begin = last = index * seconds
        self._show.begin(self._snapshot(index))
        while not self._stopped and (now := self._elapsed()) < begin + seconds:
            self._traffic.flow(phase, (now - begin) / seconds, now - last)
            last = now
            self._tick(index)
        if not self._stopped:
            self._show.finish(self._snapshot(index))

    def _play_closing(self) -> None:
        closing = len(self._phases) - 1
        for _ in range(LAST_CALLS):
            self._traffic.send(self._plan.phases[0].streams[0])
        self._pool.shutdown(wait=False)
        self._show.begin(self._snapshot(closing))
        while not self._stopped and self._pool.stats().state is not PoolState.CLOSED:
            self._tick(closing)
        if not self._stopped:
            self._pool.close()
            self._show.finish(self._snapshot(closing))
            self._show.close(self._snapshot(closing))

    def _tick(self, phase: int) -> None:
        now = self._elapsed()
        if now >= self._next_frame:
            self._next_frame = now + FRAME
            self._show.update(self._snapshot(phase))
        time.sleep(TICK)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _snapshot(self, phase: int) -> Snapshot:
        stats = self._pool.stats()
        elapsed = self._elapsed()
        self._meter.read(elapsed, stats.completed + stats.failed)
        if stats.wait is not None and (self._wait is None or stats.wait.samples >= self._wait.samples):
            self._wait = stats.wait
        return Snapshot(
            stats=stats,
            workers=self._pool.workers(),
            phases=self._phases,
            phase=phase,
            elapsed=elapsed,
            max_queue=self._plan.max_queue,
            slots=self._slots,
            rates=self._meter.rates,
            promised=self._plan.promised,
            longest_wait=self._traffic.longest_wait,
            wait=self._wait,
        )

"""What happens in `bullpen demo pool`: phases, each with streams of calls, sent to a real pool.

The jobs only wait, as jobs that call a database do. `demo_pool` lives the story, `demo_pool_view` draws it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from bullpen.errors import PoolSaturated
from bullpen.pool.pool import Pool

PACE_AT = 10.0  # seconds; a shorter demo has faster jobs, a longer one more of them


class Jobs:
    """The functions that workers run; the view shows their names."""

    def __init__(self) -> None:
        self._hurry = threading.Event()

    def stop(self) -> None:
        """Every job returns at once, those that run and those to come."""
        self._hurry.set()

    def render_page(self, seconds: float) -> None:
        self._hurry.wait(seconds)

    def resize_image(self, seconds: float) -> None:
        self._hurry.wait(seconds)

    def send_email(self, seconds: float) -> None:
        self._hurry.wait(seconds)

    def slow_report(self, seconds: float) -> None:
        self._hurry.wait(seconds)

    def sync_stock(self, seconds: float) -> None:
        self._hurry.wait(seconds)

    def sync_broken(self, seconds: float) -> None:
        self._hurry.wait(seconds)
        raise ConnectionError("the warehouse does not answer")


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Calls of one function. `load(x)`: the share of the workers they would keep busy, at `x` (0 to 1) of the phase."""

    job: Callable[[float], None]
    seconds: float
    load: Callable[[float], float]
    limits: Mapping[str, float] = field(default_factory=dict)

    def rate(self, x: float, workers: int) -> float:
        """Calls per second."""
        return self.load(x) * workers / self.seconds


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    caption: str
    call: str
    streams: tuple[Stream, ...] = ()
    resize_to: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole demo."""

    workers: int
    seconds: float
    max_queue: int
    idle_timeout: float
    promised: float
    phases: tuple[Phase, ...]

    @property
    def phase_seconds(self) -> float:
        return self.seconds / len(self.phases)


def make_plan(jobs: Jobs, workers: int, seconds: float) -> Plan:
    pace = min(seconds / PACE_AT, 1.0)
    max_queue = 2 * workers
    idle_timeout = round(0.3 * pace, 3)
    promised = round(0.25 * pace, 3)
    patience = round(0.1 * pace, 3)
    more = workers + max(workers // 2, 1)
    page, image, email = 0.2 * pace, 0.15 * pace, 0.1 * pace
    phases = (
        Phase(
            "trickle",
            "A worker starts when work comes in and no other is idle. Not before.",
            f"pool = Pool({workers}, max_queue={max_queue}, idle_timeout={idle_timeout:g})",
            (Stream(jobs.render_page, page, lambda x: 0.1 + 0.6 * x),),
        ),
        Phase(
            "rush",
            "More work than workers: the backlog fills up, then callers are turned away.",
            "pool.serve(fn) → False, pool.submit(fn) → PoolSaturated",
            (
                Stream(jobs.render_page, page, lambda x: 0.4 + 0.8 * x),
                Stream(jobs.resize_image, image, lambda x: 0.3 + 0.8 * x),
                Stream(jobs.send_email, email, lambda x: 0.2 + 0.8 * x),
            ),
        ),
        Phase(
            "deadlines",
            "Some work is too slow. Its callers are told on time and do not hang.",
            f"pool.using(timeout={promised:g}).submit(fn) → DeadlineExceeded",
            (
                Stream(jobs.slow_report, 0.3 * pace, lambda _: 0.7, {"timeout": promised}),
                Stream(jobs.send_email, email, lambda _: 0.3, {"queue_timeout": patience}),
            ),
        ),
        Phase(
            "errors",
            "One function fails. The caller gets the error, the worker takes the next call.",
            "future.result() → ConnectionError",
            (
                Stream(jobs.sync_broken, email, lambda _: 0.3),
                Stream(jobs.sync_stock, image, lambda _: 0.4),
            ),
        ),
        Phase(
            "resize",
            "More workers while it runs. Then it gets calm, and whoever is idle leaves.",
            f"pool.resize({more})",
            (Stream(jobs.render_page, page, lambda x: 2.0 if x < 0.35 else 0.05),),
            resize_to=more,
        ),
    )
    return Plan(workers, seconds, max_queue, idle_timeout, promised, phases)


CLOSING = Phase("closing", "No new work. What was accepted still runs; then the workers end.", "pool.close()")
LAST_CALLS = 4


class Traffic:
    """Sends the calls of a phase as time goes by; knows how long callers with a deadline waited for their answer."""

    def __init__(self, pool: Pool, plan: Plan, now: Callable[[], float]) -> None:
        self._pool = pool
        self._plan = plan
        self._now = now
        self._owed: dict[Stream, float] = {}
        self._luck = random.Random(8)  # the same demo for everybody
        self._waits: list[float] = []

    @property
    def longest_wait(self) -> float | None:
        return max(self._waits, default=None)

    def flow(self, phase: Phase, x: float, seconds: float) -> None:
        """Send what came in during the last `seconds`, at `x` (0 to 1) of `phase`."""
        for stream in phase.streams:
            owed = self._owed.get(stream, 1.0) + seconds * stream.rate(x, self._plan.workers)
            while owed >= 1.0:
                owed -= 1.0
                self.send(stream)
            self._owed[stream] = owed

    def send(self, stream: Stream) -> None:
        seconds = stream.seconds * self._luck.uniform(0.5, 1.5)
        view = self._pool.using(**stream.limits)
        if not stream.limits and self._luck.random() < 0.5:
            view.serve(stream.job, seconds)  # the pool counts those it turns away
            return
        sent_at = self._now()
        try:
            future = view.submit(stream.job, seconds)
        except PoolSaturated:
            return
        if "timeout" in stream.limits:

            def answered(_: Future[None]) -> None:
                self._waits.append(self._now() - sent_at)

            future.add_done_callback(answered)

"""Run the real classes through thousands of thread schedules, and replay the one that breaks them.

    def scenario(run):
        pool = Pool(1)                       # setup: single-threaded, not scheduled
        results = []
        run.actor(lambda: results.append(pool.submit(f).result()))
        run.actor(pool.close)
        run.check(lambda: check(results))    # after every actor has ended and the workers are at rest

    explore(scenario).raise_for_failure()

While an exploration runs, `bullpen.primitives` hands out controlled locks, gates, deques, threads and time (so do
`threading.Lock`, `RLock`, conditions, events and `time.monotonic` to the code under test). Each actor, and each worker
that the code starts with `primitives.start_thread`, is a real thread, but only one runs at any time and a strategy
decides at every operation which actor runs next. Time is virtual; `scheduler.py` says when a schedule ends and when
time passes.

A failure is an exception in any actor or check, a deadlock, or a livelock. It carries a token, with which
`replay(scenario, token)` runs exactly that schedule again. The scenario must depend on nothing else: no real time, no
unseeded luck, no order of addresses or hashes (`concurrent.futures.wait` locks by address: explored, but not always
replayed). `threading.current_thread()` is not the object that `start_thread` returned.
"""

from __future__ import annotations

import _thread
import base64
import gc
import os
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from types import ModuleType
from typing import Any, Literal

from tests.tools import controlled
from tests.tools.actors import BlockedOutsideActors, DeadlockFound, LivelockFound, Stalled
from tests.tools.scheduler import Scheduler
from tests.tools.strategies import (
    Alternating,
    Explorer,
    FewPreemptions,
    Priorities,
    RandomWalk,
    Replay,
    ReplayDiverged,
)

__all__ = [
    "BlockedOutsideActors",
    "DeadlockFound",
    "Failure",
    "LivelockFound",
    "ReplayDiverged",
    "Report",
    "Run",
    "Scenario",
    "Stalled",
    "StrategyName",
    "explore",
    "replay",
]

StrategyName = Literal["mixed", "random", "priorities", "systematic"]
_SCHEDULES_PER_COLLECTION = 25


class Run:
    """One schedule of a scenario, while it is set up."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.clock = controlled.VirtualClock()
        self._scheduler = scheduler
        self._checks: list[Callable[[], object]] = []

    def actor(self, function: Callable[..., object], *args: object, name: str | None = None) -> None:
        """Add a main actor: the schedule lasts until it ends. Named after its function unless `name` is given."""
        label = name or str(getattr(function, "__name__", "actor"))
        self._scheduler.add_actor(lambda: function(*args), label, daemon=False)

    def check(self, function: Callable[[], object]) -> None:
        """Call `function` when every main actor has ended and no daemon can run. It must not wait."""
        self._checks.append(function)


Scenario = Callable[[Run], object]


@dataclass(frozen=True, slots=True)
class Failure:
    """The schedule that failed: the error, how to replay it, and each of its steps."""

    error: BaseException
    token: str
    choices: tuple[int, ...]
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What an exploration saw.

    `exhausted`: the strategy had no further schedule to try. `diverged`: how many schedules of the systematic search
    went another way than the schedule they continue, because the scenario depends on more than its schedule.
    """

    schedules: int
    distinct: int
    steps: int
    seconds: float
    exhausted: bool
    diverged: int
    failure: Failure | None

    def raise_for_failure(self) -> None:
        """Raise what the failing schedule raised, with its last steps and its token in the exception's notes."""
        if self.failure is not None:
            raise self.failure.error


def explore(
    scenario: Scenario,
    *,
    schedules: int = 2000,
    seed: int = 0,
    strategy: StrategyName = "mixed",
    max_steps: int = 5000,
    preemptions: int = 2,
    racing_clock: bool = False,
    watch: Sequence[ModuleType] = (),
) -> Report:
    """Run up to `schedules` schedules of `scenario` and stop at the first that fails.

    `strategy`: "random" walks, random "priorities", "systematic" (all schedules with at most `preemptions`
    preemptions, fewest first), or "mixed", which alternates between the three.
    `racing_clock` lets timeouts pass while others still run, as on a busy machine.
    `watch` makes every line of these modules a step: slower, but it tells plain reads and writes apart.
    """
    explorer = _explorer(strategy, seed, preemptions)
    watched_files = frozenset(str(module.__file__) for module in watch)
    distinct: set[int] = set()
    steps = done = 0
    exhausted = False
    failure: Failure | None = None
    started = time.perf_counter()
    with _undisturbed(), controlled.replaced():
        while failure is None and done < schedules:
            if not explorer.begin(done):
                exhausted = explorer.diverged == 0
                break
            scheduler = Scheduler(explorer, max_steps=max_steps, racing_clock=racing_clock, watched_files=watched_files)
            error = _run(scenario, scheduler)
            explorer.finish(scheduler.choices)
            done += 1
            steps += scheduler.steps
            distinct.add(hash(tuple(scheduler.choices)))
            if error is not None:
                again = Scheduler(
                    Replay(scheduler.choices),
                    max_steps=max_steps,
                    racing_clock=racing_clock,
                    watched_files=watched_files,
                    traced=True,
                )
                failure = _failure(error, scheduler.choices, _trace_again(scenario, again, error), racing_clock)
            elif done % _SCHEDULES_PER_COLLECTION == 0:
                gc.collect(0)
    seconds = time.perf_counter() - started
    return Report(done, len(distinct), steps, seconds, exhausted, explorer.diverged, failure)


def replay(scenario: Scenario, token: str, *, max_steps: int = 5000, watch: Sequence[ModuleType] = ()) -> Report:
    """Run the one schedule that `token` names. Raises `ReplayDiverged` if the scenario goes another way."""
    racing_clock, choices = _decode(token)
    watched_files = frozenset(str(module.__file__) for module in watch)
    scheduler = Scheduler(
        Replay(choices), max_steps=max_steps, racing_clock=racing_clock, watched_files=watched_files, traced=True
    )
    started = time.perf_counter()
    with _undisturbed(), controlled.replaced():
        error = _run(scenario, scheduler)
    if isinstance(error, ReplayDiverged):
        raise error
    failure = None if error is None else _failure(error, scheduler.choices, scheduler.trace or [], racing_clock)
    return Report(1, 1, scheduler.steps, time.perf_counter() - started, False, 0, failure)


def _explorer(strategy: StrategyName, seed: int, preemptions: int) -> Explorer:
    match strategy:
        case "random":
            return RandomWalk(seed)
        case "priorities":
            return Priorities(seed)
        case "systematic":
            return FewPreemptions(seed, preemptions)
        case "mixed":
            return Alternating([FewPreemptions(seed, preemptions), Priorities(seed), RandomWalk(seed)])
    raise ValueError(f'strategy must be "mixed", "random", "priorities" or "systematic", got {strategy!r}')


def _run(scenario: Scenario, scheduler: Scheduler) -> BaseException | None:
    """Run one schedule; what it raised. An exception in the setup is the scenario's own and goes through."""
    controlled.activate(scheduler)
    finalizers = set(_finalizers())
    try:
        run = Run(scheduler)
        scenario(run)
        scheduler.run()
        if scheduler.failure is not None:
            return scheduler.failure
        try:
            for check in run._checks:
                check()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a test framework's own failures are no Exceptions
            return error
        return None
    finally:
        scheduler.unwind()
        controlled.activate(None)
        # The threads that they would wait for are gone, and so is the scheduler that their locks ask.
        for finalizer in set(_finalizers()) - finalizers:
            finalizer.detach()


def _finalizers() -> Iterable[weakref.finalize[..., Any]]:
    return weakref.finalize._registry  # type: ignore[attr-defined,no-any-return]


def _trace_again(scenario: Scenario, again: Scheduler, error: BaseException) -> list[str]:
    """The steps of the failed schedule, from a second run: recording each is too slow to do every time."""
    if isinstance(error, Stalled):
        return []
    repeated = _run(scenario, again)
    trace = again.trace or []
    if type(repeated) is not type(error):
        trace.append(f"run again, the schedule ended with {repeated!r}: the scenario depends on more than it")
    return trace


def _failure(error: BaseException, choices: list[int], trace: list[str], racing_clock: bool) -> Failure:
    token = _encode(choices, racing_clock)
    shown = trace[-40:]
    left_out = [f"… {len(trace) - len(shown)} steps before"] if len(trace) > len(shown) else []
    error.add_note("\n".join(["steps of this schedule:", *left_out, *shown]))
    error.add_note(f"to run it again: replay(scenario, {token!r})")
    return Failure(error, token, tuple(choices), tuple(trace))


def _encode(choices: list[int], racing_clock: bool) -> str:
    text = ".".join(f"{number}x{len(list(group))}" for number, group in groupby(choices))
    if len(text) > 200:
        text = "z" + base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()
    return f"{'racing' if racing_clock else 'jumping'}:{text}"


def _decode(token: str) -> tuple[bool, list[int]]:
    clock, _, text = token.partition(":")
    if clock not in ("racing", "jumping"):
        raise ValueError(f"expected a token made by explore, got {token!r}")
    if text.startswith("z"):
        text = zlib.decompress(base64.urlsafe_b64decode(text[1:])).decode()
    choices: list[int] = []
    for group in filter(None, text.split(".")):
        number, _, times = group.partition("x")
        choices += [int(number)] * int(times)
    return clock == "racing", choices


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection inside a schedule, one processor for all actors, and no thread left at the end.

    A finaliser at a random moment would make schedules differ. Handing over to a thread on another processor takes
    several times as long as on the same one.
    """
    threads = _thread._count()
    with ExitStack() as restore:
        if gc.isenabled():
            gc.disable()
            restore.callback(gc.enable)
        if hasattr(os, "sched_setaffinity"):
            processors = os.sched_getaffinity(0)
            restore.callback(os.sched_setaffinity, 0, processors)
            os.sched_setaffinity(0, {sorted(processors)[os.getpid() % len(processors)]})
        yield
    patience = time.monotonic() + 1.0
    while _thread._count() > threads and time.monotonic() < patience:
        time.sleep(0.0005)

"""The works of this suite as tables: the measurements, their contestants, and the bars for Bullpen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import starting
from benchmarks.model import Bar, Contestant, Measure, Metric, Peer, Suite, Work
from benchmarks.pool.peers import (
    drain,
    drain_map_future,
    drain_parallel,
    gather,
    gather_async_results,
    on,
    one_by_one,
    one_by_one_async_result,
)

from . import timing
from .calls import noop
from .peers import BILLIARD, BULLPEN, FORK, FORKSERVER, JOBLIB, LOKY, MP_POOL, MPIRE, PEBBLE
from .settings import FULL, LIMIT_SECONDS, QUICK, WORKERS
from .timing import ANSWERED, COLD, NOTICED, OTHERS, P50, P99, PRIVATE, RATE, REPLACED, ROUND_TRIP, WARM

BARS = (
    Bar("gather", RATE, 6.0),
    Bar("map", RATE, 1.0),
    Bar("latency", P50, 0.5),
    Bar("bytes", ROUND_TRIP, 1.0),
    Bar("array", ROUND_TRIP, 0.2),
    Bar("start", COLD, 1.0),
    Bar("start", WARM, 1.0),
    Bar("script", starting.FIRST, 1.0),
    Bar("crash", NOTICED, 1.0),
    Bar("crash", REPLACED, 1.0),
)

FUTURES = (FORKSERVER, FORK, LOKY)
ASYNC_RESULTS = (MP_POOL, BILLIARD)
CHUNK = 500  # for those whose map does not choose one


def _by_submit(pool: Any) -> Callable[[Any], Any]:
    return lambda value: pool.submit(noop, value).result()


def _by_apply(pool: Any) -> Callable[[Any], Any]:
    return lambda value: pool.apply_async(noop, (value,)).get()


def _by_schedule(pool: Any) -> Callable[[Any], Any]:
    return lambda value: pool.schedule(noop, args=(value,)).result()


def _submitting(pool: Any) -> Callable[..., Callable[[float], Any]]:
    return lambda fn, *args: pool.submit(fn, *args).result


def _applying(pool: Any) -> Callable[..., Callable[[float], Any]]:
    return lambda fn, *args: pool.apply_async(fn, args).get


def _scheduling(pool: Any) -> Callable[..., Callable[[float], Any]]:
    return lambda fn, *args: pool.schedule(fn, args=args).result


def _contestant(peer: Peer, how: str, measure: Measure) -> Contestant:
    return Contestant(peer.name, peer, f"{peer.opened_as}: {how}", measure)


def _gather(peer: Peer) -> Contestant:
    return _contestant(peer, "submit, then result()", timing.rate(on(peer, lambda pool: gather(pool.submit)), "tasks"))


def _map_by(peer: Peer, chunk: int) -> Contestant:
    def chunked(pool: Any) -> Any:
        return drain(lambda function, items: pool.map(function, items, chunksize=chunk))

    return _contestant(peer, f"map, chunksize={chunk}", timing.rate(on(peer, chunked), "items"))


def _one_value(measure: Callable[[Peer, Any], Measure]) -> tuple[Contestant, ...]:
    """A value to a worker and back, with every peer that takes single calls."""
    return (
        *(_contestant(peer, "submit(…).result()", measure(peer, _by_submit)) for peer in FUTURES),
        *(_contestant(peer, "apply_async(…).get()", measure(peer, _by_apply)) for peer in ASYNC_RESULTS),
        _contestant(PEBBLE, "schedule(…).result()", measure(PEBBLE, _by_schedule)),
        _contestant(BULLPEN, "submit(…).result()", measure(BULLPEN, _by_submit)),
    )


def _single_calls(measure: Callable[[Peer, timing.Ask], Measure]) -> tuple[Contestant, ...]:
    """Calls of several functions, with every peer that takes single calls."""
    return (
        *(_contestant(peer, "submit, then result()", measure(peer, _submitting)) for peer in FUTURES),
        *(_contestant(peer, "apply_async, then get()", measure(peer, _applying)) for peer in ASYNC_RESULTS),
        _contestant(PEBBLE, "schedule, then result()", measure(PEBBLE, _scheduling)),
        _contestant(BULLPEN, "submit, then result()", measure(BULLPEN, _submitting)),
    )


THROUGHPUT = (Metric(RATE, "throughput", "calls/s", "higher"),)

WORKS = (
    Work(
        "gather",
        "{tasks:,} no-ops: submit all, then all results",
        THROUGHPUT,
        (
            *map(_gather, FUTURES),
            *(
                _contestant(
                    peer,
                    "apply_async, then get()",
                    timing.rate(on(peer, lambda pool: gather_async_results(pool.apply_async)), "tasks"),
                )
                for peer in ASYNC_RESULTS
            ),
            _contestant(
                PEBBLE,
                "schedule, then result()",
                timing.rate(on(PEBBLE, lambda pool: gather(pool.schedule)), "tasks"),
            ),
            _gather(BULLPEN),
        ),
    ),
    Work(
        "map",
        "a map over {items:,} no-ops",
        THROUGHPUT,
        (
            *(_map_by(peer, CHUNK) for peer in FUTURES),
            *(
                _contestant(
                    peer, "map, default chunksize", timing.rate(on(peer, lambda pool: drain(pool.map)), "items")
                )
                for peer in (*ASYNC_RESULTS, MPIRE)
            ),
            _contestant(
                PEBBLE,
                f"map, chunksize={CHUNK}",
                timing.rate(
                    on(
                        PEBBLE,
                        lambda pool: drain_map_future(
                            lambda function, items: pool.map(function, items, chunksize=CHUNK)
                        ),
                    ),
                    "items",
                ),
            ),
            _contestant(JOBLIB, "delayed calls", timing.rate(on(JOBLIB, drain_parallel), "items")),
            _contestant(BULLPEN, "map", timing.rate(on(BULLPEN, lambda pool: drain(pool.map)), "items")),
        ),
    ),
    Work(
        "latency",
        "{calls:,} no-ops, one at a time",
        (Metric(P50, "median", "µs", "lower"), Metric(P99, "99th percentile", "µs", "lower")),
        (
            *(
                _contestant(peer, "submit().result()", timing.latency(on(peer, lambda pool: one_by_one(pool.submit))))
                for peer in FUTURES
            ),
            *(
                _contestant(
                    peer,
                    "apply_async().get()",
                    timing.latency(on(peer, lambda pool: one_by_one_async_result(pool.apply_async))),
                )
                for peer in ASYNC_RESULTS
            ),
            _contestant(
                PEBBLE, "schedule().result()", timing.latency(on(PEBBLE, lambda pool: one_by_one(pool.schedule)))
            ),
            _contestant(
                BULLPEN, "submit().result()", timing.latency(on(BULLPEN, lambda pool: one_by_one(pool.submit)))
            ),
        ),
    ),
    Work(
        "bytes",
        "1 MB of bytes, there and back, {large:,} times",
        (Metric(ROUND_TRIP, "round trip", "ms", "lower"),),
        _one_value(timing.large),
    ),
    Work(
        "array",
        "an array of 100 MB, there and back, {huge:,} times",
        (Metric(ROUND_TRIP, "round trip", "ms", "lower"),),
        _one_value(timing.huge),
    ),
    Work(
        "start",
        "from no pool to the first result",
        (Metric(COLD, "in a fresh app", "ms", "lower"), Metric(WARM, "its next pool", "ms", "lower")),
        _one_value(timing.start),
    ),
    Work(
        "script",
        "a whole script that calls its own function in a process, with all imports",
        starting.metric("the first result"),
        (
            *(
                Contestant(peer.name, peer, peer.opened_as, starting.script("executor_script", method))
                for peer, method in ((FORKSERVER, "forkserver"), (FORK, "fork"))
            ),
            *(
                Contestant(f"floor, interpreter {when}", BULLPEN, settings, starting.script("floor_script", when))
                for when, settings in (
                    ("after", "imports `Pool` and its parts; then a second interpreter imports a worker's, and forks"),
                    ("first", "the same, but the second interpreter starts before the imports"),
                )
            ),
            Contestant("bullpen", BULLPEN, BULLPEN.opened_as, starting.script("bullpen_script")),
        ),
    ),
    Work(
        "crash",
        f"a worker is killed in the middle of {OTHERS} other requests",
        (
            Metric(ANSWERED, "others answered", "requests", "higher"),
            Metric(NOTICED, f"until its request fails, at most {LIMIT_SECONDS * 1000:,.0f} ms", "ms", "lower"),
            Metric(REPLACED, "until all workers are there again", "ms", "lower"),
        ),
        _single_calls(timing.crash),
    ),
    Work(
        "memory",
        "what one worker has for itself alone, after {warm_up:,} no-ops",
        (Metric(PRIVATE, "private memory", "MB", "lower"),),
        _single_calls(timing.memory),
    ),
)


PROCESSES = Suite(
    name="processes",
    title='Pool(runtime="process") beside other process pools',
    higher="Throughput × ProcessPoolExecutor (forkserver)",
    lower="Time × ProcessPoolExecutor (forkserver)",
    works=WORKS,
    bars=BARS,
    full=FULL,
    quick=QUICK,
    settings=lambda: {"workers": str(WORKERS)},
)

"""What is measured, who takes part in it, and the bar Bullpen has set itself for each: all of it in tables.

The first contestant of a work is the strongest peer we know for it: ratios are to that one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.model import Bar, Contestant, Metric, Peer, Suite, Work

from . import measures
from .measures import COST, P50, P99, RATE
from .ours import Open, on_redis, ours_on_postgres, ours_on_redis, pgqueuer, procrastinate
from .peers import BULLPEN, DRAMATIQ, HUEY, PGQUEUER, PROCRASTINATE, TASKIQ, Dramatiq, Huey, Taskiq
from .settings import BATCH, CALLERS, CONCURRENCY, FULL, QUICK, postgres_place, postgres_settings, redis_settings

_THROUGHPUT = (Metric(RATE, "throughput", "tasks/s", "higher"),)
_LATENCY = (Metric(P50, "median", "µs", "lower"), Metric(P99, "99th percentile", "µs", "lower"))
_COST = (Metric(COST, "cost of a claim, median", "µs", "lower"),)

Entry = tuple[str, Peer, str, Open]


def _uvloop() -> Any:
    return import_module("uvloop").new_event_loop()


_REDIS: tuple[Entry, ...] = (
    ("huey", HUEY, "RedisHuey, 4 threads, no results", on_redis(Huey)),
    ("taskiq", TASKIQ, f"ListQueueBroker, max_async_tasks={CONCURRENCY}, no result backend", on_redis(Taskiq)),
    ("dramatiq", DRAMATIQ, "RedisBroker, 8 threads, no results", on_redis(Dramatiq)),
    ("bullpen", BULLPEN, f"redis://, concurrency={CONCURRENCY}, results kept", ours_on_redis),
)
_POSTGRES: tuple[Entry, ...] = (
    ("pgqueuer", PGQUEUER, f"asyncpg, batch_size={BATCH}", pgqueuer),
    ("procrastinate", PROCRASTINATE, "psycopg, concurrency=20, delete_jobs=always", procrastinate),
    ("bullpen", BULLPEN, f"postgresql://, concurrency={CONCURRENCY}, results kept", ours_on_postgres),
)


def _works(entries: tuple[Entry, ...], ours: Open, raw: Contestant, place: Any) -> tuple[Work, ...]:
    def each(measure: Callable[[Open], Any], first: str = "huey") -> tuple[Contestant, ...]:
        strongest = sorted(entries, key=lambda entry: entry[0] != first)
        return tuple(Contestant(label, peer, settings, measure(opened)) for label, peer, settings, opened in strongest)

    drained = Contestant("bullpen", BULLPEN, f"concurrency={CONCURRENCY}, results kept", measures.drain(ours))
    quick = [Contestant("bullpen, uvloop", BULLPEN, "the same on uvloop", measures.drain(ours, _uvloop))]
    if entries is _POSTGRES:
        fast = Contestant("pgqueuer, uvloop", PGQUEUER, f"batch_size={BATCH}", measures.drain(pgqueuer, _uvloop))
        quick.insert(0, fast)
    drains = each(measures.drain, "dramatiq")
    return (
        Work("drain", "{drained:,} no-ops wait, one worker starts", _THROUGHPUT, (*drains[:-1], *quick, drains[-1])),
        Work("drain-floor", "the same, beside the raw statements, which run nothing", _THROUGHPUT, (raw, drained)),
        Work("enqueue", "{singles:,} tasks one by one, one caller", _THROUGHPUT, each(measures.one_by_one)),
        Work(
            "enqueue-concurrent",
            f"{{singles:,}} tasks one by one by each of {CALLERS} callers",
            _THROUGHPUT,
            each(lambda opened: measures.one_by_one(opened, CALLERS)),
        ),
        Work("enqueue-bulk", "{bulk:,} tasks at once, in each one's idiom", _THROUGHPUT, each(measures.at_once)),
        Work(
            "latency",
            "{calls:,} tasks one at a time, from the call to the start of the function, with an idle worker",
            _LATENCY,
            each(measures.until_it_runs),
        ),
        Work(
            "result",
            "the same until the result is in hand",
            _LATENCY,
            (
                Contestant(
                    "bullpen", BULLPEN, "await (await task.aenqueue(x)).aresult()", measures.until_the_result(ours)
                ),
            ),
        ),
        Work(
            "backlog",
            f"a claim of {measures.CLAIMED} with {{many:,}} tasks that wait, against {{few:,}}",
            _COST,
            tuple(
                Contestant(f"bullpen, {words}", BULLPEN, "exchange", measures.claims(place, field))
                for field, words in (("few", "few wait"), ("many", "many wait"))
            ),
        ),
    )


def _bars(drain: float, bulk: float) -> tuple[Bar, ...]:
    return (
        Bar("drain", RATE, drain),
        Bar("enqueue", RATE, 1.0),
        Bar("enqueue-concurrent", RATE, 3.0),
        Bar("enqueue-bulk", RATE, bulk),
        Bar("latency", P50, 0.7),
        Bar("latency", P99, 0.7),
        Bar("backlog", COST, 1.3),
    )


_RAW_REDIS = Contestant("raw", BULLPEN, f"redis-py pipelines, {BATCH} at a time", measures.raw_redis)
_RAW_POSTGRES = Contestant("raw", BULLPEN, f"asyncpg, {BATCH} per transaction", measures.raw_postgres)

ON_REDIS = Suite(
    name="redis",
    title="bullpen.TaskQueue beside other queues on Redis",
    higher="Throughput × the first of each group",
    lower="Time × the first of each group",
    works=_works(_REDIS, ours_on_redis, _RAW_REDIS, measures.redis_storage),
    bars=_bars(drain=5.0, bulk=5.0),
    full=FULL,
    quick=QUICK,
    settings=redis_settings,
)
ON_POSTGRES = Suite(
    name="postgres",
    title="bullpen.TaskQueue beside other queues on PostgreSQL",
    higher="Throughput × the first of each group",
    lower="Time × the first of each group",
    works=_works(_POSTGRES, ours_on_postgres, _RAW_POSTGRES, postgres_place),
    bars=_bars(drain=1.3, bulk=1.5),
    full=FULL,
    quick=QUICK,
    settings=postgres_settings,
)

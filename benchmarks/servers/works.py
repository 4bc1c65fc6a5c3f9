"""The works of this suite as tables: the measurements, their contestants, and the bars for Bullpen.

Ratios are to the best peer of the run. The raw statements over the same driver, which call no function, are listed too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import starting
from benchmarks.metrics import LATENCY, P50, P99, RATE, THROUGHPUT
from benchmarks.model import Bar, Contestant, Measure, Metric, Peer, Suite, Work

from . import killing, measures, pinned, raw
from .claiming import CLAIMED, COST, claims
from .library import Blocking, Library
from .measures import Place
from .ours import Ours, OursBlocking, OursForgetting, OursLimited, OursOnAsyncio, OursPlain, OursPlainBlocking
from .postgres_peers import (
    AWA,
    CHANCY,
    DISPATCHERD,
    DRAMATIQ_PG,
    PGQUEUER,
    PROCRASTINATE,
    Awa,
    Chancy,
    Dispatcherd,
    DramatiqPg,
    PgQueuer,
    Procrastinate,
    SaqOnPostgres,
)
from .redis_peers import (
    ARQ,
    CELERY,
    DRAMATIQ,
    HUEY,
    RQ,
    SAQ,
    STREAQ,
    TASKIQ,
    THREADS,
    Arq,
    Celery,
    Dramatiq,
    Huey,
    Rq,
    Saq,
    Streaq,
    Taskiq,
)
from .settings import (
    BATCH,
    CALLERS,
    CONCURRENCY,
    FULL,
    LEASE,
    QUICK,
    postgres_place,
    postgres_settings,
    redis_place,
    redis_settings,
)

_COST = (Metric(COST, "cost of a claim, median", "µs", "lower"),)
_SECONDS = (Metric(killing.SECONDS, "until all are done", "s", "lower"),)

BULLPEN = Peer("bullpen", "bullpen:TaskQueue", "pybullpen", "pip install -e .", "TaskQueue")


@dataclass(frozen=True, slots=True)
class Entry:
    """A library with its settings. A slow one gets fewer tasks, or a round would take an hour."""

    peer: Peer
    library: type[Library]
    settings: str
    is_slow: bool = True
    has_results: bool = True


_REDIS = (
    Entry(
        CELERY,
        Celery,
        "--pool=threads -c 4, worker_prefetch_multiplier=64, --without-gossip --without-mingle --without-heartbeat, "
        "results in Redis",
    ),
    Entry(RQ, Rq, "SimpleWorker (no fork for each job), results kept; bulk: enqueue_many"),
    Entry(DRAMATIQ, Dramatiq, f"RedisBroker, {THREADS} threads, Results in Redis", is_slow=False),
    Entry(HUEY, Huey, "RedisHuey, 4 threads, results kept; a result is looked for every ms", is_slow=False),
    Entry(ARQ, Arq, "max_jobs=200, poll_delay=0.01 (default 0.5), results kept; a result is looked for every ms"),
    Entry(SAQ, Saq, f"concurrency={CONCURRENCY}, results kept; apply(poll_interval=0.001)"),
    Entry(
        TASKIQ,
        Taskiq,
        f"ListQueueBroker, max_async_tasks={CONCURRENCY}, max_prefetch={CONCURRENCY}, uvloop as its command has it, "
        "RedisAsyncResultBackend; a result is looked for every ms",
        is_slow=False,
    ),
    Entry(STREAQ, Streaq, f"concurrency={CONCURRENCY}, results kept; bulk: enqueue_many"),
)
_POSTGRES = (
    Entry(
        PROCRASTINATE,
        Procrastinate,
        "psycopg, concurrency=20, delete_jobs=always, no results; bulk: batch_defer",
        has_results=False,
    ),
    Entry(
        PGQUEUER,
        PgQueuer,
        f"asyncpg, batch_size={BATCH}, uvloop as its command has it, no results (awaited: the status); bulk: enqueue "
        "of lists",
        is_slow=False,
    ),
    Entry(SAQ, SaqOnPostgres, "psycopg, concurrency=50, results kept; apply(poll_interval=0.001)"),
    Entry(DRAMATIQ_PG, DramatiqPg, f"psycopg2, {THREADS} threads, results kept"),
    Entry(
        CHANCY,
        Chancy,
        f"psycopg, Executor.Async, concurrency={CONCURRENCY}, polling_interval=1, eager_polling=True, no results; "
        "bulk: push_many",
        is_slow=False,
        has_results=False,
    ),
    Entry(
        AWA,
        Awa,
        f"its engine in Rust, {CONCURRENCY} workers on one queue, no results; bulk: enqueue_many_copy",
        is_slow=False,
        has_results=False,
    ),
    Entry(
        DISPATCHERD,
        Dispatcherd,
        "pg_notify, which keeps nothing: tasks are sent while it listens; one service with as many processes",
        has_results=False,
    ),
)
SYNC = "bullpen, sync"
PLAIN = "bullpen, def"
_OURS = f"concurrency={CONCURRENCY}, uvloop as its command has it with pybullpen[uvloop], results kept"
_PLAIN = f"{_OURS}, a plain function, enqueue and result() that block"


def _works(
    entries: tuple[Entry, ...],
    floor: type[raw.Raw],
    driver: Contestant,
    place: Place,
    start_floor: tuple[Contestant, ...] = (),
    beside_plain: tuple[Peer, ...] = (),
) -> tuple[Work, ...]:
    """`beside_plain`: peers that take part with async functions where Bullpen runs plain ones."""

    def each(
        measure: Callable[[Entry], Measure], ours: Measure, *more: Contestant, results: bool = False
    ) -> tuple[Contestant, ...]:
        peers = [
            Contestant(entry.peer.name, entry.peer, entry.settings, measure(entry))
            for entry in entries
            if entry.has_results or not results
        ]
        return (*peers, *more, Contestant("bullpen", BULLPEN, _OURS, ours))

    def by_hand(measure: Measure) -> Contestant:
        return Contestant(driver.label, driver.peer, driver.settings, measure)

    def drained(processes: int) -> Callable[[Entry], Measure]:
        return lambda entry: measures.drain(entry.library, place, processes, is_slow=entry.is_slow)

    def ours(label: str, settings: str, measure: Measure) -> Contestant:
        return Contestant(label, BULLPEN, settings, measure)

    one = measures.drain(Ours, place)
    return (
        Work(
            "drain",
            "{drained:,} no-ops wait (for slow peers {slow:,}), one worker process starts",
            THROUGHPUT,
            each(
                drained(1),
                one,
                by_hand(raw.drain(floor, place)),
                ours("bullpen, asyncio", f"{_OURS}, but without uvloop", measures.drain(OursOnAsyncio, place)),
                ours("bullpen, no results", f"{_OURS}, but result_ttl=0", measures.drain(OursForgetting, place)),
            ),
            reference="best",
        ),
        Work(
            "drain-two",
            "the same with two worker processes",
            THROUGHPUT,
            each(drained(2), measures.drain(Ours, place, 2), ours("bullpen, one process", _OURS, one)),
            reference="best",
        ),
        *(
            Work(
                name,
                f"`drain` with a plain function, {words}, beside the peers that run plain functions"
                + "".join(f" and {peer.name}, which runs an async function" for peer in beside_plain),
                THROUGHPUT,
                (
                    *(
                        Contestant(entry.peer.name, entry.peer, entry.settings, drained(processes)(entry))
                        for entry in entries
                        if issubclass(entry.library, Blocking) or entry.peer in beside_plain
                    ),
                    ours("bullpen, async def", _OURS, measures.drain(Ours, place, processes)),
                    ours("bullpen", f"{_OURS}, a plain function", measures.drain(OursPlain, place, processes)),
                ),
                reference="best",
            )
            for name, processes, words in (
                ("drain-def", 1, "one worker process"),
                ("drain-def-two", 2, "two worker processes"),
            )
        ),
        Work(
            "enqueue",
            "{singles:,} tasks one by one, one caller",
            THROUGHPUT,
            each(
                lambda entry: measures.enqueue(entry.library, place),
                measures.enqueue(Ours, place),
                by_hand(measures.enqueue(floor, place)),
                ours(SYNC, "enqueue, where the others have await aenqueue", measures.enqueue(OursBlocking, place)),
            ),
            reference="best",
        ),
        Work(
            "enqueue-concurrent",
            f"{{singles:,}} tasks one by one by each of {CALLERS} callers: coroutines, or threads if a client blocks "
            "(by slow peers {slow:,} in all)",
            THROUGHPUT,
            each(
                lambda entry: measures.enqueue(entry.library, place, CALLERS, is_slow=entry.is_slow),
                measures.enqueue(Ours, place, CALLERS),
                by_hand(measures.enqueue(floor, place, CALLERS)),
            ),
            reference="best",
        ),
        Work(
            "enqueue-bulk",
            "{bulk:,} tasks at once (for slow peers {slow:,}), in each one's idiom; one by one where there is none",
            THROUGHPUT,
            each(
                lambda entry: measures.enqueue_at_once(entry.library, place, is_slow=entry.is_slow),
                measures.enqueue_at_once(Ours, place),
                by_hand(measures.enqueue_at_once(floor, place)),
            ),
            reference="best",
        ),
        Work(
            "result",
            "{calls:,} tasks one at a time, from the call to the result in hand, with an idle worker",
            LATENCY,
            each(
                lambda entry: measures.until_the_result(entry.library, place),
                measures.until_the_result(Ours, place),
                ours(PLAIN, _PLAIN, measures.until_the_result(OursPlainBlocking, place)),
                results=True,
            ),
            reference="best",
        ),
        Work(
            "start",
            "the same until the function begins",
            LATENCY,
            each(
                lambda entry: measures.until_it_runs(entry.library, place),
                measures.until_it_runs(Ours, place),
                *start_floor,
                ours(PLAIN, _PLAIN, measures.until_it_runs(OursPlainBlocking, place)),
            ),
            reference="best",
        ),
        Work(
            "backlog",
            f"a claim of {CLAIMED} with {{many:,}} tasks that wait, against {{few:,}}",
            _COST,
            tuple(
                ours(f"bullpen, {words}", "exchange", claims(place, field))
                for field, words in (("few", "few wait"), ("many", "many wait"))
            ),
        ),
        Work(
            "limits",
            "{drained:,} no-ops, one worker process, without and with limits over all workers",
            THROUGHPUT,
            (
                ours("bullpen, no limits", _OURS, one),
                ours("bullpen, limits", f"{_OURS}; max_running=10⁶, rate=10⁹", measures.drain(OursLimited, place)),
            ),
        ),
        Work(
            "storm",
            f"{{storm:,}} no-ops wait for two workers, of which one is killed (SIGKILL) and replaced {killing.KILLS} "
            "times in {storm_seconds:g} s; nothing may be lost",
            THROUGHPUT,
            (
                ours("bullpen, undisturbed", _OURS, killing.storm(place, kills=False)),
                ours("bullpen, killed", _OURS, killing.storm(place, kills=True)),
            ),
        ),
        Work(
            "restart",
            "{held:,} tasks of {held_seconds:g} s run; the whole worker tree is killed (SIGKILL) and started again",
            _SECONDS,
            (ours("bullpen", "bullpen worker --processes 2, all else as by default", killing.all_at_once(place)),),
        ),
    )


def _bars(entries: tuple[Entry, ...], *drain: Bar, two: float, bulk: float, plain: float) -> tuple[Bar, ...]:
    blocking = tuple(entry.peer.name for entry in entries if issubclass(entry.library, Blocking))
    on_a_loop = tuple(entry.peer.name for entry in entries if not issubclass(entry.library, Blocking))
    return (
        *drain,
        Bar("drain-two", RATE, two),
        Bar("drain-def", RATE, plain, beside=blocking),
        Bar("drain-def-two", RATE, plain, beside=blocking),
        # Blocking `enqueue` is compared with the best of all peers, `await` with the peers that have an async client.
        Bar("enqueue", RATE, 1.0, judges=SYNC),
        Bar("enqueue", RATE, 1.0, beside=on_a_loop),
        Bar("enqueue-concurrent", RATE, 3.0),
        Bar("enqueue-bulk", RATE, bulk),
        Bar("result", P50, 0.7),
        Bar("result", P99, 0.7),
        Bar("backlog", COST, 1.3),
        Bar("limits", RATE, 0.7),
        Bar("storm", RATE, 0.7),
        Bar("restart", killing.SECONDS, LEASE + 5, of="value"),
    )


def _other_than(name: str) -> tuple[str, ...]:
    return tuple(entry.peer.name for entry in _POSTGRES if entry.peer.name != name)


_BY_HAND_ON_REDIS = Contestant(
    "raw statements", raw.REDIS_PY, f"redis-py, pipelines of {BATCH}", raw.drain(raw.RawRedis, redis_place)
)
_BY_HAND_ON_POSTGRES = Contestant(
    "raw statements", raw.ASYNCPG, f"asyncpg, {BATCH} in a transaction", raw.drain(raw.RawPostgres, postgres_place)
)
_START_FLOOR_ON_REDIS = Contestant(
    "raw scripts",
    raw.REDIS_PY,
    "redis-py, blocking: one script adds and publishes, a worker claims by a second one",
    measures.until_it_runs(raw.PublishAndClaim, redis_place),
)
_PINNED = Work(
    "pinned",
    "{pinned:,} no-ops of three priorities, three workers, while a transaction is left open",
    (Metric(pinned.SHARE, "rate of the last fifth, of the first's", "×", "higher"),),
    (
        Contestant("bullpen, nothing left open", BULLPEN, "the same without", pinned.drain(pinned=False)),
        Contestant("bullpen", BULLPEN, "an idle REPEATABLE READ transaction", pinned.drain(pinned=True)),
    ),
)
_WORKER_START = Work(
    "worker-start",
    "a task waits, a worker starts by its command: until the task begins",
    starting.metric("the first task"),
    (
        Contestant(
            "huey",
            HUEY,
            "huey_consumer, all else as by default",
            starting.worker("huey_app", redis_place, "-m", "huey.bin.huey_consumer", "benchmarks.apps.huey_app.huey"),
        ),
        Contestant(
            "arq",
            ARQ,
            "arq, all else as by default",
            starting.worker("arq_app", redis_place, "-m", "arq", "benchmarks.apps.arq_app.WorkerSettings"),
        ),
        Contestant(
            "imports alone",
            raw.REDIS_PY,
            "python -c 'import asyncio, msgspec, redis.asyncio'",
            starting.imports("asyncio", "msgspec", "redis.asyncio"),
        ),
        Contestant(
            "bullpen",
            BULLPEN,
            "bullpen worker, all else as by default",
            starting.worker("bullpen_app", redis_place, "-m", "bullpen", "worker", "benchmarks.apps.bullpen_app:queue"),
        ),
    ),
    reference="best",
)

ON_REDIS = Suite(
    name="redis",
    title="bullpen.TaskQueue beside other queues on Redis",
    higher="Throughput × the best peer",
    lower="Time × the best peer",
    works=(*_works(_REDIS, raw.RawRedis, _BY_HAND_ON_REDIS, redis_place, (_START_FLOOR_ON_REDIS,)), _WORKER_START),
    bars=(
        *_bars(_REDIS, Bar("drain", RATE, 5.0), two=3.0, bulk=5.0, plain=3.0),
        Bar("worker-start", starting.FIRST, 1.43),
    ),
    full=FULL,
    quick=QUICK,
    settings=redis_settings,
)
ON_POSTGRES = Suite(
    name="postgres",
    title="bullpen.TaskQueue beside other queues on PostgreSQL",
    higher="Throughput × the best peer",
    lower="Time × the best peer",
    works=(
        *_works(_POSTGRES, raw.RawPostgres, _BY_HAND_ON_POSTGRES, postgres_place, beside_plain=(PGQUEUER,)),
        _PINNED,
    ),
    bars=(
        *_bars(
            _POSTGRES,
            Bar("drain", RATE, 1.3, beside=("pgqueuer",)),
            Bar("drain", RATE, 4.0, beside=_other_than("pgqueuer")),
            Bar("drain-def", RATE, 0.7, beside=("pgqueuer",)),
            Bar("drain-def-two", RATE, 0.7, beside=("pgqueuer",)),
            two=1.2,
            bulk=1.5,
            plain=8.0,
        ),
        Bar("pinned", pinned.SHARE, 0.8, of="value"),
    ),
    full=FULL,
    quick=QUICK,
    settings=postgres_settings,
    notes=(
        "procrastinate, chancy, awa and dispatcherd keep no results, so they take no part in the work result",
        "pgqueuer keeps no results either: there it is the time until it is known that the task has ended well",
        "awa is awa-pg on PyPI; the project named awa there is another one",
    ),
)

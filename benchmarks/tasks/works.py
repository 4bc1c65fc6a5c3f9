"""The works of this suite as tables: the measurements, their contestants, and the bars for Bullpen."""

from __future__ import annotations

from typing import Any

from benchmarks import starting
from benchmarks.loops import uvloop
from benchmarks.metrics import LATENCY, P50, RATE, THROUGHPUT
from benchmarks.model import Bar, Contestant, Measure, Metric, Peer, Suite, Work

from . import beginning, claiming, draining, enqueueing, floors, idling, waiting
from .ours import SETTINGS as OURS
from .ours import SETTINGS_NORMAL as OURS_NORMAL
from .ours import in_file_normal
from .peers import ASYNCIO, BULLPEN, HUEY, LITEQUEUE, PERSIST_QUEUE, PLAIN, TASKITO
from .plain import SETTINGS as RAW
from .plain import SETTINGS_NORMAL as RAW_NORMAL
from .settings import BATCH, CALLERS, CONCURRENCY, FEW, FULL, QUICK, shared_settings

BARS = (
    Bar("enqueue", RATE, 0.7),
    Bar("enqueue-normal", RATE, 0.5),
    Bar("enqueue-threads", RATE, 5.0),
    Bar("enqueue-coroutines", RATE, 5.0),
    Bar("enqueue-bulk", RATE, 0.4),
    Bar("drain", RATE, 5.0),
    Bar("drain-def", RATE, 3.0),
    Bar("drain-def-no-fsync", RATE, 1.2),
    Bar("def-or-async", RATE, 0.7),
    Bar("latency", P50, 6.0),
    Bar("latency-remote", P50, 12.0),
    Bar("worker-start", starting.FIRST, 1.1),
    Bar("idle", idling.CPU, 1.0, of="value"),
    Bar("backlog", claiming.COST, 1.3),
    Bar("memory-drain", RATE, 0.4),
)

# The settings that decide how durable a write is. WAL everywhere.
_HUEY = "SqliteHuey(fsync=None), its default: synchronous=FULL"
_HUEY_OFF = "SqliteHuey(fsync=False), its fastest: synchronous=OFF, a power cut may damage the file"
_LITEQUEUE = "LiteQueue(), its default: synchronous=NORMAL, a power cut may take the latest"
_LITEQUEUE_FULL = "LiteQueue(), with PRAGMA synchronous=FULL by hand"
_PERSIST = "SQLiteAckQueue(auto_commit=True), its default: synchronous=FULL"
_TASKITO = "Queue(db_path), its default: synchronous=NORMAL"
_EVERY_MS: dict[str, Any] = {"initial_delay": 0.001, "max_delay": 0.001}
_LOOK_OFTEN = {"backoff": 1.0, "max_delay": 0.001}


def _raw(what: str, measure: Measure) -> Contestant:
    return Contestant("plain SQL", PLAIN, f"{RAW}: {what}", measure)


def _floor(what: str, measure: Measure, where: str = "") -> Contestant:
    return Contestant(f"plain SQL, shared commits{where}", PLAIN, f"{RAW}: {what}, and nothing else", measure)


def _guarded(synchronous: str) -> tuple[Contestant, Contestant]:
    settings = f"sqlite3, WAL, synchronous={synchronous}: our table, locks and checks in a bare loop"
    return (
        Contestant(
            "floor, same guarantees, awaited",
            PLAIN,
            f"{settings}, on a thread for which a coroutine waits",
            enqueueing.many_coroutines(floors.guarded_awaited(synchronous), callers=1, synchronous=synchronous),
        ),
        Contestant(
            "floor, same guarantees",
            PLAIN,
            settings,
            enqueueing.one_caller(floors.guarded(synchronous), synchronous),
        ),
    )


def _ours(label: str, what: str, measure: Measure, peer: Peer = BULLPEN) -> Contestant:
    return Contestant(label, peer, f"{OURS}: {what}", measure)


_ONE_COMMIT_EACH = _raw("one INSERT, one commit, 1 caller", enqueueing.one_caller(enqueueing.plain))

WORKS = (
    Work(
        "enqueue",
        "{singles:,} tasks one by one, 1 caller: each is durable when its call returns, where the settings say so",
        THROUGHPUT,
        (
            _ONE_COMMIT_EACH,
            Contestant("huey", HUEY, f"{_HUEY}: task(x)", enqueueing.one_caller(enqueueing.huey(None))),
            Contestant("huey, fastest", HUEY, f"{_HUEY_OFF}: task(x)", enqueueing.one_caller(enqueueing.huey(False))),
            Contestant(
                "litequeue", LITEQUEUE, f"{_LITEQUEUE}: put", enqueueing.one_caller(enqueueing.litequeue(False))
            ),
            Contestant(
                "litequeue, FULL",
                LITEQUEUE,
                f"{_LITEQUEUE_FULL}: put",
                enqueueing.one_caller(enqueueing.litequeue(True)),
            ),
            Contestant(
                "persist-queue", PERSIST_QUEUE, f"{_PERSIST}: put", enqueueing.one_caller(enqueueing.persist_queue)
            ),
            Contestant("taskito", TASKITO, f"{_TASKITO}: task.delay(x)", enqueueing.one_caller(enqueueing.taskito)),
            _floor(
                "one coroutine waits for a thread that commits",
                enqueueing.many_coroutines(floors.of_coroutines, callers=1),
                ", awaited",
            ),
            *_guarded("FULL"),
            _ours(
                "bullpen, awaited",
                "await task.aenqueue(x)",
                enqueueing.many_coroutines(enqueueing.ours_async, callers=1),
            ),
            _ours("bullpen", "task.enqueue(x)", enqueueing.one_caller(enqueueing.ours)),
        ),
    ),
    Work(
        "enqueue-normal",
        "the same without waiting for the disk: a power cut may take the latest tasks",
        THROUGHPUT,
        (
            Contestant(
                "plain SQL",
                PLAIN,
                f"{RAW_NORMAL}: one INSERT, one commit",
                enqueueing.one_caller(enqueueing.plain_normal, "NORMAL"),
            ),
            Contestant(
                "litequeue",
                LITEQUEUE,
                f"{_LITEQUEUE}: put",
                enqueueing.one_caller(enqueueing.litequeue(False), "NORMAL"),
            ),
            Contestant(
                "plain SQL, shared commits, awaited",
                PLAIN,
                f"{RAW_NORMAL}: one coroutine waits for a thread that commits, and nothing else",
                enqueueing.many_coroutines(floors.of_coroutines_normal, callers=1, synchronous="NORMAL"),
            ),
            *_guarded("NORMAL"),
            Contestant(
                "bullpen, awaited",
                BULLPEN,
                f"{OURS_NORMAL}: await task.aenqueue(x)",
                enqueueing.many_coroutines(enqueueing.ours_async_normal, callers=1, synchronous="NORMAL"),
            ),
            Contestant(
                "bullpen",
                BULLPEN,
                f"{OURS_NORMAL}: task.enqueue(x)",
                enqueueing.one_caller(enqueueing.ours_normal, "NORMAL"),
            ),
        ),
    ),
    Work(
        "enqueue-threads",
        f"{{singles:,}} tasks one by one by each of {CALLERS} threads; the reference is one caller",
        THROUGHPUT,
        (
            _ONE_COMMIT_EACH,
            Contestant("huey", HUEY, f"{_HUEY}: task(x)", enqueueing.many_threads(enqueueing.huey(None))),
            _floor("one thread commits for all that wait", enqueueing.many_threads(floors.of_threads)),
            _ours("bullpen", "task.enqueue(x)", enqueueing.many_threads(enqueueing.ours)),
        ),
    ),
    Work(
        "enqueue-coroutines",
        f"{{singles:,}} tasks one by one by each of {CALLERS} coroutines; the reference is one caller",
        THROUGHPUT,
        (
            _ONE_COMMIT_EACH,
            _floor("one thread commits for all that wait", enqueueing.many_coroutines(floors.of_coroutines)),
            _floor("the same on uvloop", enqueueing.many_coroutines(floors.of_coroutines, uvloop), ", uvloop"),
            _ours("bullpen", "await task.aenqueue(x)", enqueueing.many_coroutines(enqueueing.ours_async)),
            _ours(
                "bullpen, uvloop",
                "await task.aenqueue(x), on uvloop",
                enqueueing.many_coroutines(enqueueing.ours_async, uvloop),
            ),
        ),
    ),
    Work(
        "enqueue-bulk",
        "{bulk:,} tasks at once, in one transaction",
        THROUGHPUT,
        (
            _raw("executemany of rows that are ready", enqueueing.at_once(enqueueing.plain_bulk)),
            Contestant("taskito", TASKITO, f"{_TASKITO}: task.map(calls)", enqueueing.at_once(enqueueing.taskito_bulk)),
            _ours("bullpen", "task.enqueue_many(calls)", enqueueing.at_once(enqueueing.ours_bulk)),
        ),
    ),
    Work(
        "drain",
        "{drained:,} tasks wait, one worker process starts; peers are timed with the first {timed:,}",
        THROUGHPUT,
        (
            Contestant("huey", HUEY, f"{_HUEY}; results kept; 1 worker thread, its default", draining.huey(None)),
            Contestant(
                "huey, fastest",
                HUEY,
                f"{_HUEY_OFF}; results kept; 1 worker thread, polls every ms",
                draining.huey(False, **_EVERY_MS),
            ),
            Contestant("litequeue", LITEQUEUE, f"{_LITEQUEUE}; no results: pop, done", draining.litequeue),
            Contestant("persist-queue", PERSIST_QUEUE, f"{_PERSIST}; no results: get, ack", draining.persist_queue),
            Contestant("taskito", TASKITO, f"{_TASKITO}; results kept; threads", draining.taskito()),
            Contestant(
                "taskito, in batches",
                TASKITO,
                f"{_TASKITO}; results kept; scheduler_batch_size={BATCH}, polls every ms",
                draining.taskito(scheduler_batch_size=BATCH, scheduler_poll_interval_ms=1),
            ),
            _ours(
                "bullpen, def", f"results kept; concurrency={CONCURRENCY}, on threads", draining.ours(is_async=False)
            ),
            _ours("bullpen, async def", f"results kept; concurrency={CONCURRENCY}", draining.ours()),
        ),
    ),
    Work(
        "drain-def",
        "{drained:,} tasks of a plain function wait, one worker process starts; huey is timed with the first {timed:,}",
        THROUGHPUT,
        (
            Contestant(
                "huey",
                HUEY,
                f"{_HUEY}; results kept; 1 worker thread, polls every ms",
                draining.huey(None, **_EVERY_MS),
            ),
            Contestant(
                f"huey, {FEW} threads",
                HUEY,
                f"{_HUEY}; results kept; {FEW} worker threads, polls every ms",
                draining.huey(None, workers=FEW, **_EVERY_MS),
            ),
            _ours(
                "bullpen, def",
                f"results kept; concurrency={FEW}, the default",
                draining.ours(is_async=False, concurrency=FEW),
            ),
        ),
    ),
    Work(
        "drain-def-no-fsync",
        "the same without waiting for the disk at a commit, on both sides, and all tasks timed",
        THROUGHPUT,
        (
            Contestant(
                "huey",
                HUEY,
                f"{_HUEY_OFF}; results kept; 1 worker thread, polls every ms",
                draining.huey(False, all_timed=True, **_EVERY_MS),
            ),
            Contestant(
                "floor, the store alone",
                BULLPEN,
                f"{OURS_NORMAL}: a bare loop settles and claims {FEW} at a time, one thread calls the functions",
                draining.store_alone(FEW),
            ),
            Contestant(
                "bullpen, def",
                BULLPEN,
                f"{OURS_NORMAL}: results kept; concurrency={FEW}, the default",
                draining.ours(is_async=False, url=in_file_normal, concurrency=FEW),
            ),
        ),
    ),
    Work(
        "def-or-async",
        f"{{drained:,}} tasks: a plain function beside an async function, concurrency={FEW}, the default",
        THROUGHPUT,
        (
            _ours("bullpen, async def", f"results kept; concurrency={FEW}", draining.ours(concurrency=FEW)),
            _ours("bullpen, def", f"results kept; concurrency={FEW}", draining.ours(is_async=False, concurrency=FEW)),
        ),
    ),
    Work(
        "drain-floor",
        f"the same in plain SQL, settling and claiming {BATCH} at a time in one transaction, and running nothing",
        THROUGHPUT,
        (
            _raw(f"settle with a result and claim, {BATCH} per transaction", draining.floor),
            _ours("bullpen, async def", f"results kept; concurrency={CONCURRENCY}", draining.ours()),
        ),
    ),
    Work(
        "latency",
        "{calls:,} tasks one at a time, from enqueue to the result in hand; an idle worker in the same process",
        LATENCY,
        (
            _raw("one INSERT, one commit; no worker, no result", waiting.of_calls(waiting.commit)),
            Contestant(
                "huey",
                HUEY,
                f"{_HUEY}; polls as by default: task(x).get(blocking=True)",
                waiting.of_calls(waiting.huey(None, remote=False, backoff={})),
            ),
            Contestant(
                "huey, fastest",
                HUEY,
                f"{_HUEY_OFF}; worker and caller poll every ms",
                waiting.of_calls(waiting.huey(False, remote=False, backoff=_LOOK_OFTEN, **_EVERY_MS)),
            ),
            _ours("bullpen, threads", "task.enqueue(x).result() beside a WorkerPool", waiting.of_calls(waiting.ours)),
            _ours("bullpen, asyncio", "aenqueue and aresult on the loop of an AsyncWorkerPool", waiting.ours_async()),
            _ours("bullpen, uvloop", "the same on uvloop", waiting.ours_async(uvloop)),
        ),
    ),
    Work(
        "latency-remote",
        "the same with the worker in another process",
        LATENCY,
        (
            _raw("one INSERT, one commit; no worker, no result", waiting.of_calls(waiting.commit)),
            Contestant(
                "huey",
                HUEY,
                f"{_HUEY}; polls as by default: task(x).get(blocking=True)",
                waiting.of_calls(waiting.huey(None, remote=True, backoff={})),
            ),
            Contestant(
                "huey, fastest",
                HUEY,
                f"{_HUEY_OFF}; worker and caller poll every ms",
                waiting.of_calls(waiting.huey(False, remote=True, backoff=_LOOK_OFTEN, **_EVERY_MS)),
            ),
            _ours("bullpen, asyncio", "await (await task.aenqueue(x)).aresult()", waiting.ours_async_remote),
            _ours("bullpen, threads", "task.enqueue(x).result()", waiting.of_calls(waiting.ours_remote)),
        ),
    ),
    *(
        Work(
            name,
            f"{{calls:,}} tasks one at a time, from enqueue to the start of the function, synchronous={synchronous}; "
            "an idle worker in another process",
            LATENCY,
            (
                Contestant(
                    "litequeue",
                    LITEQUEUE,
                    f"{settings}; a loop that polls every ms, no results",
                    beginning.until_it_runs(
                        beginning.litequeue(full=synchronous == "FULL"),
                        "litequeue",
                        full=synchronous == "FULL",
                    ),
                ),
                *more,
                Contestant(
                    "plain SQL, a datagram, a claim",
                    PLAIN,
                    f"sqlite3, WAL, synchronous={synchronous}: commit, wake a bare loop that claims, and nothing else",
                    beginning.until_it_runs(beginning.plain(synchronous), "plain SQL"),
                ),
                *(
                    Contestant(
                        label,
                        BULLPEN,
                        f"synchronous={synchronous}: task.enqueue(x), {words}",
                        beginning.until_it_runs(
                            beginning.ours(normal=synchronous == "NORMAL"),
                            "bullpen",
                            normal=synchronous == "NORMAL",
                            is_async=is_async,
                        ),
                    )
                    for label, words, is_async in (
                        ("bullpen, def", "a plain function", False),
                        ("bullpen", "an async function", True),
                    )
                ),
            ),
        )
        for name, synchronous, settings, more in (
            (
                "start",
                "FULL",
                _LITEQUEUE_FULL,
                (
                    Contestant(
                        "huey",
                        HUEY,
                        f"{_HUEY}; 1 worker thread, polls every ms",
                        beginning.until_it_runs(beginning.huey, "huey", fsync=None, **_EVERY_MS),
                    ),
                ),
            ),
            ("start-normal", "NORMAL", _LITEQUEUE, ()),
        )
    ),
    Work(
        "worker-start",
        "a task waits, a worker starts by its command: until the task begins",
        starting.metric("the first task"),
        (
            Contestant(
                "huey",
                HUEY,
                f"{_HUEY}; huey_consumer, all else as by default",
                starting.worker(
                    "huey_app", starting.sqlite_place, "-m", "huey.bin.huey_consumer", "benchmarks.apps.huey_app.huey"
                ),
            ),
            Contestant(
                "imports alone",
                PLAIN,
                "python -c 'import asyncio, msgspec, sqlite3'",
                starting.imports("asyncio", "msgspec", "sqlite3"),
            ),
            _ours(
                "bullpen",
                "bullpen worker, all else as by default",
                starting.worker(
                    "bullpen_app", starting.sqlite_place, "-m", "bullpen", "worker", "benchmarks.apps.bullpen_app:queue"
                ),
            ),
        ),
    ),
    Work(
        "idle",
        "the CPU time of a worker process that has nothing to do for {idle:g} s",
        (Metric(idling.CPU, "CPU time", "% of a core", "lower"),),
        (
            Contestant("huey", HUEY, f"{_HUEY}; polls as by default", idling.huey),
            _ours("bullpen", f"AsyncWorkerPool(concurrency={CONCURRENCY})", idling.ours),
        ),
    ),
    Work(
        "backlog",
        f"{{claims:,}} claims of {claiming.BATCH}: the cost of one must not grow with the number of waiting tasks",
        (Metric(claiming.COST, "cost of a claim, median", "µs", "lower"),),
        tuple(
            Contestant(
                f"bullpen, {words}",
                BULLPEN,
                "SqliteStorage(synchronous='normal').exchange: without the disk, which would hide what grows",
                claiming.cost(field),
            )
            for field, words in (("few", "few wait"), ("many", "many wait"))
        ),
    ),
    Work(
        "memory-drain",
        "{in_memory:,} tasks, results kept in memory; the reference has no queue at all",
        THROUGHPUT,
        (
            Contestant(
                "asyncio tasks, one by one",
                ASYNCIO,
                "await loop.create_task(f(x)) in a loop",
                draining.tasks_one_by_one,
            ),
            Contestant("asyncio tasks, gathered", ASYNCIO, f"gather, {CONCURRENCY} at a time", draining.tasks_gathered),
            Contestant("bullpen", BULLPEN, f"memory://, concurrency={CONCURRENCY}", draining.ours_in_memory),
        ),
    ),
)

TASKS = Suite(
    name="tasks",
    title="bullpen.TaskQueue beside other queues on SQLite, and plain SQL",
    higher="Throughput × the first of each group",
    lower="Time × the first of each group",
    works=WORKS,
    bars=BARS,
    full=FULL,
    quick=QUICK,
    settings=shared_settings,
)

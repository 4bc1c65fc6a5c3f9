"""The works of this suite as tables: the measurements, their contestants, and the bars for Bullpen."""

from __future__ import annotations

from benchmarks.metrics import LATENCY, P50, RATE, THROUGHPUT
from benchmarks.model import Bar, Contestant, Metric, Suite, Work
from benchmarks.servers.works import BULLPEN

from . import parked, saving
from .ours import Ours, OursPlain
from .peers import ABSURD, DBOS, Absurd, Dbos, DbosOnWal
from .running import ten_steps
from .settings import CONCURRENCY, FULL, PLACES, QUICK, STEPS, steps_settings

_OURS = f"concurrency={CONCURRENCY}, uvloop as its command has it with pybullpen[uvloop], results kept"
_DURABLE = {
    "sqlite": "WAL, synchronous=FULL",
    "sqlite-normal": "WAL, synchronous=NORMAL",
    "postgres": "synchronous_commit as the server has it",
    "redis": "appendonly as the server has it",
}
_DBOS = f"{Dbos.concurrency} threads, sys_db_pool_size={Dbos.pool}, polling_interval_sec=0.01, plain functions"
_PEERS = {
    "sqlite": (
        Contestant(
            "dbos",
            DBOS,
            f"{_DBOS}; rollback journal, synchronous=FULL (its defaults)",
            ten_steps(Dbos, PLACES["sqlite"], is_slow=True),
        ),
        Contestant(
            "dbos, WAL",
            DBOS,
            f"{_DBOS}; the file set to WAL by hand, synchronous=FULL",
            ten_steps(DbosOnWal, PLACES["sqlite"], is_slow=True),
        ),
    ),
    "postgres": (
        Contestant("dbos", DBOS, f"{_DBOS}; psycopg", ten_steps(Dbos, PLACES["postgres"], is_slow=True)),
        Contestant(
            "absurd",
            ABSURD,
            f"AsyncAbsurd, concurrency={Absurd.concurrency}, batch_size={Absurd.concurrency}, poll_interval=0.01, "
            "uvloop; psycopg, one connection",
            ten_steps(Absurd, PLACES["postgres"], is_slow=True),
        ),
    ),
}


def _ours(label: str, settings: str, measure: object) -> Contestant:
    return Contestant(label, BULLPEN, settings, measure)  # type: ignore[arg-type]


def _ten_steps(store: str) -> Work:
    place = PLACES[store]
    return Work(
        f"ten-steps-{store}",
        f"{{tasks:,}} tasks of {STEPS} no-op steps wait (for the others {{slow:,}}), one worker process starts",
        THROUGHPUT,
        (
            *_PEERS.get(store, ()),
            _ours("bullpen, def", f"{_OURS}, plain functions; {_DURABLE[store]}", ten_steps(OursPlain, place)),
            _ours("bullpen", f"{_OURS}; {_DURABLE[store]}", ten_steps(Ours, place)),
        ),
        reference="best" if store in _PEERS else "first",
    )


def _one_step(store: str) -> Work:
    place = PLACES[store]
    return Work(
        f"one-step-{store}",
        "one `await task.astep(noop, x)` beside one `await task.aenqueue(x)` in the same function, one at a time",
        (Metric(saving.TIME, "time of one", "µs", "lower"),),
        (
            _ours("aenqueue", _DURABLE[store], saving.one_enqueue(place)),
            _ours("bullpen", f"astep; {_DURABLE[store]}", saving.one_step(place)),
        ),
    )


def _idle(store: str) -> Work:
    return Work(
        f"idle-{store}",
        "the CPU time of a worker that has nothing to do for {idle:g} s, beside {parked:,} tasks that wait or sleep",
        (Metric(parked.CPU, "CPU time", "% of a core", "lower"),),
        tuple(
            _ours(label, f"{_OURS}; {_DURABLE[store]}", parked.idle(PLACES[store], park))
            for label, park in (
                ("bullpen, empty queue", parked.none),
                ("bullpen, asleep", parked.sleeping),
                ("bullpen", parked.waiting),
            )
        ),
    )


def _wake(store: str) -> Work:
    return Work(
        f"wake-{store}",
        "{calls:,} tasks one at a time, until the function goes on: from `aemit`, and from the end of a sleep; beside "
        "them from `aenqueue` to the start of the function",
        LATENCY,
        (
            _ours("bullpen, enqueue", f"{_OURS}; {_DURABLE[store]}", parked.started(PLACES[store])),
            *(
                _ours(label, f"{_OURS}; {_DURABLE[store]}", parked.woken(PLACES[store], call))
                for label, call in (("bullpen, end of a sleep", parked.by_its_end), ("bullpen", parked.by_event))
            ),
        ),
    )


_BESIDE_DBOS = ("dbos", "dbos, WAL")

STEPS_SUITE = Suite(
    name="steps",
    title="Durable steps of bullpen.TaskQueue beside DBOS and Absurd",
    higher="Throughput × the best peer",
    lower="Time × the first of each group",
    works=(
        *map(_ten_steps, PLACES),
        *map(_one_step, PLACES),
        *map(_idle, PLACES),
        *map(_wake, PLACES),
    ),
    bars=(
        Bar("ten-steps-sqlite", RATE, 3.0, beside=_BESIDE_DBOS),
        Bar("ten-steps-postgres", RATE, 3.0, beside=("dbos",)),
        Bar("ten-steps-postgres", RATE, 2.0, beside=("absurd",)),
        *(Bar(f"one-step-{store}", saving.TIME, 1.2) for store in PLACES),
        *(
            bar
            for store in PLACES
            for bar in (
                Bar(f"wake-{store}", P50, 1.5),
                Bar(f"wake-{store}", P50, 1.5, judges="bullpen, end of a sleep"),
            )
        ),
    ),
    full=FULL,
    quick=QUICK,
    settings=steps_settings,
)

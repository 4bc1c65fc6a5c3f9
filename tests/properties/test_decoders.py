"""Whatever bytes and texts come from outside, a decoder answers, or raises an error that is documented."""

from __future__ import annotations

import math
import os
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from bullpen.cli.diagnosis import Look, diagnose
from bullpen.cli.main import COMMANDS, main
from bullpen.errors import BullpenError
from bullpen.tasks.client.why import Surroundings, explain
from bullpen.tasks.model import task as moves
from bullpen.tasks.model.info import info_of, schedule_info_of
from bullpen.tasks.model.links import followed
from bullpen.tasks.model.retry import Backoff
from bullpen.tasks.model.schedule import Schedule
from bullpen.tasks.model.schedule_changes import paused, resumed, run_now, starts_others
from bullpen.tasks.model.store_move import mark_of, marked, unmarked
from bullpen.tasks.model.task import FORMAT, RUNNING, AttemptError, DependsOn, Progress, Task
from bullpen.tasks.model.unique import has_key
from bullpen.tasks.model.unreadable import moved
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import WorkerRecord, readable_workers
from bullpen.tasks.storage.postgres import rows as postgres
from bullpen.tasks.storage.redis import rows as redis
from bullpen.tasks.storage.sqlite import rows as sqlite
from bullpen.tasks.storage.sqlite import wakeups
from bullpen.tasks.storage.sqlite.store import SqliteStorage

NOW = 1_790_000_000.0

SAMPLE = Task(
    id="id",
    func_path="app.send",
    payload=b"[]",
    interval=5.0,
    schedule=Schedule(key="k", cron="* * * * *"),
    backoff=Backoff(base=2.0),
    timeout=3.0,
    expires=NOW + 9,
    unique_key="u",
    concurrency_key="c",
    headers={"a": "b"},
    next_task_id="next",
    depends_on=DependsOn(ids=("before",)),
    attempt=1,
    scheduled_at=NOW,
    progress=Progress(1.0),
    errors=(AttemptError(kind="timeout", attempt=1, at=NOW),),
    eta=NOW,
    created_at=NOW,
)

# Values as they may stand in a column, also of another type.
PACKED = st.binary(max_size=20) | st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
).map(msgspec.msgpack.encode)
WRITTEN = st.text(max_size=20) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["kind", "at", "ids", "base", "cron", "attempt", "done"]), inner, max_size=5)
    ),
    max_leaves=12,
).map(lambda value: msgspec.json.encode(value).decode())
TEXT = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["pending", "running", "failed", "default", "json", ""]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.sampled_from([0, 1, 5, NOW, -1.0, math.nan, math.inf])
ANYTHING = st.none() | TEXT | NUMBERS | PACKED


def use(task: Task) -> None:
    """What workers, operators and upkeep do with a task that they have read."""
    error = AttemptError(kind="crash", attempt=task.attempt, at=NOW, message="m")
    msgspec.json.encode(info_of(task))
    schedule_info_of(task, NOW)
    str(explain(task, Surroundings(now=NOW)))
    diagnose(Look(now=NOW, oldest={task.queue: [task]}, running=[task]))
    running = msgspec.structs.replace(task, status=RUNNING, started_at=NOW)
    settlements = [
        moves.set_aside(running, error, 0.5),
        moves.crash(running, error),
        moves.fail(running, error, 0.5),
        moves.release(running),
        moves.succeed(running, b"1", now=NOW),
        moves.cancel(running),
    ]
    for settlement in settlements:
        info_of(moves.settled(running, settlement, NOW))
    for move in (moves.cancelled_by_operator, moves.redriven, moves.expired, paused, resumed, run_now):
        moved(task, move, NOW)
    followed(task, running, NOW)
    starts_others(task)
    has_key(task, NOW)
    mark_of(task)
    unmarked(marked(task, "there", NOW) or task)
    assert task.unreadable or task.format <= FORMAT


SQLITE_ROW = list(sqlite.row_of(SAMPLE, 0.0)[:-1])
SQLITE_NAMES = sqlite.COLUMNS.split(", ")


@given(st.dictionaries(st.sampled_from(SQLITE_NAMES), ANYTHING, min_size=1, max_size=4))
def test_a_row_of_sqlite(changes: dict[str, Any]) -> None:
    row = [changes.get(name, value) for name, value in zip(SQLITE_NAMES, SQLITE_ROW, strict=True)]
    use(sqlite.task_of(tuple(row), 1000.0))


POSTGRES_ROW = {
    **dict(zip(postgres.NEW, postgres.new_row(SAMPLE), strict=True)),
    **dict(zip(postgres.CHANGING, postgres.changed_row(SAMPLE), strict=False)),
    "attempt": 1,
    "completed_runs": 0,
    "created_at": NOW,
    "format": 1,
}
OF_KIND = {
    "text": TEXT | WRITTEN,
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "float8": st.floats(),
    "boolean": st.booleans(),
    "bytea": st.binary(max_size=9),
    "text[]": st.lists(st.none() | WRITTEN, max_size=3) | st.lists(st.lists(TEXT, max_size=2), max_size=2),
}


@given(st.data(), st.lists(st.sampled_from(list(postgres.READ)), min_size=1, max_size=4))
def test_a_row_of_postgresql(data: st.DataObject, names: list[str]) -> None:
    row = {name: POSTGRES_ROW.get(name) for name in postgres.READ}
    for name in names:
        row[name] = data.draw(st.none() | OF_KIND[postgres.READ[name]])
    row["format"] = row["format"] or 1  # no column that may be NULL
    use(postgres.task_of(row.values()))
    sound, damaged = (tuple(one.get(name) for name in postgres.CLAIMED) for one in (POSTGRES_ROW | {"format": 1}, row))
    set_by_claim = {"status": RUNNING, "worker": "w", "claim_id": "c", "started_at": NOW, "lease_until": NOW + 5}
    together = postgres.claimed_tasks([sound, damaged, sound], **set_by_claim)
    assert together == [postgres.claimed_tasks([one], **set_by_claim)[0] for one in (sound, damaged, sound)]
    for task in together:
        use(task)


@given(
    st.just(redis.state_of(SAMPLE)) | PACKED | st.lists(ANYTHING, max_size=40).map(redis.pack),
    st.just(redis.body_of(SAMPLE)) | PACKED | st.lists(ANYTHING, max_size=14).map(redis.pack),
    st.none() | st.binary(max_size=9),
    st.none() | PACKED,
    st.binary(min_size=1, max_size=9),
)
@example(state=b"\xc1", body=b"", result=None, depends_on=None, task_id=b"\xff")
def test_a_row_of_redis(
    state: bytes, body: bytes, result: bytes | None, depends_on: bytes | None, task_id: bytes
) -> None:
    use(redis.task_of("default", NOW, task_id, state, body, result, depends_on))


@given(st.data(), st.sampled_from(redis.TaskState.__struct_fields__))
def test_a_row_of_redis_with_a_damaged_field(data: st.DataObject, field: str) -> None:
    values = msgspec.msgpack.decode(redis.state_of(SAMPLE))
    values[redis.TaskState.__struct_fields__.index(field)] = data.draw(ANYTHING)
    use(redis.task_of("default", None, b"id", redis.pack(values), redis.body_of(SAMPLE), None, None))


@given(st.lists(PACKED | st.just(b""), max_size=5), st.lists(WRITTEN, max_size=5))
def test_records_of_workers(packed: list[bytes], written: list[str]) -> None:
    record = WorkerRecord(
        id="w", host="h", pid=1, boot_id="b", process_started=1.0, queues=("q",), concurrency=1, seen_at=NOW
    )
    decode = msgspec.msgpack.Decoder(WorkerRecord).decode
    assert record in readable_workers([(one,) for one in [*packed, msgspec.msgpack.encode(record)]], decode)
    readable_workers([(one,) for one in written], msgspec.json.Decoder(WorkerRecord).decode)


@given(PACKED | st.binary(max_size=200))
@example(msgspec.msgpack.encode([["a"], None]))
@example(b"\x92\x91\xa1\xff\xc0")
@example(b"\x91" * 5000)
def test_a_datagram_of_a_waker(datagram: bytes) -> None:
    wakeups.decoded(datagram)


SCHEMES = st.sampled_from(["sqlite:///", "sqlite://", "memory://", "postgresql://", "redis://", "redis+cluster://", ""])
ADDRESS_TEXT = st.text(st.characters(exclude_categories=()), max_size=20) | st.text(
    "/:@?&=#[]%0123456789.,abc", max_size=20
)


@given(SCHEMES, ADDRESS_TEXT)
@example("sqlite:///", "\udc80.db")
@example("postgresql://", "h\ud800/d?schema=\udfff")
@example("redis://", "\udfff:1/0?prefix=\ud800")
@example("redis://", "[")
@example("sqlite://", "[")
@example("redis://", "h?x=\ud800")
@example("sqlite:///", "\ud800.db")
@example("sqlite:///", "a.db?busy_timeout=\ud800")
def test_an_address(scheme: str, rest: str) -> None:
    try:
        storage = open_storage(scheme + rest)
    except BullpenError as error:
        str(error).encode()
        return
    storage.another()
    if isinstance(storage, SqliteStorage):
        os.fsencode(storage.path)


WORDS = st.sampled_from(
    [*COMMANDS, "list", "show", "--url", "--json", "--limit", "--status", "--older-than", "--all", "--app", "-h", "--"]
) | st.text(st.characters(exclude_categories=()), max_size=10)


@given(st.lists(WORDS, min_size=1, max_size=5))
@example(["tasks", "show", "\udc80"])
@example(["tasks", "list", "--older-than", "nan"])
@example(["tasks", "list", "--older-than", "9" * 400])
@example(["tasks", "list", "--limit", "9" * 5000])
@example(["enqueue", "--url", "memory://", "\ud800"])
def test_a_command_line(words: list[str]) -> None:
    """Without a store there is nothing to change, and `worker`, `demo` and `top` need one."""
    if {"demo", "bench", "completion", "worker", "top"} & set(words):
        return
    terminal = TextIOWrapper(BytesIO(), "utf-8")  # which takes no lone surrogates
    with redirect_stdout(terminal), redirect_stderr(StringIO()) as said:
        try:
            code = main([*words])
        except SystemExit as end:
            code = int(end.code or 0) if not isinstance(end.code, str) else 1
    assert "Traceback" not in said.getvalue()
    assert 0 <= code < 200

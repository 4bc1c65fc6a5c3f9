"""Rows that another program has damaged, or a newer version has written: a worker, the client and the command line."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

import asyncpg
import msgspec
import pytest
import redis

from bullpen import TaskFailed, TaskQueue, TaskStatus, UnreadableTask, WorkerPool
from bullpen.cli.command import ExitCode
from bullpen.cli.main import main
from bullpen.tasks.storage.redis.rows import TaskState
from tests.postgres import run
from tests.scenarios.cli_stores import Desk, desk_at, mail
from tests.stores import KINDS, new_store


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with new_store(request.param, tmp_path, request) as url, desk_at(url, capsys) as desk:
        yield desk


def damage(url: str, task_id: str, *, newer: bool = False) -> None:
    place = urlsplit(url)
    words = {name: values[0] for name, values in parse_qs(place.query).items()}
    if place.scheme == "sqlite":
        with closing(sqlite3.connect(place.path)) as db, db:
            column = "format = 2" if newer else "headers = x'c1'"
            assert db.execute(f"UPDATE bullpen_task SET {column} WHERE id = ?", (task_id,)).rowcount == 1
    elif place.scheme == "postgresql":
        asyncio.run(_damage_postgres(url.partition("?")[0], words["schema"], task_id, newer=newer))
    else:
        with redis.Redis.from_url(url.partition("?")[0]) as client:
            tag = f"{{{words['prefix']}:default}}"
            if newer:
                state = msgspec.msgpack.decode(client.hget(f"{tag}:state", task_id))
                state[TaskState.__struct_fields__.index("format")] = 2
                client.hset(f"{tag}:state", task_id, msgspec.msgpack.encode(state))
            else:
                client.hset(f"{tag}:body", task_id, b"\xc1")


async def _damage_postgres(url: str, schema: str, task_id: str, *, newer: bool) -> None:
    connection = await asyncpg.connect(url)
    column = "format = 2" if newer else "headers = '['"
    await connection.execute(f"UPDATE {schema}.task SET {column} WHERE id = $1", task_id)
    await connection.close()


def damage_limit(url: str) -> None:
    """Of the queue `mail`."""
    server, words = url.partition("?")[0], dict(parse_qsl(urlsplit(url).query))
    if "schema" in words:
        statement = f"UPDATE {words['schema']}.queue SET rate = 'NaN' WHERE name = 'mail'"
        run(server, lambda connection: connection.execute(statement))
    elif "prefix" in words:
        with redis.Redis.from_url(server) as client:
            client.hset(f"{{{words['prefix']}:mail}}:limits", "max_running", "many")
    else:
        with closing(sqlite3.connect(urlsplit(url).path)) as db, db:
            assert db.execute("UPDATE bullpen_limit SET terms = x'c1'").rowcount == 1


def test_a_worker_sets_a_damaged_row_aside_and_runs_the_others(desk: Desk) -> None:
    before, bad, after = (desk.add.enqueue(number) for number in range(3))
    damage(desk.url, bad.id)
    assert bad.why().causes[0].kind == "unreadable"
    desk.work(before, bad, after)
    assert (before.result(), after.result()) == (1, 3)
    with pytest.raises(TaskFailed, match="cannot be read"):
        bad.result(timeout=1)
    assert bad.info().unreadable
    (error,) = bad.info().errors
    assert error.kind == "poison"
    assert "cannot be read" in str(bad.why())


def test_a_worker_releases_a_row_of_a_newer_version_and_runs_the_others(desk: Desk) -> None:
    newer = desk.add.enqueue(1)
    damage(desk.url, newer.id, newer=True)
    with WorkerPool(desk.queue, poll_interval=0.05):
        assert desk.add.enqueue(1).result(timeout=20) == 2
        while newer.info().attempt == 0 or newer.status is TaskStatus.RUNNING:
            time.sleep(0.01)
        assert newer.info().status is not TaskStatus.FAILED
    assert (newer.status, newer.info().errors) == (TaskStatus.PENDING, ())
    (cause, *_) = newer.why().causes
    assert (cause.kind, cause.data["newer"]) == ("unreadable", True)
    assert "format 2" in cause.message


def test_a_limit_that_cannot_be_read_is_shown_and_can_be_set_again(desk: Desk) -> None:
    desk.queue.set_limit("mail", max_running=2)
    damage_limit(desk.url)
    waiting, other = desk.mail.enqueue("a@example.org"), desk.add.enqueue(1)
    desk.work(other)
    assert (other.result(), waiting.status) == (2, TaskStatus.PENDING)
    assert "cannot be read" in str(waiting.why())
    assert "cannot be read" in desk.tell("queues", "list")
    assert "cannot be read" in desk.tell("status")
    findings = desk.json("doctor", code=1)["findings"]
    assert "unreadable_limit" in {one["kind"] for one in findings}
    desk.tell("queues", "limit", "mail", "--max-running", "3")
    desk.work(waiting)
    assert waiting.status is TaskStatus.SUCCESS


def test_it_is_not_retried_and_the_error_says_why(desk: Desk) -> None:
    bad, good = desk.fail.enqueue("bad"), desk.fail.enqueue("good")
    damage(desk.url, bad.id)
    desk.work(bad, good)
    with pytest.raises(UnreadableTask, match=r"cannot be read.*repair the row") as raised:
        bad.retry()
    assert raised.value.task == bad.id
    with pytest.raises(UnreadableTask):
        desk.queue.retry(bad.id, good.id)
    assert good.status is TaskStatus.PENDING
    desk.work(good)
    assert desk.queue.retry_all() == 1


def test_the_command_line_lists_shows_cancels_and_purges_it(desk: Desk) -> None:
    bad, other = desk.add.enqueue(1), desk.add.enqueue(2)
    damage(desk.url, bad.id)
    assert "unreadable" in desk.tell("tasks", "list")
    assert desk.json("tasks", "list")["tasks"][0]["unreadable"]
    assert "cannot be read" in desk.tell("tasks", "show", bad.id)
    assert "cannot be read" in desk.tell("why", bad.id)
    findings = desk.json("doctor", code=1)["findings"]
    assert "unreadable_tasks" in {one["kind"] for one in findings}
    assert desk.tell("status")
    assert "2 of 2" in desk.tell("tasks", "cancel", bad.id, other.id)
    code, _, err = desk.run("tasks", "retry", bad.id)
    assert code != 0
    assert "cannot be read" in err
    assert "1 of 2 will run again; the others" in desk.tell("tasks", "retry", "--status", "cancelled", "--yes")
    desk.tell("tasks", "cancel", other.id)
    assert "2 of 2" in desk.tell("tasks", "purge", "--all", "--yes")
    assert desk.json("tasks", "list")["tasks"] == []


def test_a_move_leaves_it_and_takes_the_others(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, other = desk.add.enqueue(1), desk.add.enqueue(2)
    damage(desk.url, bad.id)
    to = f"sqlite:///{tmp_path}/there.db"
    main(["move", desk.url, to])
    shown = capsys.readouterr()
    assert "cannot be read" in shown.out + shown.err
    assert [task["id"] for task in desk.json("tasks", "list")["tasks"]] == [bad.id]
    with desk_at(to, capsys) as there:
        assert [task["id"] for task in there.json("tasks", "list")["tasks"]] == [other.id]


def test_a_declared_schedule_comes_back_after_its_row_was_set_aside(desk: Desk) -> None:
    desk.queue.task(interval=3600, name="app.every")(dict)
    with WorkerPool(desk.queue, poll_interval=0.05):
        pass
    (one,) = desk.queue.schedules.list()
    desk.queue.schedules.run(one.key)
    damage(desk.url, one.id)
    job = desk.queue.job(one.id)
    desk.work(job)
    assert job.status is TaskStatus.FAILED
    with WorkerPool(desk.queue, poll_interval=0.05):
        pass
    assert job.info().unreadable == ""


def test_a_payload_above_the_limit_is_not_decoded(desk: Desk) -> None:
    """Another program has written it: `enqueue` rejects such arguments."""
    with TaskQueue(desk.url, max_payload=10_000_000) as generous:
        job = generous.task(mail).enqueue("x" * 300_000)
    with WorkerPool(desk.queue, poll_interval=0.05), pytest.raises(TaskFailed):
        desk.queue.job(job.id).result(timeout=20)
    (error,) = desk.queue.job(job.id).info().errors
    assert error.kind == "poison"
    assert "max_payload is 262144" in error.message


def test_text_that_no_store_can_keep_names_no_task(desk: Desk) -> None:
    """As the command line gives it, from bytes that are no UTF-8."""
    desk.add.enqueue(1)
    half = "\udc80"
    for words in (["tasks", "show", half], ["why", half], ["tasks", "cancel", half], ["tasks", "purge", half]):
        assert desk.run(*words)[0] == ExitCode.NOT_FOUND, words
    for option in ("--function", "--worker"):
        assert desk.json("tasks", "list", option, half)["tasks"] == []
    assert desk.run("tasks", "list", "--after", half)[0] == ExitCode.OK
    assert desk.run("tasks", "list", "--queue", half)[0] == ExitCode.USAGE
    assert desk.run("schedules", "pause", half)[0] == ExitCode.NOT_FOUND

"""`bullpen doctor`, `check`, `migrate` on real stores of every kind."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bullpen import TaskQueue, WorkerPool
from bullpen.cli.commands import bench
from bullpen.cli.main import main
from bullpen.tasks.storage.open import open_storage
from bullpen.tasks.storage.port import SupportsHealthChecks, SupportsMigrations
from bullpen.tasks.storage.postgres import schema as postgres_schema
from bullpen.tasks.storage.sqlite import schema as sqlite_schema
from tests.postgres import run as run_sql
from tests.scenarios.cli_stores import Desk, desk_at
from tests.scenarios.cli_support import Folder
from tests.stores import KINDS, new_store

Run = Any


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with new_store(request.param, tmp_path, request) as url, desk_at(url, capsys) as desk:
        yield desk


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


# Doctor.


def test_the_doctor_sees_what_holds_a_queue_up(desk: Desk) -> None:
    def kinds(code: int) -> set[str]:
        return {one["kind"] for one in desk.json("doctor", code=code)["findings"]} - settings

    desk.queue.counts()  # makes it
    settings = {one["kind"] for one in json.loads(desk.run("doctor", "--json")[1])["findings"]}
    code = int(any(one["level"] == "problem" for one in json.loads(desk.run("doctor", "--json")[1])["findings"]))
    assert settings <= {"synchronous", "persistence", "autovacuum", "fsync", "synchronous_commit"}
    job = desk.mail.enqueue("ada")
    assert kinds(1) == {"no_workers"}
    code_found, out, _ = desk.run("doctor")
    assert code_found == 1
    assert "✕ 1 task is pending, and no worker is up\n  start one: `bullpen worker APP`" in out
    desk.queue.pause("mail")
    assert kinds(code) == {"paused_queue"}
    desk.queue.resume("mail")
    with WorkerPool(desk.queue, lanes="other:1", poll_interval=0.05):
        assert kinds(1) == {"unserved_queue"}
    with WorkerPool(desk.queue, poll_interval=0.05):
        job.result(timeout=20)
        assert kinds(code) == set()


def test_nothing_wrong_is_said_too_and_a_warning_is_strict(tmp_path: Path, run: Run) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with TaskQueue(url) as queue:
        queue.counts()
        code, out, _ = run("doctor", "--url", url)
        assert (code, "✓ no problems found" in out) == (0, True)
        (tmp_path / "jobs.db").chmod(0o644)
        assert run("doctor", "--url", url)[0] == 0
        code, out, _ = run("doctor", "--strict", "--url", url)
        assert (code, f"chmod 600 {tmp_path}/jobs.db" in out) == (1, True)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("redis://127.0.0.1:1/0", "check the address, the server"),
        ("postgresql://postgres@127.0.0.1:1/test", "check the address, the server"),
        ("sqlite:///{folder}/letter.txt", "name another file"),
    ],
)
def test_a_store_that_cannot_be_used_is_a_finding(tmp_path: Path, run: Run, url: str, advice: str) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    code, out, err = run("doctor", "--url", url.format(folder=tmp_path))
    assert (code, err) == (1, "")
    assert advice in out


def test_every_durable_store_can_be_examined(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for kind in KINDS:
        with new_store(kind, tmp_path, request) as url:
            storage = open_storage(url)
            assert isinstance(storage, SupportsHealthChecks)
            assert isinstance(storage, SupportsMigrations) is (kind != "redis")


# Migrate.


def test_a_new_store_is_made_and_an_old_one_is_up_to_date(desk: Desk) -> None:
    if desk.url.startswith("redis"):
        assert "has no schema: nothing to migrate" in desk.tell("migrate")
        return
    planned = desk.json("migrate", "--dry-run")
    assert (planned["found"], planned["pending"]) == (0, planned["known"])
    assert "CREATE TABLE" in planned["sql"][0]
    assert desk.tell("migrate", "--dry-run").splitlines()[1].startswith("CREATE")
    assert desk.json("migrate", "--dry-run")["found"] == 0
    assert desk.tell("migrate").endswith("had no schema; it has version 1 now\n")
    assert desk.tell("migrate").endswith("is up to date: version 1\n")
    desk.work(desk.add.enqueue(1))


def test_the_sql_that_is_shown_makes_the_store(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "jobs.db"
    _, sql, _ = run("migrate", "--dry-run", "--url", f"sqlite:///{path}")
    assert not path.exists()
    with sqlite3.connect(path) as db:
        db.executescript(sql)
    db.close()
    assert "is up to date" in run("migrate", "--url", f"sqlite:///{path}")[1]
    with TaskQueue(f"sqlite:///{path}") as queue:
        assert queue.counts() == {}


def test_the_sql_for_postgres_makes_the_store(request: pytest.FixtureRequest, tmp_path: Path, run: Run) -> None:
    server = request.getfixturevalue("postgres_url")
    with new_store("postgres", tmp_path, request) as url:
        _, sql, _ = run("migrate", "--dry-run", "--url", url)
        run_sql(server, lambda connection: connection.execute(sql))
        assert "is up to date" in run("migrate", "--url", url)[1]


def test_a_new_version_is_migrated_to_and_a_newer_one_is_rejected(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert run("migrate", "--url", url)[0] == 0
    second = "ALTER TABLE bullpen_worker ADD COLUMN shoes TEXT;\n"
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", (*sqlite_schema.MIGRATIONS, second))
    monkeypatch.setattr(sqlite_schema, "VERSION", 2)
    code, out, _ = run("doctor", "--url", url)
    assert (code, "the store has version 1; version 2 is required\n  run `bullpen migrate`" in out) == (1, True)
    assert "ADD COLUMN shoes" in run("migrate", "--dry-run", "--url", url)[1]
    assert run("migrate", "--url", url)[1].endswith("had version 1; it has version 2 now\n")
    monkeypatch.undo()
    code, out, _ = run("doctor", "--url", url)
    assert (code, "a newer Bullpen has created it: upgrade this installation" in out) == (1, True)
    assert run("migrate", "--url", url)[0] == 1


def test_a_role_that_may_migrate_does_so_for_those_that_may_not(
    request: pytest.FixtureRequest, tmp_path: Path, run: Run
) -> None:
    assert postgres_schema.VERSION >= 1
    with new_store("postgres", tmp_path, request) as url, TaskQueue(f"{url}&migrate=false") as queue:
        code, _, err = run("status", "--url", f"{url}&migrate=false")
        assert (code, "run `bullpen migrate` as a role that may" in err) == (1, True)
        assert run("migrate", "--url", f"{url}&migrate=false")[0] == 0
        assert queue.counts() == {}


# Check.

NEW_CODE = """
from datetime import date

from bullpen import TaskQueue

queue = TaskQueue("sqlite:///jobs.db")


@queue.task
def send(to: str, on: date) -> None: ...


@queue.task(aliases=["new_code.renamed"])
def fine(number: int) -> None: ...
"""


def test_tasks_that_the_new_code_cannot_run_are_found(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Folder(tmp_path, "").write("new_code.py", NEW_CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with TaskQueue("sqlite:///jobs.db") as queue:
        for name, args in (
            ("new_code.send", ("ada", "2026-01-31")),
            ("new_code.send", ("ada",)),
            ("new_code.send", ("ada", "soon")),
            ("new_code.send", ("bob", "later")),
            ("new_code.gone", ()),
            ("new_code.fine", (1,)),
            ("new_code.renamed", (1,)),
        ):
            queue.enqueue(name, args, elsewhere=True)
    code, out, err = run("check", "new_code")
    assert (code, err) == (1, "")
    lines = [line.split("  ") for line in out.splitlines()]
    found = {tuple(part.strip() for part in line if part)[:3] for line in lines[1:4]}
    assert found == {
        ("new_code.send", "2", "args[1] does not fit: invalid RFC3339 encoded date"),
        (
            "new_code.send",
            "1",
            "the arguments do not fit (to: str, on: datetime.date) -> None: missing a required argument: 'on'",
        ),
        ("new_code.gone", "1", "no function has this name"),
    }
    assert "soon" not in out
    told = json.loads(run("check", "new_code", "--json")[1])
    assert (told["checked"], sum(one["tasks"] for one in told["misfits"])) == (7, 4)
    with TaskQueue("sqlite:///jobs.db") as queue:
        queue.cancel(*(task.id for task in queue.list() if task.name not in ("new_code.fine", "new_code.renamed")))
    assert run("check", "new_code")[:2] == (0, "this code can run 2 queued tasks\n")
    assert run("check", "nowhere")[0] == 2


# Bench.


def test_a_store_is_measured_and_nothing_is_left(desk: Desk) -> None:
    job = desk.mail.enqueue("ada")
    measures = desk.json("bench", "--tasks", "400")["measures"]
    assert [(one["what"].partition(",")[0], one["tasks"]) for one in measures] == [
        ("enqueue", 200),
        ("enqueue", 200),
        ("claim", 100),
        ("settle and claim", 400),
    ]
    assert all(one["tasks_per_second"] > 0 for one in measures)
    assert [task.id for task in desk.queue.list()] == [job.id]
    assert list(desk.queue.counts()) == ["mail"]


def test_two_measurements_do_not_spoil_each_other_and_leftovers_are_cleared_away(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    with TaskQueue(url) as queue:
        queue.enqueue("bullpen.bench", elsewhere=True, queue=bench.QUEUE)
        code, _, err = run("bench", "--url", url)
        assert (code, "another measurement is running" in err) == (1, True)
        monkeypatch.setattr(bench, "FRESH", 0.0)
        code, out, _ = run("bench", "--tasks", "400", "--url", url)
        assert (code, "settle and claim, 100 at once" in out) == (0, True)
        assert queue.counts() == {}

"""Operating a queue from the command line, on every kind of store."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bullpen import InvalidOptionType, TaskStatus, WorkerPool
from bullpen.cli.main import main
from bullpen.tasks.client import backend
from bullpen.tasks.storage.port import Batch
from bullpen.tasks.storage.sqlite.store import SqliteStorage
from tests.scenarios.cli_stores import Desk, desk_at
from tests.scenarios.cli_support import command
from tests.scenarios.terminal import terminal
from tests.stores import KINDS, new_store


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with new_store(request.param, tmp_path, request) as url, desk_at(url, capsys) as desk:
        yield desk


@pytest.fixture
def sqlite_desk(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with new_store("sqlite", tmp_path, request) as url, desk_at(url, capsys) as desk:
        yield desk


# Tasks, all that match.


def test_all_that_match_are_changed_after_a_count(desk: Desk) -> None:
    keys = [desk.fail.enqueue("key") for _ in range(3)]
    values = [desk.fail.enqueue("value") for _ in range(2)]
    desk.work(*keys, *values)
    assert [task["id"] for task in desk.json("tasks", "--error", "KeyError")["tasks"]] == [job.id for job in keys]
    assert len(desk.json("tasks", "--error", "exception")["tasks"]) == 5
    assert desk.json("tasks", "--error", "timeout")["tasks"] == []
    assert desk.tell("tasks", "retry", "--error", "KeyError", "--dry-run") == "3 tasks match; nothing was changed\n"
    code, out, err = desk.run("tasks", "retry", "--error", "KeyError")
    assert (code, out) == (2, "")
    assert "3 tasks match; add --yes to change them without confirmation" in err
    assert desk.tell("tasks", "retry", "--error", "KeyError", "--yes") == "3 of 3 will run again\n"
    assert [str(job.status) for job in (*keys, *values)] == ["pending"] * 3 + ["failed"] * 2
    assert desk.json("tasks", "cancel", "--all", "-y") == {"matching": 3, "changed": 3}
    assert desk.tell("tasks", "purge", "--status", "cancelled", "-y") == "3 of 3 purged\n"
    assert [task["id"] for task in desk.json("tasks")["tasks"]] == [job.id for job in values]
    assert desk.tell("tasks", "purge", values[0].id) == "1 of 1 purged\n"
    assert desk.run("tasks", "purge", values[0].id)[0] == 3


def test_a_retry_is_found_by_its_cause(desk: Desk) -> None:
    job = desk.fail.enqueue("retry")
    desk.work(job)
    assert [task["id"] for task in desk.json("tasks", "--error", "KeyError")["tasks"]] == [job.id]


def test_a_filter_that_matches_nothing_known_says_so(desk: Desk) -> None:
    desk.work(desk.fail.enqueue("key"), desk.mail.enqueue("a"))
    name = f"{Desk.__module__}.mail"
    for words, told in (
        (("--queue", "mial"), "no task and no worker has the queue 'mial'; did you mean 'mail'?"),
        (("--function", "mial"), "no task has the function 'mial'"),
        (("--function", "nothing.like.it"), "no task has the function 'nothing.like.it'"),
        (("--error", "KeyErorr"), "no task has the error 'KeyErorr'; did you mean 'KeyError'?"),
        (("--error", "timeot"), "no task has the error 'timeot'; did you mean 'timeout'?"),
        (("--worker", "none"), "no task and no worker has the name 'none'"),
        (("--fingerprint", "00000000"), "no task has an error with the fingerprint '00000000'"),
    ):
        assert desk.tell("tasks", *words) == f"no tasks\n{told}\n"
        assert desk.tell("tasks", "purge", *words) == f"0 tasks match; nothing was changed\n{told}\n"
        code, out, err = desk.run("tasks", *words, "--json")
        assert (code, json.loads(out), err) == (0, {"tasks": [], "next": None}, f"{told}\n")
        code, out, err = desk.run("tasks", "purge", *words, "--json")
        assert (code, json.loads(out), err) == (0, {"matching": 0, "changed": 0}, f"{told}\n")
    for known in (
        ("--queue", "mail"),
        ("--function", name),
        ("--function", "mail"),
        ("--error", "timeout"),
        ("--error", "KeyError"),
    ):
        assert desk.tell("tasks", *known, "--status", "running") == "no tasks\n"


def test_tasks_are_found_by_header_key_and_the_last_part_of_their_name_newest_first(desk: Desk) -> None:
    tagged = desk.mail.using(headers={"tenant": "acme"}).enqueue("a")
    keyed = desk.add.using(unique_key="one").enqueue(1)

    def found(*words: str) -> list[str]:
        return [task["id"] for task in desk.json("tasks", *words)["tasks"]]

    assert found("--header", "tenant=acme") == [tagged.id]
    assert found("--key", "one") == [keyed.id]
    assert found("--function", "add") == [keyed.id]
    assert found("--queue", "mail", "--queue", "default") == [tagged.id, keyed.id]
    assert found("--newest") == found()[::-1] == [keyed.id, tagged.id]
    assert found("--newest", "--after", keyed.id) == [tagged.id]
    code, _, err = desk.run("tasks", "--header", "tenant")
    assert (code, "such as tenant=acme, got 'tenant'" in err) == (2, True)
    with pytest.raises(InvalidOptionType, match="header must be a name and a value"):
        desk.queue.list(header="tenant=acme")  # type: ignore[arg-type]


def test_tasks_are_found_by_their_age_and_worker(desk: Desk) -> None:
    job = desk.add.enqueue(1)
    with WorkerPool(desk.queue, poll_interval=0.05) as pool:
        assert job.result(timeout=20) == 2
    assert [task["id"] for task in desk.json("tasks", "--worker", pool.id)["tasks"]] == [job.id]
    assert desk.json("tasks", "--worker", "nobody")["tasks"] == []
    assert desk.json("tasks", "--older-than", "1h")["tasks"] == []
    assert len(desk.json("tasks", "--newer-than", "1h")["tasks"]) == 1
    assert desk.tell("tasks", "purge", "--older-than", "1h") == "0 tasks match; nothing was changed\n"
    assert desk.tell("tasks", "purge", "--newer-than", "1h", "--yes") == "1 of 1 purged\n"


def test_many_are_changed_in_batches(sqlite_desk: Desk) -> None:
    sqlite_desk.add.enqueue_many([(number,) for number in range(1234)])
    assert sqlite_desk.json("tasks", "cancel", "--function", f"{Desk.__module__}.add", "-y") == {
        "matching": 1234,
        "changed": 1234,
    }
    assert (
        sqlite_desk.json("tasks", "--status", "cancelled", "--older-than", "0", "--limit", "1000")["next"] is not None
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tasks retry", "no tasks chosen: give ids"),
        ("tasks retry abc --queue mail", "not both"),
        ("tasks cancel --all --queue mail", "--all cannot be combined with filters"),
        ("tasks retry --status pending", "--status may be success, failed, cancelled here, not pending"),
        ("tasks cancel --status failed -y", "--status may be pending, running here, not failed"),
        ("tasks --older-than soon", "--older-than: must be seconds, or a duration like '250ms'"),
        ("queues limit mail --rate 0", "--rate: must be a number from"),
        ("enqueue sqlite:///no.db f --eta soon", "--eta: must be a time like '2030-01-31T18:00'"),
        ("queues pause mail,x", "no task and no worker has the queue 'mail,x'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_changed(sqlite_desk: Desk, words: str, said: str) -> None:
    sqlite_desk.mail.enqueue("a")
    code, out, err = sqlite_desk.run(*words.split())
    assert (code, out) == (3 if "pause" in words else 2, "")
    assert said in err


def test_people_at_a_terminal_are_asked_and_shown_how_far_it_is(sqlite_desk: Desk) -> None:
    sqlite_desk.add.enqueue_many([(number,) for number in range(600)])
    words = command("tasks", "cancel", "--all", "--url", sqlite_desk.url)
    with terminal(words) as session:
        session.read_until(lambda shown: "600 tasks match. Cancel them all? [y/N]" in shown)
        os.write(session.master, b"n\n")
        assert session.ends() == 1
        assert "nothing was changed" in session.shown
    with terminal(words) as session:
        session.read_until(lambda shown: "[y/N]" in shown)
        os.write(session.master, b"y\n")
        assert session.ends() == 0
        assert "━" in session.shown
        assert "600 of 600 cancelled or asked to stop" in session.shown


def test_ctrl_c_stops_between_two_batches_and_says_how_far_it_came(
    sqlite_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that the store is changing is finished and counted."""
    sqlite_desk.add.enqueue_many([(number,) for number in range(500)])
    change_batch = SqliteStorage.change_batch

    async def interrupted(store: SqliteStorage, *arguments: Any, **options: Any) -> Batch:
        if (await store.counts())["default"].get(TaskStatus.CANCELLED, 0) >= 200:
            os.kill(os.getpid(), signal.SIGINT)
        return await change_batch(store, *arguments, **options)

    monkeypatch.setattr(SqliteStorage, "change_batch", interrupted)
    monkeypatch.setattr(backend, "BATCH", 200)
    code, out, err = sqlite_desk.run("tasks", "cancel", "--all", "--yes")
    assert (code, out) == (130, "")
    assert "interrupted after 400 of 500 tasks: 400 cancelled or asked to stop" in err
    assert sqlite_desk.queue.count(status="cancelled") == 400


# Queues.


def test_queues_are_paused_resumed_and_limited(desk: Desk) -> None:
    desk.mail.enqueue("a")
    assert desk.tell("queues", "pause", "mail").splitlines()[1].split()[-2:] == ["‖", "paused"]
    (mail,) = desk.json("queues", "limit", "mail", "--max-running", "3", "--rate", "2.5")["queues"]
    assert (mail["name"], mail["paused"], mail["counts"]["pending"], mail["workers"]) == ("mail", True, 1, 0)
    assert (mail["limit"]["max_running"], mail["limit"]["rate"]) == (3, 2.5)
    (mail,) = desk.json("queues", "limit", "mail", "--rate", "none")["queues"]
    assert (mail["limit"]["max_running"], mail["limit"]["rate"]) == (3, None)
    assert "at most 3 at once" in desk.tell("queues", "limit", "mail")
    (mail,) = desk.json("queues", "limit", "mail", "--in-order")["queues"]
    assert (mail["limit"]["max_running"], mail["limit"]["in_order"]) == (3, True)
    assert "at most 3 at once, in order per key" in desk.tell("queues")
    (mail,) = desk.json("queues", "limit", "mail", "--no-in-order")["queues"]
    assert mail["limit"]["in_order"] is False
    assert "paused" not in desk.tell("queues", "resume", "mail")
    with WorkerPool(desk.queue):
        assert [(queue["name"], queue["workers"]) for queue in desk.json("queues")["queues"]] == [
            ("default", 1),
            ("mail", 1),
        ]


def test_a_limit_goes_back_to_what_the_code_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("limited_app.py").write_text(
        "from bullpen import TaskQueue\nqueue = TaskQueue('sqlite:///jobs.db')\n"
        "queue.declare_limit('default', max_running=7)\nqueue.task(name='f')(print)\n"
    )
    try:
        assert main(["enqueue", "limited_app", "f"]) == 0
        assert main(["queues", "limit", "default", "--app", "limited_app", "--max-running", "1"]) == 0
        assert "at most 1 at once" in capsys.readouterr().out
        assert main(["queues", "limit", "default", "--app", "limited_app", "--reset"]) == 0
        assert "at most 7 at once" in capsys.readouterr().out
        assert main(["queues", "limit", "default", "--app", "limited_app", "--reset", "--rate", "1"]) == 2
        assert "--reset cannot be combined" in capsys.readouterr().err
        assert main(["queues", "limit", "default", "--url", "sqlite:///jobs.db", "--reset"]) == 0
        assert "at most" not in capsys.readouterr().out
    finally:
        sys.modules.pop("limited_app", None)


def test_a_slip_in_the_name_of_a_queue_is_noticed(sqlite_desk: Desk) -> None:
    sqlite_desk.mail.enqueue("a")
    code, _, err = sqlite_desk.run("queues", "pause", "mial")
    assert (code, "no task and no worker has the queue 'mial'; did you mean 'mail'?" in err) == (3, True)
    assert sqlite_desk.queue.paused() == frozenset()


# Workers.


def test_workers_are_shown_with_what_they_run(desk: Desk) -> None:
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(20)

    job = desk.queue.task(name="hold")(hold).enqueue()
    assert "no workers; start one" in desk.tell("workers")
    with WorkerPool(desk.queue, 2, poll_interval=0.05) as pool:
        assert begun.wait(20)
        out = desk.tell("workers")
        (worker,) = desk.json("workers")["workers"]
        go.set()
        job.result(timeout=20)
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [[pool.id, str(os.getpid())], [job.id, "hold"]]
    assert (worker["pid"], worker["running"], worker["concurrency"]) == (os.getpid(), 1, 2)
    assert [task["id"] for task in worker["tasks"]] == [job.id]


# Enqueue.


def test_a_function_is_enqueued_by_its_name_and_the_store_alone(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"{Desk.__module__}.mail"
    assert main(["enqueue", desk.url, name, "ada", "--queue", "mail", "--priority", "3"]) == 0
    job = desk.queue.job(capsys.readouterr().out.strip())
    assert (job.info().name, job.info().priority, job.info().queue) == (name, 3, "mail")
    desk.work(job)
    assert job.result(timeout=0) == "ada None"
    assert main(["enqueue", desk.url, name, "x", "--unique-key", "k", "--delay", "2h", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["enqueue", desk.url, name, "x", "--unique-key", "k"]) == 0
    shown = capsys.readouterr()
    assert (first["is_new"], shown.out.strip()) == (True, first["id"])
    assert "a task with this unique key exists; nothing was enqueued" in shown.err


def test_a_function_is_enqueued_for_a_time_or_a_schedule(sqlite_desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk = sqlite_desk
    name = f"{Desk.__module__}.mail"
    assert main(["enqueue", desk.url, name, "x", "--eta", "2199-01-31T18:00+01:00"]) == 0
    job = desk.queue.job(capsys.readouterr().out.strip())
    assert job.info().eta == datetime(2199, 1, 31, 17, tzinfo=UTC)
    for hour in ("3", "4"):
        words = ["--cron", f"0 {hour} * * *", "--timezone", "Asia/Tokyo", "--schedule-key", "nightly"]
        assert main(["enqueue", desk.url, name, "x", *words]) == 0
    (nightly,) = desk.queue.schedules.list()
    assert (nightly.key, nightly.cron, nightly.timezone) == ("nightly", "0 4 * * *", "Asia/Tokyo")

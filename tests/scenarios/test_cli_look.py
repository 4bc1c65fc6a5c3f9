"""`bullpen status`, `tasks` and `why` on a real SQLite file, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen import Job, TaskQueue, UnknownTask, WorkerPool, current_task
from bullpen.cli.main import main
from tests.scenarios.cli_support import command, environment, heeding_ctrl_c
from tests.scenarios.terminal import HIDE, SHOW, terminal

Shown = tuple[int, str, str]


class Desk:
    """A queue with a bit of everything in it."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.queue = queue = TaskQueue(self.url)
        self.add = queue.task(add)
        self.stepped = queue.task(stepped)
        self.fail = queue.task(max_retries=1, backoff=0)(fail)
        self.fail_once = queue.task(max_retries=1, backoff=0)(fail_once)
        self.mail = queue.task(queue="mail")(mail)

    def work(self, *jobs: Job[Any]) -> None:
        """Until these are over."""
        with WorkerPool(self.queue, poll_interval=0.05):
            for job in jobs:
                try:
                    job.result(timeout=20)
                except Exception:
                    pass


def fail_once() -> None:
    if current_task().failures == 0:
        raise ValueError("at first")


def add(a: int, b: int) -> int:
    current_task().progress(1, 3, "numbers")
    return a + b


def fail(secret: str) -> None:
    raise ValueError("line one\nline two")


def stepped() -> None:
    task = current_task()
    task.step(add, 1, 2)
    task.using(key="no", max_retries=0).step(fail, "x")


def mail(to: str) -> None: ...


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "jobs.db")
    with desk.queue:
        yield desk


@pytest.fixture
def bullpen(desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command on the desk's store; exit code, stdout, stderr."""
    monkeypatch.delenv("BULLPEN_APP", raising=False)
    monkeypatch.setenv("BULLPEN_URL", desk.url)

    def run(*words: str) -> Shown:
        code = main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_status_counts_by_queue_and_names_pauses_and_limits(desk: Desk, bullpen: Any) -> None:
    desk.work(desk.add.enqueue(1, 2), desk.fail.enqueue("x"))
    desk.mail.enqueue("a@example.org")
    desk.queue.pause("mail")
    desk.queue.set_limit("mail", max_running=2, rate=5)
    code, out, err = bullpen("status")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines() if "default" in line] == [["default", "0", "0", "1", "1", "0"]]
    assert "‖ paused, at most 2 at once, at most 5 per second" in out
    assert "no workers; start one with `bullpen worker APP`" in out
    assert "\x1b" not in out
    told = json.loads(bullpen("status", "--json")[1])
    assert told["store"] == desk.url
    assert told["queues"]["mail"]["pending"] == 1
    assert told["queues"]["mail"]["paused"] is True
    assert told["queues"]["mail"]["limits"]["max_running"] == 2
    assert told["workers"] == []


def test_status_shows_workers_and_whether_they_live(desk: Desk, bullpen: Any) -> None:
    with WorkerPool(desk.queue, 3) as pool:
        out = bullpen("status")[1]
        (worker,) = json.loads(bullpen("status", "--json")[1])["workers"]
    assert f"{pool.id}  {os.getpid()}" in out
    assert "✓ up for " in out
    assert (worker["pid"], worker["concurrency"], worker["queues"], worker["dead"]) == (
        os.getpid(),
        3,
        ["default", "mail"],
        False,
    )
    assert datetime.now(UTC) - datetime.fromisoformat(worker["seen_at"]) < timedelta(minutes=1)


def test_status_of_nothing(desk: Desk, bullpen: Any) -> None:
    desk.queue.counts()  # makes the file
    assert "no tasks" in bullpen("status")[1]


def test_status_is_told_again_and_again(desk: Desk) -> None:
    desk.add.enqueue(1, 2)
    with heeding_ctrl_c():
        watch = subprocess.Popen(
            command("status", "--watch", "0.1", "--url", desk.url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=environment(),
        )
    with watch as process:
        assert process.stdout is not None
        seen = 0
        while seen < 3:
            seen += process.stdout.readline().startswith("  default")
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=20)
        assert (process.returncode, complaints) == (130, "")


def test_in_a_terminal_status_is_drawn_in_place(desk: Desk) -> None:
    desk.add.enqueue(1, 2)
    with terminal(command("status", "--watch", "0.1", "--url", desk.url)) as session:
        session.read_until(lambda shown: shown.count("finished per second; Ctrl-C ends") >= 2)
        assert HIDE in session.shown
        assert re.search(r"\r\x1b\[\d+A", session.shown)
        os.write(session.master, b"\x03")
        assert session.ends() == 130
        assert SHOW in session.shown
        assert "Traceback" not in session.shown


def test_tasks_are_listed_with_filters_and_pages(desk: Desk, bullpen: Any) -> None:
    good, bad = desk.add.enqueue(1, 2), desk.fail.enqueue("s3cret")
    desk.work(good, bad)
    later = desk.mail.using(delay=3600).enqueue("a@example.org")
    now = desk.mail.enqueue("b@example.org")
    code, out, err = bullpen("tasks")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines[good.id].split()[1:4] == [f"{__name__}.add", "✓", "success"]
    assert "✕ failed" in lines[bad.id]
    assert "ValueError: line one" in lines[bad.id]
    assert "◷ scheduled" in lines[later.id]
    assert "in 60 min" in lines[later.id]
    assert "○ pending" in lines[now.id]
    assert "line two" not in out
    assert "s3cret" not in out
    assert "example.org" not in out

    def listed(*words: str) -> list[str]:
        return [task["id"] for task in json.loads(bullpen("tasks", *words, "--json")[1])["tasks"]]

    assert listed("--status", "failed") == [bad.id]
    assert listed("list", "--status", "failed,success") == [good.id, bad.id]
    assert listed("--queue", "mail") == [later.id, now.id]
    assert listed("--function", f"{__name__}.add") == [good.id]
    page = json.loads(bullpen("tasks", "--limit", "2", "--json")[1])
    assert page["next"] == bad.id
    assert f"next page: --after {bad.id}" in bullpen("tasks", "--limit", "2")[1]
    assert listed("--after", page["next"]) == [later.id, now.id]
    assert bullpen("tasks", "--status", "cancelled")[1] == "no tasks\n"


def test_one_task_is_shown_whole_but_for_its_arguments(desk: Desk, bullpen: Any) -> None:
    good, bad = desk.add.using(priority=3, timeout=5).enqueue(1, 2), desk.fail.enqueue("s3cret")
    desk.work(good, bad)
    out = bullpen("tasks", "show", bad.id)[1]
    assert f"{__name__}.fail  ✕ failed" in out
    assert "tries     2, of which 2 failed and 0 crashed" in out
    job = desk.fail_once.enqueue()
    desk.work(job)
    assert "tries     2, of which 1 failed and 0 crashed" in bullpen("tasks", "show", job.id)[1], "before the success"
    assert "attempt 1: exception" in out
    assert "attempt 2: exception" in out
    assert 'raise ValueError("line one\\nline two")' in out
    assert "s3cret" not in out
    told = json.loads(bullpen("tasks", "show", good.id, "--json")[1])
    assert told["task"]["priority"] == 3
    assert told["task"]["timeout"] == 5.0
    assert told["why"]["causes"][0]["kind"] == "succeeded"
    assert "timeout 0:00:05" in bullpen("tasks", "show", good.id)[1]


def test_the_steps_of_a_task_are_shown_and_it_is_retried_from_one(desk: Desk, bullpen: Any) -> None:
    job = desk.stepped.enqueue()
    desk.work(job)
    lines = bullpen("tasks", "show", job.id)[1].splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("step "))
    assert lines[at].split() == ["step", "began", "took", "attempt", "tries", "outcome"]
    assert lines[at + 1].split()[:3] == ["add", "+0.00", "s"]
    assert lines[at + 1].endswith("kept")
    assert lines[at + 2].split()[0] == "no"
    assert lines[at + 2].endswith("gave up: ValueError: line one")
    told = json.loads(bullpen("tasks", "show", job.id, "--json")[1])
    assert [step["name"] for step in told["task"]["steps"]] == ["add", "no"]
    assert bullpen("tasks", "retry", "--all", "--from-step", "add")[0] == 2
    code, _, err = bullpen("tasks", "retry", job.id, "--from-step", "ship")
    assert code != 0
    assert "its steps: add, no" in err
    assert bullpen("tasks", "retry", job.id, "--from-step", "add")[0] == 0
    assert job.info().steps == ()


def test_why(desk: Desk, bullpen: Any) -> None:
    job = desk.mail.enqueue("a@example.org")
    desk.queue.pause("mail")
    code, out, _ = bullpen("why", job.id)
    assert code == 0
    assert out.splitlines() == [
        f"{__name__}.mail is ○ pending",
        "  the queue 'mail' is paused",
        "  no worker serves the queue 'mail'; no worker is running",
    ]
    told = json.loads(bullpen("why", job.id, "--json")[1])
    assert (told["id"], told["status"]) == (job.id, "pending")
    assert [cause["kind"] for cause in told["causes"]] == ["paused", "no_worker"]


def test_tasks_are_cancelled_and_run_again(desk: Desk, bullpen: Any) -> None:
    one, two = desk.add.enqueue(1, 2), desk.add.enqueue(3, 4)
    assert bullpen("tasks", "cancel", one.id)[:2] == (0, "1 of 1 cancelled or asked to stop\n")
    assert str(one.status) == "cancelled"
    code, out, _ = bullpen("tasks", "retry", one.id, two.id)
    assert (code, out.startswith("1 of 2 will run again; the others do not exist")) == (3, True)
    assert json.loads(bullpen("tasks", "cancel", one.id, two.id, "--json")[1]) == {"named": 2, "changed": 2}


@pytest.mark.parametrize("words", [("why",), ("tasks", "show")])
def test_a_task_that_is_not_there_is_exit_code_3(desk: Desk, bullpen: Any, words: tuple[str, ...]) -> None:
    desk.queue.counts()
    code, out, err = bullpen(*words, "0199-nobody")
    assert (code, out) == (3, "")
    assert "there is no task 0199-nobody" in err


def test_to_look_is_not_to_make(bullpen: Any, tmp_path: Path) -> None:
    missing = tmp_path / "other.db"
    for words in (("status",), ("tasks",), ("why", "x")):
        code, out, err = bullpen(*words, "--url", f"sqlite:///{missing}")
        assert (code, out) == (1, "")
        assert f"there is no file {missing}: no task was enqueued there yet, or the path is wrong" in err
    assert not missing.exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "--url", "memory://"], 1, "memory:// lives in one process"),
        (["status", "--url", "jobs.db"], 2, "url must be sqlite:///jobs.db, got 'jobs.db'"),
        (["status", "--url", "sqlite:///x", "--app", "app"], 2, "not allowed with"),
        (["status", "--watch", "0"], 2, "--watch: must be a number from 0.1"),
        (["tasks", "--status", "done"], 2, "status must be one of pending, running, success, failed, cancelled"),
        (["tasks", "--limit", "0"], 2, "--limit: must be a number from 1"),
        (["tasks", "--queue", "a b"], 2, "queue must be a name"),
        (["tasks", "shwo", "x"], 2, "unknown command 'shwo': did you mean `bullpen tasks show`?"),
        (["why"], 2, "the following arguments are required: ID"),
    ],
)
def test_what_is_wrong_is_said(desk: Desk, bullpen: Any, words: list[str], code: int, said: str) -> None:
    desk.queue.counts()
    found, out, err = bullpen(*words)
    assert (found, out) == (code, "")
    assert said in err


def test_without_a_store_it_is_said_how_to_name_one(bullpen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BULLPEN_URL")
    code, _, err = bullpen("status")
    assert code == 2
    assert "give --url sqlite:///jobs.db or --app app:queue, or set BULLPEN_URL or BULLPEN_APP" in err


def test_a_file_that_is_none_of_ours_is_left_alone(bullpen: Any, tmp_path: Path) -> None:
    other = tmp_path / "letter.txt"
    other.write_text("dear reader")
    code, _, err = bullpen("status", "--url", f"sqlite:///{other}")
    assert (code, "it is not a database" in err) == (1, True)
    assert other.read_text() == "dear reader"


ATTACK = "x\x1b[2J\x07\u202e\x9b31m"


def test_what_a_task_is_called_cannot_act_on_a_terminal_or_add_a_line(desk: Desk, bullpen: Any) -> None:
    """The row comes from whoever may write the store; a name with a newline would look like another task."""
    desk.queue.task(name="ok")(mail)
    job = desk.queue.enqueue("ok", ["a@example.org"])
    forged = f"{ATTACK}\n0199  all.well  ✓ success"
    with sqlite3.connect(desk.url.removeprefix("sqlite:///")) as db:
        db.execute("UPDATE bullpen_task SET func_path = ?, queue = ?", (forged, forged))
    db.close()
    for words in (("tasks",), ("tasks", "show", job.id), ("why", job.id), ("status",), ("queues",)):
        for as_json in ((), ("--json",)):
            _, out, err = bullpen(*words, *as_json)
            assert not any(character in out + err for character in "\x1b\x07\u202e\x9b"), words
            assert not re.search(r"^0199", out, re.MULTILINE)
    _, _, err = bullpen("tasks", "show", f"{ATTACK}\nbullpen tasks show: all is well")
    assert all(line.startswith(("bullpen tasks show: there", "  ")) for line in err.splitlines())


def test_history_shows_what_ran_how_it_ended_and_how_long_it_took(desk: Desk, bullpen: Any) -> None:
    queued = desk.add.enqueue(1, 2)
    assert "no worker has run a task in this time" in bullpen("history")[1]
    assert queued.cancel()
    desk.work(*desk.add.enqueue_many([(1, 2)] * 3), desk.fail.enqueue("x"))
    code, out, err = bullpen("history", "--since", "30m")
    assert (code, err) == (0, "")
    header, added, failed = (line.split() for line in out.splitlines()[2:])
    assert header[:6] == ["function", "started", "success", "retried", "failed", "crashed"]
    assert (added[0], added[1:6]) == (desk.add.name, ["3", "3", "0", "0", "0"])
    assert (failed[0], failed[1:6]) == (desk.fail.name, ["2", "0", "1", "1", "0"])
    assert out.splitlines()[-1].rstrip().endswith("█")
    document = json.loads(bullpen("history", "--by", "queue", "--json")[1])
    assert [(one["queue"], one["function"]) for one in document["periods"]] == [("default", None)]
    assert (document["periods"][0]["success"], document["periods"][0]["failed"]) == (3, 1)
    assert document["periods"][0]["run"]["p95"] > 0
    assert bullpen("history", "--function", "nothing", "--since", "7d")[1].endswith("in this time\n")


def test_errors_are_listed_retried_and_purged_by_their_cause(desk: Desk, bullpen: Any) -> None:
    desk.work(desk.fail.enqueue("x"), desk.fail.enqueue("y"))
    code, out, err = bullpen("errors")
    assert (code, err) == (0, "")
    first, cause, times, example = out.splitlines()[:4]
    fingerprint, name = first.split()[:2]
    assert name == desk.fail.name
    assert "at scenarios/test_cli_look.py:" in first
    assert cause == "  ValueError: line one"
    assert times.startswith("  4 times, first ")
    assert example.endswith("queue default")
    (document,) = json.loads(bullpen("errors", "--json")[1])["errors"]
    assert (document["fingerprint"], document["count"]) == (fingerprint, 4)
    assert (document["rising"], document["new"]) == (False, True)
    assert bullpen("errors", "retry", fingerprint, "--dry-run")[1] == "2 tasks match; nothing was changed\n"
    assert bullpen("errors", "retry", fingerprint, "--yes")[1] == "2 of 2 retried\n"
    desk.work(*(desk.queue.job(task.id) for task in desk.queue.list()))
    assert "8 times" in bullpen("errors")[1]
    assert bullpen("errors", "purge", fingerprint, "--yes")[1] == "2 of 2 deleted\n"
    assert bullpen("errors")[1] == "no failures in this time; workers write theirs every 5 s\n"


SECRETIVE = """
from bullpen import TaskQueue
queue = TaskQueue("sqlite:///jobs.db")
@queue.task(name="login", redact=("ssn",))
def login(user: str, password: str, ssn: int = 0) -> None: ...
"""


def test_arguments_are_shown_on_request_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secretive.py").write_text(SECRETIVE)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with TaskQueue(url) as queue:
        job = queue.enqueue("login", ("grace", "s3cret"), {"ssn": 123}, elsewhere=True)
        with pytest.raises(UnknownTask, match="login"):
            job.arguments()
    assert main(["tasks", "show", job.id, "--app", "secretive:queue", "--args"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r'user +"grace"', shown)
    assert shown.count('"[redacted]"') == 2
    assert main(["tasks", "show", job.id, "--app", "secretive:queue", "--args", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["arguments"] == {"user": "grace", "password": "[redacted]", "ssn": "[redacted]"}
    assert main(["tasks", "show", job.id, "--app", "secretive:queue"]) == 0
    assert "grace" not in capsys.readouterr().out
    assert main(["tasks", "show", job.id, "--url", url, "--args"]) == 2
    rejected = capsys.readouterr()
    assert "only its code says which are secret; give --app" in rejected.err
    assert "s3cret" not in shown + out + rejected.out + rejected.err

"""`bullpen schedules` on a real SQLite file, for people and for programs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bullpen import AsyncWorkerPool, TaskQueue, WorkerPool
from bullpen.cli.main import main

APP = """
from bullpen import TaskQueue

queue = TaskQueue("{url}")


@queue.task(name="app.report", cron="30 2 * * *", timezone="Asia/Tokyo")
def report() -> None: ...


@queue.task(name="app.check", interval=300)
def check() -> None: ...
"""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[TaskQueue]:
    """With a schedule that a worker has brought, and one of a call."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    queue = TaskQueue(url)
    queue.task(name="app.report", cron="30 2 * * *", timezone="Asia/Tokyo")(lambda: "done")
    greet = queue.task(name="app.greet")(lambda name: name)

    async def start() -> None:
        async with AsyncWorkerPool(queue):
            pass

    asyncio.run(start())
    with queue:
        greet.using(interval=3600, delay=3600, schedule_key="greet-ada").enqueue("ada")
        yield queue


@pytest.fixture
def bullpen(queue: TaskQueue, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("BULLPEN_APP", raising=False)
    monkeypatch.setenv("BULLPEN_URL", f"sqlite:///{tmp_path / 'jobs.db'}")

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_a_list_says_when_each_runs_next_in_words(bullpen: Any) -> None:
    code, out, _ = bullpen("schedules")
    assert code == 0
    header, report, greet = out.splitlines()
    assert header.split() == ["key", "runs", "next", "run", "completed", "last", "run"]
    assert report.startswith("app.report  At 02:30 every day (Asia/Tokyo)  in ")
    assert " 02:30:00 JST" in report
    assert greet.startswith("greet-ada   1 h after each run")


def test_the_list_is_a_document_for_programs(bullpen: Any) -> None:
    code, out, _ = bullpen("schedules", "--json")
    report, greet = json.loads(out)["schedules"]
    assert code == 0
    assert (report["key"], report["cron"], report["timezone"]) == ("app.report", "30 2 * * *", "Asia/Tokyo")
    assert (report["declared"], greet["declared"], greet["interval"]) == (True, False, 3600.0)
    assert datetime.fromisoformat(report["next_run"]).utcoffset()


def test_the_next_times_of_one(bullpen: Any) -> None:
    code, out, _ = bullpen("schedules", "next", "app.report", "--count", "2")
    assert code == 0
    assert [line.split()[2:4] for line in out.splitlines()[3:]] == [["02:30:00", "JST"]] * 2
    assert len(json.loads(bullpen("schedules", "next", "app.report", "--json")[1])["next"]) == 5
    assert bullpen("schedules", "next", "app.report", "--count", "0")[0] == 2


def test_pause_and_resume(bullpen: Any) -> None:
    code, out, _ = bullpen("schedules", "pause", "app.report", "greet-ada")
    assert code == 0
    assert out.count("paused") == 2
    assert "paused" in bullpen("schedules", "next", "app.report")[1]
    code, out, _ = bullpen("schedules", "resume", "app.report")
    assert code == 0
    assert "in " in out
    assert bullpen("schedules")[1].count("paused") == 1


def test_run_now(queue: TaskQueue, bullpen: Any) -> None:
    assert bullpen("schedules", "run", "app.report")[0] == 0
    with WorkerPool(queue, poll_interval=0.05):
        while queue.schedules.get("app.report").completed_runs == 0:
            time.sleep(0.01)
    assert "ago" in bullpen("schedules")[1]


def test_remove(bullpen: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = bullpen("schedules", "remove", "greet-ada")
    assert (code, out) == (0, "removed greet-ada\n")
    assert bullpen("schedules", "remove", "greet-ada")[0] == 3
    (tmp_path / "app.py").write_text(APP.format(url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    monkeypatch.chdir(tmp_path)
    code, _, err = bullpen("schedules", "remove", "app.report", "--app", "app.py:queue")
    assert code == 2
    assert "take cron= or interval= out of app.report, or pause it" in err


def test_nothing_is_changed_if_one_of_them_is_not_there(bullpen: Any) -> None:
    code, _, err = bullpen("schedules", "pause", "app.report", "app.reprot")
    assert code == 3
    assert "do you mean 'app.report'" in err
    assert "paused" not in bullpen("schedules")[1]


def test_no_schedules(tmp_path: Path, bullpen: Any) -> None:
    with TaskQueue(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.counts()
    code, out, _ = bullpen("schedules", "--url", f"sqlite:///{tmp_path / 'other.db'}")
    assert code == 0
    assert out.startswith("no schedules: declare one")

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bullpen.cli.demo import view
from bullpen.cli.terminal.output import show_json
from bullpen.cli.terminal.screen import plain, width_of
from bullpen.tasks.model.info import info_of
from bullpen.tasks.model.task import Progress, Task, TaskStatus
from bullpen.tasks.storage.port import WorkerRecord

SUMMARY = view.TasksSummary(
    url="sqlite:////tmp/x/jobs.db",
    folder="/tmp/x",
    seconds=4.0,
    working_seconds=2.5,
    enqueued=1000,
    enqueue_seconds=0.25,
    succeeded=980,
    failed=20,
    lost=0,
    retried=7,
    rescued=30,
    periodic=2,
    periodic_runs=9,
    best_rate=612.4,
    stopped_in_order=True,
    a_failed_task="task-f",
    a_periodic_task="task-p",
)


def worker(pid: int) -> WorkerRecord:
    return WorkerRecord(
        id=f"w-{pid}", host="h", pid=pid, boot_id="", process_started=0, queues=("default",), concurrency=50
    )


def snapshot() -> view.TasksSnapshot:
    report = Task(id="1", func_path="app.write_report", payload=b"", progress=Progress(6, 10, "pages"))
    totals = dict.fromkeys(TaskStatus, 0) | {TaskStatus.SUCCESS: 500, TaskStatus.PENDING: 480, TaskStatus.FAILED: 20}
    return view.TasksSnapshot(
        folder="/tmp/x",
        elapsed=2.5,
        expected=1000,
        totals=totals,
        finished=520,
        rates=(10.0, 400.0, 300.0),
        workers=(worker(11), worker(12)),
        victim=12,
        reports=(info_of(report),),
    )


def test_a_frame_shows_what_there_is() -> None:
    shown = "\n".join(plain(line) for line in view.frame(snapshot(), ["2.0 s  kill -9 12"], 90))
    assert "✓ success" in shown
    assert "500" in shown
    assert "▁█▇ 300 per second" in shown
    assert "● pid 11 runs up to 50 at once" in shown
    assert "✕ pid 12 was killed" in shown
    assert "write_report" in shown
    assert " 60 %" in shown
    assert "2.0 s  kill -9 12" in shown


@pytest.mark.parametrize("width", [20, 60, 80, 300])
def test_a_frame_fits(width: int) -> None:
    lines = view.frame(snapshot(), ["x" * 200], width)
    assert all(width_of(line) <= max(width, view.NARROWEST + 2) for line in lines)


def test_the_summary_is_in_numbers_and_says_what_to_try() -> None:
    told = "\n".join(view.as_text(view.told(SUMMARY)))
    assert "1000 tasks enqueued in 0.25 s, 0 lost" in told
    assert "980 succeeded, 7 of them at the second try" in told
    assert "400 per second once the workers were up, 612 at best" in told
    assert "bullpen why task-f --url sqlite:////tmp/x/jobs.db" in told
    assert "bullpen worker /tmp/x/app.py" in told


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_json(SUMMARY)
    told = json.loads(capsys.readouterr().out)
    assert (told["lost"], told["best_rate"], told["a_failed_task"]) == (0, 612.4, "task-f")


def test_the_command_is_named_as_it_can_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "venv" / "bin" / "bullpen"
    script.parent.mkdir(parents=True)
    python = script.with_name("python")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", "")
    assert view.name_of_command() == f"{python} -m bullpen"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert view.name_of_command() == str(script)
    monkeypatch.chdir(tmp_path)
    assert view.name_of_command() == "venv/bin/bullpen"
    monkeypatch.setenv("PATH", str(script.parent))
    assert view.name_of_command() == "bullpen"


def test_the_dashboard_is_offered_with_the_packages_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, ending in (
        (True, "app.py"),
        (False, 'app.py  # first: pip install "pybullpen[web]" (in a clone: ".[web]")'),
    ):
        monkeypatch.setattr(view, "has_dashboard", lambda installed=installed: installed)
        (line,) = [line for line in view.next_commands(SUMMARY) if " dashboard " in line]
        assert line.endswith(ending)

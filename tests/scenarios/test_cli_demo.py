"""`bullpen demo`: tasks, workers, one of them killed; piped, in a terminal, and stopped halfway."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from bullpen.cli.main import main
from tests.scenarios.cli_support import PATIENCE, Folder, Worker, command, environment, is_running
from tests.scenarios.support import eventually
from tests.scenarios.terminal import HIDE, SHOW, terminal

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo") / "here"
    done = subprocess.run(
        command("demo", "--tasks", "400", "--folder", str(folder)),
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        timeout=60,
        check=False,
    )
    return folder, done


Done = tuple[Path, subprocess.CompletedProcess[str]]


def number(pattern: str, told: str) -> int:
    found = re.search(pattern, told)
    assert found is not None, f"no {pattern!r} in:\n{told}"
    return int(found[1])


def test_the_numbers_add_up_and_nothing_is_lost(demo: Done) -> None:
    folder, done = demo
    assert (done.returncode, done.stderr) == (0, ""), done
    told = done.stdout
    enqueued = number(r"(\d+) tasks enqueued in [\d.]+ s, 0 lost", told)
    assert enqueued >= 400
    assert enqueued == number(r"(\d+) succeeded", told) + number(r"(\d+) failed for good", told)
    assert number(r"succeeded, (\d+) of them at the second try", told) > 0
    taken_back = (folder / "worker-1.log").read_text().count("taken back from worker")
    assert number(r"(\d+) were running on the killed worker", told) == taken_back
    assert number(r"are periodic; they ran (\d+) times", told) >= 2
    assert number(r"kill -9 (\d+): a worker is dead", told) > 0
    assert "\x1b" not in told


def test_the_next_commands_work(demo: Done) -> None:
    folder, done = demo
    found = re.findall(r"^   (\S*bullpen (?:status|tasks|why|worker) .*)$", done.stdout, re.MULTILINE)
    assert [shlex.split(line)[1] for line in found] == ["status", "tasks", "why", "why", "worker"]
    shown = []
    for line in found[:-1]:
        ended = subprocess.run(shlex.split(line), capture_output=True, encoding="utf-8", env=environment(), check=False)
        assert (ended.returncode, ended.stderr) == (0, ""), ended
        shown.append(ended.stdout)
    status, failed, why_failed, why_periodic = shown
    assert "✕ dead" in status  # the one that the demo killed
    assert "CardDeclined" in failed
    assert "the card of order 0 was declined" in why_failed
    assert "no worker is running" in why_periodic
    assert shlex.split(found[-1])[-1] == str(folder / "app.py")


def test_the_dashboard_of_the_demo_is_offered(demo: Done) -> None:
    folder, done = demo
    (line,) = re.findall(r"^   (\S*bullpen dashboard .*)$", done.stdout, re.MULTILINE)
    words = [*shlex.split(line)[1:], "--port", "0"]
    with Worker(Folder(folder, (folder / "app.py").read_text()), words) as process:
        (address,) = process.seen(r"address +(\S+)$")
        process.seen("stop +Ctrl-C")
        assert "CardDeclined" in httpx.get(f"{address}/tasks?status=failed").text
        assert process.stop() == 0


def test_a_folder_with_tasks_in_it_is_left_alone(demo: Done) -> None:
    folder, _ = demo
    done = subprocess.run(
        command("demo", "--folder", str(folder)), capture_output=True, encoding="utf-8", env=environment(), check=False
    )
    assert done.returncode == 2
    assert "has a jobs.db already; give another --folder" in done.stderr


@pytest.mark.parametrize("name", ["app.py", "jobs.db", "worker-2.log"])
def test_no_file_of_the_folder_is_overwritten_and_no_link_followed(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).symlink_to("elsewhere" if name == "jobs.db" else tmp_path / "absent")
    assert main(["demo", "--folder", str(tmp_path)]) == 2
    assert f"has a{'n' if name == 'app.py' else ''} {name} already; give another --folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--folder", str(tmp_path / "file" / "below")]) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_in_a_terminal_it_is_drawn_in_place(tmp_path: Path) -> None:
    with terminal(command("demo", "--tasks", "200", "--folder", str(tmp_path))) as session:
        assert session.ends() == 0
        assert session.shown.count(HIDE) == session.shown.count(SHOW) == 1
        assert len(re.findall(r"\r\x1b\[\d+A", session.shown)) >= 3
        assert "✓ success" in session.shown
        assert "was killed" in session.shown
        assert "0 lost" in session.shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_ended_halfway_it_leaves_no_worker_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        command("demo", "--tasks", "4000", "--folder", str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(),
    ) as process:
        assert process.stdout is not None
        while "the workers are up" not in process.stdout.readline():
            assert process.poll() is None
        workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        assert len(workers) == 2
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == code
        assert eventually(lambda: not any(map(is_running, workers)), PATIENCE)

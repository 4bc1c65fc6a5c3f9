"""`bullpen demo pool` as people run it: piped, in a terminal, and stopped halfway."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from bullpen.cli.main import main
from tests.scenarios.cli_support import command
from tests.scenarios.terminal import HIDE, SHOW, Session, terminal, terminal_environment

PHASES = ("trickle", "rush", "deadlines", "errors", "resize", "closing")


def demo(*words: str) -> list[str]:
    return command("demo", "pool", *words)


def run_piped(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        demo(*words), capture_output=True, encoding="utf-8", env=terminal_environment(), timeout=40, check=False
    )


@pytest.fixture(scope="module")
def piped() -> subprocess.CompletedProcess[str]:
    return run_piped("--seconds", "3")


def test_it_ends_well_and_says_nothing_on_stderr(piped: subprocess.CompletedProcess[str]) -> None:
    assert (piped.returncode, piped.stderr) == (0, "")


def test_every_phase_is_told_in_order(piped: subprocess.CompletedProcess[str]) -> None:
    assert re.findall(r"^\d/6 (\w+): ", piped.stdout, re.MULTILINE) == list(PHASES)


def test_a_pipe_gets_no_escape_codes_and_few_lines(piped: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in piped.stdout
    assert len(piped.stdout.splitlines()) < 50


def test_each_phase_shows_what_it_is_about(piped: subprocess.CompletedProcess[str]) -> None:
    ends = re.findall(
        r"^    (\d+) of (\d+) workers, backlog (\d+) of (\d+), "
        r"(\d+) completed, (\d+) failed, (\d+) turned away, (\d+) timed out$",
        piped.stdout,
        re.MULTILINE,
    )
    trickle, rush, deadlines, errors, resize, closing = (dict(zip(COLUMNS, map(int, end), strict=True)) for end in ends)
    assert trickle["completed"] > 0
    assert trickle["turned_away"] == trickle["failed"] == trickle["timed_out"] == 0
    assert rush["workers"] == rush["max_workers"] == 8
    assert rush["turned_away"] > 0
    assert deadlines["timed_out"] > rush["timed_out"]
    assert errors["failed"] > deadlines["failed"] == 0
    assert errors["completed"] > deadlines["completed"]
    assert resize["max_workers"] == 12
    assert closing["workers"] == closing["queued"] == 0


COLUMNS = ("workers", "max_workers", "queued", "max_queue", "completed", "failed", "turned_away", "timed_out")


def test_the_numbers_of_the_summary_add_up(piped: subprocess.CompletedProcess[str]) -> None:
    told = piped.stdout
    submitted = number(r"(\d+) submitted and accepted", told)
    parts = re.search(r"(\d+) completed, (\d+) failed, (\d+) passed their deadline, (\d+) waited too long\n", told)
    assert parts is not None
    assert submitted == sum(map(int, parts.groups()))
    assert all(int(part) > 0 for part in parts.groups()[:3])
    assert number(r"(\d+) turned away at once", told) > 0
    started, ended = number(r"(\d+) workers started", told), number(r"at once; (\d+) ended", told)
    assert started == ended >= 8
    assert re.search(r"p50 [\d.]+ ms, p99 [\d.]+ ms", told)
    assert "Next: see README" in told


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern!r} in:\n{text}"
    return int(found[1])


def test_one_worker_is_enough_for_the_whole_story() -> None:
    done = run_piped("--seconds", "1", "--workers", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^\d/6 (\w+): ", done.stdout, re.MULTILINE) == list(PHASES)


def test_a_reader_that_goes_away_ends_it_without_a_traceback() -> None:
    with subprocess.Popen(
        demo("--seconds", "3"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=terminal_environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("bullpen demo")
        process.stdout.close()
        assert process.wait(20) == 1
        assert process.stderr.read() == ""


def test_inside_this_process_it_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """The leak check that every test runs under would name a thread that stayed."""
    before = signal.getsignal(signal.SIGINT)
    assert main(["demo", "pool", "--seconds", "1", "--plain"]) == 0
    assert "6/6 closing" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before


def test_in_a_terminal_it_is_drawn_in_place() -> None:
    with terminal(demo("--seconds", "2")) as session:
        assert session.ends() == 0
        assert session.shown.count(HIDE) == session.shown.count(SHOW) == 1
        assert session.shown.index(HIDE) < session.shown.index(SHOW)
        frames = re.findall(r"\r\x1b\[(\d+)A", session.shown)
        assert len(frames) >= 10
        assert max(map(int, frames)) < 24
        assert "\x1b[2J" not in session.shown  # nothing was cleared, so nothing flickered
        assert "\x1b[34m●" in session.shown
        for phase in PHASES:
            assert f"▸ {phase}" in session.shown
        assert "submitted and accepted" in session.shown.partition("▸ closing")[2]
        assert session.echoes()


def test_no_color_leaves_only_cursor_movements() -> None:
    with terminal(demo("--seconds", "1"), NO_COLOR="1") as session:
        assert session.ends() == 0
        assert re.search(r"\x1b\[[\d;]*m", session.shown) is None
        assert re.search(r"\r\x1b\[\d+A", session.shown)


@pytest.mark.parametrize("words", [("--plain",), ()])
def test_plain_in_a_terminal_has_no_escape_codes(words: tuple[str, ...]) -> None:
    with terminal(demo("--seconds", "1", *words), TERM="xterm" if words else "dumb") as session:
        assert session.ends() == 0
        assert "\x1b" not in session.shown
        assert "6/6 closing" in session.shown


def press_ctrl_c(session: Session) -> None:
    os.write(session.master, b"\x03")


def send_sigterm(session: Session) -> None:
    session.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(("stop", "code"), [(press_ctrl_c, 130), (send_sigterm, 143)])
def test_stopped_halfway_it_ends_at_once_and_gives_the_terminal_back(
    stop: Callable[[Session], None], code: int
) -> None:
    with terminal(demo("--seconds", "600")) as session:
        session.read_until(lambda shown: shown.count("render_page") >= 3)
        assert HIDE in session.shown
        assert SHOW not in session.shown
        assert not session.echoes()
        began = time.monotonic()
        stop(session)
        assert session.ends() == code
        assert time.monotonic() - began < 5
        assert session.shown.index(SHOW) > session.shown.index(HIDE)
        assert session.echoes()
        assert "stopped; every worker has ended" in session.shown
        assert "Traceback" not in session.shown


def test_ctrl_c_without_a_terminal_is_130_too() -> None:
    with subprocess.Popen(
        demo("--seconds", "600"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=terminal_environment(),
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("1/6 trickle"):
            pass
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=20)
        assert process.returncode == 130
        assert complaints == "bullpen demo pool: stopped; every worker has ended.\n"

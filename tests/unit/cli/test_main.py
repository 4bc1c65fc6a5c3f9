from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bullpen
from bullpen import TaskQueue
from bullpen.cli import main as cli
from bullpen.cli.command import Command, CommandError, ExitCode


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bullpen {bullpen.__version__}\n"


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_in_the_last_moment_of_the_script_is_no_traceback_and_changes_no_exit_code(when: str) -> None:
    """Python ends with -2 if nothing catches the `KeyboardInterrupt`."""
    raising = "signal.raise_signal(signal.SIGINT)"
    steps = [raising, "code = run(words)"] if when == "before" else ["code = run(words)"]
    code = f"""
import signal, sys
from bullpen.cli import main as cli
run = cli._main
def with_signal(words):
    {"; ".join(steps)}
    return code
cli._main = with_signal
sys.argv = ["bullpen", "--version"]
code = cli.main()
{raising if when == "after" else ""}
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130 if when == "before" else 0, "")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    assert all(name in shown for name in cli.COMMANDS)


def test_a_mistyped_command_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dmeo"]) == 2
    assert "unknown command 'dmeo': did you mean `bullpen demo`?" in capsys.readouterr().err


def test_for_an_unknown_command_the_known_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xyzzy"]) == 2
    assert f"the commands are {', '.join(cli.COMMANDS)}; see `bullpen --help`" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "demo --tasks 99",
        "demo --tasks 1.5",
        "worker app --grace -1",
        "worker app --grace nan",
        "worker app --grace soon",
    ],
)
def test_a_wrong_number_is_rejected_with_what_is_allowed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    *_, option, value = words.split()
    error = capsys.readouterr().err
    assert f"argument {option}: must be a number from " in error
    assert repr(value) in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("status app", "bullpen status: 'app' is not understood: did you mean --app app?"),
        ("status sqlite:///x", "bullpen status: 'sqlite:///x' is not understood: did you mean --url sqlite:///x?"),
        ("why ID app:queue", "did you mean --app app:queue?"),
        ("tasks show ID --jsn", "bullpen tasks show: '--jsn' is not understood: did you mean --json?"),
        ("doctor --jsn", "bullpen doctor: '--jsn' is not understood: did you mean --json?"),
        ("worker app --concurency=3", "did you mean --concurrency?"),
        ("config --app app", "the options are --config, --json, --help; see `bullpen config --help`."),
        (
            "worker --app shop:queue",
            "bullpen worker: '--app' is not understood: APP has no flag: `bullpen worker APP …`.",
        ),
        ("worker --url sqlite:///x", "APP has no flag: `bullpen worker APP …`."),
        ("check --app=shop:queue", "APP has no flag: `bullpen check APP …`."),
        ("enqueue --app shop:queue f", "APP_OR_URL has no flag: `bullpen enqueue APP_OR_URL …`."),
        ("tasks shwo", "bullpen tasks: unknown command 'shwo': did you mean `bullpen tasks show`?"),
        ("tasks app", "bullpen tasks: unknown command 'app': the commands are list, show, cancel, retry"),
    ],
)
def test_a_wrong_command_line_comes_with_a_hint(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_the_exit_code_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake_command(monkeypatch, lambda arguments: int(arguments.code))
    assert cli.main(["fake", "7"]) == 7


def test_ctrl_c_in_a_command_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    use_fake_command(monkeypatch, interrupted)
    assert cli.main(["fake", "0"]) == 130


def test_the_first_command_of_a_group_is_meant_if_none_is_named() -> None:
    assert cli.with_default(["tasks"]) == ["tasks", "list"]
    assert cli.with_default(["tasks", "--json"]) == ["tasks", "list", "--json"]
    assert cli.with_default(["tasks", "show", "x"]) == ["tasks", "show", "x"]
    assert cli.with_default(["tasks", "--help"]) == ["tasks", "--help"]
    assert cli.with_default(["status", "--json"]) == ["status", "--json"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("no"), 1),
        (CommandError("no", ExitCode.USAGE), 2),
        (bullpen.InvalidOption("limit", 0, "≥ 1"), 2),
        (bullpen.TaskNotFound(task="x"), 3),
        (bullpen.StorageFull("no", storage="x"), 1),
    ],
)
def test_errors_that_people_can_mend_are_one_line(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def reject(_: argparse.Namespace) -> int:
        raise error

    use_fake_command(monkeypatch, reject)
    assert cli.main(["fake", "0"]) == code
    assert capsys.readouterr().err == f"bullpen fake: {error}\n"


def test_each_command_has_its_own_name() -> None:
    assert [command.name for command in cli.all_commands()] == list(cli.COMMANDS)


def use_fake_command(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("code")

    monkeypatch.setattr(cli, "COMMANDS", ("fake",))
    monkeypatch.setattr(cli, "find_command", lambda _: Command("fake", "for tests", add_arguments, run))


def test_a_command_waits_for_no_module_that_it_does_not_need() -> None:
    look = "import sys, bullpen.cli.main; print([m for m in sys.modules if m in sys.argv[1:]])"
    others = [
        "bullpen.pools.supervision.engine",
        "bullpen.tasks.worker.worker_pool",
        "bullpen.cli.worker_process.serve",
        "bullpen.cli.demo.tasks",
    ]
    others += ["statistics"]
    done = subprocess.run([sys.executable, "-c", look, *others], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == "[]\n"


_ADDRESSES = (
    *("redis://me:s3cret@host/0", "postgresql://me:s3cret@host/db", "postgresql://me@host:s3cret/db", "me:s3cret@host"),
    *("host=h password=s3cret", "redis://me:s3\ncret@host", "redis://host/0?password=s3cret"),
    *("host/0?token=s3cret", "host?PWD=s3cret", "host/db?sslpassword=s3cret", "me:s3cret/db", "me:s3cret:x/db"),
    *("s3cret@host:1", "s3cret@host", "me:s3\ncret@host:1", "me:s3\ncret", "me%3As3cret%40host", "me:s3cret'@host:1"),
    *("postgresql://me%3As3cret%40host/db", "redis://me%3As3cret%40host/0", "me:s3cret@host/app.py:queue"),
)
_PLACES = (
    *(
        "ADDRESS",
        "status ADDRESS",
        "status --urll ADDRESS",
        "status --config ADDRESS",
        "tasks ADDRESS",
        "probe ADDRESS",
    ),
    *(
        "tasks list --limit ADDRESS",
        "tasks list --limit=ADDRESS",
        "enqueue add 1 --url ADDRESS",
        "config --url ADDRESS",
    ),
    *("worker ADDRESS", "status --app ADDRESS", "move sqlite:///a.db sqlite:///b.db ADDRESS", "completion ADDRESS"),
    *("worker -cADDRESS", "worker -c=ADDRESS", "queues limit mail --rate ADDRESS", "tasks list --status ADDRESS"),
)


@pytest.mark.parametrize("address", _ADDRESSES)
@pytest.mark.parametrize("words", _PLACES)
def test_an_address_in_the_wrong_place_shows_no_password(
    words: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([word.replace("ADDRESS", address) for word in words.split()]) != 0
    shown = capsys.readouterr()
    assert shown.err
    assert not re.search(r"s3(\n|\\n)?cret", shown.out + shown.err)


def test_a_word_that_stands_for_an_address_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--url", "me:s3cret"], ["--url=me:s3cret"]):
        assert cli.main(["config", *words]) == 2
        shown = capsys.readouterr()
        assert "***" in shown.err
        assert "s3cret" not in shown.err


@pytest.mark.parametrize(
    "split", ["redis://u:s3cret x@host", "password: s3cret", "me:s3cret/x y s3cret/z", "u@h,a:s3cret/x"]
)
@pytest.mark.parametrize("typed", ["status", "tasks list --status", "tasks purge --yes --url", "why", "enqueue app"])
def test_no_part_of_an_address_with_a_blank_or_a_comma_is_repeated(
    typed: str, split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (split.split(), [split]):
        assert cli.main([*typed.split(), *words]) != 0
        shown = capsys.readouterr()
        assert "s3cret" not in shown.out + shown.err


def test_words_that_follow_a_whole_address_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["status", "--url", "redis://me:s3cret@host/0", "tomorrow"]) == 2
    assert "'tomorrow' is not understood" in capsys.readouterr().err


def test_a_probe_of_an_address_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["probe", "redis://u:s3cret@h"], ["probe", "redis://u:s3cret@h", "--json"]):
        assert cli.main(words) == 1
        shown = capsys.readouterr()
        assert "***" in shown.out + shown.err
        assert "s3cret" not in shown.out + shown.err


@pytest.mark.parametrize("option", ["--function", "--error", "--worker", "--fingerprint"])
def test_an_address_in_place_of_a_filter_shows_no_password(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with TaskQueue(url) as queue:
        queue.counts()
    for command in (["list"], ["purge", "--yes"]):
        for address in _ADDRESSES:
            cli.main(["tasks", *command, "--url", url, option, address])
            shown = capsys.readouterr()
            assert not re.search(r"s3(\n|\\n)?cret", shown.out + shown.err)


@pytest.mark.parametrize("scheme", ["postgresql", "redis", "redis+cluster"])
def test_a_host_that_no_server_can_have_is_an_error_of_one_line(
    scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "--url", f"{scheme}://u:s3cret@\u202e/0"]) in (1, 2)
    shown = capsys.readouterr()
    assert shown.err.startswith("bullpen status: ")
    assert "s3cret" not in shown.err


def test_a_folder_that_no_file_system_can_have_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("\0", "\ud800"):
        assert cli.main(["demo", "--folder", name]) == 2
        assert "--folder" in capsys.readouterr().err


@pytest.mark.parametrize("address", _ADDRESSES)
def test_an_address_in_the_wrong_variable_shows_no_password(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BULLPEN_APP", address)
    assert cli.main(["worker"]) != 0
    shown = capsys.readouterr()
    assert not re.search(r"s3(\n|\\n)?cret", shown.out + shown.err)


def test_the_help_names_each_command_in_its_group_within_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for title, names in cli.GROUPS.items():
        first = lines.index(f"{title}:") + 1
        assert [line.split()[0] for line in lines[first : first + len(names)]] == list(names)

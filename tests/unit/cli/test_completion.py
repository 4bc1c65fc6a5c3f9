from __future__ import annotations

import shlex
import subprocess

import pytest

from bullpen.cli.command import CommandGroup
from bullpen.cli.commands import completion
from bullpen.cli.main import all_commands, main


def completed(line: str) -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    array = " ".join(map(shlex.quote, words))
    ask = f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _bullpen; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "--norc", "-uc", completion.bash(all_commands()) + ask],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("bullpen wor", ["worker", "workers"]),
        ("bullpen tasks re", ["retry"]),
        ("bullpen tasks retry --old", ["--older-than"]),
        ("bullpen tasks --old", ["--older-than"]),
        ("bullpen worker app --conc", ["--concurrency"]),
        ("bullpen completion ", ["bash", "zsh", "fish", "--help"]),
        ("bullpen nonsense --", []),
    ],
)
def test_bash_completes_commands_and_options(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in all_commands():
        for part in command.commands if isinstance(command, CommandGroup) else (command,):
            assert part.name in script
            for option in completion.options_of(part):
                assert all(name.lstrip("-") in script for name in option.names[-1:]), option


def test_fish_gets_no_quote_that_ends_too_early() -> None:
    for line in completion.fish(all_commands()).splitlines():
        assert line.replace("\\\\", "").replace("\\'", "").count("'") % 2 == 0, line


def test_another_shell_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "powershell"]) == 2
    assert "invalid choice: 'powershell'" in capsys.readouterr().err

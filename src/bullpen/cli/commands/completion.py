"""`bullpen completion SHELL`: prints a completion script, generated from the parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from bullpen.cli.command import Command, CommandGroup, ExitCode

HOW = {
    "bash": 'eval "$(bullpen completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(bullpen completion zsh)" in ~/.zshrc, after compinit',
    "fish": "bullpen completion fish > ~/.config/fish/completions/bullpen.fish",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", choices=HOW, metavar="SHELL", help="; ".join(f"{shell}: {how}" for shell, how in HOW.items())
    )


def run(arguments: argparse.Namespace) -> int:
    print(SCRIPTS[arguments.shell](arguments.commands()), end="")
    return ExitCode.OK


class Option(NamedTuple):
    """An option of a command, or the choices of a positional argument."""

    names: tuple[str, ...]
    summary: str
    takes_value: bool
    choices: tuple[str, ...]


def options_of(command: Command) -> Iterator[Option]:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    for action in parser._actions:  # noqa: SLF001 — argparse has no public way
        if not action.option_strings and not action.choices:
            continue
        choices = tuple(map(str, action.choices or ()))
        yield Option(tuple(action.option_strings), action.help or "", action.nargs != 0, choices)
    yield Option(("--help",), "print the help", takes_value=False, choices=())


def positionals_of(command: Command) -> list[str]:
    """How the help calls the arguments without a flag: APP."""
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    return [str(action.metavar) for action in parser._actions if not action.option_strings]  # noqa: SLF001 — as above


def words_of(commands: Sequence[Command | CommandGroup]) -> Mapping[str, list[str]]:
    """Candidates by the words typed before: "", "tasks", "tasks retry"."""
    found: dict[str, list[str]] = {"": [*(command.name for command in commands), "--version", "--help"]}
    for command in commands:
        if isinstance(command, CommandGroup):
            first = _names(command.commands[0])
            found[command.name] = [*(part.name for part in command.commands), *first]
            found |= {f"{command.name} {part.name}": _names(part) for part in command.commands}
        else:
            found[command.name] = _names(command)
    return found


def _names(command: Command) -> list[str]:
    return [word for option in options_of(command) for word in (option.names[-1:] if option.names else option.choices)]


def _cases(commands: Sequence[Command | CommandGroup]) -> str:
    return "".join(
        f"        {shlex.quote(typed)}) candidates={shlex.quote(' '.join(words))} ;;\n"
        for typed, words in words_of(commands).items()
    )


def bash(commands: Sequence[Command | CommandGroup]) -> str:
    groups = "|".join(command.name for command in commands if isinstance(command, CommandGroup))
    return f"""\
_bullpen() {{
    local typed='' candidates=''
    if (( COMP_CWORD > 1 )); then typed=${{COMP_WORDS[1]}}; fi
    case $typed in {groups})
        if (( COMP_CWORD > 2 )) && [[ ${{COMP_WORDS[2]}} != -* ]]; then typed+=" ${{COMP_WORDS[2]}}"; fi ;;
    esac
    case $typed in
{_cases(commands)}    esac
    COMPREPLY=($(compgen -W "$candidates" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _bullpen bullpen
"""


def zsh(commands: Sequence[Command | CommandGroup]) -> str:
    groups = "|".join(command.name for command in commands if isinstance(command, CommandGroup))
    return f"""\
_bullpen() {{
    local typed='' candidates=''
    if (( CURRENT > 2 )); then typed=${{words[2]}}; fi
    case $typed in ({groups})
        if (( CURRENT > 3 )) && [[ ${{words[3]}} != -* ]]; then typed+=" ${{words[3]}}"; fi ;;
    esac
    case $typed in
{_cases(commands)}    esac
    compadd -- ${{=candidates}} || _files
}}
compdef _bullpen bullpen
"""


def fish(commands: Sequence[Command | CommandGroup]) -> str:
    lines = ["complete -c bullpen -f"]
    for command in commands:
        lines.append(_line("__fish_use_subcommand", "-a", command.name, "-d", command.summary))
        seen = f"__fish_seen_subcommand_from {command.name}"
        if isinstance(command, Command):
            lines += [_option(seen, option) for option in options_of(command)]
            continue
        parts = " ".join(part.name for part in command.commands)
        none_of_them = f"{seen}; and not __fish_seen_subcommand_from {parts}"
        for part in command.commands:
            lines.append(_line(none_of_them, "-a", part.name, "-d", part.summary))
            this_one = f"{seen}; and __fish_seen_subcommand_from {part.name}"
            lines += [_option(this_one, option) for option in options_of(part)]
    return "\n".join(lines) + "\n"


def _option(condition: str, option: Option) -> str:
    if not option.names:
        return _line(condition, "-a", " ".join(option.choices), "-d", option.summary)
    words = []
    for name in option.names:
        words += ["-l", name[2:]] if name.startswith("--") else ["-s", name[1:]]
    words += ["-r"] if option.takes_value else []
    words += ["-a", " ".join(option.choices)] if option.choices else []
    return _line(condition, *words, "-d", option.summary)


def _line(condition: str, *words: str) -> str:
    return f"complete -c bullpen -n {_fish_quoted(condition)} " + " ".join(map(_fish_quoted, words))


def _fish_quoted(word: str) -> str:
    """As `shlex.quote`, for fish."""
    if word.isalnum() or (word[:1] == "-" and word[1:].replace("-", "").isalnum()):
        return word
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}

COMMAND = Command("completion", "Print a completion script for a shell.", add_arguments, run)

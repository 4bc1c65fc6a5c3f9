"""The console script: finds the command, runs it, and returns its exit code.

A new command is a file in `commands/` with a `Command` or a `CommandGroup`, and its name in `COMMANDS`. Only the module
of the command that runs is imported: a worker starts faster.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from bullpen import __version__
from bullpen.cli.command import Command, CommandError, CommandGroup, ExitCode
from bullpen.errors import (
    BullpenError,
    ConfigurationError,
    InvalidArgument,
    InvalidOption,
    ScheduleNotFound,
    TaskNotFound,
    UnknownTask,
    closest,
)
from bullpen.escaping import escape_lines

GROUPS = {
    "run": ("worker", "enqueue", "emit", "demo", "bench"),
    "look": ("top", "dashboard", "status", "history", "why", "stack", "workers", "doctor", "probe"),
    "act": ("tasks", "errors", "queues", "schedules"),
    "set up": ("check", "migrate", "move", "tokens", "config", "completion"),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)

NAME_A_STORE = (
    *("status", "history", "errors", "tasks", "why", "stack", "queues", "schedules", "workers", "doctor", "migrate"),
    "bench",
)

EXIT_CODES = """\
exit codes: 0 done, 1 failed, 2 wrong command line, 3 no such task, queue or
            schedule, 128 + n ended by signal n (130: Ctrl-C)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` and return its exit code. None: that of `sys.argv`, and this process ends with it."""
    if argv is not None:
        return _main(list(argv))
    code: int = ExitCode.INTERRUPTED
    with contextlib.suppress(KeyboardInterrupt):
        code = _main(sys.argv[1:])
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C no longer changes how it ended
    return code


def _main(words: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these glyphs shows "?" rather than a traceback
    parser = make_parser(words[:1] if words and words[0] in COMMANDS else COMMANDS)
    if not words:
        parser.print_help(sys.stderr)
        return ExitCode.USAGE
    if (problem := wrong_command(words)) is not None:
        _complain(problem, words)
        return ExitCode.USAGE
    try:
        arguments, unread = parser.parse_known_args(with_default(words))
    except WrongArguments as error:
        _complain(str(error), words)
        return ExitCode.USAGE
    except SystemExit as exit:  # argparse has printed the help
        return exit.code if isinstance(exit.code, int) else ExitCode.USAGE
    if unread:
        _complain(not_understood(arguments.command, arguments.typed, unread), words)
        return ExitCode.USAGE
    return _run(arguments, words)


def find_command(name: str) -> Command | CommandGroup:
    module = importlib.import_module(f"bullpen.cli.commands.{name}")
    found: Command | CommandGroup = getattr(module, "COMMAND", None) or module.GROUP
    return found


def all_commands() -> list[Command | CommandGroup]:
    return [find_command(name) for name in COMMANDS]


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    command: Command = arguments.command
    arguments.words = words
    arguments.commands = all_commands
    try:
        code = command.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of the output, say `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except (CommandError, BullpenError) as error:
        _complain(str(error), words, f"bullpen {arguments.typed}: ")
        return _code_of(error)
    return code


def _complain(message: str, words: Sequence[str], begin: str = "") -> None:
    """Print an error. An address may be typed where another argument belongs, so no password is repeated."""
    from bullpen.cli.settings import read_texts  # here, because few commands fail
    from bullpen.tasks.storage.open import without_passwords

    message = without_passwords(message, words)
    variables = [value for name, value in os.environ.items() if name.startswith("BULLPEN_")]
    for text in (*variables, *read_texts):
        message = without_passwords(message, [text])
    print(_indented(begin + message), file=sys.stderr)


class WrongArguments(Exception):
    """The message of argparse about a wrong command line."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise WrongArguments(f"{self.prog}: error: {message}")


def _indented(message: str) -> str:
    """Further lines are indented: data with a newline cannot look like a message of its own."""
    first, *more = escape_lines(message).split("\n")
    return "\n".join([first, *(line if not line or line.startswith("  ") else f"  {line}" for line in more)])


def _code_of(error: CommandError | BullpenError) -> int:
    match error:
        case CommandError():
            return error.code
        case InvalidOption() | ConfigurationError() | InvalidArgument() | UnknownTask():
            return ExitCode.USAGE
        case TaskNotFound() | ScheduleNotFound():
            return ExitCode.NOT_FOUND
    return ExitCode.FAILED


def wrong_command(words: Sequence[str]) -> str | None:
    """The message for a command that does not exist; None if it exists."""
    if words[0].startswith("-"):
        return None
    if words[0] not in COMMANDS:
        return _unknown("bullpen", words[0], COMMANDS)
    group = find_command(words[0])
    if isinstance(group, CommandGroup) and len(words) > 1 and not words[1].startswith("-"):
        names = [command.name for command in group.commands]
        if words[1] not in names:
            return _unknown(f"bullpen {group.name}", words[1], names)
    return None


def _unknown(typed: str, word: str, names: Sequence[str]) -> str:
    close = closest(word, names)
    hint = (
        f"did you mean `{typed} {close}`?" if close else f"the commands are {', '.join(names)}; see `{typed} --help`."
    )
    return f"{typed}: unknown command {word!r}: {hint}"


def not_understood(command: Command, typed: str, words: Sequence[str]) -> str:
    """The message for arguments that the command does not take."""
    hint = f"see `bullpen {typed} --help`."
    if words[0].startswith("-"):
        # here, because few command lines are wrong
        from bullpen.cli.commands.completion import options_of, positionals_of

        names = [name for option in options_of(command) for name in option.names if name.startswith("--")]
        wrong = words[0].partition("=")[0]
        close = closest(wrong, names)
        hint = f"did you mean {close}?" if close else f"the options are {', '.join(names)}; {hint}"
        if wrong in ("--app", "--url") and (app := positionals_of(command)[:1]) and app[0].startswith("APP"):
            hint = f"{app[0]} has no flag: `bullpen {typed} {app[0]} …`."
    elif typed.split(maxsplit=1)[0] in NAME_A_STORE:
        hint = f"did you mean {'--url' if '://' in words[0] else '--app'} {words[0]}?"
    return f"bullpen {typed}: {' '.join(words)!r} is not understood: {hint}"


def with_default(words: Sequence[str]) -> list[str]:
    """`words`, with the first command of a group if they name none: `tasks --json` is `tasks list --json`."""
    group = find_command(words[0]) if words[0] in COMMANDS else None
    if not isinstance(group, CommandGroup) or (len(words) > 1 and words[1] in ("-h", "--help")):
        return list(words)
    names_one = len(words) > 1 and not words[1].startswith("-")
    return list(words) if names_one else [words[0], group.commands[0].name, *words[1:]]


def make_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of the named commands. The others would only slow it down."""
    parser = _Parser(
        prog="bullpen",
        usage="bullpen [-h] [--version] command ...",
        description="Durable tasks and worker pools.\n" + ("" if len(names) == 1 else _summaries(names)),
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bullpen {__version__}")
    commands = parser.add_subparsers(prog="bullpen", metavar="command", help=argparse.SUPPRESS, required=True)
    for command in map(find_command, names):
        if isinstance(command, CommandGroup):
            named = commands.add_parser(command.name, description=command.summary)
            inner = named.add_subparsers(title="commands", metavar="command", required=True)
            for part in command.commands:
                _add(inner, part, f"{command.name} {part.name}")
        else:
            _add(commands, command, command.name)
    return parser


def _summaries(names: Sequence[str]) -> str:
    """The commands in their groups, each with its summary."""
    lines = []
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<11} {find_command(name).summary}" for name in group if name in names]
    return "\n".join(lines)


def _add(parsers: Any, command: Command, typed: str) -> None:
    parser = parsers.add_parser(command.name, help=command.summary, description=command.summary)
    command.add_arguments(parser)
    parser.set_defaults(command=command, typed=typed)

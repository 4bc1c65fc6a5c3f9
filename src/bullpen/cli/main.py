"""The console script: find the command, run it, turn its end into an exit code.

A new command is a file with a `Command` and a place in `COMMANDS`.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import sys
from collections.abc import Sequence

from bullpen import __version__
from bullpen.cli import demo
from bullpen.cli.command import Command

COMMANDS: tuple[Command, ...] = (demo.COMMAND,)

USAGE_ERROR = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default that of the process; its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these glyphs shows "?" rather than a traceback
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        return USAGE_ERROR
    if not words[0].startswith("-") and words[0] not in [command.name for command in COMMANDS]:
        print(unknown(words[0]), file=sys.stderr)
        return USAGE_ERROR
    try:
        arguments = parser.parse_args(words)
    except SystemExit as exit:  # argparse has said what there is to say
        return exit.code if isinstance(exit.code, int) else USAGE_ERROR
    command: Command = arguments.command
    try:
        code = command.run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output, say `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def unknown(word: str) -> str:
    """What to tell somebody who asked for a command that does not exist."""
    names = [command.name for command in COMMANDS]
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean `bullpen {close[0]}`?" if close else f"there is {', '.join(names)}; see `bullpen --help`."
    return f"bullpen: unknown command {word!r}: {hint}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bullpen", description="A bounded pool of warm workers.")
    parser.add_argument("--version", action="version", version=f"bullpen {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="command", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.summary, description=command.summary)
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return parser

"""The tables of docs/reference/command-line.md, from the parser. `python -m tests.docs.command_line` rewrites them."""

from __future__ import annotations

import argparse

from bullpen.cli.command import Command, CommandGroup
from bullpen.cli.main import all_commands
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "command-line.md"


def tables() -> dict[str, str]:
    """For each command its table, by what is typed."""
    found = {}
    for command in all_commands():
        for part in command.commands if isinstance(command, CommandGroup) else (command,):
            typed = f"{command.name} {part.name}" if isinstance(command, CommandGroup) else part.name
            found[typed] = table_of(part)
    return found


def table_of(command: Command) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    rows = [f"| {_name(action)} | {(action.help or '').replace('|', chr(92) + '|')} |" for action in parser._actions]
    return "\n".join([command.summary, "", "| | |", "|---|---|", *rows])


def _name(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 or not action.metavar else f" {action.metavar}"
    if action.nargs == "?":
        value = f" [{value.strip()}]"
    if action.nargs == "*":
        value = f" [{value.strip()} …]"
    if not action.option_strings:
        return f"`{value.strip()}`" + (" …" if action.nargs == "+" else "")
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def drawn(page: str) -> str:
    for typed, table in tables().items():
        begin, end = f"<!-- table: {typed} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        assert found, f"{PAGE.name} has no place for the table of {typed}: {begin}"
        page = f"{before}{begin}\n{table}\n\n{rest[rest.index(end) :]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))

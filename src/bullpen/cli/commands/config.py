"""`bullpen config`: prints every setting, its value and its source."""

from __future__ import annotations

import argparse

from bullpen.cli.command import Command, ExitCode
from bullpen.cli.settings import SETTINGS, FoundSetting, add_config, find_all
from bullpen.cli.terminal.output import show, show_json, table
from bullpen.cli.terminal.screen import StyledText
from bullpen.tasks.storage.open import without_password, without_passwords


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    found = find_all(config=arguments.config)
    for name in ("url", "app"):  # an address may be in the wrong one
        if found[name].value is not None:
            value = found[name].value
            shown = without_password(value) if name == "url" else without_passwords(value, [value])
            found[name] = found[name]._replace(value=shown)
    if arguments.json:
        show_json({name: {"value": value, "source": source} for name, (value, source, _) in found.items()})
    else:
        rows = [_row(name, entry) for name, entry in found.items()]
        show(table(("setting", "value", "from", ""), rows))
    return ExitCode.OK


def _row(name: str, found: FoundSetting) -> tuple[StyledText, ...]:
    value, source, _ = found
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else f"{value}"
    style = "quiet" if source == "default" else ""
    return (
        StyledText(name),
        StyledText(shown or "–", style),
        StyledText(source, style or "accent"),
        StyledText(SETTINGS[name].summary, "quiet"),
    )


COMMAND = Command("config", "Show each setting, its value and its source.", add_arguments, run)

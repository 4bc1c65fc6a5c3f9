"""`bullpen config`: prints every setting, its value and its source."""

from __future__ import annotations

import argparse
from typing import Any

from bullpen.cli.command import Command, ExitCode
from bullpen.cli.settings import SETTINGS, FoundSetting, add_config, find_all
from bullpen.cli.terminal.output import show, show_json, table
from bullpen.cli.terminal.screen import StyledText
from bullpen.tasks.storage.open import looks_like_address, masked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    found = find_all(config=arguments.config)
    found = {name: setting._replace(value=_without_secrets(name, setting.value)) for name, setting in found.items()}
    if arguments.json:
        show_json({name: {"value": value, "source": source} for name, (value, source, _) in found.items()})
    else:
        rows = [_row(name, entry) for name, entry in found.items()]
        show(table(("setting", "value", "from", ""), rows))
    return ExitCode.OK


def _without_secrets(name: str, value: Any) -> Any:
    """An address may be in the wrong setting. A list with one is not shown: a blank may have split the password."""
    if isinstance(value, tuple):
        return ("***",) if any(map(looks_like_address, value)) else value
    if not isinstance(value, str):
        return value
    return masked(value) if name == "url" or looks_like_address(value) else value


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

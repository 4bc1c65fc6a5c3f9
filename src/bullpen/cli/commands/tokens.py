"""`bullpen tokens`: creates, lists and revokes the tokens of the HTTP API."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bullpen.cli.arguments import names
from bullpen.cli.command import Command, CommandError, CommandGroup, ExitCode
from bullpen.cli.terminal.output import show, show_json, table, text
from bullpen.cli.terminal.screen import StyledText

if TYPE_CHECKING:
    from bullpen.web.tokens import Scope, TokenFile

SCOPES = "read, operate, enqueue"


def _scopes(written: str) -> tuple[Scope, ...]:
    from bullpen.web.tokens import SCOPES as KNOWN

    found = tuple(scope for scope in KNOWN if scope in names(written))
    if set(found) != set(names(written)):
        raise argparse.ArgumentTypeError(f"must be some of {SCOPES}, got {written!r}")
    return found


def _file(arguments: argparse.Namespace) -> TokenFile:
    from bullpen.web.tokens import TokenFile  # imported late: it needs packages that other commands do not need

    return TokenFile(arguments.file)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the tokens file, as in `bullpen dashboard --tokens FILE`")


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def _list(arguments: argparse.Namespace) -> int:
    tokens = _file(arguments).read()
    if arguments.json:
        found = [{"name": one.name, "scopes": one.scopes, "created": one.created} for one in tokens]
        show_json({"tokens": found})
    elif not tokens:
        show([text("no tokens: create one with `bullpen tokens create FILE NAME`", style="quiet")])
    else:
        rows = [(StyledText(one.name), StyledText(",".join(one.scopes)), StyledText(one.created)) for one in tokens]
        show(table(("name", "scopes", "created"), rows))
    return ExitCode.OK


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    parser.add_argument("name", metavar="NAME", help="name of the token, for the list and the audit log")
    parser.add_argument(
        "--scopes", type=_scopes, default="read", metavar="A,B", help=f"some of {SCOPES} (default: read)"
    )


def _create(arguments: argparse.Namespace) -> int:
    token = _file(arguments).create(arguments.name, arguments.scopes)
    print("keep this token: it is shown only now", file=sys.stderr)
    print(token)
    return ExitCode.OK


def _add_revoke_arguments(parser: argparse.ArgumentParser) -> None:
    _add_file(parser)
    parser.add_argument("name", metavar="NAME", help="name of the token, as `bullpen tokens list FILE` prints it")


def _revoke(arguments: argparse.Namespace) -> int:
    if not _file(arguments).revoke(arguments.name):
        raise CommandError(f"{arguments.file} has no token {arguments.name!r}", ExitCode.NOT_FOUND)
    show([text(f"revoked {arguments.name}")])
    return ExitCode.OK


GROUP = CommandGroup(
    "tokens",
    "Create, list and revoke the tokens of the HTTP API.",
    (
        Command("list", "List the tokens of a file.", _add_list_arguments, _list),
        Command("create", "Create a token and print it.", _add_create_arguments, _create),
        Command("revoke", "Revoke a token.", _add_revoke_arguments, _revoke),
    ),
)

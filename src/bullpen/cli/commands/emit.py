"""`bullpen emit APP_OR_URL NAME [JSON]`: emits an event."""

from __future__ import annotations

import argparse
import json

from bullpen.cli import store
from bullpen.cli.arguments import seconds
from bullpen.cli.command import Command, CommandError, ExitCode
from bullpen.cli.terminal.output import counted, show, show_json, text
from bullpen.tasks.model.events import EVENT_TTL, event_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "where", metavar="APP_OR_URL", help="the code, such as app:queue, or only the store, such as sqlite:///jobs.db"
    )
    parser.add_argument("name", metavar="NAME", help="name of the event; of an event for one task: ID:NAME")
    parser.add_argument("payload", nargs="?", default="null", metavar="JSON", help="the payload (default: null)")
    parser.add_argument(
        "--ttl", type=seconds, default=EVENT_TTL, metavar="S", help="keep the event for this time (default: 7d)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    try:
        payload = json.loads(arguments.payload)
    except ValueError as error:
        hint = """quote it for the shell, such as '{"by": "ada"}' or '"text"'"""
        message = f"the payload is no JSON ({error}); {hint}"
        raise CommandError(message, ExitCode.USAGE) from None
    with store.open_either(arguments.where) as queue:
        store.reject_memory(queue.storage)
        waiting = queue.count(awaits=event_name(arguments.name))
        is_new = queue.emit(arguments.name, payload, ttl=arguments.ttl)
    if arguments.json:
        show_json({"name": arguments.name, "is_new": is_new, "waiting": waiting})
    elif is_new:
        show([text(f"{arguments.name}: {counted(waiting, 'task waits', 'tasks wait')} for it")])
    else:
        show([text(f"{arguments.name}: an event of this name exists; nothing was emitted", style="late")])
    return ExitCode.OK


COMMAND = Command("emit", "Emit an event that tasks wait for.", add_arguments, run)

"""`bullpen migrate`: upgrades the schema of a store, or prints the SQL."""

from __future__ import annotations

import argparse
import asyncio

from bullpen.cli import store
from bullpen.cli.command import Command, ExitCode
from bullpen.cli.terminal.output import show, show_json, text
from bullpen.errors import SchemaTooNew
from bullpen.tasks.storage.port import Schema, Storage, SupportsMigrations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print the SQL; change nothing")
    store.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    with store.find_queue(arguments) as queue:
        storage = queue.storage
        store.reject_memory(storage)
        if not isinstance(storage, SupportsMigrations):
            return _tell_of_none(arguments, storage)
        return asyncio.run(_migrate(arguments, storage, store.address_of(storage)))


def _tell_of_none(arguments: argparse.Namespace, storage: Storage) -> int:
    if arguments.json:
        show_json({"store": store.address_of(storage), "found": None, "known": None, "pending": 0})
    else:
        show([text(f"{store.address_of(storage)} has no schema: nothing to migrate")])
    return ExitCode.OK


async def _migrate(arguments: argparse.Namespace, storage: SupportsMigrations, address: str) -> int:
    schema = await storage.look_at_schema()
    if schema.is_too_new:
        raise SchemaTooNew(storage=address, found=schema.found, known=schema.known)
    if schema.migrations and not arguments.dry_run:
        try:
            await storage.upgrade_schema()
        finally:
            await storage.close()  # type: ignore[attr-defined]  # it is a Storage too
    if arguments.json:
        pending = schema.migrations if arguments.dry_run else ()
        found = {
            "store": address,
            "found": schema.found,
            "known": schema.known,
            "pending": len(pending),
            "sql": pending,
        }
        show_json(found)
    else:
        _tell(schema, address, dry_run=arguments.dry_run)
    return ExitCode.OK


def _tell(schema: Schema, address: str, *, dry_run: bool) -> None:
    existing = f"version {schema.found}" if schema.found else "no schema"
    if not schema.migrations:
        show([text(f"{address} is up to date: {existing}")])
    elif dry_run:
        show([text(f"-- {address} has {existing}; this SQL creates version {schema.known}:")])
        print("\n".join(step.strip() + "\n" for step in schema.migrations), end="")
    else:
        show([text(f"{address} had {existing}; it has version {schema.known} now")])


COMMAND = Command("migrate", "Upgrade the schema of a store, or print the SQL.", add_arguments, run)

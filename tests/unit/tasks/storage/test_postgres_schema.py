"""The texts of SQL that clients of PostgreSQL execute."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from bullpen.tasks.storage.postgres import schema, statements
from bullpen.tasks.storage.postgres.sql_files import fill_placeholders, read_statements

# A migration that was applied somewhere must never change: databases would differ, and both would claim one version.
# Not even the whitespace changes. After the first release, add a migration, and its digest here, instead.
DIGESTS = ("44074fcbe3d907d593f5408a07fc3f4bde2b1079d3e4d755bb0d4df5c92c1285",)


def test_migrations_never_change() -> None:
    texts = schema.pending_migrations(0, "x")
    assert tuple(sha256(text.encode()).hexdigest() for text in texts) == DIGESTS


CONCEPTS = ("tasks", "adding", "claims", "queues", "workers", "upkeep", "history", "connection")
NAMES = [name.upper() for concept in CONCEPTS for name in read_statements(f"statements/{concept}.sql")]


@pytest.mark.parametrize("name", NAMES)
def test_statements_are_complete(name: str) -> None:
    text = statements.in_schema(getattr(statements, name), "shop")
    assert not re.search(r"\{[a-z_]+\}|--|;", text)
    assert text == text.strip()


def test_only_names_in_braces_are_placeholders() -> None:
    text = "SELECT '{}', '{1,2}' ~ 'a{1,255}' FROM {schema}.task"
    assert fill_placeholders(text, {"schema": "x"}) == "SELECT '{}', '{1,2}' ~ 'a{1,255}' FROM x.task"
    with pytest.raises(KeyError):
        fill_placeholders("{shema}", {"schema": "x"})

"""Reads the SQL of this package: `sql/migration_N/` makes version N of the schema, `sql/statements/` is what the store
executes.

In both, a name in braces stands for text that Python knows: `{schema}`, or `{columns}` for a list that `rows.py` has.
Braces around anything else, as in `'{}'`, are SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_SQL = Path(__file__).with_name("sql")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)


def read_sql(path: str) -> str:
    return (_SQL / path).read_text("utf-8")


def read_statements(path: str) -> dict[str, str]:
    """The statements of a file, by the name in the line `-- name: …` before each. They are sent without comments."""
    _, *parts = _NAME.split(read_sql(path))
    return {
        name: _COMMENT.sub("", text).strip().removesuffix(";")
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def fill_placeholders(sql: str, values: Mapping[str, object]) -> str:
    """Raises KeyError for a placeholder that `values` does not have."""
    return _PLACEHOLDER.sub(lambda found: str(values[found[1]]), sql)

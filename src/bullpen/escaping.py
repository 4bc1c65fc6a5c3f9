"""Text of tasks, as people see it: control characters are escaped.

A task's name, key, error or output may come from anyone who may enqueue. Printed as it is, it could move the cursor,
change the title or the colours of a terminal, reverse the order of letters, or write a second log line. So everything
that prints or logs such text passes it through one of these functions.
"""

from __future__ import annotations

import re

# C0 and DEL, C1, the marks, embeddings, overrides and isolates of bidirectional text, the line and paragraph
# separators between them, and lone surrogates, which no stream can encode.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_one_line = re.compile(f"[{_UNSAFE}]")
_lines = re.compile(rf"(?![\n\t])[{_UNSAFE}]")


def escape(text: str) -> str:
    r"""`text` on one line: a newline becomes `\n`, ESC becomes `\x1b`."""
    return text if text.isprintable() else _one_line.sub(_as_python, text)


def escape_lines(text: str) -> str:
    """The same, but newlines and tabs stay: for tracebacks and messages of several lines."""
    return text if text.isprintable() else _lines.sub(_as_python, text)


def escape_json(document: str) -> str:
    """A JSON document with its own escapes. Its newlines and tabs stand between values, never inside a string."""
    return document if document.isprintable() else _lines.sub(_as_json, document)


def _as_python(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def _as_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"

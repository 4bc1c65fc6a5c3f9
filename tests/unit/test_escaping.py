from __future__ import annotations

import json
import pickle
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import PoolNotFound, StorageError, TaskFailed, TaskNotFound
from bullpen.escaping import escape, escape_json, escape_lines

ATTACK = "a\x1b]0;owned\x07\x9b31m\r\n\u202egpj.exe\u2066\u2028\ud800é"
MARKS = {"LEFT-TO-RIGHT MARK", "RIGHT-TO-LEFT MARK", "ARABIC LETTER MARK"}


def is_dangerous(character: str) -> bool:
    """By the Unicode database, so not by the table of the code."""
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
        return True
    explicit = unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    return explicit or unicodedata.name(character, "") in MARKS


def test_every_dangerous_character_is_escaped_and_no_other() -> None:
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        assert (escape(character) != character) == is_dangerous(character), hex(number)


def test_one_line_stays_one_line() -> None:
    assert escape(ATTACK) == r"a\x1b]0;owned\x07\x9b31m\r\n\u202egpj.exe\u2066\u2028\ud800é"
    assert escape_lines("a\n\tb\x1b\r\n") == "a\n\tb\\x1b\\r\n"


@given(st.text(st.characters(exclude_categories=())))
def test_an_escaped_document_is_the_same_document(text: str) -> None:
    document = escape_json(json.dumps({text: [text]}, ensure_ascii=False, indent=2))
    assert json.loads(document) == {text: [text]}
    assert not any(map(is_dangerous, document.replace("\n", "")))


@pytest.mark.parametrize(
    "error",
    [
        TaskNotFound(task=ATTACK),
        PoolNotFound(pool="x", known=(ATTACK,), suggestion=None),
        StorageError(ATTACK, storage=ATTACK),
        TaskFailed(task="1", name=ATTACK, kind=ATTACK, type=ATTACK, message=ATTACK, traceback=ATTACK, attempt=1),
    ],
)
def test_errors_escape_the_data_that_they_quote(error: BaseException) -> None:
    for shown in (str(error), *getattr(error, "__notes__", ())):
        assert not any(map(is_dangerous, shown.replace("\n", "")))
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.args) == (str(error), error.args)

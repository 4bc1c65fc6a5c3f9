"""docs/reference/glossary.md defines each word once, and says which classes stand for it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import bullpen
from bullpen import errors
from tests.docs.architecture import PAGE, classes, identifiers, names
from tests.docs.markdown import ROOT

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
IN_THE_CODE = "In the code: "
REPLACED = {  # patterns of words that have given way to a word of the glossary
    r"(?i)(?<!connection)(?<!connection )refus(e|es|ed|al|als|ing)(?![a-z]|[ _]to[ _])": "reject",
}


class Entry(NamedTuple):
    part: str
    word: str
    sentence: str
    classes: tuple[str, ...]  # that stand for the word


def read_entries(text: str) -> list[Entry]:
    found = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, *entries = re.split(r"^### ", part, flags=re.MULTILINE)
        for entry in entries:
            word, sentence, *code = filter(None, entry.splitlines())
            assert not code or code[0].startswith(IN_THE_CODE), f"{word} has more than one sentence"
            found.append(Entry(title.strip(), word, sentence, tuple(re.findall(r"`(\w+)`", " ".join(code)))))
    return found


ENTRIES = read_entries(GLOSSARY.read_text())
NAMED = Counter(name for entry in ENTRIES for name in entry.classes)


def test_each_word_is_defined_once_and_stands_where_a_reader_looks_for_it() -> None:
    assert len(ENTRIES) > 100
    assert [word for word, count in Counter(entry.word for entry in ENTRIES).items() if count > 1] == []
    for part in ("Words of pools", "Words of tasks", "Words of both"):
        words = [re.sub(r"\W", "", entry.word).lower() for entry in ENTRIES if entry.part == part]
        assert words == sorted(words), part


def test_the_code_and_the_pages_use_the_word_of_the_glossary() -> None:
    assert set(REPLACED.values()) <= {entry.word for entry in ENTRIES}
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.lua"), *(ROOT / "src").rglob("*.sql")]
    files += (ROOT / "docs").rglob("*.md")
    files += (file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__))  # which has the patterns
    found = [
        f"{file.relative_to(ROOT)}: {match[0]!r} is {word!r} here"
        for file in files
        for pattern, word in REPLACED.items()
        for match in re.finditer(pattern, file.read_text())
    ]
    assert found == []


def test_each_identifier_in_the_glossary_exists() -> None:
    codes = re.findall(r"`([^`]+)`", " ".join(entry.sentence for entry in ENTRIES))
    words = {word for code in codes for word in re.findall(r"\w+", code)}
    assert words - identifiers() == set()
    assert set(NAMED) - names() == set()


def test_each_class_stands_for_one_word() -> None:
    assert [name for name, count in NAMED.items() if count > 1] == []


def test_each_public_class_has_its_word() -> None:
    public = {name: getattr(bullpen, name) for name in bullpen.__all__}
    nouns = {name for name, one in public.items() if isinstance(one, type) and not issubclass(one, BaseException)}
    assert nouns - set(NAMED) == set()


def test_each_class_on_the_architecture_page_has_its_word() -> None:
    of_page = {name for name in classes(PAGE.read_text()) if not name.startswith("_")}
    assert of_page - set(vars(errors)) - set(NAMED) == set()

"""The records in `records/` are those of the code. A change of one is deliberate: write it anew, and name it."""

from __future__ import annotations

import difflib

import pytest

from tests.ratchets.records import FOLDER, RECORDS, recorded_lines

HOW = "if that is meant, run `python -m tests.ratchets.records` and name the change in CHANGELOG.md"


@pytest.mark.parametrize("file", ["public_names.txt", "command_line.txt"])
def test_a_record_is_that_of_the_code(file: str) -> None:
    difference = difference_of((FOLDER / file).read_text(), RECORDS[file]())
    assert not difference, f"{file} has changed; {HOW}:\n{difference}"


def difference_of(recorded: str, now: str) -> str:
    return "\n".join(difflib.unified_diff(recorded.splitlines(), now.splitlines(), "recorded", "now", "", "", 1, ""))


def test_no_package_grows_unnoticed() -> None:
    grown = growth(recorded_lines((FOLDER / "lines.txt").read_text()), recorded_lines(RECORDS["lines.txt"]()))
    assert not grown, f"{HOW}:\n" + "\n".join(grown)


def growth(recorded: dict[str, int], now: dict[str, int]) -> list[str]:
    """Packages that are new, gone, or larger by more than 2 % and 20 lines. A package may shrink."""
    new = [f"{package}: a new package of {lines} lines" for package, lines in now.items() if package not in recorded]
    gone = [f"{package}: there is no such package any more" for package in recorded if package not in now]
    larger = [
        f"{package}: {now[package]} lines, and {lines} are recorded"
        for package, lines in recorded.items()
        if now.get(package, 0) > lines + max(20, lines * 0.02)
    ]
    return new + gone + larger


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        ({"a": 1021}, "a: 1021 lines"),
        ({"a": 1020}, ""),
        ({"a": 10}, ""),
        ({"a": 1000, "b": 1}, "b: a new package"),
        ({}, "a: there is no such package"),
    ],
)
def test_growth_is_found(now: dict[str, int], problem: str) -> None:
    found = growth({"a": 1000}, now)
    assert len(found) == bool(problem)
    assert all(line.startswith(problem) for line in found)


def test_a_changed_line_of_a_record_is_shown() -> None:
    difference = difference_of("class A\n    def f(x)\n", "class A\n    def f(x, y)\n")
    assert "-    def f(x)" in difference
    assert "+    def f(x, y)" in difference

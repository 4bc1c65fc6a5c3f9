"""The pages show what a backoff waits as a list; the list is what the code waits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bullpen import Backoff
from bullpen.tasks.model.options import backoff

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.compile(r"`(backoff=[^`]+|Backoff\([^`]+\))`(?:, the default,)? waits ((?:[\d.]+(?:, | and )?)+) seconds")
FOUND = [(page, *shown) for page in sorted(DOCS.rglob("*.md")) for shown in SHOWN.findall(page.read_text("utf-8"))]


def test_the_pages_that_explain_backoffs_show_lists() -> None:
    pages = {page.name for page, *_ in FOUND}
    assert pages >= {"retries-and-timeouts.md", "tasks.md", "glossary.md", "tasks-in-production.md"}


@pytest.mark.parametrize(("page", "written", "waits"), [(page.name, *shown) for page, *shown in FOUND])
def test_a_backoff_on_a_page_waits_as_the_page_says(page: str, written: str, waits: str) -> None:
    value = eval(written.removeprefix("backoff="), {"Backoff": Backoff})
    said = tuple(float(wait) for wait in re.split(", | and ", waits))
    assert backoff("backoff", value).waits(len(said)) == pytest.approx(said), page

"""The documentation site: its navigation has every page, and the check of its links finds what is broken."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.docs import site
from tests.docs.markdown import ROOT


def test_the_navigation_has_every_page_once() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    listed = [page for page in paths(project["nav"]) if page.startswith("docs/")]
    written = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(written)


def paths(entry: object) -> Iterator[str]:
    """The paths in a navigation: strings, lists, and tables from titles to either."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from paths(value)
    elif isinstance(entry, list):
        for value in entry:
            yield from paths(value)


def test_the_pages_of_the_site_exist() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert [page for page in paths(project["nav"]) if not (ROOT / page).is_file()] == []
    assert [name for name in site.SOURCES if not (ROOT / name).exists()] == []


def test_a_sound_site_has_no_problems(tmp_path: Path) -> None:
    write(tmp_path, 'index.html: <h1 id="top">x</h1> <a href="a/b.html#there">b</a> <a href="#top">up</a>')
    write(tmp_path, 'a/b.html: <p id="there"></p> <a href="../index.html">i</a> <a href="https://example.org/">e</a>')
    assert list(site.problems_of(tmp_path)) == []


def test_a_broken_link_a_missing_section_and_a_foreign_script_are_found(tmp_path: Path) -> None:
    write(tmp_path, 'index.html: <a href="gone.html">g</a> <a href="b.html#gone">b</a> <img src="no.svg">')
    write(tmp_path, 'b.html: <script src="https://example.org/x.js"></script> <a href="a%20b.html">spaces</a>')
    write(tmp_path, "a b.html: <p></p>")
    assert list(site.problems_of(tmp_path)) == [
        "b.html: loads https://example.org/x.js from another host",
        "index.html: no.svg leads nowhere",
        "index.html: gone.html leads nowhere",
        "index.html: b.html#gone names a section that is not there",
    ]


def write(folder: Path, page: str) -> None:
    name, _, text = page.partition(": ")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)

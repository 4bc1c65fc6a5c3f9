"""Builds the documentation site in `site/`, and checks it: `python -m tests.docs.site`, which `make docs` runs.

The site has the repository's pages, and the examples beside them, in the folders that they have in the repository.
So a link that works on a page in the repository works on the site. zensical.toml has the navigation and the looks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.docs.markdown import ROOT

PAGES = ROOT / "build" / "pages"
SITE = ROOT / "site"
SOURCES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "examples", "benchmarks")
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src"}  # what a browser fetches by itself
NO_FETCH = {"canonical", "prev", "next", "alternate"}  # kinds of <link> that only name an address


def main() -> int:
    collect(PAGES)
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=False)
    if built.returncode != 0:
        return built.returncode
    problems = list(problems_of(SITE))
    for problem in problems:
        print(problem, file=sys.stderr)
    count = sum(1 for _ in SITE.rglob("*.html"))
    print(f"{count} pages, {len(problems)} broken links; open {SITE / 'index.html'}")
    return 1 if problems else 0


def collect(folder: Path) -> None:
    """Copy the pages and what they link to; of the benchmarks their pages only."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(SITE, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignore = ["__pycache__", *(["*.py"] if name == "benchmarks" else [])]
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns(*ignore))
        else:
            shutil.copy(source, folder / name)
    (folder / "assets").mkdir()
    shutil.copy(mermaid(), folder / "assets")


def mermaid() -> Path:
    """The script that draws the diagrams; the theme would fetch it from another host."""
    package = find_spec("mermaidx")
    if package is None or package.origin is None:
        raise SystemExit("the site needs mermaidx: run make docs")
    return Path(package.origin).parent / "assets" / "mermaid.js"


def problems_of(site: Path) -> Iterator[str]:
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site)
        for address in page.loads:
            if urlsplit(address).netloc:
                yield f"{name}: loads {address} from another host"
        for address in (*page.loads, *page.links):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name}: {address} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                yield f"{name}: {address} names a section that is not there"


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        if "id" in given:
            self.names.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif LOADS.get(tag, "") in given and given.get("rel") not in NO_FETCH:
            self.loads.append(given[LOADS[tag]])


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    return page


if __name__ == "__main__":
    sys.exit(main())

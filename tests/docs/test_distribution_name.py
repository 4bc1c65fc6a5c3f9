"""The distribution is `pybullpen`; no file may tell a reader to install `bullpen`, which is another project on PyPI."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

BUILT = {"site", "build", "dist", "peers", "__pycache__"}  # and folders whose name begins with a dot
OLD_FORMS = re.compile(
    r"""(?<![\w-])bullpen\\?\[[a-z{]                             # an extra: bullpen[redis]
    |   (?:pip|pip3|pipx|uv|uvx|poetry|pdm)\s+(?:\w+\s+)?(?:install|add|run)\b[^`#\n]*(?<![\w./-])bullpen(?![\w./:-])
    |   metadata\.version\(["']bullpen["']
    |   (?<![\w-])bullpen\s*(?:==|>=|~=|<=)\s*\d""",
    re.VERBOSE,
)
REQUIREMENT = re.compile(r"^bullpen\b")


def test_the_distribution_is_named_pybullpen() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == "pybullpen"


def test_no_file_tells_a_reader_to_install_bullpen() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in text_files(ROOT) for line in old_forms(path)]
    assert found == []


def text_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in BUILT and (not path.name.startswith(".") or path.name == ".ci"):
                yield from text_files(path)
        elif path != Path(__file__):
            yield path


def old_forms(path: Path) -> Iterator[int]:
    is_requirements = path.name.startswith("requirements") and path.suffix in (".txt", ".in")
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        if OLD_FORMS.search(line) or (is_requirements and REQUIREMENT.search(line)):
            yield number


@pytest.mark.parametrize(
    "line",
    [
        'pip install "bullpen[postgres]"',
        "$ pip install bullpen",
        "$ uv add bullpen",
        "$ uv pip install --upgrade bullpen",
        "`bullpen[redis]` adds a client",
        'metadata.version("bullpen")',
        "bullpen>=0.1",
    ],
)
def test_an_old_form_is_found(line: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"text\n{line}\n")
    assert list(old_forms(page)) == [2]


@pytest.mark.parametrize(
    "line",
    [
        'pip install "pybullpen[postgres]"',
        "$ pip install .",
        "import bullpen",
        "bullpen worker app.py",
        "from bullpen import Pool",
    ],
)
def test_the_new_form_is_accepted(line: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{line}\n")
    assert list(old_forms(page)) == []


def test_a_requirement_is_found(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("pybullpen[redis]\nbullpen\n")
    assert list(old_forms(requirements)) == [2]

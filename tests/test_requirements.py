"""requirements/ locks what pyproject.toml asks for: exact versions with hashes, for every supported Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = sorted(set(PROJECT["dependency-groups"]) - {"dev"})  # which includes others
PYTHONS = ("3.11", "3.12", "3.13")


def locked(group: str) -> list[Requirement]:
    text = (ROOT / "requirements" / f"{group}.txt").read_text().replace("\\\n", " ")
    return [Requirement(line.partition(" --hash")[0]) for line in text.splitlines()]


def test_every_group_is_locked_and_make_knows_it() -> None:
    assert sorted(path.stem for path in (ROOT / "requirements").glob("*")) == GROUPS
    (made,) = re.findall(r"^GROUPS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(made.split()) == GROUPS


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("python", PYTHONS)
def test_what_is_asked_for_is_locked(group: str, python: str) -> None:
    """Else `make lock` was forgotten after a change of pyproject.toml."""
    surroundings = {"python_version": python, "python_full_version": f"{python}.9"}
    versions = {
        one.name.lower(): next(iter(one.specifier)).version
        for one in locked(group)
        if one.marker is None or one.marker.evaluate(surroundings)
    }
    for text in (*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"][group]):
        asked = Requirement(text)
        if asked.marker is None or asked.marker.evaluate(surroundings):
            assert asked.specifier.contains(versions[asked.name.lower()]), text


@pytest.mark.parametrize("group", GROUPS)
def test_each_line_is_one_version_or_one_hash(group: str) -> None:
    """So no address, and nothing that pip could take from elsewhere."""
    version = r"[a-z0-9-]+==[a-z0-9.]+( ; [A-Za-z_<>=!'.0-9 ]+)? \\"
    for line in (ROOT / "requirements" / f"{group}.txt").read_text().splitlines():
        assert re.fullmatch(rf"{version}|    --hash=sha256:[0-9a-f]{{64}}( \\)?", line), line

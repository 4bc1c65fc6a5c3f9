"""Reads docs/explanation/architecture.md, and generates its table of layers from `tests/test_architecture.py`.

    python -m tests.docs.architecture     writes the table anew

A fact about the code stands in backticks on the page: a folder (`pools/maps/`), a file (`pools/pool.py`), or a name in
a file (`pools/pool.py: Pool.submit`). Paths start in `src/bullpen`, or in the root of the repository.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.docs.markdown import ROOT, read_blocks
from tests.test_architecture import GROUND, LAYERS, Layer

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
SOURCE = ROOT / "src" / "bullpen"
START, END = "<!-- generated: layers -->\n", "<!-- end -->"

_CODE = re.compile(r"`([^`\n]+)`")
_PLACE = re.compile(r"(?P<path>[\w./-]+\.(?:py|sql|lua|md|toml|json))(?:: (?P<name>[A-Za-z_][\w.]*))?")
_CLASS = re.compile(r"[A-Z]\w*[a-z]\w*")
STARTERS = frozenset({"start_thread", "start_loop", "start_soon", "Thread", "Popen", "create_subprocess_exec", "fork"})


class Place(NamedTuple):
    """A file, and a function, class or constant in it, if one is named."""

    path: str
    name: str | None = None

    def __str__(self) -> str:
        return self.path if self.name is None else f"{self.path}: {self.name}"


# The page.


def prose(text: str) -> str:
    """The page without its blocks of code and its generated table."""
    before, _, rest = text.partition(START)
    text = before + rest.partition(END)[2]
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def section(text: str, heading: str) -> str:
    """What stands below a heading of the second level."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no section {heading!r}")
    return found[1]


def codes(text: str) -> list[str]:
    """Whatever stands in backticks."""
    return _CODE.findall(prose(text))


def places(text: str) -> list[Place]:
    found = (_PLACE.fullmatch(code) for code in codes(text))
    return [Place(one["path"], one["name"]) for one in found if one is not None]


def folders(text: str) -> list[str]:
    return [code for code in codes(text) if code.endswith("/") and " " not in code]


def classes(text: str) -> list[str]:
    """The classes that the page names, alone or in a file."""
    names = [place.name.partition(".")[0] for place in places(text) if place.name is not None]
    names += [code.partition(".")[0] for code in codes(text) if "/" not in code]
    return sorted({name for name in names if _CLASS.fullmatch(name)})


def rows(text: str) -> list[list[str]]:
    """The rows of the tables, without their heads."""
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    heads = [number - 1 for number, row in enumerate(found) if set("".join(row)) <= set("-| :")]
    return [row for number, row in enumerate(found) if number not in heads and number - 1 not in heads]


def steps(text: str) -> list[Place]:
    """The places that the numbered steps of a life name."""
    numbered = "\n".join(re.findall(r"^\d+\. .*(?:\n {2,}.*)*", text, re.MULTILINE))
    return places(numbered)


def drawn_calls(text: str) -> list[str]:
    """The functions that the pictures name, as `name()`."""
    pictures = "\n".join(block.text for block in read_blocks(text) if block.language == "mermaid")
    return re.findall(r"(\w+)\(\)", pictures)


# The code.


def file_of(path: str) -> Path | None:
    """Where a path of the page leads to."""
    return next((base / path for base in (SOURCE, ROOT) if (base / path).exists()), None)


def packages() -> list[str]:
    """Every folder of `src/bullpen`, and every module beside them."""
    inner = [file for file in SOURCE.iterdir() if file.suffix == ".py" and not file.name.startswith("__")]
    found = {file.parent for file in SOURCE.rglob("*.py")} - {SOURCE}
    return sorted([f"{folder.relative_to(SOURCE)}/" for folder in found] + [file.name for file in inner])


class Facts(NamedTuple):
    """What one Python file says."""

    names: frozenset[str]  # classes, functions, methods, attributes and constants, as `Class.method`
    starting: frozenset[str]  # the functions that start a thread or a process
    identifiers: frozenset[str]  # every name, also parameters and fields, and every word of a text


@functools.cache
def facts_of(path: Path) -> Facts:
    tree = ast.parse(path.read_text())
    return Facts(frozenset(_defined(tree, "")), frozenset(_starting(tree, "")), frozenset(_identifiers(tree)))


def _defined(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
                if isinstance(child, ast.ClassDef):
                    yield from _defined(child, f"{prefix}{name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.If() | ast.Try() | ast.With():
                yield from _defined(child, prefix)


def _starting(node: ast.AST, inside: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _starting(child, f"{inside}.{name}" if inside else name)
                continue
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in STARTERS:
                yield inside
        yield from _starting(child, inside)


def _identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(value := getattr(node, field, None), str):
                yield value
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)


def _all_facts() -> Iterator[Facts]:
    return (facts_of(file) for file in SOURCE.rglob("*.py"))


def names() -> set[str]:
    """The last part of every name that `src/bullpen` defines."""
    return {name.rpartition(".")[2] for facts in _all_facts() for name in facts.names}


def identifiers() -> set[str]:
    return {name for facts in _all_facts() for name in facts.identifiers}


def starters() -> set[Place]:
    """Every function that starts a thread or a process; tests and the demo apart."""
    paths = {str(file.relative_to(SOURCE)): file for file in SOURCE.rglob("*.py")}
    apart = ("testing/", "cli/demo/", "primitives.py")
    return {
        Place(path, name)
        for path, file in paths.items()
        if not path.startswith(apart)
        for name in facts_of(file).starting
    }


# The table of layers.


def layer_table() -> str:
    lines = ["", "| layer | may import | third party |", "|---|---|---|", *map(_row, LAYERS), "", ""]
    return "\n".join(lines)


def _row(layer: Layer) -> str:
    name = f"`{layer.name}`" if layer.name else "`bullpen`"
    pure = ", pure" if layer.pure else ""
    if layer.may_import == "ALL":
        imported = "everything"
    else:
        rest = layer.may_import
        ground = "*ground*" if GROUND in rest else ""
        others = [f"`{one}`" for one in sorted(set(rest.replace(GROUND, "").split()))]
        imported = ", ".join(filter(None, [ground, *others])) or "nothing of Bullpen"
    return f"| {name}{pure} | {imported} | {' '.join(f'`{one}`' for one in layer.third_party.split())} |"


def redrawn(page: str) -> str:
    """The page with its table made anew."""
    before, found, rest = page.partition(START)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page has no part {START.strip()} … {END}")
    return before + START + layer_table() + END + after


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))

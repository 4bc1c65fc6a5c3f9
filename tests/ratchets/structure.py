"""What the ratchets read from the source text: import cycles, class names, lines.

`python -m tests.ratchets.structure` prints the cycles and the class names that stand for two things.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.ratchets.bounds import PER_ADAPTER
from tests.test_architecture import SOURCE, find_imports, read_modules

PACKAGE = SOURCE / "bullpen"

Graph = Mapping[str, set[str]]


def import_graph(source: Path = SOURCE) -> dict[str, set[str]]:
    """Who imports whom, module by module. Every real import counts: at the top, type-only, inside a function.

    A name that an `__init__` imports lazily, from a table of strings, is no import of that `__init__`.
    """
    modules = read_modules(source)
    known = frozenset(modules)
    return {
        name: {imported for _, imported in find_imports(module, known) if imported in known} - {name}
        for name, module in modules.items()
    }


def cycles_of(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module, the largest first, across all packages: a cycle does
    not end when its modules move to other folders.
    """
    reached = {module: _reachable(module, graph) for module in graph}
    components = {
        tuple(sorted({module, *(other for other in reached[module] if module in reached[other])})) for module in graph
    }
    return sorted((list(component) for component in components if len(component) > 1), key=lambda c: (-len(c), c))


def _reachable(start: str, graph: Graph) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()] - found:
            found.add(other)
            waiting.append(other)
    return found


def double_names(source: Path = SOURCE) -> dict[str, list[str]]:
    """Class names at the top of more than one module, `_Name` and `Name` being one name."""
    homes = defaultdict(list)
    for name, module in read_modules(source).items():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(name)
    return {name: found for name, found in sorted(homes.items()) if len(found) > 1 and not _is_per_adapter(found)}


def _is_per_adapter(homes: list[str]) -> bool:
    """Whether each home is the same file of another package, such as `rows` of PostgreSQL and of Redis."""
    files = {home.rpartition(".")[2] for home in homes}
    return len(files) == 1 and files <= PER_ADAPTER


def lines_by_package(package: Path = PACKAGE) -> dict[str, int]:
    """Lines of Python, Lua and SQL in each folder, without the folders inside it."""
    lines: dict[str, int] = defaultdict(int)
    for path in _files(package):
        folder = path.parent.relative_to(package.parent).as_posix()
        lines[folder] += len(path.read_text().splitlines())
    return dict(sorted(lines.items()))


def _files(package: Path) -> Iterable[Path]:
    return (path for path in package.rglob("*") if path.suffix in (".py", ".lua", ".sql"))


if __name__ == "__main__":
    for cycle in cycles_of(import_graph()):
        print(f"cycle of {len(cycle)}:", *(module.removeprefix("bullpen.") for module in cycle))
    for name, homes in double_names().items():
        print(f"class {name}:", *homes)

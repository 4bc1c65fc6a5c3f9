"""Import cycles, double class names and options of the pools may only become fewer."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import TypedDict, Unpack

import pytest

import bullpen
from tests.ratchets.bounds import CYCLES, DOUBLE_NAMES, OPTIONS
from tests.ratchets.options import option_names
from tests.ratchets.structure import cycles_of, double_names, import_graph


def test_there_is_no_new_import_cycle() -> None:
    cycles = cycles_of(import_graph())
    sizes = [len(cycle) for cycle in cycles]
    shown = "\n".join(" ↔ ".join(cycle) for cycle in cycles)
    assert not exceeds(sizes, CYCLES), f"cycles of {sizes} modules, and the bound is {CYCLES}:\n{shown}"
    assert sizes == CYCLES, f"lower CYCLES in tests/ratchets/bounds.py to {sizes}"


def exceeds(sizes: list[int], bound: list[int]) -> bool:
    """Whether the n-th largest cycle is larger than the n-th bound, for any n."""
    return any(size > most for size, most in zip_longest(sizes, bound, fillvalue=0))


def test_no_further_class_name_stands_for_two_things() -> None:
    found = double_names()
    added = {name: homes for name, homes in found.items() if name not in DOUBLE_NAMES}
    assert not added, f"one class name for one thing; rename one of each: {added}"
    gone = [name for name in DOUBLE_NAMES if name not in found]
    assert not gone, f"take from DOUBLE_NAMES in tests/ratchets/bounds.py: {', '.join(gone)}"


@pytest.mark.parametrize("name", OPTIONS)
def test_a_pool_takes_no_more_options(name: str) -> None:
    count, bound = len(option_names(getattr(bullpen, name))), OPTIONS[name]
    assert count <= bound, f"{name} takes {count} options, and the bound is {bound}"
    assert count == bound, f"lower the bound of {name} in tests/ratchets/bounds.py to {count}"


# The measures, measured.

CYCLE = {
    "one.py": "import bullpen.part.two",
    "two.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bullpen.part.three import Three",
    "three.py": "def f():\n    from bullpen.part import one\nclass Three: ...",
    "four.py": "from .one import x",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("__init__.py", "part/__init__.py", "other/__init__.py", "other/inner/__init__.py"):
        write(tmp_path, name, "")
    return tmp_path


def write(source: Path, name: str, text: str) -> None:
    path = source / "bullpen" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_type_only_imports_and_imports_in_functions_close_a_cycle(source: Path) -> None:
    for name, text in CYCLE.items():
        write(source, f"part/{name}", text)
    assert cycles_of(import_graph(source)) == [["bullpen.part.one", "bullpen.part.three", "bullpen.part.two"]]


def test_an_init_is_in_a_cycle_by_its_real_imports_only(source: Path) -> None:
    write(source, "part/one.py", "from bullpen.part import name")
    write(source, "part/__init__.py", "HOMES = {'name': 'bullpen.part.one'}")
    assert cycles_of(import_graph(source)) == []
    write(source, "part/__init__.py", "from bullpen.part.one import name")
    assert cycles_of(import_graph(source)) == [["bullpen.part", "bullpen.part.one"]]


@pytest.mark.parametrize(
    ("sizes", "more"), [([3, 2], False), ([2, 2], False), ([3], False), ([4], True), ([3, 3], True), ([2, 2, 2], True)]
)
def test_a_larger_or_further_cycle_exceeds_the_bound(sizes: list[int], more: bool) -> None:
    assert exceeds(sizes, [3, 2]) is more


def test_a_private_class_shares_its_name_with_a_public_one(source: Path) -> None:
    write(source, "part/one.py", "class Line: ...")
    write(source, "other/two.py", "class _Line: ...\nclass Other:\n    class Line: ...")
    assert double_names(source) == {"Line": ["bullpen.other.two", "bullpen.part.one"]}


def test_the_files_that_each_adapter_has_may_share_names(source: Path) -> None:
    write(source, "part/rows.py", "class Row: ...")
    write(source, "other/rows.py", "class Row: ...")
    assert double_names(source) == {}
    write(source, "other/inner/schema.py", "class Row: ...")
    assert list(double_names(source)) == ["Row"]


class Group(TypedDict, total=False):
    second: int
    third: int


class Sample:
    def __init__(self, first: int, **options: Unpack[Group]) -> None: ...


def test_unpacked_options_count_one_by_one() -> None:
    assert option_names(Sample) == ["first", "second", "third"]

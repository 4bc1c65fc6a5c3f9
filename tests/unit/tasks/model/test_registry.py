"""Only registered functions run, and a name means one of them."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bullpen.errors import DuplicateTask, InvalidOption, InvalidOptionType, InvalidTask
from bullpen.tasks.model.options import TaskOptions
from bullpen.tasks.model.registry import TaskRegistry


def resize(path: str) -> str:
    return path


async def fetch(url: str) -> str:
    return url


def count() -> Iterator[int]:
    yield 1


async def acount() -> AsyncIterator[int]:
    yield 1


class Shop:
    def sell(self) -> None: ...

    async def __call__(self) -> None: ...


def test_a_function_is_registered_by_its_module_and_name() -> None:
    registry = TaskRegistry()
    definition = registry.register(resize, TaskOptions(max_retries=3))
    assert definition.func_path == f"{__name__}.resize"
    assert definition.function is resize
    assert definition.options.max_retries == 3
    assert registry.get(definition.func_path) is definition
    assert registry.get("os.system") is None
    assert definition.func_path in registry
    assert list(registry) == [definition]
    assert registry.names() == (definition.func_path,)


def test_an_alias_leads_to_the_function_and_belongs_to_it_alone() -> None:
    registry = TaskRegistry()
    definition = registry.register(resize, name="new", aliases=("old", "older"))
    assert registry.get("old") is registry.get("older") is definition
    assert "old" in registry
    assert (registry.names(), registry.all_names()) == (("new",), ("new", "old", "older"))
    for name, aliases in (("old", ()), ("fetch", ("old",)), ("fetch", ("new",))):
        with pytest.raises(DuplicateTask):
            registry.register(fetch, name=name, aliases=aliases)
    assert registry.get("fetch") is None
    with pytest.raises(InvalidOptionType, match="aliases must be a list of names"):
        registry.register(fetch, aliases="old")
    with pytest.raises(InvalidOption, match="aliases must be a string of 1 to 255"):
        registry.register(fetch, aliases=("a b",))
    registry.register(resize, name="new")  # the module is loaded again, without its aliases
    assert registry.get("old") is None


def test_a_definition_knows_whether_its_function_is_async() -> None:
    registry = TaskRegistry()
    assert not registry.register(resize).is_async
    assert registry.register(fetch).is_async
    assert registry.register(functools.partial(fetch, "x"), name="partial").is_async
    assert registry.register(Shop(), name="object").is_async


def test_a_definition_decodes_arguments_and_encodes_results() -> None:
    definition = TaskRegistry().register(resize)
    assert definition.decode(definition.codec.encode(("cat.png",), {})) == (("cat.png",), {})
    assert definition.encode_result("cat.png") == b'"cat.png"'


def test_what_a_worker_could_not_find_is_rejected_unless_it_has_a_name() -> None:
    registry = TaskRegistry()

    def local() -> None: ...

    nameless: list[Any] = [lambda: None, local, functools.partial(resize, "x"), Shop().sell, Shop.sell, Shop()]
    for number, function in enumerate(nameless):
        with pytest.raises(InvalidTask):
            registry.register(function)
        assert registry.register(function, name=f"task-{number}").func_path == f"task-{number}"
    assert len(registry) == len(nameless)


@pytest.mark.parametrize("function", [count, acount, 5, None, "os.system"])
def test_what_would_run_nothing_is_rejected(function: Any) -> None:
    with pytest.raises(InvalidTask):
        TaskRegistry().register(function, name="it")


def test_a_name_that_is_taken_is_rejected_and_both_places_are_named() -> None:
    registry = TaskRegistry()
    registry.register(resize, name="it")
    with pytest.raises(DuplicateTask) as caught:
        registry.register(fetch, name="it")
    assert caught.value.taken_by == f"{__file__}:{resize.__code__.co_firstlineno}"
    assert caught.value.place == f"{__file__}:{fetch.__code__.co_firstlineno}"
    assert caught.value.taken_by in str(caught.value)
    assert caught.value.place in str(caught.value)
    definition = registry.get("it")
    assert definition is not None
    assert definition.function is resize


def test_a_module_that_is_loaded_again_takes_its_own_place() -> None:
    registry = TaskRegistry()
    registry.register(resize)
    again = types.FunctionType(resize.__code__, globals(), "resize")
    again.__module__ = __name__
    registry.register(again)
    definition = registry.get(f"{__name__}.resize")
    assert definition is not None
    assert definition.function is again


def test_closures_made_at_one_place_are_two_functions() -> None:
    registry = TaskRegistry()

    def make() -> Any:
        return lambda: None

    registry.register(make(), name="it")
    with pytest.raises(DuplicateTask):
        registry.register(make(), name="it")


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 256, "a\0"])
def test_a_name_has_to_be_one(name: str) -> None:
    with pytest.raises(InvalidOption):
        TaskRegistry().register(resize, name=name)
    with pytest.raises(InvalidOptionType):
        TaskRegistry().register(resize, name=3)  # type: ignore[arg-type]


SCRIPT = """
from bullpen.tasks.model.registry import TaskRegistry
def work(): ...
if __name__ == "__main__":
    print(TaskRegistry().register(work).func_path)
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["jobs.py"], "jobs.work"),
        (["-m", "jobs"], "jobs.work"),
        (["-m", "shop.jobs"], "shop.jobs.work"),
        (["-c", SCRIPT], "__main__.work"),
        (["-"], "__main__.work"),
    ],
)
def test_a_function_of_a_script_has_the_name_under_which_workers_import_it(
    tmp_path: Path, command: list[str], name: str
) -> None:
    (tmp_path / "jobs.py").write_text(SCRIPT)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, input=SCRIPT, capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == name

"""docs/explanation/architecture.md states facts about the code; each of them is looked up here."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import bullpen
from bullpen import CallPolicy, Pool, TaskQueue, WorkerPool
from tests.docs.architecture import (
    PAGE,
    SOURCE,
    Place,
    classes,
    drawn_calls,
    facts_of,
    file_of,
    folders,
    names,
    packages,
    places,
    redrawn,
    rows,
    section,
    starters,
    steps,
)
from tests.docs.markdown import ROOT
from tests.ratchets.journeys import trace

TEXT = PAGE.read_text()

# Inside a worker process or the forkserver, begun before the journey, or an interface: the trace does not show them.
UNSEEN = {
    Place("pools/runtimes/port.py", "WorkerEvents"),
    Place("pools/supervision/workforce.py", "Workforce"),
    Place("pools/runtimes/thread.py", "_WorkerThread._work"),
    Place("pools/runtimes/process/forkserver.py", "Forkserver._reap"),
    Place("pools/runtimes/process/bootstrap.py", "become_worker"),
    Place("pools/supervision/restarts.py", "Restarts.died"),  # the worker of this life has finished a request
}


def test_every_package_is_on_the_page() -> None:
    named = [row[0].strip("`") for row in rows(section(TEXT, "The packages"))]
    assert sorted(named) == packages()


def test_every_file_and_folder_on_the_page_exists() -> None:
    paths = [place.path for place in places(TEXT)] + folders(TEXT)
    assert len(paths) > 100, "found hardly a path; this test would pass on anything"
    assert [path for path in paths if file_of(path) is None and not is_of_each_store(path)] == []


def is_of_each_store(path: str) -> bool:
    """`rows.py` of each store: the folder is left out."""
    return "/" not in path and any(SOURCE.joinpath("tasks/storage").glob(f"*/{path}"))


def test_every_function_and_class_on_the_page_is_in_its_file() -> None:
    missing = [place for place in places(TEXT) if place.name is not None and not is_there(place)]
    assert [str(place) for place in missing] == []


def is_there(place: Place) -> bool:
    file = file_of(place.path)
    return file is not None and place.name in facts_of(file).names


def test_every_class_on_the_page_exists() -> None:
    assert set(classes(TEXT)) - names() == set()


def test_every_function_in_a_picture_exists() -> None:
    assert set(drawn_calls(TEXT)) - names() == set()


def test_the_table_of_layers_is_the_one_that_is_checked() -> None:
    assert redrawn(TEXT) == TEXT, "the layers have changed: run `python -m tests.docs.architecture`"


def test_the_page_names_every_start_of_a_thread_or_a_process() -> None:
    assert {str(place) for place in places(section(TEXT, "The threads and processes"))} == set(map(str, starters()))


def thread_names() -> list[str]:
    named = [row[0] for row in rows(section(TEXT, "The threads and processes")) if row[0].startswith("`")]
    return [name.strip("`") for name in named]


def test_the_names_of_threads_are_those_in_the_code() -> None:
    code = "\n".join(file.read_text() for file in SOURCE.rglob("*.py"))
    for name in thread_names():
        text = name.removeprefix("NAME").removesuffix("N")
        assert text in code or text.rpartition("-")[0] + "-{" in code, name


def test_a_thread_that_runs_is_in_the_table(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    queue = TaskQueue(f"sqlite:///{tmp_path}/tasks.db")
    task = queue.task(name="length")(len)
    with (
        WorkerPool(queue),
        Pool(1, calls=CallPolicy(run_timeout=9)) as threads,
        Pool(1, runtime="process") as processes,
    ):
        task.enqueue("task").result(timeout=30)
        threads.submit(len, "call").result()
        processes.submit(len, "call").result()
        running = {thread.name for thread in set(threading.enumerate()) - before}
    queue.close()
    patterns = [re.escape(name).replace("NAME", ".+").replace("N", r"\d+") for name in thread_names()]
    assert len(running) >= 6, running
    assert {name for name in running if not any(re.fullmatch(pattern, name) for pattern in patterns)} == set()


_REQUEST, _, _ASYNC_CALL = section(TEXT, "The life of a request").partition("### A call of an `AsyncPool`")
LIVES = {
    "submit": _REQUEST,
    "do": _ASYNC_CALL,
    "task": section(TEXT, "The life of a task"),
    "crash": section(TEXT, "The life of a crash").partition("### A lane process")[0],
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("journey", LIVES)
def test_a_life_passes_every_place_that_its_steps_name(journey: str) -> None:
    named = steps(LIVES[journey])
    assert len(named) >= 8
    route = trace(journey, repetitions=1)
    functions = {f"{call.file}: {call.function}" for call in route}
    owners = {name.rpartition(".")[0] for name in functions}  # classes
    passed = functions | owners | {call.file for call in route}
    assert [str(place) for place in named if place not in UNSEEN and str(place) not in passed] == []


def test_the_paths_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = [place.path for place in places(text) if "/" in place.path] + folders(text)
    assert len(paths) > 10
    assert [path for path in paths if file_of(path) is None and path != "site/"] == []


def test_the_map_in_the_docstring_of_bullpen_agrees_with_the_page() -> None:
    assert bullpen.__doc__ is not None
    listed = mapped_paths(bullpen.__doc__)
    assert [path for path in listed if file_of(path) is None] == []
    inner = re.compile(r"[\w.]+/?|(pools|tasks)/\w+/")
    assert [package for package in packages() if inner.fullmatch(package) and package not in listed] == []
    on_page = {place.path for place in places(TEXT)}
    to_read = {place.path for place in places(bullpen.__doc__)} - {str(PAGE.relative_to(ROOT))}
    assert sorted(to_read - on_page) == []


def mapped_paths(text: str) -> list[str]:
    """The paths of a map: four spaces before a folder of the package, six before what is in it."""
    found, folder = list[str](), ""
    for indent, line in re.findall(r"^( {4}| {6})(\S.*)$", text, re.MULTILINE):
        names = re.findall(r"\S+", line.split("  ")[0])
        if len(indent) == 4:
            folder = names[0] if len(names) == 1 and names[0].endswith("/") else ""
            found += names
        else:
            found += [folder + name for name in names]
    return found


# The test, tested.


def test_what_does_not_exist_is_found() -> None:
    page = "`pools/no_such.py`, `pools/pool.py: Pool.no_such_method`, `pools/no_such/`, `NoSuchClass`"
    assert [place for place in places(page) if not is_there(place)] == places(page)
    assert file_of(places(page)[0].path) is None
    assert folders(page) == ["pools/no_such/"]
    assert "NoSuchClass" in classes(page)
    assert drawn_calls("```mermaid\nA->>B: no_such()\n```\n") == ["no_such"]
    assert steps("1. One: `a.py: f`,\n   `b.py`\n\nNo step: `c.py`") == [Place("a.py", "f"), Place("b.py")]

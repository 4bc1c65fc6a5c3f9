"""One string says where the tasks are: the same code runs in memory, in a file, and on both servers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bullpen import TaskQueue, WorkerPool
from tests.docs.markdown import ROOT, python_blocks
from tests.stores import new_store


@contextmanager
def address(kind: str, request: pytest.FixtureRequest) -> Iterator[str]:
    if kind == "memory":
        yield "memory://"
    else:
        with new_store(kind, request.getfixturevalue("tmp_path"), request) as url:
            yield url


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
def test_the_example_of_the_readme_runs_at_every_address(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = [
        block.text for block in python_blocks((ROOT / "README.md").read_text()) if block.marks.get("file") == "app.py"
    ]
    assert source.count('"sqlite:///jobs.db"') == 1
    with address(kind, request) as url:
        definitions, program = split(source.replace("sqlite:///jobs.db", url))
        names: dict[str, object] = {"__name__": "app"}
        exec(definitions, names)
        queue = names["queue"]
        assert isinstance(queue, TaskQueue)
        with queue, WorkerPool(queue, concurrency=100):
            exec(program, names)
            assert queue.counts()["default"] == {"success": 1, "pending": 1}
    assert capsys.readouterr().out == "sent to ada@example.org\n"


def split(source: str) -> tuple[str, str]:
    """What a module defines, and what it does when it is the program."""
    tree = ast.parse(source)
    (program,) = [node for node in tree.body if isinstance(node, ast.If)]
    tree.body.remove(program)
    return ast.unparse(tree), "\n".join(ast.unparse(node) for node in program.body)


@pytest.mark.parametrize(
    ("page", "kind", "there"),
    [
        ("postgresql.md", "postgres", "postgresql://me@db.example.org/shop"),
        ("redis.md", "redis", "redis://cache.example.org/0"),
    ],
)
def test_the_python_of_a_page_about_a_server_runs_on_it(
    page: str, kind: str, there: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "\n".join(block.text for block in python_blocks((ROOT / "docs" / "how-to" / page).read_text()))
    assert there in source
    with address(kind, request) as url:
        exec(source.replace(there, url), {"__name__": Path(page).stem})
    assert capsys.readouterr().out == "order 7 is on its way\n"

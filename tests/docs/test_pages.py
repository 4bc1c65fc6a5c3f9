"""README.md and docs/: the Python runs, the commands exist, the links lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from bullpen.cli.main import WrongArguments, make_parser, with_default
from tests.docs.markdown import ROOT, Block, as_script, commands, linked_pages, pages, python_blocks, read_blocks

EACH_PAGE = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
EACH_LINKED_PAGE = pytest.mark.parametrize("page", linked_pages(), ids=lambda page: str(page.relative_to(ROOT)))
SECONDS = 50


@EACH_PAGE
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    blocks = python_blocks(page.read_text())
    for block in blocks:
        if block.no_run:
            check_syntax(block, page)
    runnable = [block for block in blocks if not block.no_run]
    if runnable:
        run_script(tmp_path / f"{page.stem}.py", as_script(runnable))


def check_syntax(block: Block, page: Path) -> None:
    source = "\n" * (block.line - 1) + block.text
    compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def run_script(path: Path, source: str) -> None:
    path.write_text(source)
    done = subprocess.run(
        [sys.executable, "-W", "error", path],
        cwd=path.parent,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


@EACH_PAGE
def test_the_commands_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    files = {block.marks["file"] for block in read_blocks(text) if "file" in block.marks}
    problems = [f"line {line}: {problem}" for line, command in commands(text) for problem in wrong_with(command, files)]
    assert not problems, "\n".join(problems)


def wrong_with(command: str, files: Collection[str] = ()) -> Iterator[str]:
    """`make` must name targets that exist, `bullpen` commands; a script given to python must exist."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    program = ""
    typed: list[str] = []
    for word in lexer:
        if set(word) <= set("&|;<>"):
            program = ""
        elif program == "bullpen":
            typed.append(word)
        elif not program and "=" not in word:
            program = word
        elif program == "make" and "=" not in word and not word.startswith("-") and word not in make_targets():
            yield f"`{command}`: the Makefile has no target {word!r}"
        elif (
            program.startswith("python") and word.endswith(".py") and not (ROOT / word).is_file() and word not in files
        ):
            yield f"`{command}`: there is no file {word!r}"
    if typed and not is_understood(typed):
        yield f"`{command}`: bullpen does not understand it"


def is_understood(words: list[str]) -> bool:
    try:
        make_parser().parse_args(with_default(words))
    except WrongArguments:
        return False
    except SystemExit as exit:
        return exit.code == 0
    return True


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


@EACH_LINKED_PAGE
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", prose)
    assert [target for target in targets if not (page.parent / target).exists()] == []


@EACH_LINKED_PAGE
def test_the_sections_that_a_page_links_to_are_there(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    assert [(target, name) for target, name in links if name not in sections(page.parent / target, page)] == []


def sections(target: Path, page: Path) -> set[str]:
    """The names of a page's headings in links, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", (page if target.is_dir() else target).read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_every_page_is_on_the_list_of_pages() -> None:
    listed = re.findall(r"\]\(([^)#]+\.md)", (ROOT / "docs" / "README.md").read_text())
    written = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("*/*.md")]
    assert sorted(set(written) - set(listed)) == []


# The reader of pages, tested.

PAGE = """\
# Title

```python
x = 1
```

- in a list:
  ```python
  def twice():
      return 2 * x
  ```

<!-- no-run: needs a database -->

```python
await connect(
)
```

<!--
```python
assert twice() == 2
```
-->

```console
$ make demo
it prints: make nothing
$ PYTHON=python3.13 make test ARGS=-q && make tests
```
"""


def test_blocks_run_in_order_on_the_lines_they_have_on_the_page() -> None:
    blocks = python_blocks(PAGE)
    assert [(block.line, block.no_run) for block in blocks] == [
        (4, None),
        (9, None),
        (16, "needs a database"),
        (22, None),
    ]
    script = as_script([block for block in blocks if not block.no_run])
    assert script.splitlines()[22 - 1] == "assert twice() == 2"
    exec(compile(script, "page", "exec"), {})


def test_a_page_that_fails_points_at_its_line(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r'page\.py", line 4'):
        run_script(tmp_path / "page.py", as_script(python_blocks("text\n\n```python\n1 / 0\n```\n")))


def test_a_page_may_not_warn(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="DeprecationWarning"):
        run_script(tmp_path / "page.py", "import warnings\nwarnings.warn('old', DeprecationWarning)\n")


def test_a_block_that_does_not_run_must_still_compile() -> None:
    check_syntax(python_blocks(PAGE)[2], Path("page.md"))
    with pytest.raises(SyntaxError):
        check_syntax(Block("python", 1, ("def f(:",), {"no-run": "broken"}), Path("page.md"))


def test_a_no_run_needs_a_reason() -> None:
    assert python_blocks("<!-- no-run: -->\n```python\n1 / 0\n```\n")[0].no_run is None


def test_a_block_without_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 1 has no end"):
        list(read_blocks("```python\nx = 1\n"))


def test_a_missing_target_is_found() -> None:
    found = [(line, problem) for line, command in commands(PAGE) for problem in wrong_with(command)]
    assert found == [(29, "`PYTHON=python3.13 make test ARGS=-q && make tests`: the Makefile has no target 'tests'")]


def test_a_missing_script_is_found() -> None:
    assert list(wrong_with("python examples/no_such_example.py")) != []
    assert list(wrong_with("python app.py", {"app.py"})) == []


def test_a_command_that_does_not_exist_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(wrong_with("bullpen worker app --processes 2 > log &")) == []
    assert list(wrong_with("bullpen worker app --proceses 2")) != []
    assert list(wrong_with("BULLPEN_URL=sqlite:///x bullpen tasks list --jsn | head")) != []

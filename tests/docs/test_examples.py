"""Every examples/*.py runs without a warning, and prints what its last comment says it prints."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SECONDS = 50


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs_and_prints_what_it_says(example: Path, tmp_path: Path) -> None:
    run_example(example, tmp_path)


def run_example(example: Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", example],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    expected = expected_output(example.read_text())
    if expected is not None and not doctest.OutputChecker().check_output(expected, done.stdout, doctest.ELLIPSIS):
        pytest.fail(f"Expected (`...` stands for anything):\n{expected}\nGot:\n{done.stdout}", pytrace=False)


def expected_output(source: str) -> str | None:
    """The comment that ends the file, after the line `# prints:`; None if there is none."""
    found = re.search(r"^# prints:\n((?:#.*\n?)+)\s*\Z", source, re.MULTILINE)
    if found is None:
        return None
    return "".join(line.removeprefix("#").removeprefix(" ") + "\n" for line in found[1].splitlines())


def test_another_output_fails(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text("print('one')\nprint('took 3 s')\n\n# prints:\n# one\n# took ... s\n")
    run_example(example, tmp_path)
    example.write_text("print('two')\n\n# prints:\n# one\n")
    with pytest.raises(pytest.fail.Exception, match="Got:\ntwo"):
        run_example(example, tmp_path)


def test_a_failing_or_warning_example_fails(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text("import warnings; warnings.warn('old', DeprecationWarning)\n")
    with pytest.raises(AssertionError, match="DeprecationWarning"):
        run_example(example, tmp_path)


def test_the_expected_output_is_the_last_comment() -> None:
    assert expected_output("print(1)\n") is None
    assert expected_output("# prints:\n# 1\nprint(1)\n") is None
    assert expected_output("print()\n\n# prints:\n#\n# 1\n#   2\n") == "\n1\n  2\n"

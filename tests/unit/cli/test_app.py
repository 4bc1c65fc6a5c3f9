"""APP on the command line: what is found, and what is said when nothing is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.cli import app
from bullpen.cli.app import HOW, BrokenApp, WrongApp, load_queue
from bullpen.cli.command import ExitCode

ONE = "from bullpen import TaskQueue\nqueue = TaskQueue('memory://')\n"
TASK = "@queue.task\ndef f() -> None: ...\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(name: str, source: str = ONE + TASK) -> None:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)


@pytest.mark.parametrize("written", ["shop_a:queue", "shop_a", "shop_a.py", "shop_a.py:queue", "./shop_a.py"])
def test_a_module_or_a_file_with_or_without_the_attribute(written: str) -> None:
    write("shop_a.py")
    assert load_queue(written).registry.names() == ("shop_a.f",)


def test_a_file_in_a_package_has_its_whole_name() -> None:
    write("src/store/__init__.py", "")
    write("src/store/work/__init__.py", "")
    write("src/store/work/jobs.py")
    assert load_queue("src/store/work/jobs.py:queue").registry.names() == ("store.work.jobs.f",)


def test_an_attribute_of_an_attribute() -> None:
    write("shop_b.py", f"{ONE}class app:\n    jobs = queue\n")
    assert load_queue("shop_b:app.jobs") is load_queue("shop_b:queue")


def rejected(written: str) -> str:
    with pytest.raises(WrongApp) as caught:
        load_queue(written)
    assert caught.value.code is ExitCode.USAGE
    return str(caught.value)


def test_a_module_that_is_not_there(folder: Path) -> None:
    said = rejected("nowhere:queue")
    assert "cannot use 'nowhere:queue': there is no module 'nowhere'" in said
    assert f"in {folder} or on sys.path" in said
    assert "APP is module:attribute" in said
    write("shop_c.py")
    assert "did you mean shop_c?" in rejected("shop_d:queue")
    assert "files with a TaskQueue: shop_c.py" in rejected("nowhere:queue")


def test_a_file_that_is_not_there(folder: Path) -> None:
    write("shop_c.py")
    said = rejected("shop.py:queue")
    assert f"there is no file {folder}/shop.py" in said
    assert "did you mean shop_c?" in said


def test_a_dot_instead_of_a_colon() -> None:
    write("shop_e.py")
    assert "did you mean shop_e:queue?" in rejected("shop_e.queue")


def test_an_attribute_that_is_not_there_or_something_else() -> None:
    write("shop_f.py", ONE + TASK)
    assert "has no 'que'" in rejected("shop_f:que")
    assert "its TaskQueues: queue" in rejected("shop_f:que")
    assert "'f' is a task, not a TaskQueue" in rejected("shop_f:f")
    assert "'TaskQueue' is a type, not a TaskQueue" in rejected("shop_f:TaskQueue")


def test_none_or_several_queues() -> None:
    write("shop_g.py", "x = 1\n")
    assert "has no TaskQueue" in rejected("shop_g")
    write("shop_h.py", f"{ONE}mail = TaskQueue('memory://')\nsame = mail\n")
    assert "name one: shop_h:queue, shop_h:mail, shop_h:same" in rejected("shop_h")
    write("shop_i.py", f"{ONE}same = queue\n")
    load_queue("shop_i")


def test_an_address_is_no_app() -> None:
    assert "this is the address of a store" in rejected("sqlite:///jobs.db")
    for address in ("redis://u:s3cret@h", "redis:u:s3cret@h", "postgres//u:s3cret@h:5432/x"):
        assert "this is the address of a store" in (words := rejected(address))
        assert "s3cret" not in words


def test_a_name_that_is_no_address_is_repeated() -> None:
    for name in ("shap:queue", "shap.queue", "shap.py", "a b/shap.py:queue", "sécret:queue"):
        assert f"cannot use {name!r}" in rejected(name)
    for file in ("shop@2/app_j.py", "app\n_k.py"):
        write(file)
        assert "has no 'que'" in rejected(f"{file}:que")


def test_characters_that_no_app_has_are_not_repeated() -> None:
    for name in ("s3\ncret", "s3\x1bcret", "s3\u2028cret", *(f"me:s3{sign}cret" for sign in "#$%&*;<=?[|:-'\"")):
        assert "cret" not in rejected(name).replace(HOW, "")


def test_the_mark_of_an_older_version_is_no_app() -> None:
    words = rejected("pid:[4026531836]/0b3e/17/123/ab")
    assert "unset BULLPEN_APP" in words
    assert "BULLPEN_APP_PROCESS" in words


@pytest.mark.parametrize("written", ["", ":queue", "app:"])
def test_half_of_an_app(written: str) -> None:
    assert "empty" in rejected(written)


def test_a_file_whose_name_python_has_taken() -> None:
    write("json.py")
    said = rejected("json.py")
    assert "the name 'json' is taken by another module" in said
    assert "rename json.py" in said


def test_code_that_raises_shows_where_and_nothing_of_ours() -> None:
    write("shop_j.py", "def deep():\n    1 / 0\ndeep()\n")
    with pytest.raises(BrokenApp) as caught:
        load_queue("shop_j:queue")
    said = str(caught.value)
    assert "'shop_j:queue' cannot be imported" in said
    assert 'shop_j.py", line 2, in deep' in said
    assert "ZeroDivisionError: division by zero" in said
    assert "importlib" not in said
    assert "cli/app.py" not in said
    assert caught.value.code is ExitCode.FAILED


def test_an_option_that_is_wrong_shows_the_line_that_gives_it_and_nothing_of_ours() -> None:
    write(
        "shop_cron.py",
        "from bullpen import TaskQueue\nqueue = TaskQueue('memory://')\nqueue.task(name='f', cron='61 * *')(print)\n",
    )
    with pytest.raises(BrokenApp) as caught:
        load_queue("shop_cron:queue")
    said = str(caught.value)
    assert 'shop_cron.py", line 3' in said
    assert "InvalidOption: cron must be cron text" in said
    assert "options.py" not in said


def test_a_queue_that_is_made_when_it_is_asked_for_and_cannot_be() -> None:
    write("shop_late.py", "def __getattr__(name):\n    raise LookupError('no settings')\n")
    with pytest.raises(BrokenApp, match=r"(?s)'shop_late:queue' cannot be imported:.*shop_late\.py.*no settings"):
        load_queue("shop_late:queue")


def test_a_module_that_it_imports_is_missing() -> None:
    write("shop_k.py", "import no_such_library\n")
    with pytest.raises(BrokenApp, match="No module named 'no_such_library'"):
        load_queue("shop_k")


def test_a_script_that_ends_the_program() -> None:
    write("shop_l.py", f"{ONE}raise SystemExit(3)\n")
    with pytest.raises(BrokenApp, match="exited during its import"):
        load_queue("shop_l")


def test_a_script_that_waits_is_said_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(app, "SLOW_IMPORT", 0.01)
    write("shop_m.py", f"import threading\n{ONE}\nthreading.Event().wait(0.2)\n")
    load_queue("shop_m")
    said = capsys.readouterr().err
    assert "the import of 'shop_m' is still running, at " in said
    assert "shop_m.py:5. Put the code of the script below: if __name__ == '__main__':" in said

"""Process pools in scripts: their own functions, the main guard, what was typed in, and what is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scenarios.process_support import PATIENCE, START_METHODS

SCRIPT = """
import os, sys
from dataclasses import dataclass
from bullpen import Pool, ProcessRuntime

print("imported by", "the app" if __name__ == "__main__" else "a worker")

@dataclass
class Point:
    x: int

class Broken(Exception):
    pass

def double(point):
    return Point(point.x * 2)

def fail():
    raise Broken("here")

def arguments():
    return sys.argv[1:]

if __name__ == "__main__":
    with Pool(2, runtime=ProcessRuntime(start=sys.argv[1])) as pool:
        assert pool.do(pow, 2, 3) == 8
        print("needed it")
        assert pool.do(double, Point(4)) == Point(8)
        assert type(pool.submit(fail).exception()) is Broken
        assert pool.do(arguments) == sys.argv[1:]
        os.environ["ADDED"] = "later"
    with Pool(1, runtime=ProcessRuntime(start=sys.argv[1])) as pool:
        assert pool.do(os.environ.get, "ADDED") == "later"
    print("done")
"""


def run(*command: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("start", START_METHODS)
def test_functions_and_classes_of_a_script_are_found(tmp_path: Path, start: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = run(tmp_path / "script.py", start)
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert lines[:2] == ["imported by the app", "needed it"], "no worker imports it before it is needed"
    assert lines[-1] == "done"
    assert 1 <= lines.count("imported by a worker") <= 2


@pytest.mark.parametrize("start", START_METHODS)
def test_functions_of_a_script_that_imports_multiprocessing_are_found(tmp_path: Path, start: str) -> None:
    (tmp_path / "script.py").write_text("import multiprocessing\n" + SCRIPT)
    ended = run(tmp_path / "script.py", start)
    assert (ended.stderr, ended.stdout.splitlines()[-1]) == ("", "done")


@pytest.mark.parametrize("command", [["-m", "package.tool"], ["package"]], ids=["module", "folder"])
def test_a_module_that_is_run_by_name_is_found_and_so_is_what_a_folder_runs(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "tool.py").write_text(SCRIPT)
    (tmp_path / "package" / "__main__.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, *command, "forkserver"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1] == "done"


MANY_WORKERS = """
import os, sys, time
from pathlib import Path
from bullpen import Pool

with open(sys.argv[1], "a") as imports:
    imports.write(f"{os.getpid()} {__name__}\\n")
def meet(_):
    Path(f"{sys.argv[1]}-{os.getpid()}").touch()
    while len(list(Path(sys.argv[1]).parent.glob("imports-*"))) < 3:
        time.sleep(0.01)
    return os.getpid()

if __name__ == "__main__":
    with Pool(3, runtime="process") as pool:
        print(len(set(pool.map(meet, range(3)))))
"""

LEAVES_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


def test_a_script_is_imported_once_for_all_workers(tmp_path: Path) -> None:
    script = tmp_path / "a script.py"
    script.write_text(MANY_WORKERS)
    ended = run(script, tmp_path / "imports")
    assert (ended.stdout, ended.stderr) == ("3\n", "")
    assert (tmp_path / "imports").read_text().split()[1::2] == ["__main__", "__mp_main__"]


def test_a_script_that_leaves_threads_is_imported_by_each_worker_as_one_must_not_fork_these(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LEAVES_A_THREAD + MANY_WORKERS)
    ended = run(script, tmp_path / "imports")
    assert (ended.stdout, ended.stderr) == ("3\n", "")
    assert len((tmp_path / "imports").read_text().splitlines()) == 5


UNGUARDED = """
from bullpen import Pool

def work():
    return 1

class Kept:
    pass

with Pool(1, runtime="process", *OPTION) as pool:
    print(pool.do(work))
"""


@pytest.mark.parametrize("option", ["", ", initializer=work", ", worker=Kept"])
def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path, option: str) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED.replace(", *OPTION", option))
    ended = run(tmp_path / "script.py")
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1].replace("\\", "")  # what people read
    assert "MissingMainGuard" in last
    assert "if __name__ == '__main__':" in last


WEBAPP = """
import os
from pathlib import Path
from bullpen import Pool, Pools, ProcessRuntime

folder = Path(os.environ["IMPORTS"])
(folder / f"import-{os.getpid()}").touch()
if len(list(folder.glob("import-*"))) > 12:
    os._exit(1)  # else there would be no end of them

class Model:
    def ask(self, x):
        return x * 2

    def ask_another(self, x):
        return pool.do("ask", x)

    def ask_nested(self, x):
        with Pool(1, worker=Model, runtime="process") as nested:
            return nested.stats().workers, nested.do("ask", x)

def start():
    return os.getpid()

"""

MODULE_POOLS = {
    "worker": 'pool = Pool(2, worker=Model, runtime="process")',
    "spawn": 'pool = Pool(2, worker=Model, runtime=ProcessRuntime(start="spawn"))',
    "preload": 'pool = Pool(2, worker=Model, runtime=ProcessRuntime(preload=["webapp"]))',
    "initializer": 'pool = Pool(2, worker=Model, runtime="process", initializer=start)',
    "pools": 'pool = Pools(main={"max_workers": 2, "worker": Model, "runtime": "process"})["main"]',
}

IMPORTS_WEBAPP = """
import sys
import webapp

def of_the_script(x):
    return x + 1

if __name__ == "__main__":
    print(webapp.pool.do("ask", 3), webapp.pool.do(of_the_script, 3), list(webapp.pool.map(abs, range(3))))
    if sys.argv[1] != "preload":
        print(webapp.pool.do("ask_another", 4))
    print(webapp.pool.do("ask_nested", 5))
    webapp.pool.close()
    print(len(list(webapp.folder.glob("import-*"))))
"""


@pytest.mark.parametrize("kind", MODULE_POOLS)
def test_a_module_may_make_a_pool_that_its_workers_do_not_make_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "webapp.py").write_text(WEBAPP + MODULE_POOLS[kind])
    (tmp_path / "script.py").write_text(IMPORTS_WEBAPP)
    monkeypatch.setenv("IMPORTS", str(tmp_path))
    ended = run(tmp_path / "script.py", kind)
    assert ended.stderr == ""
    *answers, imports = ended.stdout.splitlines()
    assert answers[0] == "6 4 [0, 1, 2]"
    assert answers[1:-1] == ([] if kind == "preload" else ["8"]), "a worker that uses it starts workers of its own"
    assert answers[-1] == "(1, 10)", "a pool that is made on purpose starts as everywhere"
    assert int(imports) <= 8, "the app, its forkservers and workers, and those that were wanted in workers"


USED_WHEN_IMPORTED = """
pool = Pool(1, worker=Model, runtime="process")
print(pool.do("ask", 3))
"""


def test_a_module_that_uses_a_pool_when_it_is_imported_is_told_so_by_its_first_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "webapp.py").write_text(WEBAPP + USED_WHEN_IMPORTED)
    (tmp_path / "script.py").write_text("import webapp")
    monkeypatch.setenv("IMPORTS", str(tmp_path))
    ended = run(tmp_path / "script.py")
    assert ended.returncode == 1
    assert "uses a process pool while it is imported" in ended.stderr
    assert len(list(tmp_path.glob("import-*"))) == 2


TYPED = """
from bullpen import Pool
factor = 3
def times(x): return x * factor

pool = Pool(1, runtime="process")
print(pool.do(times, 4))
print(pool.do(lambda x: x + factor, 4))
pool.close()
"""


def test_an_interactively_defined_function_is_sent_by_value() -> None:
    ended = run("-", stdin=TYPED)
    assert ended.stderr == ""
    assert ended.stdout.split() == ["12", "7"]


def test_an_interactively_defined_function_cannot_be_sent_without_cloudpickle() -> None:
    ended = run("-", stdin="import sys\nsys.modules['cloudpickle'] = None\n" + TYPED)
    assert "NotPicklable" in ended.stderr
    assert "defined interactively" in ended.stderr
    assert 'pip install "pybullpen[pickle]"' in ended.stderr


def test_a_lambda_cannot_go_without_cloudpickle() -> None:
    script = "import sys\nsys.modules['cloudpickle'] = None\nfrom bullpen import Pool\n"
    script += "with Pool(1, runtime='process') as pool:\n    pool.do(lambda: 1)\n"
    ended = run("-", stdin=script)
    assert "NotPicklable: the function: function <lambda>" in ended.stderr
    assert 'pip install "pybullpen[pickle]"' in ended.stderr


PRINTS = """
import logging, sys
from bullpen import Pool
if sys.argv[1] == "logged":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
with Pool(1, runtime="process", name="p") as pool:
    pool.do(print, "hello")
"""


@pytest.mark.parametrize(
    ("how", "output", "errors"), [("plain", "hello\n", ""), ("logged", "", "bullpen.output p_0: hello\n")]
)
def test_what_workers_print_is_seen(how: str, output: str, errors: str) -> None:
    ended = run("-c", PRINTS, how)
    assert ended.stdout == output
    assert [line for line in ended.stderr.splitlines(keepends=True) if "hello" in line] == errors.splitlines(
        keepends=True
    )

"""The tests' own safety net, tested. Each inner pytest is a process of its own, so what leaks there stays there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.scenarios.process_support import eventually, is_alive

ROOT = Path(__file__).parents[2]

PREAMBLE = "import _thread, asyncio, os, socket, threading, time, pytest\nkept = []\n"

FORGET_A_TASK = """
async def forever():
    await asyncio.Event().wait()

loop = asyncio.new_event_loop()
kept.append(loop.create_task(forever(), name="forgotten"))
loop.run_until_complete(asyncio.sleep(0))
loop.close()
"""

HIDE_A_TASK_BEHIND_THE_RUNNER = """
async def main():
    kept.append(asyncio.create_task(asyncio.sleep(9), name="hidden"))

asyncio.run(main())
"""

LEAKS = {
    "thread": (
        "threading.Thread(target=time.sleep, args=(9,), name='lingerer', daemon=True).start()",
        "*thread 'lingerer' in *",
    ),
    "raw thread": ("_thread.start_new_thread(time.sleep, (9,))", "*thread unknown to threading*"),
    "child": ("os.posix_spawn('/bin/sleep', ['sleep', '2'], {})", "*child process *: sleep 2*"),
    "zombie": ("os.posix_spawn('/bin/true', ['true'], {})", "*child process *: a zombie *"),
    "pipe": ("os.pipe()", "*file descriptor *: pipe:*"),
    "file": ("os.open(__file__, os.O_RDONLY)", "*file descriptor *.py*"),
    "socket": ("kept.append(socket.socket())", "*file descriptor *: socket:*"),
    "loop": ("kept.append(asyncio.new_event_loop())", "*event loop that was not closed*"),
    "task": (FORGET_A_TASK, "*asyncio task that never finished: *'forgotten'*"),
    "task of a runner": (HIDE_A_TASK_BEHIND_THE_RUNNER, "*still running when its runner ended: *'hidden'*"),
}


class InnerPytest:
    """Runs tests under the leak check."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester

    def run(self, body: str, *options: str, decorator: str = "", after: str = "") -> pytest.RunResult:
        """`body` as a test."""
        return self.run_all(decorator + as_test("inner", body) + after, *options)

    def run_all(self, tests: str, *options: str) -> pytest.RunResult:
        self._pytester.makepyfile(PREAMBLE + tests)
        plugins = ("-p", "tests.leaks", "-p", "pytest_timeout", "-p", "no:cacheprovider")
        return self._pytester.runpytest_subprocess(*plugins, "-o", "leak_grace=0.1", *options)


def as_test(name: str, body: str) -> str:
    return f"\ndef test_{name}():\n" + textwrap.indent(body, "    ") + "\n"


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> InnerPytest:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return InnerPytest(pytester)


def test_a_leak_fails_the_test_and_is_named(inner: InnerPytest) -> None:
    names = {leak: leak.replace(" ", "_") for leak in LEAKS}
    result = inner.run_all("".join(as_test(names[leak], body) for leak, (body, _) in LEAKS.items()))
    result.assert_outcomes(passed=len(LEAKS), errors=len(LEAKS))
    for leak, (_, message) in LEAKS.items():
        result.stdout.fnmatch_lines([f"*ERROR at teardown of test_{names[leak]} *", "the test leaked:", message])


def test_only_the_test_that_leaked_is_blamed(inner: InnerPytest) -> None:
    result = inner.run("kept.append(os.pipe())", after="def test_innocent(): pass")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_inner*"])


def test_what_ends_within_the_grace_is_no_leak(inner: InnerPytest) -> None:
    inner.run("threading.Timer(0.05, lambda: None).start()", "-o", "leak_grace=30").assert_outcomes(passed=1)


def test_what_a_fixture_closes_is_no_leak(inner: InnerPytest) -> None:
    fixture = """
@pytest.fixture(autouse=True)
def connection():
    with socket.socket() as connection:
        yield connection
"""
    inner.run("pass", after=fixture).assert_outcomes(passed=1)


def test_garbage_is_no_leak(inner: InnerPytest) -> None:
    body = "loop = asyncio.new_event_loop()\nloop.itself = loop\nloop.run_until_complete(asyncio.sleep(0))"
    inner.run(body, "-W", "ignore::ResourceWarning").assert_outcomes(passed=1)


def test_a_test_may_leak_when_it_says_why(inner: InnerPytest) -> None:
    inner.run("os.pipe()", decorator="@pytest.mark.leaks('to see it')").assert_outcomes(passed=1)


def test_a_test_may_not_leak_without_a_reason(inner: InnerPytest) -> None:
    result = inner.run("os.pipe()", decorator="@pytest.mark.leaks")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*leaks needs a reason*"])


def test_a_hung_test_is_ended_with_the_stack_of_every_thread(inner: InnerPytest) -> None:
    body = """
def stuck_worker():
    time.sleep(9)

threading.Thread(target=stuck_worker, name="stuck", daemon=True).start()
threading.Event().wait()
"""
    result = inner.run(body, "-o", "timeout=0.5", "-o", "timeout_method=thread")
    assert result.ret != pytest.ExitCode.OK
    output = result.stdout.str() + result.stderr.str()
    assert "Timeout" in output
    assert "Stack of stuck" in output
    assert "in stuck_worker" in output
    assert "in test_inner" in output


def test_this_suite_runs_with_those_settings(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("filterwarnings") == ["error"]
    assert pytestconfig.getini("timeout_method") == "thread"
    assert float(pytestconfig.getini("timeout")) == 240
    assert pytestconfig.pluginmanager.has_plugin("tests.leaks")


STARTS_A_SERVER = """
import pathlib, sys, time
from tests import servers
server = getattr(servers, sys.argv[1])(pathlib.Path(sys.argv[2]))
print(server._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends them there")
@pytest.mark.parametrize("server", ["OwnRedis", "OwnPostgres"])
def test_a_server_of_the_tests_ends_with_the_run_that_started_it(tmp_path: Path, server: str) -> None:
    command = [sys.executable, "-c", STARTS_A_SERVER, server, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert is_alive(pid)
        run.kill()
    eventually(lambda: not is_alive(pid))

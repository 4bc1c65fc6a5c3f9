"""Programs as workers: the examples in three languages, and programs that break the rules."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bullpen import (
    CallPolicy,
    CallProgress,
    CapacityPolicy,
    DeadlineExceeded,
    InvalidOption,
    InvalidOptionType,
    NoSuchMethod,
    NotJson,
    NotPicklable,
    Pool,
    PoolFailed,
    ProgramError,
    ProgramRuntime,
    WorkerLost,
    WorkerStartFailed,
)
from bullpen.pools.runtimes.program import messages
from tests.scenarios.process_support import PATIENCE, eventually, is_alive, read_pid

PROGRAMS = Path(__file__).parents[2] / "examples" / "programs"
COMMANDS: dict[str, list[str | Path]] = {
    "python": [sys.executable, "-S", PROGRAMS / "worker.py"],
    "javascript": ["node", PROGRAMS / "worker.js"],
    "shell": ["sh", PROGRAMS / "worker.sh"],
}
NEEDS = {"javascript": "node", "shell": "jq"}


@pytest.fixture(params=COMMANDS)
def runtime(request: pytest.FixtureRequest) -> ProgramRuntime:
    """Each of the examples whose language is here."""
    needed = NEEDS.get(request.param)
    if needed is not None and shutil.which(needed) is None:
        pytest.skip(f"{needed} is not installed")
    return ProgramRuntime(COMMANDS[request.param])


def python(**options: Any) -> ProgramRuntime:
    return ProgramRuntime(COMMANDS["python"], **options)


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., ProgramRuntime]:
    """Make a runtime of the body of a small program, which may `say` and `hear` messages."""
    numbers = itertools.count()

    def make(body: str, **options: Any) -> ProgramRuntime:
        file = tmp_path / f"program-{next(numbers)}.py"
        lines = (
            "import json, os, sys, time",
            "def say(**message): print(json.dumps(message), flush=True)",
            'def hear(): return json.loads(sys.stdin.readline() or \'{"type": "stop"}\')',
            "def call():",
            "    while (heard := hear())['type'] not in ('call', 'stop'): pass",
            "    return heard if heard['type'] == 'call' else sys.exit(0)",
            "def ready(**more): hear(); say(type='ready', protocol=1, **more)",
        )
        file.write_text("\n".join(lines) + "\n" + textwrap.dedent(body))
        return ProgramRuntime([sys.executable, "-S", file], **options)

    return make


# What every example does.


def test_an_example_answers(runtime: ProgramRuntime) -> None:
    with Pool(1, runtime=runtime) as pool:
        assert pool.do("add", 1, 2) == 3
        assert list(pool.map("add", [1, 2], [3, 4])) == [4, 6]
        outcomes = pool.map("add", [1, 2], [3, 4], on_error="return", ordered=False)
        assert sorted(outcomes) == [((1, 3), 4, None), ((2, 4), 6, None)]
        assert list(pool.stream("count", 5)) == [0, 1, 2, 3, 4]
        with pytest.raises(NoSuchMethod, match="add"):
            pool.do("subtract", 1, 2)
        assert pool.stats().spawned == 1


def test_an_example_stops_when_it_is_told_to(runtime: ProgramRuntime, caplog: pytest.LogCaptureFixture) -> None:
    with Pool(1, runtime=runtime) as pool:
        pool.wait_ready(PATIENCE)
    assert caplog.records == []


def test_an_example_answers_a_ping(runtime: ProgramRuntime) -> None:
    runtime.ping_interval = 0.05
    with Pool(1, runtime=runtime) as pool:
        pool.wait_ready(PATIENCE)
        time.sleep(0.5)
        assert pool.do("add", 1, 2) == 3
        assert pool.stats().spawned == 1, "it was taken for dead"


def test_the_example_in_javascript_cancels_what_it_is_told_to() -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    with Pool(1, runtime=ProgramRuntime(COMMANDS["javascript"])) as pool:
        with pytest.raises(DeadlineExceeded):
            pool.using(timeout=0.2).do("sleep", 60)
        assert pool.do("add", 1, 2) == 3
        stream = pool.stream("count", 1_000_000)
        assert next(stream) == 0
        stream.close()
        assert pool.do("add", 1, 2) == 3
        assert pool.stats().spawned == 1, "it was killed, though it can cancel"
        with pytest.raises(ProgramError, match="RangeError: too far") as caught:
            pool.do("fail", "too far")
        assert "worker.js" in caught.value.details["stack"]


def test_the_example_in_javascript_runs_several_calls_at_once() -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    runtime = ProgramRuntime(COMMANDS["javascript"])
    with Pool(1, runtime=runtime, capacity=CapacityPolicy(limit=4, strategy="hybrid")) as pool:
        pool.wait_ready(PATIENCE)
        begun = time.monotonic()
        futures = [pool.submit("sleep", 0.5) for _ in range(4)]
        assert [future.result(PATIENCE) for future in futures] == [0.5] * 4
        assert time.monotonic() - begun < 1.5
        assert pool.workers()[0].capacity == 4


def test_the_example_in_shell_names_its_errors() -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    with Pool(1, runtime=ProgramRuntime(COMMANDS["shell"])) as pool:
        assert pool.do("disk_free", "/") > 0
        with pytest.raises(ProgramError) as caught:
            pool.do("disk_free", "/no/such/folder")
        assert (caught.value.kind, caught.value.text) == ("NoSuchFolder", "there is no /no/such/folder")


# Calls.


def test_keyword_arguments_and_values_cross_as_json(program: Callable[..., ProgramRuntime]) -> None:
    runtime = program("""
        ready()
        while True:
            heard = call()
            say(type="result", id=heard["id"], value=[heard["method"], heard["args"], heard["kwargs"]])
        """)
    with Pool(1, runtime=runtime) as pool:
        value = {"text": "Käse 🧀\n", "numbers": [1, 2.5, None, True]}
        assert pool.do("eat", value, much=3) == ["eat", [value], {"much": 3}]
        large = "x" * 3_000_000
        assert pool.do("eat", large) == ["eat", [large], {}]


def test_a_value_may_be_whatever_is_json(program: Callable[..., ProgramRuntime]) -> None:
    """Also half a character, and numbers of any size."""
    runtime = program(r"""
        ready()
        while True:
            heard = call()
            print('{"type": "result", "id": %d, "value": %s}' % (heard["id"], heard["args"][0]), flush=True)
        """)
    with Pool(1, runtime=runtime) as pool:
        assert pool.do("give", r'["cut \ud83d", "\udc00"]') == ["cut \ud83d", "\udc00"]
        assert pool.do("give", "9" * 100) == int("9" * 100)
        assert pool.stats().spawned == 1


def test_an_argument_that_is_no_json_fails_that_call_only() -> None:
    with Pool(1, runtime=python()) as pool:
        for args, kwargs, what in [((1, object()), {}, "argument 2"), ((1,), {"second": {1j}}, "argument second")]:
            with pytest.raises(NotJson) as caught:
                pool.do("add", *args, **kwargs)
            assert caught.value.what == what
        assert pool.do("add", 1, 2) == 3
        assert pool.stats().spawned == 1


def test_a_function_cannot_be_submitted() -> None:
    with Pool(1, runtime=python()) as pool:
        ways: list[Any] = [pool.submit, pool.serve, pool.do, pool.stream, lambda fn: pool.map(fn, [1])]
        for submit in ways:
            with pytest.raises(InvalidOptionType, match="name of a method"):
                submit(abs)
        with pytest.raises(InvalidOption, match="context"):
            pool.using(context=True)


def test_what_a_program_has_no_use_for_is_rejected() -> None:
    for options in ({"initializer": print}, {"calls": CallPolicy(wrap=print)}, {"worker": dict}):
        with pytest.raises(InvalidOption, match=next(iter(options))):
            Pool(1, runtime=python(), **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"command": "node worker.js"}, "command"),
        ({"command": []}, "command"),
        ({"command": ["node", 1]}, "command"),
        ({"env": {"A": 1}}, "env"),
        ({"start_timeout": -1}, "start_timeout"),
        ({"cancel_grace": "soon"}, "cancel_grace"),
        ({"stop_grace": True}, "stop_grace"),
        ({"ping_interval": float("nan")}, "ping_interval"),
        ({"max_message": 0}, "max_message"),
        ({"on_progress": 1}, "on_progress"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        ProgramRuntime(**{"command": ["node"], **options})
    assert caught.value.option == named


def test_progress_is_reported_with_the_call_it_belongs_to() -> None:
    reports: list[CallProgress] = []

    def note(progress: CallProgress) -> None:
        reports.append(progress)
        raise RuntimeError("an observer fails, and nothing else does")

    with Pool(1, runtime=python(on_progress=note)) as pool:
        assert list(pool.stream("count", 3)) == [0, 1, 2]
    assert [(report.method, report.args, report.value) for report in reports] == [
        ("count", (3,), value) for value in (1, 2, 3)
    ]


def test_a_program_gets_its_environment_its_folder_and_default_signals(
    program: Callable[..., ProgramRuntime], tmp_path: Path
) -> None:
    runtime = program(
        """
        import signal
        ready()
        ignored = [n for n in (signal.SIGTERM, signal.SIGPIPE) if signal.getsignal(n) == signal.SIG_IGN]
        while True:
            say(type="result", id=call()["id"], value=[os.environ["COLOUR"], os.getcwd(), len(ignored)])
        """,
        env={"COLOUR": "red"},
        cwd=tmp_path,
    )
    with Pool(1, runtime=runtime) as pool:
        colour, folder, ignored = pool.do("where")
    assert (colour, folder) == ("red", str(tmp_path))
    assert ignored <= 1  # Python itself ignores SIGPIPE


def test_what_a_program_writes_to_stderr_is_logged(
    program: Callable[..., ProgramRuntime], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bullpen.output")
    with Pool(1, runtime=program("print('warming up', file=sys.stderr); ready(); call()")) as pool:
        pool.wait_ready(PATIENCE)
    assert any("warming up" in record.getMessage() for record in caplog.records)


# Streams.


def test_a_slow_reader_holds_the_program_back(program: Callable[..., ProgramRuntime], tmp_path: Path) -> None:
    """Also if it pays no attention to what it is asked for."""
    runtime = program(
        """
        ready()
        heard = call()
        for number in range(2_000_000):
            say(type="item", id=heard["id"], value=number)
            if number % 1000 == 0:
                open("count", "w").write(str(number))
        say(type="result", id=heard["id"])
        """,
        cwd=tmp_path,
    )
    with Pool(1, runtime=runtime) as pool, pool.stream("count") as stream:
        assert next(stream) == 0
        time.sleep(0.3)
        assert int((tmp_path / "count").read_text() or 0) < 50_000
        assert list(itertools.islice(stream, 5_000)) == list(range(1, 5_001))


def test_a_program_of_more_capacity_must_keep_to_what_it_is_asked_for(program: Callable[..., ProgramRuntime]) -> None:
    runtime = program("""
        ready(capacity=2)
        heard = call()
        for number in range(200_000):
            say(type="item", id=heard["id"], value=number)
        time.sleep(600)
        """)
    with Pool(1, runtime=runtime, capacity=2) as pool, pool.stream("count") as stream:
        assert next(stream) == 0
        eventually(lambda: pool.stats().spawned == 2)
        with pytest.raises(WorkerLost, match="more items of call 1 than it has credit for"):
            list(stream)


# Crashes.

MISDEEDS = {
    "garbage": ("print('hello world', flush=True)", "no message.*hello world"),
    "a number": ("print(42, flush=True)", "no message.*42"),
    "bytes": ("sys.stdout.buffer.write(bytes([255, 254, 10])); sys.stdout.flush()", "no message"),
    "an unknown type": ("say(type='dance', id=heard['id'])", "no message.*dance"),
    "a missing id": ("say(type='result', value=1)", "no message.*id"),
    "somebody else's id": ("say(type='result', id=77)", "result is for call 77"),
    "an item for a plain call": ("say(type='item', id=heard['id'])", "which is no stream"),
    "a second ready": ("say(type='ready', protocol=1)", "twice"),
    "a pong for nobody": ("say(type='pong', id=5)", "ping 5"),
    "a line without end": ("sys.stdout.write('x' * 200_000); sys.stdout.flush()", "max_message=100000 bytes"),
    "brackets without end": (
        'print(\'{"type":"result","id":1,"value":\' + \'[\' * 50_000, flush=True)',
        "no message.*recursion",
    ),
    "a number that is none": ('print(\'{"type":"result","id":1,"value":NaN}\', flush=True)', "no message.*NaN"),
    "silence": ("os.close(1)", "closed its stdout"),
    "exit": ("sys.stderr.write('oh no\\n'); sys.exit(3)", "exit code 3.*oh no"),
    "a signal": ("os.kill(os.getpid(), 11)", "SIGSEGV"),
}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_what_breaks_the_rules_is_a_crash(program: Callable[..., ProgramRuntime], misdeed: str) -> None:
    deed, told = MISDEEDS[misdeed]
    runtime = program(
        f"""
        ready()
        while True:
            heard = call()
            if heard["method"] == "misbehave":
                {deed}
                time.sleep(600)
            say(type="result", id=heard["id"], value=heard["args"])
        """,
        max_message=100_000,
    )
    with Pool(1, runtime=runtime) as pool:
        error = pool.submit("misbehave").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert re.search(told, str(error), re.DOTALL), error
        assert pool.do("echo", 1) == [1], "another one takes its place"
        assert pool.stats().spawned == 2


# Much output: all pools share the thread that reads it.


def test_a_line_that_is_too_long_names_the_option_that_allows_it(program: Callable[..., ProgramRuntime]) -> None:
    body = """
        ready()
        while True:
            heard = call()
            say(type="result", id=heard["id"], value="x" * heard["args"][0])
        """
    with Pool(1, runtime=program(body)) as pool:
        assert len(pool.do("give", 3_000_000)) == 3_000_000
        error = pool.submit("give", 5_000_000).exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert "max_message=4194304" in str(error)
    with Pool(1, runtime=program(body, max_message=10_000_000)) as pool:
        assert len(pool.do("give", 5_000_000)) == 5_000_000


def test_large_messages_are_decoded_elsewhere_and_in_their_order(
    program: Callable[..., ProgramRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
        ready(capacity=4)
        heard = [call() for _ in range(4)]
        for one, size in zip(heard, (300_000, 1, 300_000, 1)):
            say(type="progress", id=one["id"], value=[0] * size)
            say(type="result", id=one["id"], value=[one["id"]] * size)
        os._exit(3)
        """
    on: dict[bool, set[str]] = {False: set(), True: set()}
    seen: list[int] = []
    read = messages.read

    def note(line: bytes) -> messages.AnyMessage:
        on[len(line) > 500_000].add(threading.current_thread().name)
        return read(line)

    monkeypatch.setattr(messages, "read", note)
    runtime = program(body, on_progress=lambda progress: seen.append(len(progress.value)))
    with Pool(1, runtime=runtime, capacity=4) as pool:
        calls = [pool.submit("give", number) for number in range(4)]
        sizes = sorted(len(call.result(PATIENCE)) for call in calls)
        assert sizes == [1, 1, 300_000, 300_000], "all came before its end"
    assert seen == [300_000, 1, 300_000, 1]
    assert on[False] == {"bullpen-process-io"}
    assert "bullpen-process-io" not in on[True]


def test_a_program_that_closes_its_stdin_and_lives_is_replaced(
    program: Callable[..., ProgramRuntime], caplog: pytest.LogCaptureFixture
) -> None:
    runtime = program("""
        ready()
        heard = call()
        os.close(0)
        say(type="result", id=heard["id"], value=1)
        time.sleep(600)
        """)
    with Pool(1, runtime=runtime) as pool:
        assert pool.do("first") == 1
        assert pool.submit("second").result(PATIENCE) == 1, "the first program has not read it"
        assert pool.stats().spawned == 2
    assert "closed its stdin" in caplog.text


def test_what_others_write_without_end_after_a_program_has_ended_holds_up_nobody(
    program: Callable[..., ProgramRuntime],
) -> None:
    runtime = program(r"""
        import subprocess
        ready()
        call()
        subprocess.Popen(["yes", ""], start_new_session=True)
        os._exit(3)
        """)
    with Pool(1, runtime=runtime) as pool:
        error = pool.submit("leave").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert error.exit_code == 3


FORKS = """
import os, sys
from bullpen import Pool, ProgramRuntime

PROGRAM = r'''
import json, pathlib, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "hello":
        print(json.dumps({"type": "ready", "protocol": 1}), flush=True)
    elif message["type"] == "call":
        print(json.dumps({"type": "result", "id": message["id"]}), flush=True)
pathlib.Path(sys.argv[1]).touch()
'''

pool = Pool(1, runtime=ProgramRuntime([sys.executable, "-c", PROGRAM, sys.argv[1]], stop_grace=None))
pool.do("anything")
held, holds = os.pipe()
if os.fork() == 0:
    os.close(holds)
    os.read(held, 1)  # until its parent has ended
    os._exit(0)
pool.close(grace=20)
"""


def test_a_forked_child_of_the_app_does_not_keep_the_stdin_of_programs_open(tmp_path: Path) -> None:
    """A program that ends at the end of its input does so when the pool is closed."""
    ended = tmp_path / "ended"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", FORKS, ended], env=environment, timeout=PATIENCE, check=True)
    assert ended.exists()


class Picky(ProgramRuntime):
    """One that cannot take some values."""

    def value(self, value: Any) -> Any:
        if value == "bad":
            raise ValueError(value)
        return value


def test_a_message_that_cannot_be_handled_does_not_affect_later_ones(program: Callable[..., ProgramRuntime]) -> None:
    body = """
        ready(capacity=3)
        calls = sorted((call() for _ in range(3)), key=lambda call: call["args"])
        lines = [{"type": "item", "id": calls[2]["id"], "value": value} for value in ("good", "bad", "unread")]
        lines += [{"type": "result", "id": call["id"], "value": call["args"][0]} for call in calls]
        print("\\n".join(map(json.dumps, lines)), flush=True)
        call()
    """
    with Pool(1, capacity=3, runtime=Picky(program(body).command)) as pool:
        items = pool.stream("give", "stream")
        bad, good = pool.submit("give", "bad"), pool.submit("give", "good")
        assert good.result(PATIENCE) == "good"
        assert isinstance(bad.exception(PATIENCE), ValueError)
        assert next(items) == "good"
        with pytest.raises(NotPicklable):
            next(items)


def test_a_program_that_says_it_is_broken_is_replaced(program: Callable[..., ProgramRuntime]) -> None:
    runtime = program("""
        ready()
        while True:
            heard = call()
            if heard["method"] == "break":
                say(type="error", id=heard["id"], name="NoMemory", message="on the card", broken=True)
            else:
                say(type="result", id=heard["id"], value=os.getpid())
        """)
    with Pool(1, runtime=runtime) as pool:
        before = pool.do("pid")
        error = pool.submit("break").exception(PATIENCE)
        assert isinstance(error, WorkerLost)
        assert isinstance(error.__cause__, ProgramError)
        assert pool.do("pid") != before


def test_a_program_that_does_not_answer_a_ping_is_replaced(program: Callable[..., ProgramRuntime]) -> None:
    runtime = program("ready(); call(); time.sleep(600)", ping_interval=0.05, ping_timeout=0.2)
    with Pool(1, runtime=runtime) as pool:
        pool.wait_ready(PATIENCE)
        pid = read_program_pid(pool)
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: not is_alive(pid))
        eventually(lambda: pool.stats().spawned == 2)


def read_program_pid(pool: Pool) -> int:
    (worker,) = pool._engine.registry.snapshot()
    return int(worker.handle._pid)


def test_a_call_that_hangs_is_killed_with_its_program(program: Callable[..., ProgramRuntime], tmp_path: Path) -> None:
    runtime = program(
        """
        import signal, subprocess
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready()
        while True:
            heard = call()
            if heard["method"] == "hang":
                child = subprocess.Popen(["sleep", "600"])
                open("draft", "w").write(str(child.pid))
                os.rename("draft", "child")
                time.sleep(600)
            say(type="result", id=heard["id"], value="here")
        """,
        cancel_grace=0.1,
        cwd=tmp_path,
    )
    with Pool(1, runtime=runtime) as pool:
        future = pool.submit("hang")
        child = read_pid(tmp_path / "child")
        assert pool.cancel(future)
        assert pool.do("echo") == "here"
        eventually(lambda: not is_alive(child))


def test_a_program_that_does_not_stop_is_killed(program: Callable[..., ProgramRuntime]) -> None:
    with Pool(1, runtime=program("ready()\nwhile True: time.sleep(600)", stop_grace=0.1)) as pool:
        pool.wait_ready(PATIENCE)
        begun = time.monotonic()
    assert time.monotonic() - begun < PATIENCE / 2


# Start.


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("hear(); say(type='ready', protocol=2)", "version 2 of the protocol, the app speaks version 1"),
        ("hear(); say(type='ready', protocol=1, capacity=0)", "capacity must be ≥ 1"),
        ("hear(); say(type='ready')", "protocol"),
        ("print('Loading model…', flush=True)", "Loading model"),
        ("sys.exit('no model')", "exit code 1.*no model"),
        ("time.sleep(600)", "not ready after 0.5 s"),
        ("say(type='error', id=0, name='NoModel', message='it is gone')", "NoModel: it is gone"),
    ],
)
def test_a_program_that_cannot_start_fails_the_pool_and_says_why(
    program: Callable[..., ProgramRuntime], body: str, told: str
) -> None:
    timeout = 0.5 if "sleep" in body else PATIENCE
    with Pool(1, runtime=program(body + "; time.sleep(1)", start_timeout=timeout)) as pool:
        with pytest.raises(PoolFailed) as caught:
            pool.wait_ready(PATIENCE)
        assert isinstance(caught.value.__cause__, WorkerStartFailed | ProgramError)
        assert re.search(told, str(caught.value.__cause__), re.DOTALL)


def test_a_start_that_takes_too_long_is_reported_also_if_not_even_the_forkserver_has_begun(
    program: Callable[..., ProgramRuntime],
) -> None:
    with Pool(1, runtime=program("time.sleep(600)", start_timeout=0.01)) as pool:
        with pytest.raises(PoolFailed) as caught:
            pool.wait_ready(PATIENCE)
        assert "it was not ready after 0.01 s" in str(caught.value)


def test_a_program_that_is_not_there_fails_the_pool() -> None:
    with Pool(1, runtime=ProgramRuntime(["no-such-program-anywhere"])) as pool:
        with pytest.raises(PoolFailed) as caught:
            pool.wait_ready(PATIENCE)
        assert "No such file" in str(caught.value.__cause__)


def test_more_capacity_than_a_program_has_is_rejected() -> None:
    with Pool(1, runtime=python(), capacity=2) as pool, pytest.raises(PoolFailed) as caught:
        pool.wait_ready(PATIENCE)
    assert "the capacity of worker.py" in str(caught.value.__cause__)


# The end of the app.


def test_programs_die_with_an_app_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from bullpen import Pool, ProgramRuntime

body = "import json,os,sys,time\\nsys.stdin.readline()\\nprint(json.dumps(dict(type='ready',protocol=1)),flush=True)\\n"
body += "open('draft','w').write(str(os.getpid()))\\nos.rename('draft','pid')\\ntime.sleep(600)"
pool = Pool(1, runtime=ProgramRuntime([sys.executable, "-S", "-c", body], cwd={str(tmp_path)!r}))
time.sleep(600)
"""
    app = subprocess.Popen([sys.executable, "-c", script])
    try:
        pid = read_pid(tmp_path / "pid")
        assert is_alive(pid)
    finally:
        app.kill()
        app.wait()
    eventually(lambda: not is_alive(pid), 2.0)

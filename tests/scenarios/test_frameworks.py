"""The examples for web frameworks work as their READMEs say, each in a copy of its folder."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bullpen import TaskQueue, TaskStatus
from tests.docs.markdown import ROOT
from tests.stores import KINDS, new_store

SECONDS = 40.0
BULLPEN = [sys.executable, "-m", "bullpen"]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / str(request.param)
    shutil.copytree(ROOT / "examples" / request.param, copy, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    return copy


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty store of each kind."""
    with new_store(str(request.param), tmp_path, request) as address:
        yield address


def example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("folder", [name], indirect=True)


@contextlib.contextmanager
def process(folder: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the folder, told to stop at the end; it has to end well."""
    log = folder / f"{Path(words[0]).name}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        running = subprocess.Popen(words, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output)
        try:
            yield running
            running.send_signal(signal.SIGTERM)
            assert running.wait(SECONDS) == 0, log.read_text()
        except BaseException as error:
            error.add_note(log.read_text())
            raise
        finally:
            if running.poll() is None:
                running.kill()
                running.wait()


def python(folder: Path, source: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning:django_stubs_ext", "-c", source],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Django.


def test_a_django_without_tasks_is_told_what_to_install(tmp_path: Path) -> None:
    said = python(
        tmp_path,
        "import sys\n"
        "sys.modules |= {'django.tasks': None, 'django_tasks': None}\n"
        "try:\n    import bullpen.integrations.django\n"
        "except ImportError as error:\n    print(error)",
    )
    assert "pip install django-tasks" in said


DJANGO = {"DJANGO_SETTINGS_MODULE": "shop.settings"}
IN_DJANGO = """
import asyncio, datetime, json, time
import django
django.setup()
from bullpen.integrations.django import task_backends, TaskResultDoesNotExist, task_enqueued
from django.test import Client
from django.utils import timezone
from shop.tasks import count_words, fail, send_receipt

def finished(result):
    end = time.monotonic() + 30
    while not result.is_finished and time.monotonic() < end:
        time.sleep(0.02)
        result.refresh()
    return result
"""


@example("django_shop")
def test_tasks_of_django_are_kept_and_run(folder: Path, url: str) -> None:
    source = (
        IN_DJANGO
        + """
said = []
task_enqueued.connect(lambda sender, task_result, **_: said.append(task_result.id), weak=False)
client = Client()
told = client.get("/buy/7").json()
assert said == [told["receipt"]]
result = finished(send_receipt.get_result(told["receipt"]))
assert result.return_value == "receipt for order 7 sent to ada@example.org", result
assert (result.status, result.attempts, result.errors) == ("SUCCESSFUL", 1, []), result
assert (result.args, result.kwargs) == ([7], {"to": "ada@example.org"})
assert (result.task.priority, result.task.queue_name) == (10, "mail")
assert result.enqueued_at <= result.started_at <= result.finished_at <= timezone.now() + datetime.timedelta(seconds=5)
assert client.get(f"/receipts/{result.id}").json()["said"] == result.return_value

words = asyncio.run(count_words.aenqueue("to be or not to be"))
assert finished(words).return_value == {"words": 6, "attempt": 1}

later = count_words.using(run_after=timezone.now() + datetime.timedelta(hours=1), priority=-100).enqueue("one")
later.refresh()
assert (later.status, later.started_at, later.attempts) == ("READY", None, 0)
assert count_words.get_result(later.id).task.priority == -100

failed = fail.enqueue(reason="out of stock")
end = time.monotonic() + 30
while not failed.errors and time.monotonic() < end:
    time.sleep(0.02)
    failed.refresh()
assert failed.status == "READY" and failed.errors[0].exception_class is ValueError  # it is tried again
assert "out of stock" in failed.errors[0].traceback
try:
    fail.get_result("no such id")
except TaskResultDoesNotExist:
    print("all is well")
"""
    )
    environment = {**DJANGO, "BULLPEN_URL": url}
    with process(folder, *BULLPEN, "worker", "bullpen.integrations.django:queue", **environment):
        assert python(folder, source, **environment) == "all is well\n"
    with TaskQueue(url) as queue:
        assert queue.counts()["mail"] == {TaskStatus.SUCCESS: 1}  # it was there, and nowhere else


@example("django_shop")
def test_django_rejects_what_its_settings_have_wrong(folder: Path) -> None:
    settings = folder / "shop" / "settings.py"
    settings.write_text(settings.read_text().replace('"url":', '"address":'))
    done = subprocess.run(
        [*BULLPEN, "worker", "bullpen.integrations.django:queue"],
        cwd=folder,
        env={**os.environ, **DJANGO},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert """TASKS['default']["OPTIONS"]["url"] is missing""" in done.stderr


@example("django_shop")
def test_a_row_does_not_choose_what_django_imports(folder: Path, tmp_path: Path) -> None:
    """Django imports the class of an error by its path, which is in the store."""
    (folder / "trap.py").write_text("open('sprung', 'w').close()\nclass Trap(Exception): pass\n")
    (folder / "lazy.py").write_text("def __getattr__(name):\n    import trap\n    return trap.Trap\n")
    (folder / "later.py").write_text(
        "from django.utils.functional import SimpleLazyObject\nit = SimpleLazyObject(lambda: __import__('trap'))\n"
    )
    source = (
        IN_DJANGO
        + """
import later, lazy, sys
from django.core.exceptions import ValidationError
from bullpen.integrations.django import _error
for path, kind in {
    "LookupError": LookupError,
    "django.core.exceptions.ValidationError": ValidationError,
    "json.decoder.JSONDecodeError": json.JSONDecodeError,
    "json.JSONDecodeError": json.JSONDecodeError,
}.items():
    assert _error(path, "").exception_class is kind
lazies = ("trap.Trap", "lazy.Trap", "later.it", "later.it.Trap")
for path in (*lazies, "os.system", "json.loads", "shop.tasks", "a..b", ".", "shop.tasks.fail.func.x"):
    try:
        _error(path, "").exception_class
        print("found", path)
    except ImportError as error:
        assert "import it first" in str(error)
    except ValueError as error:
        assert "does not reference a valid exception" in str(error)
"""
    )
    assert python(folder, source, **DJANGO, BULLPEN_URL=f"sqlite:///{tmp_path}/jobs.db") == ""
    assert not (folder / "sprung").exists()


# FastAPI.


@example("fastapi_app")
def test_tasks_of_fastapi_are_enqueued_and_looked_at(folder: Path, url: str) -> None:
    source = """
import time
from fastapi.testclient import TestClient
from app import app
ada, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in ("ada", "bob"))
with TestClient(app) as client:
    assert client.get("/tasks/none", headers=ada).status_code == 404
    task = client.post("/pictures/cat.png", params={"width": 64}, headers=ada)
    assert task.status_code == 202
    path = f"/tasks/{task.json()['id']}"
    end = time.monotonic() + 30
    while (told := client.get(path, headers=ada).json())["status"] != "success":
        assert time.monotonic() < end, told
        time.sleep(0.02)
    assert client.get(path, headers=bob).status_code == 404  # as if it did not exist
    for stranger in ({}, {"Authorization": "Bearer token-of-eve"}):
        assert client.get(path, headers=stranger).status_code in (401, 403)
        assert client.post("/pictures/cat.png", headers=stranger).status_code in (401, 403)
    assert client.get("/health").json() == {"default": 1}
    print(told["result"])
"""
    ignored = "import warnings; warnings.simplefilter('ignore')\n"  # of the test client's own
    assert python(folder, ignored + source, WORKER_INSIDE="1", BULLPEN_URL=url) == "cat.png at 64 px\n"


# Flask, and servers that fork.


class OverUnixSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def ask(server: subprocess.Popen[bytes], path: Path, method: str, url: str) -> tuple[int, Any]:
    end = time.monotonic() + SECONDS
    while True:
        connection = OverUnixSocket(path)
        try:
            connection.request(method, url)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (ConnectionError, FileNotFoundError):
            if time.monotonic() > end or server.poll() is not None:
                raise
            time.sleep(0.05)
        finally:
            connection.close()


@example("flask_app")
@pytest.mark.skipif(sys.platform == "win32", reason="gunicorn forks")
def test_a_queue_that_was_used_before_the_server_forked_works_in_its_children(folder: Path, url: str) -> None:
    with (folder / "app.py").open("a") as app:
        app.write("\nsend_email.enqueue('the parent')  # opens the store before the fork\n")
    path = folder / "s"
    server = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", "--bind", f"unix:{path}", "app:app"]
    with process(folder, *server, BULLPEN_URL=url, HOME=str(folder)) as master:
        enqueued = enqueue_in_several_children(master, path)
        with process(folder, *BULLPEN, "worker", "app:queue", BULLPEN_URL=url):
            for number, told in enumerate(enqueued):
                end = time.monotonic() + SECONDS
                while (now := ask(master, path, "GET", f"/tasks/{told['id']}"))[1]["status"] != "success":
                    assert time.monotonic() < end, now
                    time.sleep(0.02)
                assert now[1]["result"].startswith(f"sent to user-{number} ")
                assert now[1]["attempts"] == 1


def enqueue_in_several_children(master: subprocess.Popen[bytes], path: Path) -> list[Any]:
    told: list[Any] = []
    with ThreadPoolExecutor(4) as clients:
        while len({one["pid"] for one in told}) < 2:
            assert len(told) < 200, "one process answers them all"
            urls = [f"/mail/user-{number}" for number in range(len(told), len(told) + 8)]
            told += [answer for _, answer in clients.map(lambda url: ask(master, path, "POST", url), urls)]
    assert master.pid not in {one["pid"] for one in told}
    return told

"""The backend for Django's tasks keeps the promises of Django's own backends. Each test has its own project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bullpen import TaskQueue, TaskStatus
from tests.scenarios.test_frameworks import BULLPEN, SECONDS, process, python

SETTINGS = """
import os
SECRET_KEY = "only for tests"
INSTALLED_APPS = ["shop"]
USE_TZ = os.environ.get("USE_TZ", "1") == "1"
TIME_ZONE = "Asia/Tokyo"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
JOBS = os.environ.get("JOBS", "memory://")
BACKEND = "bullpen.integrations.django.BullpenBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail", "rare"], "OPTIONS": {"url": JOBS}},
    "bulk": {"BACKEND": BACKEND, "QUEUES": ["nightly"], "OPTIONS": {"url": JOBS, "max_retries": 2, "backoff": 0.0}},
    "here": {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"},
}
try:
    import django.tasks
    TASKS["here"]["BACKEND"] = "django.tasks.backends.immediate.ImmediateBackend"
except ImportError:
    pass
"""

TASKS = """
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

@task(priority=3)
def add(a, b=0):
    return a + b

@task
async def aadd(a, b=0):
    return a + b

@task(takes_context=True)
def look(context):
    result = context.task_result
    times = (result.enqueued_at, result.started_at, result.last_attempted_at)
    return {
        "id": result.id, "status": result.status, "attempt": context.attempt, "workers": result.worker_ids,
        "priority": result.task.priority, "queue": result.task.queue_name, "backend": result.task.backend,
        "times": [time.isoformat() for time in times], "run_after": str(result.task.run_after),
        "finished_at": result.finished_at, "errors": len(result.errors),
    }

@task(backend="bulk", queue_name="nightly", takes_context=True)
def third_time(context, note=None):
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt}")
    return [result.isoformat() for result in (context.task_result.started_at, context.task_result.last_attempted_at)]

@task
def fail(reason):
    raise ValueError(reason)

@task
def function():
    return lambda: True

@task
def choice():
    from django.db import models
    return models.TextChoices("Size", {"SMALL": "s"}).SMALL

@task
def leave():
    raise SystemExit("gone")
"""

BEGIN = """
import asyncio, dataclasses, datetime, pickle
import django
django.setup()
from bullpen import WorkerPool
from bullpen.integrations.django import task_backends, task_enqueued, task_finished, task_started, BullpenBackend
from bullpen.integrations.django import TaskResultDoesNotExist
from django.utils import timezone
from shop.tasks import *

def finished(result):
    backend = task_backends[result.backend]
    with WorkerPool(backend.queue, 4, poll_interval=0.05):
        try:
            backend.queue.job(result.id).result(timeout=30)
        except Exception:
            pass
    result.refresh()
    return result
"""

DJANGO = {"DJANGO_SETTINGS_MODULE": "shop.settings"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "settings.py").write_text(SETTINGS)
    (shop / "tasks.py").write_text(TASKS)
    return tmp_path


def run(project: Path, source: str, **environment: str) -> None:
    python(project, BEGIN + source, **DJANGO, **environment)


def test_choices_and_safe_strings_are_plain_json(project: Path) -> None:
    run(
        project,
        """
import enum
from django.db import models
from django.utils.safestring import mark_safe
class Size(models.TextChoices):
    SMALL = "s"
class Level(models.IntegerChoices):
    HIGH = 3
class Plain(str, enum.Enum):
    X = "x"
class Half(float):
    pass
given = [Size.SMALL, Level.HIGH, Plain.X, Half(0.5), mark_safe("<b>"), True, None, {Size.SMALL: (Level.HIGH,)}]
plain = ["s", 3, "x", 0.5, "<b>", True, None, {"s": [3]}]
result = aadd.enqueue(given, b=[Size.SMALL])
assert (result.args, result.kwargs) == ([plain], {"b": ["s"]}) and type(result.args[0][0]) is str
assert finished(result).return_value == [*plain, "s"]
assert finished(choice.enqueue()).return_value == "s"
""",
    )


@pytest.mark.parametrize("use_tz", ["1", "0"])
def test_get_result_equals_the_result_that_enqueue_returned(project: Path, use_tz: str) -> None:
    run(
        project,
        """
soon = timezone.now() + datetime.timedelta(hours=1)
for task in (add, aadd, add.using(priority=-7, queue_name="mail", run_after=soon), third_time):
    for result in (task.enqueue({"a": [1]}), asyncio.run(task.aenqueue({"a": [1]}))):
        assert result.task == task and result.task.run_after == task.run_after
        before = dataclasses.asdict(result)
        assert task.get_result(result.id) == result
        assert asyncio.run(task.aget_result(result.id)) == result
        result.refresh()
        asyncio.run(result.arefresh())
        assert dataclasses.asdict(result) == before
        assert timezone.is_aware(result.enqueued_at) == django.conf.settings.USE_TZ
over = finished(add.enqueue(1, b=2))
assert over.return_value == 3 and add.get_result(over.id) == over
times = (over.enqueued_at, over.started_at, over.last_attempted_at, over.finished_at)
assert {timezone.is_aware(time) for time in times} == {django.conf.settings.USE_TZ}
assert over.started_at == over.last_attempted_at <= over.finished_at
""",
        USE_TZ=use_tz,
    )


def test_the_context_has_the_result_of_this_call(project: Path) -> None:
    run(
        project,
        """
past = timezone.now() - datetime.timedelta(hours=1)
result = finished(look.using(priority=42, queue_name="mail", run_after=past).enqueue())
seen = result.return_value
assert (seen["id"], seen["status"], seen["attempt"]) == (result.id, "RUNNING", 1)
assert (seen["priority"], seen["queue"], seen["backend"]) == (42, "mail", "default")
assert seen["workers"] == result.worker_ids and len(seen["workers"]) == 1 and seen["workers"][0]
assert seen["times"] == [time.isoformat() for time in (result.enqueued_at, result.started_at, result.last_attempted_at)]
assert seen["run_after"] == str(past) and result.task.run_after == past
assert (seen["finished_at"], seen["errors"]) == (None, 0)
""",
    )


def test_the_signals_have_the_result_of_this_call(project: Path) -> None:
    run(
        project,
        """
told = []
for signal in (task_enqueued, task_started, task_finished):
    def hear(sender, task_result, signal, **_):
        assert sender is BullpenBackend
        told.append((task_result.status, task_result.task.queue_name, task_result.task.priority,
                     task_result.enqueued_at, task_result.worker_ids, task_result.started_at,
                     [error.exception_class for error in task_result.errors]))
    signal.connect(hear, weak=False)
for task in (add, aadd):
    result = finished(task.using(queue_name="rare", priority=5).enqueue(1))
    call, worker = ("rare", 5, result.enqueued_at), result.worker_ids
    assert told == [
        ("READY", *call, [], None, []),
        ("RUNNING", *call, worker, result.started_at, []),
        ("SUCCESSFUL", *call, worker, result.started_at, []),
    ], told
    told.clear()
result = finished(fail.enqueue("no"))
assert [(one[0], one[6]) for one in told] == [("READY", []), ("RUNNING", []), ("FAILED", [ValueError])]
""",
    )


def test_started_at_is_the_first_start_and_errors_are_those_of_all_attempts(project: Path) -> None:
    run(
        project,
        """
ends = []
task_finished.connect(lambda sender, task_result, **_: ends.append(task_result), weak=False)
result = finished(third_time.enqueue(note="x"))
assert [error.exception_class for error in result.errors] == [LookupError, LookupError]
assert result.errors[0].traceback.endswith("LookupError: attempt 1\\n")
assert result.attempts == 3 and len(set(result.worker_ids)) == 1 and result.worker_ids[0]
assert result.enqueued_at <= result.started_at < result.last_attempted_at <= result.finished_at
assert result.return_value == [result.started_at.isoformat(), result.last_attempted_at.isoformat()]
(end,) = ends  # only of the last attempt
assert (end.started_at, end.attempts, len(end.errors)) == (result.started_at, 3, 2)
""",
    )


def test_failures_and_results_are_as_with_the_backends_of_django(project: Path) -> None:
    run(
        project,
        """
def raised(kind, function, *args):
    try:
        function(*args)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind}")

ready = add.enqueue(1)
assert raised(ValueError, lambda: ready.return_value) == "Task has not finished yet"
failed = finished(fail.enqueue("out of stock"))
assert (failed.status, failed.is_finished, failed._return_value) == ("FAILED", True, None)
assert raised(ValueError, lambda: failed.return_value) == "Task failed"
assert failed.errors[0].traceback.endswith("ValueError: out of stock\\n")
assert finished(leave.enqueue()).errors[0].exception_class is SystemExit
assert "Unsupported type" in finished(function.enqueue()).errors[0].traceback
assert "Unsupported type" in raised(TypeError, add.enqueue, datetime.datetime.now())
if hasattr(type(add), "_reconstruct"):  # since Django 6.1
    assert pickle.loads(pickle.dumps(failed)).errors == failed.errors

class TaskResultMismatch(Exception): pass
try:
    from django.tasks.exceptions import TaskResultMismatch
except ImportError:
    from django_tasks.exceptions import TaskResultMismatch
raised(TaskResultMismatch, aadd.get_result, failed.id)
for unknown in ("123", "", 123, None):
    raised(TaskResultDoesNotExist, add.get_result, unknown)

error = failed.errors[0]
object.__setattr__(error, "exception_class_path", "subprocess.run")
assert raised(ValueError, lambda: error.exception_class) == "'subprocess.run' does not reference a valid exception."
object.__setattr__(error, "exception_class_path", "does.not.exist")
assert "import it first" in raised(ImportError, lambda: error.exception_class)
""",
    )


def test_a_result_is_found_after_its_queue_has_left_the_settings(project: Path) -> None:
    run(
        project,
        """
from django.test import override_settings
result = add.using(queue_name="rare").enqueue(1)
task_backends["default"].queues = {"default"}
assert add.get_result(result.id).task.queue_name == "rare"
assert finished(result).return_value == 1
""",
    )


def test_the_worker_serves_all_queues_of_its_backend_and_no_other(project: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    enqueue = """
first = add.using(queue_name="rare").enqueue(1)
other = add.using(backend="bulk", queue_name="nightly").enqueue(2)
task_backends["default"].queue.job(first.id).result(timeout=30)
"""
    with process(project, *BULLPEN, "worker", "bullpen.integrations.django:queue", **DJANGO, JOBS=url):
        run(project, enqueue, JOBS=url)
    with TaskQueue(url) as queue:
        assert queue.counts() == {"rare": {TaskStatus.SUCCESS: 1}, "nightly": {TaskStatus.PENDING: 1}}
    with process(project, *BULLPEN, "worker", "bullpen.integrations.django:queues.bulk", **DJANGO, JOBS=url):
        run(
            project,
            """
queue = task_backends["bulk"].queue
third = third_time.enqueue().id
for one in [third, *(info.id for info in queue.list())]:
    queue.job(one).result(timeout=30)
try:
    task_backends["default"].get_result(third)
except Exception as error:
    missing = "is a task of shop.tasks.third_time, which the backend 'default' has not registered"
    assert str(error) == f"{third} {missing}", error
else:
    raise AssertionError("it is a task of another backend")
""",
            JOBS=url,
        )
    with TaskQueue(url) as queue:
        assert queue.counts()["nightly"] == {TaskStatus.SUCCESS: 2}


def test_the_worker_of_a_backend_without_queues_serves_all(project: Path, tmp_path: Path) -> None:
    settings = project / "shop" / "settings.py"
    settings.write_text(settings.read_text().replace('["default", "mail", "rare"]', "[]"))
    url = f"sqlite:///{tmp_path}/jobs.db"
    with process(project, *BULLPEN, "worker", "bullpen.integrations.django:queue", **DJANGO, JOBS=url):
        source = 'result = add.using(queue_name="any").enqueue(1)\n'
        source += 'assert task_backends["default"].queue.job(result.id).result(timeout=30) == 1'
        run(project, source, JOBS=url)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("queues.mail", "TASKS has no backend 'mail'; it has bulk, default, here"),
        ("queues.here", "TASKS['here'] is a ImmediateBackend, not a BullpenBackend"),
    ],
)
def test_a_worker_of_a_wrong_backend_is_told_why(project: Path, name: str, why: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bullpen", "worker", f"bullpen.integrations.django:{name}"],
        cwd=project,
        env={**os.environ, **DJANGO},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert why in done.stderr

"""`bullpen worker`: real processes, real signals, a real SQLite file."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from tests.scenarios.cli_support import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_define_enqueue_run_a_worker_and_see_the_result(folder: Folder) -> None:
    with folder.worker("-c", "4", app="app:queue") as worker:
        worker.runs()
        assert folder.python("print(add.enqueue(1, b=2).result(timeout=60))") == "3\n"
        assert worker.stop() == 0
        assert "app:queue" in worker.told
        assert f"store      sqlite:///{folder.path}/jobs.db" in worker.told
        assert "lanes      default,mail:4@thread" in worker.told
        assert "functions  app.add, app.block, app.fail, app.nap, app.pid" in worker.told
        assert "stop       Ctrl-C or SIGTERM. 1st signal: finish within 25 s." in worker.told
        assert worker.out == []  # stdout is the tasks' own
        assert "workers (1 idle" not in worker.told  # of the threads below it nobody wants to hear


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_tasks_end(folder: Folder, number: signal.Signals) -> None:
    folder.python("for _ in range(3): nap.enqueue(0.3)")
    with folder.worker("-c", "1") as worker:
        worker.seen("napping")
        worker.send(number)
        assert worker.ends() == 0
    assert folder.json("status", "--app", "app")["queues"]["default"] == {
        "pending": 2,
        "running": 0,
        "success": 1,
        "failed": 0,
        "cancelled": 0,
        "paused": False,
        "limits": None,
    }


def test_the_grace_ends_the_wait_and_nothing_is_counted(folder: Folder) -> None:
    task = folder.python("print(nap.enqueue(1000).id)").strip()
    with folder.worker("--grace", "0.1") as worker:
        worker.seen("napping")
        assert worker.stop() == 0
    told = folder.json("tasks", "show", task, "--app", "app")["task"]
    assert (told["status"], told["failures"], told["crashes"]) == ("pending", 0, 0)


def test_the_second_signal_releases_and_exits_and_the_third_is_immediate(folder: Folder) -> None:
    task = folder.python("print(nap.enqueue(1000).id)").strip()
    with folder.worker() as worker:
        worker.seen("napping")
        worker.send()
        worker.seen("finishes its tasks and exits")
        worker.send()
        assert worker.ends() == 0
    ordinary, urgent = (line for line in worker.told.splitlines() if "tasks and exits" in line)
    assert " INFO " in ordinary
    assert " WARNING " in urgent
    assert folder.json("tasks", "show", task, "--app", "app")["task"]["status"] == "pending"
    folder.python(f"queue.cancel({task!r}); block.enqueue(1000)")
    with folder.worker() as worker:
        worker.seen("blocking")
        for _ in range(3):
            worker.send()
            time.sleep(0.05)
        assert worker.ends() == 128 + signal.SIGTERM


def test_only_some_queues_and_lanes_of_ones_own(folder: Folder) -> None:
    folder.python("add.enqueue(1); pid.enqueue()")
    with folder.worker("--queues", "mail,post") as worker:
        worker.seen(r"serves mail,post:10@thread")
        worker.seen("no registered function uses the queue 'post'; the registered functions use default, mail")
        folder.python("assert pid.enqueue().result(timeout=60)")
        assert worker.stop() == 0
    with folder.worker("--lane", "default:1", "--lane", "mail:2@thread", "--json") as worker:
        worker.seen(r"serves default:1@thread mail:2@thread")
        folder.python("assert add.enqueue(1).result(timeout=60) == 2")
        assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.err]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)


def test_every_line_of_a_task_says_which_and_no_line_has_arguments(folder: Folder) -> None:
    with folder.worker("--log-level", "debug") as worker:
        task = folder.python("print(fail.enqueue('s3cret').id)")
        worker.seen("settled as failed")
        assert worker.stop() == 0
    where = f"app.fail (task {task.strip()}, attempt {{}}, queue default): "
    for attempt in (1, 2):
        about = where.format(attempt)
        assert f"WARNING {about}about to fail" in worker.told  # the task's own line
    assert f"WARNING {where.format(1)}failed; retrying in " in worker.told
    assert f"ERROR   {where.format(2)}failed; it has no retries left" in worker.told
    assert f"DEBUG   {where.format(2)}settled as failed" in worker.told
    assert "s3cret" not in worker.told
    assert 'in fail\n      raise ValueError("as told")' in worker.told
    assert "tasks/worker/attempt.py" not in worker.told  # a traceback begins in the task's own code


def test_lines_as_json_have_the_task_in_fields(folder: Folder) -> None:
    with folder.worker("--json") as worker:
        folder.python("fail.enqueue('x')")
        worker.seen("no retries left")
        assert worker.stop() == 0
    lines = [json.loads(line) for line in worker.err]
    of_task = [line for line in lines if "task_id" in line]
    assert {(line["attempt"], line["queue"]) for line in of_task} == {(1, "default"), (2, "default")}
    assert any(line["message"] == "about to fail" for line in of_task)
    assert any("ValueError: as told" in line.get("traceback", "") for line in of_task)


def test_what_a_worker_cannot_start_with(folder: Folder) -> None:
    head = "from bullpen import TaskQueue\n"
    folder.write("empty.py", f"{head}queue = TaskQueue('sqlite:///jobs.db')\n")
    folder.write("extra.py", "from empty import queue\n@queue.task\ndef found() -> None: ...\n")
    folder.write("lost.py", f"{head}q = TaskQueue('sqlite:///no/folder/jobs.db')\n@q.task\ndef f() -> None: ...\n")
    done = folder.run("worker", "empty")
    assert done.returncode == 2
    assert "'empty' has no tasks" in done.stderr
    assert "--import MODULE" in done.stderr
    done = folder.run("worker", "lost")
    assert done.returncode == 1
    assert "there is no folder" in done.stderr
    assert "Traceback" not in done.stderr
    folder.write("alone.py", f"{head}q = TaskQueue('memory://')\n@q.task\ndef f() -> None: ...\n")
    with folder.worker(app="alone") as worker:
        worker.seen("memory:// lives in this process only: tasks that other processes enqueue do not arrive here")
        worker.runs()
        assert worker.stop() == 0
    done = folder.run("worker")
    assert (done.returncode, "no APP: " in done.stderr) == (2, True)
    with folder.worker("--import", "extra", app="empty") as worker:
        worker.runs()
        assert "functions  extra.found" in worker.told
        assert worker.stop() == 0


def test_a_function_under_another_name_of_its_module_is_told_by_the_log_and_by_why(folder: Folder) -> None:
    task = folder.python("print(queue.enqueue('shop.app.add', (1,), elsewhere=True).id)").strip()
    hint = "registered: app.add; was the task enqueued under another name of its module?"
    said = f"released: this worker has not registered the function ({hint})"
    with folder.worker() as worker:
        worker.seen(re.escape(said))
        why = folder.tell("why", task, "--app", "app")
        assert worker.stop() == 0
    assert "no function is registered as 'shop.app.add' (registered: app.add; " in why

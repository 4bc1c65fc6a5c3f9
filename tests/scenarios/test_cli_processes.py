"""`bullpen worker --processes N`: one supervisor, fresh interpreters, nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bullpen.cli.worker_process.supervisor import ProcessSupervisor
from tests.scenarios.cli_support import PATIENCE, Folder, Worker, is_running
from tests.scenarios.support import eventually
from tests.scenarios.task_worker_support import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def working(worker: Worker, processes: int) -> list[int]:
    """The pids of the processes, once all of them claim."""
    worker.seen("serves default", processes)
    assert eventually(lambda: len(worker.children()) == processes, PATIENCE)
    return worker.children()


def test_all_work_and_all_end_with_one_signal(folder: Folder) -> None:
    with folder.worker("--processes", "2", "-c", "1") as worker:
        pids = working(worker, 2)
        folder.python("for _ in range(4): nap.enqueue(0.2)")
        napping = worker.seen(r"napping (\d+)", 2)
        assert {int(pid) for pid in napping} == set(pids)
        assert worker.stop() == 0
        assert "worker for app, 2 processes" in worker.told
        assert worker.told.count("functions  ") == 1  # it is introduced once
        for line in worker.err:
            if "INFO" in line and "2 processes finish" not in line:  # the supervisor says that
                assert re.match(r"worker-[12] \| ", line)
        assert not any(map(is_running, pids))
    counts = folder.json("status", "--app", "app")["queues"]["default"]
    assert (counts["running"], counts["success"] >= 2, counts["failed"]) == (0, True, 0)


PATIENT = """
import asyncio, os
from bullpen import AsyncWorkerPool
from app import queue
AsyncWorkerPool.__init__.__kwdefaults__["lease"] = 3600.0

@queue.task
async def linger() -> str:
    print("lingering", os.getpid(), flush=True)
    while not os.path.exists("enough"):
        await asyncio.sleep(0.01)
    return "done"
"""


def test_a_process_that_dies_is_replaced_and_its_task_runs_again_long_before_its_lease_ends(folder: Folder) -> None:
    folder.write("patient.py", PATIENT)
    with folder.worker("--processes", "2", app="patient:queue") as worker:
        pids = working(worker, 2)
        task = folder.python("from patient import linger; print(linger.enqueue().id)").strip()
        (victim,) = map(int, worker.seen(r"lingering (\d+)"))
        lease_until = datetime.fromisoformat(folder.json("tasks", "show", task, "--app", "app")["task"]["lease_until"])
        assert lease_until > datetime.now(UTC) + timedelta(minutes=50)
        os.kill(victim, signal.SIGKILL)
        worker.seen(r"worker-\d was killed by SIGKILL; starting another in 0\.0 s")
        worker.seen("lingering", 2)
        (folder.path / "enough").touch()
        new = [pid for pid in working(worker, 2) if pid not in pids]
        assert len(new) == 1
        assert folder.python(f"print(queue.job({task!r}).result(timeout=60))") == "done\n"
        assert datetime.now(UTC) < lease_until - timedelta(minutes=30)
        assert worker.stop() == 0


def test_a_process_that_dies_repeatedly_is_replaced_ever_more_slowly(folder: Folder) -> None:
    folder.write("mortal.py", "import os, app\nfrom app import queue\nif os.path.exists('doomed'): os._exit(7)\n")
    with folder.worker("--processes", "2", app="mortal:queue") as worker:
        pids = working(worker, 2)
        (folder.path / "doomed").touch()
        os.kill(pids[0], signal.SIGKILL)
        pauses = worker.seen(r"worker-\d ended with exit code 7; starting another in ([\d.]+) s", 4)
        assert pauses[:4] == ["0.0", "0.0", "0.1", "0.2"]
        assert pids[1] in worker.children()  # the other one is not disturbed
        assert worker.stop() == 0


def test_a_supervisor_that_is_killed_leaves_no_process_behind(folder: Folder) -> None:
    task = folder.python("print(nap.enqueue(0.5).id)").strip()
    with folder.worker("--processes", "2") as worker:
        pids = working(worker, 2)
        worker.seen("napping")
        worker.send(signal.SIGKILL)
        assert eventually(lambda: not any(map(is_running, pids)), PATIENCE)
    assert folder.json("tasks", "show", task, "--app", "app")["task"]["status"] == "success"  # it was let finish


def test_a_signal_to_all_counts_once_and_the_second_releases(folder: Folder) -> None:
    """A terminal, or systemd, sends a signal to every process, and the supervisor tells them too."""
    task = folder.python("print(nap.enqueue(1000).id)").strip()
    with folder.worker("--processes", "2") as worker:
        pids = working(worker, 2)
        worker.seen("napping")
        for pid in (*pids, worker.process.pid):
            os.kill(pid, signal.SIGTERM)
        worker.seen("INFO    SIGTERM: 2 processes finish their tasks and exit")
        worker.seen("SIGTERM: the worker finishes its tasks and exits", 2)
        time.sleep(0.3)
        assert worker.process.poll() is None
        worker.send(signal.SIGINT)
        assert worker.ends() == 0
        assert "the worker releases its tasks" not in worker.told  # none has counted two signals
        assert not any(map(is_running, pids))
    assert folder.json("tasks", "show", task, "--app", "app")["task"]["status"] == "pending"


# Stands for a worker: says that it works, and ends when it is told something.
SMALL = """\
#!/bin/bash
line=${BULLPEN_PARENT_LINK%%:*}
printf r >&$line
head -c 1 <&$line >/dev/null
"""


@pytest.mark.anyio
async def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script, away = tmp_path / "small", tmp_path / "away"
    script.write_text(SMALL)
    script.chmod(0o755)
    supervisor = ProcessSupervisor([str(script)], 2, grace=5.0)
    running = asyncio.create_task(supervisor.run())
    await until(lambda: len(supervisor._children) == 2)
    script.rename(away)
    for child in list(supervisor._children.values()):
        child.kill()
    await until(lambda: caplog.text.count("was killed") == 2 and caplog.text.count("cannot be started") >= 2)
    away.rename(script)
    await until(lambda: len(supervisor._children) == 2)
    supervisor._handle(signal.SIGTERM)
    assert await running == 0


def test_a_stop_while_the_first_one_starts_starts_no_others(folder: Folder) -> None:
    folder.write("slow.py", "import time\nfrom app import queue\nprint('importing', flush=True)\ntime.sleep(0.5)\n")
    with folder.worker("--processes", "3", app="slow:queue") as worker:
        worker.seen("importing")
        assert worker.stop() == 0
        assert worker.told.count("importing") == 1


def test_the_third_signal_kills_them_all(folder: Folder) -> None:
    folder.python("block.enqueue(1000)")
    with folder.worker("--processes", "2") as worker:
        pids = working(worker, 2)
        worker.seen("blocking")
        for _ in range(3):
            worker.send()
            time.sleep(0.05)
        assert worker.ends() == 128 + signal.SIGTERM
        assert eventually(lambda: not any(map(is_running, pids)), PATIENCE)


def test_a_start_up_error_is_logged_once_and_ends_the_supervisor(folder: Folder) -> None:
    done = folder.run("worker", "ap", "--processes", "3")
    assert done.returncode == 2
    assert done.stderr.count("there is no module 'ap'") == 1
    (folder.path / "jobs.db").write_text("something else")
    done = folder.run("worker", "app", "--processes", "3")
    assert done.returncode == 1
    assert done.stderr.count("it is not a database") == 1


KILLER = """
import asyncio, os, signal
from app import queue

@queue.task
async def work(number: int) -> int:
    await asyncio.sleep(0.5)
    return number

@queue.task
def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_task_that_kills_its_workers_takes_none_of_those_beside_it_along(folder: Folder) -> None:
    """They die with it twice; then it is found out which one it was."""
    folder.write("killer.py", KILLER)
    folder.python(
        "from killer import work, kill\n"
        "work.enqueue_many([(number,) for number in range(4)])\n"
        "kill.enqueue()\n"
        "work.enqueue_many([(number,) for number in range(4)])"
    )
    with folder.worker("--processes", "2", "-c", "20", "--import", "killer") as worker:

        def counts() -> dict[str, int]:
            found: dict[str, int] = folder.json("status", "--app", "app")["queues"]["default"]
            return found

        assert eventually(lambda: counts()["failed"] + counts()["success"] == 9, PATIENCE)
        assert (counts()["failed"], counts()["success"]) == (1, 8)
        assert worker.stop() == 0
    (failed,) = folder.json("tasks", "--app", "app", "--status", "failed")["tasks"]
    assert (failed["name"], failed["crashes"]) == ("killer.kill", 3)

"""`bullpen worker --reload`: new code runs without a hand on the worker, and nothing is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from bullpen import TaskQueue
from tests.scenarios.cli_support import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_new_code_runs_and_interrupted_tasks_go_on_with_nothing_counted(folder: Folder) -> None:
    app = folder.path / "app.py"
    with TaskQueue(f"sqlite:///{folder.path}/jobs.db") as queue, folder.worker("--reload", "--grace", "0.2") as worker:
        worker.seen("serves default")
        long = queue.enqueue("app.nap", (0.8,), elsewhere=True)
        worker.seen("napping")
        app.write_text(app.read_text() + "\n\n@queue.task\ndef fresh() -> str:\n    return 'fresh'\n")
        worker.seen("app.py has changed; restarting the worker")
        assert queue.enqueue("app.fresh", elsewhere=True).result(timeout=60) == "fresh"
        assert long.result(timeout=60) == 0.8
        task = long.info()
        assert (task.attempt, task.errors) == (2, ())  # released, and no crash

        app.write_text(app.read_text() + "\n\nthis is no Python\n")
        worker.seen("the worker has exited; the next change of a file restarts it")
        assert "SyntaxError" in worker.told
        app.write_text(app.read_text().replace("this is no Python", ""))
        worker.seen("serves default", times=3)
        assert worker.stop() == 0

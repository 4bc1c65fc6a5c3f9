"""What an earlier run has left behind is ended by the next one, and nobody else's processes are touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bullpen import Pool
from bullpen.pools.runtimes.process import orphans
from tests.scenarios.process_support import eventually, is_alive, read_pid

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

APP = """
import os, subprocess, sys, time
from pathlib import Path
from bullpen import Pool

def start_another(folder):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    for name, pid in (("child", child.pid), ("worker", os.getpid()), ("forkserver", os.getppid())):
        draft = Path(folder, f"{name}.draft")
        draft.write_text(str(pid))
        draft.rename(Path(folder, name))
    time.sleep(600)

if __name__ == "__main__":
    with Pool(1, runtime="process") as pool:
        pool.do(start_another, sys.argv[1])
"""


class App:
    """One that runs a worker, which has started something in a session of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        script = folder / "app.py"
        script.write_text(APP)
        self.process = subprocess.Popen([sys.executable, script, folder])
        self.child, self.worker, self.forkserver = (
            read_pid(folder / name) for name in ("child", "worker", "forkserver")
        )

    def kill(self) -> None:
        """With its forkserver, which cannot tidy up then."""
        os.kill(self.forkserver, signal.SIGSTOP)
        self.process.kill()
        self.process.wait()
        os.kill(self.forkserver, signal.SIGKILL)
        eventually(lambda: not is_alive(self.worker))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        eventually(lambda: not is_alive(self.forkserver))
        if is_alive(self.child):
            os.kill(self.child, signal.SIGKILL)


def killed_app(folder: Path) -> App:
    """One that has left something. Whichever process on this machine starts a pool next sweeps it, maybe a test beside
    this one: then there is nothing to see, and another is killed.
    """
    for number in range(10):
        app = App(folder / f"killed {number}")
        app.kill()
        if is_alive(app.child):
            return app
        app.end()
    pytest.fail("there is never anything to sweep, so this test shows nothing")


def test_the_next_start_ends_what_a_killed_app_has_left_and_nothing_of_a_living_one(tmp_path: Path) -> None:
    living = App(tmp_path / "living")
    killed = killed_app(tmp_path)
    try:
        with Pool(1, runtime="process") as pool:
            assert pool.do(pow, 2, 2) == 4
            eventually(lambda: not is_alive(killed.child))
            time.sleep(0.2)
        assert is_alive(living.child)
        assert is_alive(living.worker)
        assert is_alive(living.forkserver)
    finally:
        living.end()
        killed.end()


def is_marked(pid: int) -> bool:
    """Whether the process has the mark in its environment, or has been ended by an app of another test for it."""
    try:
        return orphans.VARIABLE.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except ProcessLookupError:
        return True


@pytest.mark.parametrize(
    ("part", "other"),
    [(0, "pid:[1]"), (1, "another boot"), (2, None), (3, None)],
    ids=["another namespace", "another boot", "alive", "alive, of the right age"],
)
def test_only_a_process_that_certainly_belongs_to_a_dead_app_is_an_orphan(part: int, other: str | None) -> None:
    mine = orphans.mark().split("/")
    dead = subprocess.Popen(["true"])
    dead.wait()
    parts = [*mine[:2], str(dead.pid), "1", mine[4]]
    if other is None:
        parts[2:4] = mine[2:4]
    else:
        parts[part] = other
    sleeper = subprocess.Popen(["sleep", "600"], env={**os.environ, orphans.VARIABLE: "/".join(parts)})
    certain = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, orphans.VARIABLE: "/".join([*mine[:2], str(dead.pid), "1", "x"])}
    )
    try:
        eventually(lambda: is_marked(sleeper.pid))
        eventually(lambda: is_marked(certain.pid))
        swept = orphans.sweep([sleeper.pid, certain.pid])  # nobody else, should this be broken one day
        assert certain.pid in swept or certain.wait(30) == -signal.SIGKILL
        assert sleeper.pid not in swept
        assert sleeper.poll() is None
    finally:
        for process in (sleeper, certain):
            process.kill()
            process.wait()


def test_an_id_that_was_given_to_another_process_is_not_the_app() -> None:
    """The app is told by its id and the time of its start together."""
    mine = orphans.mark().split("/")
    parts = [*mine[:3], str(int(mine[3]) - 1), mine[4]]
    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, orphans.VARIABLE: "/".join(parts)})
    try:
        eventually(lambda: is_marked(orphan.pid))
        orphans.sweep([orphan.pid])
        assert orphan.wait(30) == -signal.SIGKILL
    finally:
        orphan.kill()
        orphan.wait()

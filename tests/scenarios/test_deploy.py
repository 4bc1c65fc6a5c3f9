"""Workers as they are deployed: they show that they are well, and the files in examples/deploy fit them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bullpen.cli.main import main, make_parser
from tests.docs.markdown import ROOT
from tests.docs.test_pages import is_understood
from tests.scenarios.cli_support import Folder, environment
from tests.scenarios.support import eventually

DEPLOY = ROOT / "examples" / "deploy"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# Health.


def probe(folder: Folder, *words: str) -> int:
    """The exit code, without a process of its own."""
    return main(["probe", str(folder.path / "health"), *words])


def test_a_probe_tells_whether_a_worker_is_well(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(folder) == 1
    assert "health; start a worker with --health" in capsys.readouterr().err
    with folder.worker("--processes", "2", "--health", "health") as worker:
        worker.seen("serves default", 2)
        assert eventually(lambda: probe(folder, "--ready") == 0)
        told = folder.tell("probe", "health")
        assert sorted(told.splitlines()) == ["worker-1: running, 0 running", "worker-2: running, 0 running"]
        capsys.readouterr()
        assert probe(folder, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert report["well"] is True
        stands_still = int(report["processes"]["worker-2"]["pid"])
        os.kill(stands_still, signal.SIGSTOP)
        try:
            assert eventually(lambda: probe(folder, "--max-age", "2") == 1)
            assert "worker-2 has not written its health file for" in capsys.readouterr().err
        finally:
            os.kill(stands_still, signal.SIGCONT)
        assert worker.stop() == 0
    assert [path.name for path in (folder.path / "health").rglob("*")] == [f"user-{os.geteuid()}"]


def test_a_worker_that_stops_is_alive_but_not_ready(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with folder.worker("--health", "health") as worker:
        worker.runs()
        folder.python("nap.enqueue(2.5)")
        worker.seen("napping")
        worker.send()
        assert eventually(lambda: probe(folder) == 0 and "worker-1: stopping" in capsys.readouterr().out)
        assert probe(folder, "--ready") == 1
        assert "is stopping and claims no tasks" in capsys.readouterr().err
        assert worker.ends() == 0


def test_a_folder_that_cannot_be_written_is_refused(folder: Folder) -> None:
    folder.write("health", "a file")
    done = folder.run("worker", "app", "--health", "health")
    assert done.returncode == 1
    assert "--health health: cannot write there" in done.stderr


def test_health_files_follow_no_link_and_overwrite_nothing_of_others(folder: Folder) -> None:
    """In a folder that every user may write, such as the volume of a pod."""
    health, own = folder.path / "health", folder.path / "health" / f"user-{os.geteuid()}"
    health.mkdir()
    health.chmod(0o777)
    own.symlink_to(folder.path)
    done = folder.run("worker", "app", "--health", "health")
    assert (done.returncode, "or is a link" in done.stderr) == (1, True)
    own.unlink()
    own.mkdir(0o755)
    own.chmod(0o755)
    done = folder.run("worker", "app", "--health", "health")
    assert (done.returncode, "its mode must be 700" in done.stderr) == (1, True)
    own.chmod(0o700)
    folder.write("precious", "mine")
    for name in ("worker-1.new", "worker-1.health"):
        (own / name).symlink_to(folder.path / "precious")
    with folder.worker("--health", "health") as worker:
        worker.runs()
        written = own / "worker-1.health"
        assert (written.is_symlink(), written.stat().st_mode & 0o777) == (False, 0o600)
        assert worker.stop() == 0
    assert (folder.path / "precious").read_text() == "mine"


def test_a_probe_needs_to_know_which_worker(folder: Folder) -> None:
    done = folder.run("probe")
    assert (done.returncode, "no FOLDER: " in done.stderr) == (2, True)


@pytest.mark.skipif(sys.platform != "linux", reason="systemd")
def test_systemd_hears_when_a_worker_works_goes_round_and_stops(folder: Folder) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(folder.path / "notify"))
        systemd.settimeout(60)
        worker = subprocess.Popen(
            [sys.executable, "-m", "bullpen", "worker", "app"],
            cwd=folder.path,
            env=environment(NOTIFY_SOCKET=str(folder.path / "notify")),
            stderr=subprocess.DEVNULL,
        )
        try:
            heard: list[str] = []
            while "READY=1" not in heard:
                heard += systemd.recv(1000).decode().split()
            assert systemd.recv(1000) == b"WATCHDOG=1"
            folder.python("nap.enqueue(3)")
            assert eventually(lambda: "RUNNING" in folder.python("print(*queue.counts().values())"))
            worker.terminate()
            while "STOPPING=1" not in heard:
                heard += systemd.recv(1000).decode().split()
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.wait()
    assert heard.count("READY=1") == 1


# The files.


def kubernetes() -> Any:
    (deployment,) = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return deployment["spec"]["template"]["spec"]


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["worker"]


def unit() -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.+)$", (DEPLOY / "bullpen-worker.service").read_text(), re.MULTILINE))


def dockerfile(instruction: str) -> list[str]:
    (found,) = re.findall(rf"{instruction} (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return list(yaml.safe_load(found))


def worker_commands() -> dict[str, list[str]]:
    return {
        "unit": unit()["ExecStart"].split(),
        "image": dockerfile("^CMD"),
        "kubernetes": kubernetes()["containers"][0]["command"],
    }


def probe_commands() -> dict[str, list[str]]:
    container = kubernetes()["containers"][0]
    probes = {name: container[name]["exec"]["command"] for name in container if name.endswith("Probe")}
    assert len(probes) == 3
    return {**probes, "compose": compose()["healthcheck"]["test"][1:], "image": dockerfile("HEALTHCHECK .* CMD")}


@pytest.mark.parametrize("where", [*worker_commands(), *(f"{name} " for name in probe_commands())])
def test_the_commands_in_the_files_are_understood(where: str) -> None:
    program, *words = worker_commands()[where] if where in worker_commands() else probe_commands()[where.strip()]
    assert Path(program).name == "bullpen"
    assert is_understood(words)


def test_stop_timeouts_of_the_examples_are_longer_than_the_grace() -> None:
    patience = {
        "unit": float(unit()["TimeoutStopSec"]),
        "image": float(compose()["stop_grace_period"].removesuffix("s")),
        "kubernetes": kubernetes()["terminationGracePeriodSeconds"],
    }
    for where, words in worker_commands().items():
        grace = make_parser().parse_args(words[1:]).grace
        assert grace + 10 <= patience[where]


def test_worker_and_probes_agree_on_the_folder() -> None:
    (container,) = kubernetes()["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["BULLPEN_HEALTH"] == container["volumeMounts"][0]["mountPath"]
    assert container["volumeMounts"][0]["name"] == kubernetes()["volumes"][0]["name"]
    assert "BULLPEN_HEALTH=/run/bullpen" in (DEPLOY / "Dockerfile").read_text()
    assert compose()["tmpfs"] == ["/run/bullpen:mode=1777"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "bullpen-worker.service").read_text()
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE)
    file = tmp_path / "bullpen-worker.service"
    file.write_text(text.replace("User=shop\n", "").replace("network-online.target", "basic.target"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=50, check=False
    )
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if "bullpen-worker" in line]
    assert about_it == []


def test_the_app_of_the_files_runs(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "app.py", tmp_path / "app.py")
    folder = Folder(tmp_path, (DEPLOY / "app.py").read_text())
    with folder.worker("--concurrency", "50") as worker:
        worker.runs()
        assert folder.python("print(send_email.enqueue('ada').result(30))") == "sent to ada\n"
        assert worker.stop() == 0

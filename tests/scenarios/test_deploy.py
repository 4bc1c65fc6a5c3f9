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
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

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


def test_a_folder_that_cannot_be_written_is_rejected(folder: Folder) -> None:
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

GIBIBYTE = 1 << 30
UNITS = {"M": 1_000_000, "G": 1_000_000_000, "Mi": 1 << 20, "Gi": GIBIBYTE}
HASHED = re.compile(r"([a-z0-9-]+)==([a-z0-9.]+)(?: ;[^\\]*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def documents(kind: str) -> dict[str, Any]:
    found = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == kind}


def pod(name: str = "shop-worker") -> Any:
    return documents("Deployment")[name]["template"]["spec"]


def containers() -> list[Any]:
    return [
        one for name in documents("Deployment") for kind in ("initContainers", "containers") for one in pod(name)[kind]
    ]


def services() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"])


def unit(name: str = "bullpen-worker") -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.+)$", (DEPLOY / f"{name}.service").read_text(), re.MULTILINE))


def dockerfile(instruction: str) -> list[str]:
    (found,) = re.findall(rf"{instruction} (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return list(yaml.safe_load(found))


def amount(text: str) -> int:
    """Of memory: 512Mi, 1G."""
    number, unit = re.fullmatch(r"(\d+)([MG]i?)", text).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def worker_commands() -> dict[str, list[str]]:
    return {
        "unit": unit()["ExecStart"].split(),
        "image": dockerfile("^CMD"),
        "kubernetes": pod()["containers"][0]["command"],
    }


def probe_commands() -> dict[str, list[str]]:
    container = pod()["containers"][0]
    probes = {name: container[name]["exec"]["command"] for name in container if name.endswith("Probe")}
    assert len(probes) == 3
    return {**probes, "health of the image": dockerfile("HEALTHCHECK .* CMD")}


def migrate_commands() -> dict[str, list[str]]:
    return {
        "before the unit": unit()["ExecStartPre"].split(),
        "before compose": services()["migrate"]["command"],
        **{f"before {name}": pod(name)["initContainers"][0]["command"] for name in documents("Deployment")},
    }


ALL_COMMANDS = worker_commands() | probe_commands() | migrate_commands()


@pytest.mark.parametrize("where", ALL_COMMANDS)
def test_the_commands_in_the_files_are_understood(where: str) -> None:
    program, *words = ALL_COMMANDS[where]
    assert Path(program).name == "bullpen"
    assert is_understood(words)


def test_stop_timeouts_of_the_examples_are_longer_than_the_grace() -> None:
    patience = {
        "unit": seconds(unit()["TimeoutStopSec"]),
        "image": seconds(services()["worker"]["stop_grace_period"]),
        "kubernetes": pod()["terminationGracePeriodSeconds"],
    }
    for where, words in worker_commands().items():
        grace = make_parser().parse_args(words[1:]).grace
        assert grace + 10 <= patience[where]
    for_web = (
        seconds(unit("shop-web")["TimeoutStopSec"]),
        seconds(services()["web"]["stop_grace_period"]),
        pod("shop-web")["terminationGracePeriodSeconds"],
    )
    assert min(for_web) >= 30 + 10  # gunicorn's --graceful-timeout is 30 s


def test_worker_and_probes_agree_on_the_folder() -> None:
    (container,) = pod()["containers"]
    env = {one["name"]: one.get("value") for one in container["env"]}
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one["emptyDir"] for one in pod()["volumes"]}
    assert volumes[mounts[env["BULLPEN_HEALTH"]]]["medium"] == "Memory"
    assert "BULLPEN_HEALTH=/run/bullpen" in (DEPLOY / "Dockerfile").read_text()
    assert services()["worker"]["tmpfs"] == ["/run/bullpen:mode=1777"]


def test_tables_are_migrated_before_anything_starts_that_uses_them() -> None:
    found = services()
    assert found["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert found["migrate"]["restart"] == "no"  # else it would never have completed
    for name in ("worker", "web"):
        assert found[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert "migrate=false" in found[name]["environment"]["BULLPEN_URL"]
    assert "migrate=false" not in found["migrate"]["environment"]["BULLPEN_URL"]
    keys = {(one["name"], key_of_the_address(one)) for one in containers()}
    assert keys == {("migrate", "migrate-url"), ("worker", "bullpen-url"), ("web", "bullpen-url")}
    created = (DEPLOY / "kubernetes.yaml").read_text().partition("apiVersion")[0]
    assert re.search(r"migrate-url=postgresql://\S+/shop ", created)
    assert re.search(r"bullpen-url=postgresql://\S+/shop\?migrate=false'", created)
    assert "bullpen-worker.service" in unit("shop-web")["After"]  # which migrates before it starts


def key_of_the_address(container: Any) -> str:
    (found,) = [one["valueFrom"]["secretKeyRef"] for one in container["env"] if one["name"] == "BULLPEN_URL"]
    assert found["name"] == "shop"
    return str(found["key"])


def test_several_migrations_at_once_wait_for_each_other(folder: Folder) -> None:
    url = f"sqlite:///{folder.path}/jobs.db"
    words = [sys.executable, "-m", "bullpen", *migrate_commands()["before the unit"][1:]]
    started = [
        subprocess.Popen(words, env=environment(BULLPEN_URL=url), stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    told = [one.communicate(timeout=60)[0] for one in started]
    assert [one.returncode for one in started] == [0, 0, 0], told
    assert "is up to date" in folder.tell("migrate", "--url", url)


def test_app_and_worker_have_one_image() -> None:
    found = services()
    assert len({found[name]["image"] for name in ("migrate", "web", "worker")}) == 1
    assert len({one["image"] for one in containers()}) == 1
    copied = re.findall(r"^COPY (.*) \./$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert copied == ["app.py web.py healthcheck.py"]
    numbers = re.findall(r"--uid (\d+)|^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert {one or other for one, other in numbers} == {
        str(pod(name)["securityContext"]["runAsUser"]) for name in documents("Deployment")
    }


def test_everything_has_a_memory_limit() -> None:
    for name, service in services().items():
        resources = service["deploy"]["resources"]
        limit = amount(resources["limits"]["memory"])
        assert amount(resources.get("reservations", resources["limits"])["memory"]) <= limit < 2 * GIBIBYTE, name
    for container in containers():
        resources = container["resources"]
        assert amount(resources["requests"]["memory"]) < amount(resources["limits"]["memory"]), container["name"]
    assert amount(unit()["MemoryHigh"]) < amount(unit()["MemoryMax"])
    assert unit()["OOMPolicy"] == "continue"  # of --processes, one is killed and replaced
    assert amount(unit("shop-web")["MemoryMax"])


def test_versions_are_pinned() -> None:
    base = re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    images = {*base, *(one["image"] for one in services().values()), *(one["image"] for one in containers())}
    assert [image for image in images if not re.search(r":\d+\.\d+(\.\d+)?(-[a-z-]+)?$", image)] == []
    assert (
        "pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.txt"
        in (DEPLOY / "Dockerfile").read_text()
    )


def test_requirements_are_locked_with_hashes() -> None:
    text = (DEPLOY / "requirements.txt").read_text()
    assert HASHED.sub("", text) == ""
    asked = {Requirement(line) for line in (DEPLOY / "requirements.in").read_text().splitlines() if line[0] != "#"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(one) for one in (*project["dependencies"], *project["optional-dependencies"]["postgres"])}
    assert {one for one in needed if one.marker is None} == {one for one in asked if one.name != "gunicorn"}
    locked = {name: (version, hashes) for name, version, hashes in HASHED.findall(text)}
    assert all(one.specifier.contains(locked[one.name][0]) for one in asked)
    tested = (ROOT / "requirements" / "test.txt").read_text() + "\n"
    assert locked.items() <= {name: (version, hashes) for name, version, hashes in HASHED.findall(tested)}.items()


@pytest.mark.parametrize("name", documents("Deployment"))
def test_drained_nodes_leave_a_pod_and_are_not_blocked(name: str) -> None:
    deployment, budget = documents("Deployment")[name], documents("PodDisruptionBudget")[name]
    assert budget["selector"] == deployment["selector"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert 1 <= budget["maxUnavailable"] < deployment["replicas"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_service_reaches_the_web_app() -> None:
    (service,) = documents("Service").values()
    assert service["selector"] == documents("Deployment")["shop-web"]["selector"]["matchLabels"]
    (container,) = pod("shop-web")["containers"]
    (port,) = container["ports"]
    assert service["ports"][0]["targetPort"] == port["name"] == container["readinessProbe"]["httpGet"]["port"]
    assert f"0.0.0.0:{port['containerPort']}" in container["command"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.service" for name in ("bullpen-worker", "shop-web")]
    for file in files:
        text = re.sub(
            r"^(ExecStart(?:Pre)?)=\S+", r"\1=/bin/true", (DEPLOY / file.name).read_text(), flags=re.MULTILINE
        )
        file.write_text(text.replace("User=shop\n", "").replace("network-online.target", "basic.target"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=50, check=False
    )
    about_them = [
        line for line in (done.stdout + done.stderr).splitlines() if "bullpen-worker" in line or "shop" in line
    ]
    assert about_them == []


def test_each_way_restarts_a_worker_that_hangs() -> None:
    settings = {name: unit()[name] for name in ("Type", "NotifyAccess", "Restart")}
    assert settings == {"Type": "notify", "NotifyAccess": "all", "Restart": "on-failure"}
    assert seconds(unit()["WatchdogSec"]) >= 30  # as the probes
    worker = services()["worker"]
    assert (worker["init"], worker["restart"]) == (True, "unless-stopped")  # healthcheck.py cannot kill process 1
    (container,) = pod()["containers"]
    assert "--ready" not in container["livenessProbe"]["exec"]["command"]  # a worker that stops is not killed
    for name in ("startupProbe", "readinessProbe"):
        assert "--ready" in container[name]["exec"]["command"]
    timeouts = [container[name]["timeoutSeconds"] for name in container if name.endswith("Probe")]
    assert [*timeouts, seconds(worker["healthcheck"]["timeout"])] == [10] * 4


@pytest.mark.parametrize("processes", [1, 2])
def test_the_health_check_for_docker_kills_a_worker_that_hangs(folder: Folder, processes: int) -> None:
    command = services()["worker"]["healthcheck"]["test"]
    assert command == ["CMD", "python", "healthcheck.py", "60"]
    shutil.copy(DEPLOY / "healthcheck.py", folder.path)
    with folder.worker("--processes", str(processes), "--health", "health") as worker:
        worker.seen("serves default", processes)
        assert eventually(lambda: probe(folder, "--ready") == 0)
        assert health_check(folder, 60) == (0, "well\n")
        hung = int(json.loads(folder.run("probe", "health", "--json").stdout)["processes"]["worker-1"]["pid"])
        os.kill(hung, signal.SIGSTOP)
        assert eventually(lambda: probe(folder, "--max-age", "1") == 1)
        code, told = health_check(folder, 1)
        assert code == 1
        assert re.match(r"worker-1 has not written for \d+ s: killing it\n", told)
        if processes == 1:
            assert worker.ends() == -signal.SIGKILL  # and `restart` starts the container again
        else:
            worker.seen("serves default", processes + 1)
            assert eventually(lambda: probe(folder, "--max-age", "1") == 0)
            assert worker.stop() == 0


def health_check(folder: Folder, max_age: float) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "healthcheck.py", str(max_age)],
        cwd=folder.path,
        env=environment(BULLPEN_HEALTH="health", PATH=path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_worker_that_still_starts_is_not_killed(folder: Folder) -> None:
    shutil.copy(DEPLOY / "healthcheck.py", folder.path)
    code, told = health_check(folder, 1)
    assert (code, told.startswith("no health files in health")) == (1, True)


def test_the_app_of_the_files_runs(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "web.py", tmp_path / "web.py")
    folder = Folder(tmp_path, (DEPLOY / "app.py").read_text())
    with folder.worker("--concurrency", "50") as worker:
        worker.runs()
        assert folder.python("print(send_email.enqueue('ada').result(30))") == "sent to ada\n"
        assert folder.python(POST) == "202 Accepted sent to grace\n200 OK well\n404 Not Found POST /mails/ADDRESS\n"
        assert worker.stop() == 0


POST = """
from wsgiref.util import setup_testing_defaults
from web import application

def ask(method, path):
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path}
    setup_testing_defaults(environ)
    told = []
    (body,) = application(environ, lambda status, headers: told.append(status))
    return told[0], body.decode()

status, id = ask("POST", "/mails/grace")
print(status, queue.job(id).result(30))
print(*ask("GET", "/health"))
print(*ask("GET", "/mails/grace"))
"""

"""Two hosts with workers and one with a server, joined by cables that can be pulled.

A host here is a network namespace with a cable (veth) to this one, where the server is. That needs root and the program
`ip` of iproute2 (Debian: `apt install iproute2`). Without them the test is skipped; in CI it fails.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bullpen.tasks.model.task import SUCCESS
from tests.faults.proxy import Proxy
from tests.faults.storm import WITHIN, Storm

pytestmark = pytest.mark.anyio


class Hosts:
    """Two hosts, 1 and 2, on one network with this host."""

    def __init__(self) -> None:
        self._name = f"bp{secrets.token_hex(3)}"
        self._net = f"198.18.{secrets.randbelow(256)}"  # TEST-NET: addresses for documentation and tests
        self.here = f"{self._net}.254"

    def __enter__(self) -> Hosts:
        try:
            ip("link", "add", self._name, "type", "bridge")
            ip("addr", "add", f"{self.here}/24", "dev", self._name)
            ip("link", "set", self._name, "up")
            for number in (1, 2):
                host = self._host(number)
                ip("netns", "add", host)
                ip("link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", host)
                ip("link", "set", host, "master", self._name, "up")
                ip("-n", host, "addr", "add", f"{self._net}.{number}/24", "dev", "eth0")
                ip("-n", host, "link", "set", "eth0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in (1, 2):
            ip("netns", "del", self._host(number), check=False)
        ip("link", "del", self._name, check=False)

    def on(self, number: int) -> list[str]:
        """The arguments that run a command on that host."""
        return ["ip", "netns", "exec", self._host(number)]

    def pull_cable(self, number: int) -> None:
        ip("link", "set", self._host(number), "down")

    def plug_cable(self, number: int) -> None:
        ip("link", "set", self._host(number), "up")

    def _host(self, number: int) -> str:
        return f"{self._name}-{number}"


def ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"ip {' '.join(words)}: {done.stderr}"


def what_is_missing() -> str:
    if shutil.which("ip") is None:
        return "there is no program `ip`: install iproute2"
    if os.getuid() != 0:
        return "only root can make namespaces"
    probe = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True, text=True)
    return f"namespaces cannot be made here: {probe.stderr}" if probe.returncode else ""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    missing = what_is_missing()
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    with Hosts() as made:
        yield made


@pytest.mark.parametrize("address", ["postgres"], indirect=True)
async def test_a_host_whose_cable_is_pulled_loses_its_tasks_to_the_other_and_continues_when_it_is_back(
    tmp_path: Path, hosts: Hosts, address: str
) -> None:
    lease = 1.5
    async with Storm(tmp_path, address, lease=lease) as storm, Proxy(address, hosts.here) as server:
        cut_off = storm.start(address=server.address, host="1", within=hosts.on(1))
        jobs = [await storm.queue.aenqueue("grind", [2 * lease]) for _ in range(2)]
        for job in jobs:
            assert await storm.held_by(job.id, 1) == cut_off
        hosts.pull_cable(1)
        storm.note("fault", "storm", "a cable is pulled")
        other = storm.start(address=server.address, host="2", within=hosts.on(2))
        for job in jobs:
            assert await storm.held_by(job.id, 2) == other
        hosts.plug_cable(1)
        storm.note("fault", "storm", "calm")
        await storm.all_ended()
        tasks = await storm.storage.get([job.id for job in jobs])
        assert [(task.status, task.attempt, task.worker) for task in tasks if task] == [(SUCCESS, 2, other)] * 2
        hosts.pull_cable(2)
        storm.note("fault", "storm", "the other one is pulled")
        last = await storm.queue.aenqueue("nap", [0.0])
        await last.aresult(timeout=WITHIN)  # by the host that is back
        hosts.plug_cable(2)
        storm.note("fault", "storm", "calm")
        await storm.stop()
        await storm.judged()

